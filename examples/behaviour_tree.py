# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Asks for a plan from a py_trees behaviour tree: python3 examples/behaviour_tree.py "..." """

import sys

import py_trees
import rclpy

from gemma_mtp_ros.demo.evaluate import extract_plan
from gemma_mtp_ros.ros.behaviour import AskModel

rclpy.init()
node = rclpy.create_node("tree")
board = py_trees.blackboard.Client(name="main")
board.register_key("prompt", access=py_trees.common.Access.WRITE)
board.register_key("answer/json", access=py_trees.common.Access.READ)
board.prompt = " ".join(sys.argv[1:]) or "Bring Anna the red cup from the kitchen."

ask = AskModel("ask", parse=extract_plan, timeout_s=20.0)
tree = py_trees.trees.BehaviourTree(ask)
tree.setup(node=node)
while tree.root.status not in (py_trees.common.Status.SUCCESS, py_trees.common.Status.FAILURE):
    rclpy.spin_once(node, timeout_sec=0.02)
    tree.tick()
print(f"{ask.status.name}: {ask.feedback_message}")
for step in board.get("answer/json") or ():
    print(step)
tree.shutdown()
