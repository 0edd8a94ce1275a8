// Copyright 2026 The gemma_mtp_ros Authors
// SPDX-License-Identifier: Apache-2.0

#include "isa.h"

#include <atomic>
#include <cstring>

#include "pool.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace gmtp {

const Isa* const* available() {
  static const Isa* const* const list = [] {
    static const Isa* found[4] = {};
    int count = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("f16c");
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vnni")) {
      found[count++] = &isa_avx512;
    }
    if (avx2) found[count++] = &isa_avx2;
#elif defined(__aarch64__)
    constexpr unsigned long DOTPROD = 1ul << 20;  // HWCAP_ASIMDDP
    if (getauxval(AT_HWCAP) & DOTPROD) found[count++] = &isa_dotprod;
#endif
    found[count] = &isa_generic;
    return found;
  }();
  return list;
}

namespace {

std::atomic<const Isa*> chosen{nullptr};

}  // namespace

const Isa& isa() {
  const Isa* set = chosen.load(std::memory_order_relaxed);
  if (!set) {
    set = available()[0];
    chosen.store(set);
  }
  return *set;
}

}  // namespace gmtp

using namespace gmtp;

int32_t gmtp_abi(void) { return GMTP_ABI; }

const char* gmtp_isa(void) { return isa().name; }

int32_t gmtp_select(const char* name) {
  for (const Isa* const* set = available(); *set; ++set) {
    if (std::strcmp((*set)->name, name) == 0) {
      chosen.store(*set);
      return 1;
    }
  }
  return 0;
}

void gmtp_set_threads(int32_t count) { set_threads(count); }

int32_t gmtp_threads(void) { return threads(); }
