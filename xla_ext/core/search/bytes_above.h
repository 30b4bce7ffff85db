// Where a schedule ends above a capacity.
#ifndef COOP_CORE_SEARCH_BYTES_ABOVE_H_
#define COOP_CORE_SEARCH_BYTES_ABOVE_H_

#include <vector>

#include "core/base/types.h"
#include "core/graph/graph.h"
#include "core/schedule/schedule.h"

namespace coop {

// By position: how far above `capacity` the highest block in use then ends.
[[nodiscard]] std::vector<Bytes> BytesAbove(const Graph& graph,
                                            const Schedule& schedule,
                                            Bytes capacity);

}  // namespace coop

#endif  // COOP_CORE_SEARCH_BYTES_ABOVE_H_
