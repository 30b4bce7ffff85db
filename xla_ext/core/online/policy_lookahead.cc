// Lookahead: Coop with exact next uses in place of staleness.
//
// Coop decides online and takes the time since the last access for a guess of
// the time to the next one. Here the whole program is known: the regret of an
// eviction is cost / (time to the next need), as in Belady's rule.

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "core/online/neighbour_cost.h"
#include "core/online/policy_window.h"

namespace coop {
namespace {

// When a tensor is needed next: when it is read or, sooner, when an evicted
// tensor made from it is. What no longer exists to the program (it has let go
// of it) may be needed on behalf of others all the same.
class NextNeed {
 public:
  explicit NextNeed(const State& state)
      : state_(state),
        is_evicted_(At(state.graph.num_tensors()), 0),
        known_in_(At(state.graph.num_tensors()), 0),
        need_(At(state.graph.num_tensors()), kNever) {}

  void OnEvict(TensorIdx t) { Change(t, 1); }
  void OnMake(TensorIdx t) { Change(t, 0); }

  // kNever if there is no need.
  Position Of(TensorIdx t) {
    if (std::exchange(position_, state_.position) != state_.position) ++round_;
    // An explicit stack: chains may be 100,000 operations deep.
    stack_.emplace_back(t, false);
    while (!stack_.empty()) {
      const auto [u, is_after_children] = stack_.back();
      stack_.pop_back();
      if (IsKnown(u)) continue;
      if (is_after_children) {
        Settle(u);
        continue;
      }
      stack_.emplace_back(u, true);
      ForEachChild(u, [&](TensorIdx child) {
        if (!IsKnown(child)) stack_.emplace_back(child, false);
      });
    }
    return need_[At(t)];
  }

 private:
  void Change(TensorIdx t, uint8_t is_evicted) {
    is_evicted_[At(t)] = is_evicted;
    ++round_;
  }

  bool IsKnown(TensorIdx t) const { return known_in_[At(t)] == round_; }

  void Settle(TensorIdx t) {
    Position need = state_.graph.next_use(t, position_);
    ForEachChild(t, [&](TensorIdx child) {
      need = std::min(need, need_[At(child)]);
    });
    need_[At(t)] = need;
    known_in_[At(t)] = round_;
  }

  template <typename Visit>
  void ForEachChild(TensorIdx t, Visit visit) const {
    for (const OpIdx op : state_.graph.consumers(t)) {
      if (op > position_) break;  // Has not run: nothing of it is evicted.
      for (const TensorIdx u : state_.graph.outputs(op)) {
        if (is_evicted_[At(u)]) visit(u);
      }
    }
  }

  const State& state_;
  std::vector<uint8_t> is_evicted_;
  Position position_ = kNone;
  // need_ is valid where known_in_ is the present round.
  std::vector<int64_t> known_in_;
  std::vector<Position> need_;
  std::vector<std::pair<TensorIdx, bool>> stack_;
  int64_t round_ = 1;
};

class LookaheadPolicy final : public WindowPolicy {
 public:
  explicit LookaheadPolicy(const State& state)
      : WindowPolicy(state),
        neighbours_(state.graph),
        next_need_(state),
        start_seconds_{0} {
    for (OpIdx op = 0; op < state.graph.num_ops(); ++op) {
      start_seconds_.push_back(start_seconds_.back() + state.graph.seconds(op));
    }
  }

  double Cost(TensorIdx t) override {
    const Position need = next_need_.Of(t);
    if (need == kNever) return 0;
    const Seconds seconds = neighbours_.Of(t);
    if (seconds == 0) return 0;
    const Seconds distance = start_seconds_[At(need)] -
                             start_seconds_[At(std::max<Position>(
                                 state_.position, 0))];
    if (distance <= 0) return std::numeric_limits<double>::infinity();
    return seconds / distance;
  }

  void OnEvict(TensorIdx t) override {
    neighbours_.OnEvict(t);
    next_need_.OnEvict(t);
  }

  void OnMake(TensorIdx t) override {
    neighbours_.OnMake(t);
    next_need_.OnMake(t);
  }

 private:
  NeighbourCost neighbours_;
  NextNeed next_need_;
  // Of the program, by position: when it starts if nothing is recomputed.
  std::vector<Seconds> start_seconds_;
};

}  // namespace

std::unique_ptr<Policy> MakeLookaheadPolicy(const State& state) {
  return std::make_unique<LookaheadPolicy>(state);
}

}  // namespace coop
