// The rules a caller's arrays must obey to be a Graph.
#ifndef COOP_CORE_GRAPH_GRAPH_CHECK_H_
#define COOP_CORE_GRAPH_GRAPH_CHECK_H_

#include "core/graph/graph.h"

namespace coop {

// Throws std::invalid_argument naming the array, the rule and the value.
void CheckGraphArrays(const GraphArrays& arrays);

}  // namespace coop

#endif  // COOP_CORE_GRAPH_GRAPH_CHECK_H_
