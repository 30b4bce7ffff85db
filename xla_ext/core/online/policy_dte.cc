// DTE: evict the tensor that is cheapest per byte and per byte freed beside it.
//
// Dynamic tensor evicting of MegTaiChi (ICS 2022) as re-implemented for the
// comparison in Coop: cost / (staleness * (bytes + adjacent free bytes)), the
// single cheapest tensor at a time until a hole is large enough.

#include "core/online/neighbour_cost.h"
#include "core/online/policy.h"
#include "core/online/staleness.h"

namespace coop {
namespace {

class DtePolicy final : public Policy {
 public:
  explicit DtePolicy(const State& state)
      : state_(state), neighbours_(state.graph) {}

  double Cost(TensorIdx t) override {
    const Piece& piece = state_.pool.piece(state_.tensors[At(t)].piece);
    const Bytes hole =
        piece.bytes + FreeBytes(piece.previous) + FreeBytes(piece.next);
    return PerStaleness(state_, t, neighbours_.Of(t),
                        static_cast<double>(hole));
  }

  std::optional<Eviction> Choose(Bytes) override {
    std::optional<Eviction> best;
    const Pool& pool = state_.pool;
    for (PieceIdx i = pool.first(); i != kNone; i = pool.piece(i).next) {
      const Piece& piece = pool.piece(i);
      if (piece.is_free || !state_.IsEvictableNow(piece)) continue;
      ++pieces_examined_;
      const double cost = Cost(piece.owner);
      // Ties: the lowest address.
      if (!best || cost < best->cost) best = {{piece.owner}, cost};
    }
    return best;
  }

  void OnEvict(TensorIdx t) override { neighbours_.OnEvict(t); }
  void OnMake(TensorIdx t) override { neighbours_.OnMake(t); }

 private:
  Bytes FreeBytes(PieceIdx i) const {
    if (i == kNone || !state_.pool.piece(i).is_free) return 0;
    return state_.pool.piece(i).bytes;
  }

  const State& state_;
  NeighbourCost neighbours_;
};

}  // namespace

std::unique_ptr<Policy> MakeDtePolicy(const State& state) {
  return std::make_unique<DtePolicy>(state);
}

}  // namespace coop
