// Copyright 2026 The gemma_mtp_ros Authors
// SPDX-License-Identifier: Apache-2.0

#include "ask_model_action.hpp"

#include <memory>
#include <string>

#include "behaviortree_cpp/bt_factory.h"

BT_REGISTER_NODES(factory)
{
  BT::NodeBuilder builder =
    [](const std::string & name, const BT::NodeConfiguration & config) {
      return std::make_unique<gemma_mtp_bt::AskModelAction>(name, "/gemma_mtp/generate", config);
    };
  factory.registerBuilder<gemma_mtp_bt::AskModelAction>("AskModel", builder);
}
