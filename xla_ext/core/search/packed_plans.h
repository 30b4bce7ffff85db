// Packed plans: a search whose every plan packs, each near the places of the last.
#ifndef COOP_CORE_SEARCH_PACKED_PLANS_H_
#define COOP_CORE_SEARCH_PACKED_PLANS_H_

#include <vector>

#include "core/base/types.h"
#include "core/graph/graph.h"
#include "core/packing/packing.h"
#include "core/schedule/schedule.h"
#include "core/search/gaps.h"
#include "core/search/options.h"
#include "core/search/search.h"
#include "core/search/static_schedule.h"

namespace coop {

// The blocks of a plan and where they are.
struct Places {
  std::vector<BlockName> names;
  std::vector<Offset> offsets;
};

struct WrittenPlan {
  Schedule schedule;
  Places places;
};

// A plan packed with `options`; where that takes more than `capacity`, its blocks
// are fitted into that, if they can be with so much effort.
[[nodiscard]] WrittenPlan WritePlan(const Graph& graph, const SearchResult& found,
                                    const PackingOptions& options,
                                    Bytes capacity);

// A plan with the places of its blocks.
struct PackedPlan {
  SearchResult found;
  Places places;
  Schedule schedule;
};

// Plans that pack into `capacity`, from `plan`, which does, on: replaced by the best
// of them. A plan that keeps so many bytes alive mostly packs if it differs little from
// one that packs: most of its blocks have their places, and the others are fitted
// in.
void SearchPackedPlans(const Graph& graph, Bytes capacity,
                       const SearchOptions& options, PackedPlan& plan);

}  // namespace coop

#endif  // COOP_CORE_SEARCH_PACKED_PLANS_H_
