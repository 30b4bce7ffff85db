// Coop: evict the cheapest run of neighbours, cost / staleness each.
//
// Coop (NeurIPS 2023), section 3.3. The size of a tensor is not in the
// heuristic: the window takes care of the layout.

#include "core/neighbour_cost.h"
#include "core/policy.h"
#include "core/staleness.h"
#include "core/window.h"

namespace coop {
namespace {

class CoopPolicy final : public Policy {
 public:
  explicit CoopPolicy(const State& state)
      : state_(state), neighbours_(state.graph) {}

  double Cost(TensorIdx t) override {
    return PerStaleness(state_, t, neighbours_.Of(t));
  }

  std::optional<Eviction> Choose(Bytes bytes) override {
    window_pieces_.clear();
    owners_.clear();
    const Pool& pool = state_.pool;
    for (PieceIdx i = pool.first(); i != kNone; i = pool.piece(i).next) {
      const Piece& piece = pool.piece(i);
      const bool is_barrier = !piece.is_free && !state_.IsEvictableNow(piece);
      const bool is_candidate = !piece.is_free && !is_barrier;
      const double cost = is_candidate ? Cost(piece.owner) : 0;
      pieces_examined_ += is_candidate ? 1 : 0;
      window_pieces_.emplace_back(piece.bytes, cost, is_barrier);
      owners_.push_back(piece.owner);
    }

    const auto window = search_.Find(window_pieces_, bytes);
    if (!window) return std::nullopt;
    Eviction eviction{.victims = {}, .cost = window->cost};
    for (size_t i = window->begin; i < window->end; ++i) {
      if (owners_[i] != kNone) eviction.victims.push_back(owners_[i]);
    }
    return eviction;
  }

  void OnEvict(TensorIdx t) override { neighbours_.OnEvict(t); }
  void OnMake(TensorIdx t) override { neighbours_.OnMake(t); }

 private:
  const State& state_;
  NeighbourCost neighbours_;
  WindowSearch search_;
  // Reused from search to search.
  std::vector<WindowPiece> window_pieces_;
  std::vector<int64_t> owners_;
};

}  // namespace

std::unique_ptr<Policy> MakeCoopPolicy(const State& state) {
  return std::make_unique<CoopPolicy>(state);
}

}  // namespace coop
