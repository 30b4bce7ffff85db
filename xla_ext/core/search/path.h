// A path of plans for ever less room, each repaired from the one before.
#ifndef COOP_CORE_SEARCH_PATH_H_
#define COOP_CORE_SEARCH_PATH_H_

#include <vector>

#include "core/base/types.h"
#include "core/graph/graph.h"
#include "core/search/gaps.h"
#include "core/search/options.h"
#include "core/search/plan.h"

namespace coop {

// From the plan that keeps everything down to somewhat less than `capacity`, in
// small steps: few decisions are made at once, so that their prices are right. A
// repair that has a long way to go at once may end in recomputations of
// recomputations. The last of these plans, by the decisions of
// `gaps`; options.preferred_bytes is left alone.
[[nodiscard]] std::vector<SearchPlan> PathOfPlans(const Graph& graph,
                                                  const GapTable& gaps,
                                                  Bytes capacity,
                                                  const SearchOptions& options);

}  // namespace coop

#endif  // COOP_CORE_SEARCH_PATH_H_
