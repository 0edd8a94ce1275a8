// Copyright 2026 The gemma_mtp_ros Authors
// SPDX-License-Identifier: Apache-2.0

#include "pool.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace gmtp {
namespace {

constexpr int MAX_THREADS = 64;
constexpr int PIECES_A_THREAD = 4;
// A worker watches for the next call this long before it sleeps: about the pause between the
// products of one pass.
constexpr std::chrono::microseconds SPIN{60};

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

class Pool {
 public:
  explicit Pool(int count) : count_(count) {}

  int count() const { return count_; }

  void resize(int count) {
    std::lock_guard<std::mutex> call(call_);
    count_ = count;
    if (static_cast<int>(workers_.size()) > count - 1) stop();
  }

  bool try_run(int64_t total, int64_t grain, Task task, const void* context) {
    std::unique_lock<std::mutex> call(call_, std::try_to_lock);
    if (!call.owns_lock()) return false;
    start();
    task_ = task;
    context_ = context;
    total_ = total;
    const int64_t share = total / (static_cast<int64_t>(count_) * PIECES_A_THREAD);
    piece_ = std::max<int64_t>({1, grain, share});
    if (piece_ > 8) piece_ = (piece_ + 7) / 8 * 8;  // whole tiles of outputs
    next_.store(0, std::memory_order_relaxed);
    pending_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
    generation_.fetch_add(1);
    if (sleepers_.load() > 0) {
      std::lock_guard<std::mutex> lock(sleep_);
      wake_.notify_all();
    }
    work();
    for (int turns = 0; pending_.load(std::memory_order_acquire) != 0; ++turns) {
      if (turns < 4096) {
        relax();
      } else {
        std::this_thread::yield();
      }
    }
    return true;
  }

 private:
  void work() {
    for (;;) {
      const int64_t begin = next_.fetch_add(piece_, std::memory_order_relaxed);
      if (begin >= total_) return;
      task_(context_, begin, std::min(total_, begin + piece_));
    }
  }

  void start() {
    while (static_cast<int>(workers_.size()) < count_ - 1) {
      const uint32_t seen = generation_.load();
      workers_.emplace_back([this, seen] { serve(seen); });
    }
  }

  void stop() {
    stopping_.store(true);
    generation_.fetch_add(1);
    {
      std::lock_guard<std::mutex> lock(sleep_);
      wake_.notify_all();
    }
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
    stopping_.store(false);
  }

  bool changed_soon(uint32_t seen) {
    const auto end = std::chrono::steady_clock::now() + SPIN;
    do {
      for (int i = 0; i < 32; ++i) {
        if (generation_.load(std::memory_order_acquire) != seen) return true;
        relax();
      }
    } while (std::chrono::steady_clock::now() < end);
    return false;
  }

  void serve(uint32_t seen) {
    for (;;) {
      if (!changed_soon(seen)) {
        std::unique_lock<std::mutex> lock(sleep_);
        sleepers_.fetch_add(1);
        wake_.wait(lock, [&] { return generation_.load() != seen; });
        sleepers_.fetch_sub(1);
      }
      seen = generation_.load(std::memory_order_acquire);
      if (stopping_.load()) return;
      work();
      pending_.fetch_sub(1, std::memory_order_release);
    }
  }

  std::mutex call_;  // held for the length of a call
  std::mutex sleep_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
  std::atomic<uint32_t> generation_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<int> pending_{0};
  std::atomic<int64_t> next_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<int> count_;
  Task task_ = nullptr;
  const void* context_ = nullptr;
  int64_t total_ = 0;
  int64_t piece_ = 1;
};

// Never destroyed: a worker may still wait on it while the process exits. A forked child has the
// object but not the threads, so it gets a new one.
std::atomic<Pool*> pool{nullptr};

void forget_threads() { pool.store(new Pool(pool.load()->count())); }

Pool& instance() {
  static const bool ready = [] {
    pool.store(new Pool(1));
    pthread_atfork(nullptr, nullptr, forget_threads);
    return true;
  }();
  (void)ready;
  return *pool.load();
}

}  // namespace

int threads() { return instance().count(); }

void set_threads(int count) { instance().resize(std::clamp(count, 1, MAX_THREADS)); }

void parallel_for(int64_t total, int64_t grain, Task task, const void* context) {
  if (total <= 0) return;
  Pool& threads = instance();
  if (total <= grain || threads.count() == 1 || !threads.try_run(total, grain, task, context)) {
    task(context, 0, total);
  }
}

}  // namespace gmtp
