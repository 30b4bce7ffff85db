// Checks a schedule by an independent replay, the oracle of every test.
#ifndef COOP_CORE_SCHEDULE_VALIDATOR_H_
#define COOP_CORE_SCHEDULE_VALIDATOR_H_

#include <vector>

#include "core/graph/graph.h"
#include "core/schedule/claims.h"
#include "core/schedule/schedule.h"
#include "core/schedule/violation.h"

namespace coop {

// Everything wrong with `schedule`, in the order of its steps; empty if valid.
// Shares no code with the simulator or the pool. O(n log n).
[[nodiscard]] std::vector<ViolationReport> Validate(
    const Graph& graph, const Schedule& schedule, const Limits& limits = {});

}  // namespace coop

#endif  // COOP_CORE_SCHEDULE_VALIDATOR_H_
