# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Asks the node and prints the answer as it comes: python3 examples/generate_client.py "..." """

import sys
import uuid

import rclpy
from rclpy.action import ActionClient
from unique_identifier_msgs.msg import UUID

from gemma_mtp_ros.action import Generate
from gemma_mtp_ros.msg import TokenChunk

rclpy.init()
node = rclpy.create_node("asker")
mine = UUID(uuid=list(uuid.uuid4().bytes))


def on_chunk(chunk):
    if chunk.goal_id == mine:
        print(chunk.text, end="", flush=True)


node.create_subscription(TokenChunk, "/gemma_mtp/tokens", on_chunk, 1000)
client = ActionClient(node, Generate, "/gemma_mtp/generate")
client.wait_for_server()
goal = Generate.Goal(prompt=" ".join(sys.argv[1:]) or "Bring Anna the red cup from the kitchen.")
sent = client.send_goal_async(goal, goal_uuid=mine)
rclpy.spin_until_future_complete(node, sent)
if not sent.result().accepted:
    sys.exit("rejected: the node is not active (is it still loading?)")
ended = sent.result().get_result_async()
rclpy.spin_until_future_complete(node, ended)
result = ended.result().result  # result.text is the whole answer
print(f"\n{result.error_msg or f'{result.stats.tokens_per_second:.0f} tokens/s'}")
