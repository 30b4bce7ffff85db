// The options of the search.
#ifndef COOP_CORE_SEARCH_OPTIONS_H_
#define COOP_CORE_SEARCH_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "core/base/common_options.h"
#include "core/base/deadline.h"
#include "core/base/types.h"
#include "core/search/gaps.h"

namespace coop {

struct SearchOptions {
  // The overhead limit is not looked at: what the plan found is worth is judged
  // by who asked for it.
  CommonOptions common;
  // Work allowed, in executions rolled out; what makes the search end. A count
  // rather than a time: the same plan on every machine.
  int64_t effort = 10'000'000;
  Deadline deadline{std::nullopt};  // Ends it earlier.
  // If given, such a part of the effort for improving a plan is left to exchange values
  // that it makes again for cheaper ones that it keeps.
  std::optional<int64_t> part_to_exchange;
  // How many values prices may ask for, and plans may read, while no plan keeps the
  // capacity. There may be none, and then plans are long, and dear to price.
  int64_t most_lookups = std::numeric_limits<int64_t>::max();
  // Nothing is made of a plan that takes so many times the program's time: it may
  // be on its way to recomputations of recomputations. Far above what a user would
  // allow, as a repair may pass through worse plans than it ends with.
  double most_overhead = 10;
  // By position, if not empty: so much of the capacity is not to be used while it
  // runs, or what is made again for it.
  std::vector<Bytes> reserved = {};
  // If given, the search goes from one plan that is accepted to the next; the plan to
  // start from must be. Adds what it did to `effort`.
  std::function<bool(const GapTable& gaps, const Decisions& decisions,
                     int64_t& effort)>
      accepts = nullptr;
  // Keep so few bytes alive wherever no single operation needs more; the
  // capacity stays the limit. One operation that needs nearly all of a pool
  // leaves the others room that they need not use; used, it would be room for a
  // compiler to fragment.
  std::optional<Bytes> preferred_bytes;
};

// Until there is a plan: what prices may ask for, to find one at all.
struct Lookups {
  int64_t here = 45'000'000;
  int64_t below = 17'000'000;  // In the rooms below.

  [[nodiscard]] bool IsSpent() const { return here <= 0 || below <= 0; }
};

// Of the search in a pool.
struct PoolSearchOptions {
  SearchOptions search;
  Lookups most_lookups;
  int64_t packing_effort = 0;
  int most_searches = 1;  // While there is no plan; see PoolSearch::Search.
  // The capacity limits the bytes alive; the offsets may take more.
  bool limits_live_bytes = false;

  [[nodiscard]] SearchOptions WithPartOfEffort(int64_t parts) const {
    SearchOptions options = search;
    options.effort /= parts;
    return options;
  }
};

}  // namespace coop

#endif  // COOP_CORE_SEARCH_OPTIONS_H_
