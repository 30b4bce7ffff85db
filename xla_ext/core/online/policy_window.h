// Evict the cheapest run of neighbours, whatever a tensor's cost is.
#ifndef COOP_CORE_ONLINE_POLICY_WINDOW_H_
#define COOP_CORE_ONLINE_POLICY_WINDOW_H_

#include <optional>
#include <vector>

#include "core/base/types.h"
#include "core/online/policy.h"
#include "core/online/state.h"
#include "core/online/window.h"

namespace coop {

// Coop (NeurIPS 2023), section 3.3. The size of a tensor need not be in its
// cost: the window takes care of the layout.
class WindowPolicy : public Policy {
 public:
  explicit WindowPolicy(const State& state) : state_(state) {}

  std::optional<Eviction> Choose(Bytes bytes) final {
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

 protected:
  const State& state_;

 private:
  WindowSearch search_;
  // Reused from search to search.
  std::vector<WindowPiece> window_pieces_;
  std::vector<int64_t> owners_;
};

}  // namespace coop

#endif  // COOP_CORE_ONLINE_POLICY_WINDOW_H_
