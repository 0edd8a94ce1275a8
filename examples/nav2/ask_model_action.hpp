// Copyright 2026 The gemma_mtp_ros Authors
// SPDX-License-Identifier: Apache-2.0

#ifndef GEMMA_MTP_BT__ASK_MODEL_ACTION_HPP_
#define GEMMA_MTP_BT__ASK_MODEL_ACTION_HPP_

#include <string>
#include <vector>

#include "gemma_mtp_ros/action/generate.hpp"
#include "gemma_mtp_ros/msg/tool_call.hpp"
#include "nav2_behavior_tree/bt_action_node.hpp"

namespace gemma_mtp_bt
{

/**
 * @brief Asks the model and waits for the answer; for BehaviorTree.CPP 4 and Nav2 on ROS 2 Jazzy.
 *
 * SUCCESS only where the model ended its answer or calls tools; an answer that was cut off, refused
 * or canceled is FAILURE, with `error_code_id` and `error_msg` as in the action's result. Halting
 * cancels the goal (BtActionNode does that).
 */
class AskModelAction : public nav2_behavior_tree::BtActionNode<gemma_mtp_ros::action::Generate>
{
  using Action = gemma_mtp_ros::action::Generate;
  using ActionResult = Action::Result;

public:
  AskModelAction(
    const std::string & xml_tag_name, const std::string & action_name,
    const BT::NodeConfiguration & conf)
  : BtActionNode<Action>(xml_tag_name, action_name, conf)
  {
  }

  void on_tick() override
  {
    if (!getInput("prompt", goal_.prompt)) {
      should_send_goal_ = false;
      report(ActionResult::INVALID_GOAL, "the port prompt has no value");
      return;
    }
    getInput("response_schema", goal_.response_schema);
    getInput("tools", goal_.tools);
    getInput("tool_choice", goal_.tool_choice);
    getInput("session_id", goal_.session_id);
    getInput("max_new_tokens", goal_.sampling.max_new_tokens);
    getInput("temperature", goal_.sampling.temperature);
    double time_allowance = 0.0;
    getInput("time_allowance", time_allowance);
    goal_.timeout = rclcpp::Duration::from_seconds(time_allowance);
  }

  BT::NodeStatus on_success() override
  {
    const auto reason = result_.result->finish_reason;
    if (reason != ActionResult::FINISH_STOP && reason != ActionResult::FINISH_TOOL_CALLS) {
      report(ActionResult::NONE, "the answer was cut off; raise max_new_tokens");
      return BT::NodeStatus::FAILURE;
    }
    setOutput("text", result_.result->text);
    setOutput("tool_calls", result_.result->tool_calls);
    report(ActionResult::NONE, "");
    return BT::NodeStatus::SUCCESS;
  }

  BT::NodeStatus on_aborted() override
  {
    report(result_.result->error_code, result_.result->error_msg);
    return BT::NodeStatus::FAILURE;
  }

  // Also called while halting, where there may be no result.
  BT::NodeStatus on_cancelled() override
  {
    report(ActionResult::CANCELED, "the goal was canceled");
    return BT::NodeStatus::FAILURE;
  }

  static BT::PortsList providedPorts()
  {
    return providedBasicPorts(
      {
        BT::InputPort<std::string>("prompt", "What is asked: one user turn"),
        BT::InputPort<std::string>("response_schema", "", "JSON Schema of the answer"),
        BT::InputPort<std::string>("tools", "", "JSON array of functions the model may call"),
        BT::InputPort<std::string>("tool_choice", "", "auto, none, required or a name"),
        BT::InputPort<std::string>("session_id", "", "Pins the cache of a conversation"),
        BT::InputPort<int>("max_new_tokens", -1, "Token limit; -1: the node's"),
        BT::InputPort<float>("temperature", -1.0f, "0: greedy; -1: the node's"),
        BT::InputPort<double>("time_allowance", 0.0, "Seconds to the end; 0: the node's"),
        BT::InputPort<std::chrono::milliseconds>("cancel_timeout"),
        BT::OutputPort<std::string>("text", "The answer"),
        BT::OutputPort<std::vector<gemma_mtp_ros::msg::ToolCall>>(
          "tool_calls", "The functions to call"),
        BT::OutputPort<ActionResult::_error_code_type>("error_code_id", "See Generate.action"),
        BT::OutputPort<std::string>("error_msg", "One sentence; empty: no error"),
      });
  }

private:
  void report(ActionResult::_error_code_type code, const std::string & said)
  {
    setOutput("error_code_id", code);
    setOutput("error_msg", said);
  }
};

}  // namespace gemma_mtp_bt

#endif  // GEMMA_MTP_BT__ASK_MODEL_ACTION_HPP_
