// Copyright 2026 The gemma_mtp_ros Authors
// SPDX-License-Identifier: Apache-2.0

// Persistent threads that share one call's work.

#pragma once

#include <cstdint>

namespace gmtp {

using Task = void (*)(const void* context, int64_t begin, int64_t end);

int threads();
void set_threads(int count);

// Calls task over [0, total) in pieces of at least `grain` items, on all threads when there is more
// than one piece. Pieces are taken as threads come free: results must not depend on the split. A
// second caller at the same time works alone.
void parallel_for(int64_t total, int64_t grain, Task task, const void* context);

}  // namespace gmtp
