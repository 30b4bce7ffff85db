#include "core/search/checkpoints.h"

#include <algorithm>

namespace coop {

Checkpoints::Checkpoints(const Graph& graph, const GapTable& gaps,
                         const Rollout& unmodified)
    : graph_(graph),
      gaps_(gaps),
      idle_made_(At(graph.num_ops()) + 1, 0),
      carried_(At(graph.num_ops()) + 1, 0) {
  const auto live = unmodified.live_bytes();
  if (live.empty()) return;
  const auto worst = std::ranges::max_element(live) - live.begin();
  turn_ = unmodified.executions()[At(worst)].position;
  for (GapIdx gap = 0; gap < gaps.size(); ++gap) {
    const TensorIdx t = gaps.tensor(gap);
    const Position made = std::max<Position>(graph.producer(t), 0);
    if (CrossesTurn(gap)) {
      idle_made_[At(made)] += unmodified.Size(t);
      idle_bytes_ += unmodified.Size(t);
    } else if (gaps.end(gap) <= turn_) {
      carried_[At(std::max<Position>(gaps.begin(gap), 0))] +=
          unmodified.Size(t);
      carried_[At(gaps.end(gap))] -= unmodified.Size(t);
    }
  }
  for (size_t i = 1; i < carried_.size(); ++i) carried_[i] += carried_[i - 1];
}

std::vector<Position> Checkpoints::Boundaries(Bytes segment_bytes) const {
  std::vector<Position> boundaries;
  Bytes made = 0;
  Bytes made_behind = 0;  // Of it, behind the best end so far.
  Position best = kNone;
  for (Position p = 0; p < turn_; ++p) {
    made += idle_made_[At(p)];
    made_behind += idle_made_[At(p)];
    if (made < segment_bytes) continue;
    if (best == kNone || carried_[At(p)] < carried_[At(best)]) {
      best = p;
      made_behind = 0;
    }
    if (2 * made >= 3 * segment_bytes) {
      boundaries.push_back(best);
      made = made_behind;
      best = kNone;
    }
  }
  return boundaries;
}

Decisions Checkpoints::Every(Bytes segment_bytes) const {
  const std::vector<Position> boundaries = Boundaries(segment_bytes);
  std::vector<uint8_t> is_kept(At(graph_.num_tensors()), 0);
  for (GapIdx gap = 0; gap < gaps_.size(); ++gap) {
    if (gaps_.end(gap) > turn_) continue;
    const auto next =
        std::ranges::lower_bound(boundaries, gaps_.begin(gap));
    if (next != boundaries.end() && *next < gaps_.end(gap)) {
      is_kept[At(gaps_.tensor(gap))] = 1;
    }
  }
  Decisions decisions = gaps_.KeepAll();
  std::vector<uint8_t> crosses(At(graph_.num_tensors()), 0);
  for (GapIdx gap = 0; gap < gaps_.size(); ++gap) {
    if (!gaps_.may_drop(gap)) continue;
    const TensorIdx t = gaps_.tensor(gap);
    if (CrossesTurn(gap)) {
      crosses[At(t)] = 1;
      decisions[At(gap)] = is_kept[At(t)] ? kKeep : kKeepToEnd;
    } else if (gaps_.is_behind_last_use(gap)) {
      // Nobody reads it on the way back; recomputations may.
      const bool is_source = is_kept[At(t)] && !crosses[At(t)];
      decisions[At(gap)] = is_source ? kKeep : kKeepToEnd;
    }
  }
  return decisions;
}

}  // namespace coop
