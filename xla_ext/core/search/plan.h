// A plan of the search: decisions, with the seconds and bytes they lead to.
#ifndef COOP_CORE_SEARCH_PLAN_H_
#define COOP_CORE_SEARCH_PLAN_H_

#include <limits>

#include "core/base/types.h"
#include "core/search/gaps.h"

namespace coop {

inline constexpr Seconds kNoLimit = std::numeric_limits<Seconds>::infinity();

// Decisions with the figures of their rollout.
struct SearchPlan {
  Decisions decisions;
  Seconds recompute_seconds = std::numeric_limits<Seconds>::infinity();
  Bytes peak_bytes = std::numeric_limits<Bytes>::max();
  Bytes bytes_above = std::numeric_limits<Bytes>::max();  // At most, anywhere.

  [[nodiscard]] bool IsFeasible() const { return bytes_above == 0; }
  [[nodiscard]] bool IsBetterThan(const SearchPlan& other) const {
    if (bytes_above != other.bytes_above) {
      return bytes_above < other.bytes_above;
    }
    return recompute_seconds < other.recompute_seconds;
  }
};

}  // namespace coop

#endif  // COOP_CORE_SEARCH_PLAN_H_
