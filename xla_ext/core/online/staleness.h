// Cost over staleness, the part all heuristics share.
#ifndef COOP_CORE_ONLINE_STALENESS_H_
#define COOP_CORE_ONLINE_STALENESS_H_

#include <limits>

#include "core/base/types.h"
#include "core/online/state.h"

namespace coop {

// `seconds` / (`scale` * time since the last access of `t`). What costs nothing
// is free to evict; what was used this very moment is infinitely dear.
[[nodiscard]] inline double PerStaleness(const State& state, TensorIdx t,
                                         Seconds seconds, double scale = 1) {
  if (seconds == 0) return 0;
  const Seconds staleness = state.clock - state.tensors[At(t)].last_access;
  if (staleness <= 0) return std::numeric_limits<double>::infinity();
  return seconds / (scale * staleness);
}

}  // namespace coop

#endif  // COOP_CORE_ONLINE_STALENESS_H_
