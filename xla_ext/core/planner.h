// The planners: a graph and a capacity to a schedule.
#ifndef COOP_CORE_PLANNER_H_
#define COOP_CORE_PLANNER_H_

#include "core/base/types.h"
#include "core/graph/graph.h"
#include "core/options.h"
#include "core/schedule/schedule.h"

namespace coop {

// A schedule for `graph` in a pool of `capacity` bytes, by options.policy: the
// simulated run of one of the online policies (online/simulator.h), or the best
// plan of the search (search/search.h) and them all. Of graphs with more than
// 10,000 operations, the plan of the search, if it finds one. Of the search also
// never worse than `known`, a valid schedule of the same graph with the same
// alignment, where that fits into `capacity`; nullptr: none is known.
[[nodiscard]] PlanResult Plan(const Graph& graph, Bytes capacity,
                              const PlanOptions& options,
                              const Schedule* known = nullptr);

}  // namespace coop

#endif  // COOP_CORE_PLANNER_H_
