#include "core/search/recomputation_bound.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/graph/bounds.h"
#include "core/search/gaps.h"

namespace coop {
namespace {

// The rounds, by how much work one of them is.
constexpr int64_t kMostWork = 20'000'000;
constexpr int64_t kLeastRounds = 100;
constexpr int64_t kMostRounds = 3'000;
// Rounds without success after which steps are halved.
constexpr int kPatience = 20;
// What rounding may have added to a sum.
constexpr double kRounding = 0.000000001;

// A tensor that may be missing while the operations in (begin, end), both
// exclusive, run for the first time.
struct Item {
  OpIdx begin;
  OpIdx end;
  double bytes;
  Seconds seconds;
};

class Relaxation {
 public:
  Relaxation(const Graph& graph, Bytes capacity, Bytes alignment)
      : excess_(At(graph.num_ops()), 0) {
    const GapTable gaps(graph);
    std::vector<double> made(At(graph.num_ops()), 0);
    const auto size = [&](TensorIdx t) {
      return static_cast<double>(RoundUp(graph.bytes(t), alignment));
    };
    for (TensorIdx t = 0; t < graph.num_tensors(); ++t) {
      if (gaps.has_gaps(t) && graph.has_way_back(t)) {
        made[At(graph.producer(t))] += size(t);
      }
    }
    for (GapIdx gap = 0; gap < gaps.size(); ++gap) {
      const TensorIdx t = gaps.tensor(gap);
      if (!gaps.may_drop(gap) || gaps.is_behind_last_use(gap)) continue;
      if (!graph.has_way_back(t)) continue;
      const OpIdx begin = std::max<Position>(gaps.begin(gap), -1);
      const OpIdx end = std::min(gaps.end(gap), graph.num_ops());
      if (end - begin < 2) continue;
      // One run makes all outputs of an operation: they share what it takes.
      const OpIdx op = graph.producer(t);
      const Seconds seconds = graph.seconds(op) * size(t) / made[At(op)];
      items_.push_back({begin, end, size(t), seconds});
    }
    const Needs needs = FindNeeds(graph, alignment);
    std::vector<double> idle(At(graph.num_ops()) + 1, 0);
    for (const Item& item : items_) {
      idle[At(item.begin + 1)] += item.bytes;
      idle[At(item.end)] -= item.bytes;
    }
    double bytes = 0;
    for (OpIdx op = 0; op < graph.num_ops(); ++op) {
      bytes += idle[At(op)];
      excess_[At(op)] =
          bytes + static_cast<double>(needs.At(op, op) - capacity);
    }
  }

  Seconds Solve(Seconds known_seconds) {
    const auto num_ops = std::ssize(excess_);
    if (std::ranges::none_of(excess_, [](double e) { return e > 0; })) return 0;
    const int64_t rounds =
        std::clamp(kMostWork / (num_ops + std::ssize(items_)), kLeastRounds,
                   kMostRounds);
    std::vector<double> multipliers(excess_.size(), 0);
    double best = 0;
    double scale = 1;
    int num_stale = 0;
    for (int64_t round = 0; round < rounds; ++round) {
      const double bound = Evaluate(multipliers);
      if (bound > best) {
        best = bound;
        num_stale = 0;
      } else if (++num_stale > kPatience) {
        scale /= 2;
        num_stale = 0;
      }
      double norm = 0;
      for (size_t p = 0; p < excess_.size(); ++p) {
        if (multipliers[p] > 0 || short_[p] > 0) norm += short_[p] * short_[p];
      }
      // Polyak's step, towards what is known to be possible.
      const double to_go = known_seconds * (1 + kRounding) - bound;
      if (norm == 0 || to_go <= 0) break;
      const double step = scale * to_go / norm;
      for (size_t p = 0; p < excess_.size(); ++p) {
        multipliers[p] = std::max(0., multipliers[p] + step * short_[p]);
      }
    }
    return std::max(0., best * (1 - kRounding));
  }

 private:
  // The bound of `multipliers`; short_ is what is still missing at each
  // operation if all goes that pays.
  double Evaluate(const std::vector<double>& multipliers) {
    sums_.resize(multipliers.size() + 1);
    sums_[0] = 0;
    double bound = 0;
    for (size_t p = 0; p < multipliers.size(); ++p) {
      sums_[p + 1] = sums_[p] + multipliers[p];
      bound += multipliers[p] * excess_[p];
    }
    gone_.assign(multipliers.size() + 1, 0);
    for (const Item& item : items_) {
      const double price = sums_[At(item.end)] - sums_[At(item.begin + 1)];
      const double gain = item.bytes * price - item.seconds;
      if (gain <= 0) continue;
      bound -= gain;
      gone_[At(item.begin + 1)] += item.bytes;
      gone_[At(item.end)] -= item.bytes;
    }
    short_.resize(multipliers.size());
    double gone = 0;
    for (size_t p = 0; p < multipliers.size(); ++p) {
      gone += gone_[p];
      short_[p] = excess_[p] - gone;
    }
    return bound;
  }

  std::vector<Item> items_;
  std::vector<double> excess_;  // Bytes that must be missing, by operation.
  std::vector<double> sums_;
  std::vector<double> gone_;
  std::vector<double> short_;
};

}  // namespace

Seconds RecomputationBound(const Graph& graph, Bytes capacity, Bytes alignment,
                           Seconds known_seconds) {
  if (known_seconds <= 0 || graph.num_ops() == 0) return 0;
  return Relaxation(graph, capacity, alignment).Solve(known_seconds);
}

}  // namespace coop
