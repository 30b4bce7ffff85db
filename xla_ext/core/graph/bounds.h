// Lower bounds on the bytes of any schedule.
#ifndef COOP_CORE_GRAPH_BOUNDS_H_
#define COOP_CORE_GRAPH_BOUNDS_H_

#include <vector>

#include "core/base/types.h"
#include "core/graph/graph.h"

namespace coop {

struct LowerBound {
  Bytes bytes = 0;
  // Where that much must be in the pool at once: an operation, -1 for the
  // graph inputs together, num_ops for the outputs together.
  Position position = kNone;

  bool operator==(const LowerBound&) const = default;
};

// The most bytes that must be in the pool at one position, each tensor rounded
// up to `alignment`: what the operation reads and makes (a pair that may be in
// place once), its workspace, and every tensor still to be read that has no way
// back. It knows nothing of the layout, so the smallest feasible pool may be
// larger.
[[nodiscard]] LowerBound FindLowerBound(const Graph& graph, Bytes alignment);

// The same, apart: the bytes that an operation needs at the position where it
// runs.
struct Needs {
  std::vector<Bytes> stays;  // By position + 1: tensors without a way back.
  std::vector<Bytes> own;    // By operation: what it reads and makes besides.

  [[nodiscard]] Bytes At(OpIdx op, Position position) const {
    return stays[coop::At(position + 1)] + own[coop::At(op)];
  }
};
[[nodiscard]] Needs FindNeeds(const Graph& graph, Bytes alignment);

}  // namespace coop

#endif  // COOP_CORE_GRAPH_BOUNDS_H_
