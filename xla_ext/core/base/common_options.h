// The options that every planner has.
#ifndef COOP_CORE_BASE_COMMON_OPTIONS_H_
#define COOP_CORE_BASE_COMMON_OPTIONS_H_

#include <cstdint>
#include <optional>

#include "core/base/types.h"

namespace coop {

struct CommonOptions {
  Bytes alignment = 64;  // A power of two; every block is rounded up to it.
  uint64_t seed = 0;     // Of everything that is drawn at random.
  // Give up when the operations run so far, recomputations included, took this
  // many times what the whole program takes. A plan at a hopeless capacity can
  // otherwise go on for ever, recomputing.
  std::optional<double> overhead_limit;
};

}  // namespace coop

#endif  // COOP_CORE_BASE_COMMON_OPTIONS_H_
