// The state of a simulated run, shared by the simulator and its policy.
#ifndef COOP_CORE_ONLINE_STATE_H_
#define COOP_CORE_ONLINE_STATE_H_

#include <vector>

#include "core/base/types.h"
#include "core/graph/graph.h"
#include "core/online/pool.h"

namespace coop {

struct TensorState {
  Seconds last_access = 0;
  PieceIdx piece = kNone;    // kNone outside the pool and for no bytes.
  int64_t pins = 0;          // Reads still to come in the work at hand.
  bool is_resident = false;
  bool is_released = false;  // The program has let go of it.
  bool is_gone = false;      // Overwritten: never to come back.
};

struct State {
  State(const Graph& the_graph, Bytes capacity, Bytes alignment)
      : graph(the_graph),
        pool(capacity, alignment),
        tensors(At(the_graph.num_tensors())) {}

  [[nodiscard]] bool IsEvictableNow(TensorIdx t) const {
    const TensorState& tensor = tensors[At(t)];
    return tensor.pins == 0 && tensor.is_resident && graph.is_evictable(t);
  }

  // Of the owner of a used piece; kNone stands for a workspace.
  [[nodiscard]] bool IsEvictableNow(const Piece& piece) const {
    return piece.owner != kNone && IsEvictableNow(piece.owner);
  }

  const Graph& graph;
  Pool pool;
  std::vector<TensorState> tensors;
  // The operation whose turn it is, also while others run again for it; at the
  // end still the last one. kNone before the first.
  Position position = kNone;
  // Simulated: the seconds of every operation run so far.
  Seconds clock = 0;
};

}  // namespace coop

#endif  // COOP_CORE_ONLINE_STATE_H_
