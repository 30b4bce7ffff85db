// A schedule of another planner as decisions of the search.
#ifndef COOP_CORE_SEARCH_DECISIONS_OF_H_
#define COOP_CORE_SEARCH_DECISIONS_OF_H_

#include "core/graph/graph.h"
#include "core/schedule/schedule.h"
#include "core/search/gaps.h"

namespace coop {

// What is evicted in a gap is dropped in it, and what is made again stays unless
// it is evicted again. Close to the schedule, not the same: a rollout makes
// values again in its own order.
[[nodiscard]] Decisions DecisionsOf(const Graph& graph, const GapTable& gaps,
                                    const Schedule& schedule);

}  // namespace coop

#endif  // COOP_CORE_SEARCH_DECISIONS_OF_H_
