// DTR: evict the tensor that is cheapest per byte and staleness, wherever it
// lies.
//
// Dynamic Tensor Rematerialization (ICLR 2021): h = cost / (bytes * staleness),
// the single cheapest tensor at a time until a hole is large enough; three
// notions of cost, see Neighbourhood. Ties go to the lowest address (simrd, the
// authors' simulator: to the last candidate in its list).

#include <algorithm>
#include <cmath>
#include <random>

#include "core/online/disjoint_set.h"
#include "core/online/policy.h"
#include "core/online/staleness.h"

namespace coop {
namespace {

// Seconds to charge for a tensor beyond its own.
class Neighbours {
 public:
  virtual ~Neighbours() = default;
  virtual Seconds Of(TensorIdx t) = 0;
  virtual void OnEvict(TensorIdx t) = 0;
  virtual void OnMake(TensorIdx t) = 0;
};

// h_local.
class NoNeighbours final : public Neighbours {
 public:
  Seconds Of(TensorIdx) override { return 0; }
  void OnEvict(TensorIdx) override {}
  void OnMake(TensorIdx) override {}
};

// Calls visit(u) for all tensors that are made from `t` or that `t` is made
// from, by one operation.
template <typename Visit>
void ForEachNeighbour(const Graph& graph, TensorIdx t, Visit visit) {
  for (const TensorIdx u : graph.inputs(graph.producer(t))) visit(u);
  for (const OpIdx op : graph.consumers(t)) {
    for (const TensorIdx u : graph.outputs(op)) visit(u);
  }
}

// h_eq: the sums of the distinct union-find classes of the direct neighbours.
class ComponentNeighbours final : public Neighbours {
 public:
  explicit ComponentNeighbours(const Graph& graph)
      : graph_(graph), node_(At(graph.num_tensors()), kNone) {}

  Seconds Of(TensorIdx t) override {
    roots_.clear();
    ForEachNeighbour(graph_, t, [&](TensorIdx u) {
      if (IsEvicted(u)) roots_.push_back(classes_.Root(node_[At(u)]));
    });
    std::ranges::sort(roots_);
    const auto repeated = std::ranges::unique(roots_);
    roots_.erase(repeated.begin(), repeated.end());
    Seconds sum = 0;
    for (const auto root : roots_) sum += classes_.Sum(root);
    return sum;
  }

  void OnEvict(TensorIdx t) override {
    const auto node = classes_.Add(Own(t));
    ForEachNeighbour(graph_, t, [&](TensorIdx u) {
      if (IsEvicted(u)) classes_.Merge(node_[At(u)], node);
    });
    node_[At(t)] = node;
  }

  void OnMake(TensorIdx t) override {
    if (!IsEvicted(t)) return;
    classes_.Leave(node_[At(t)], Own(t));
    node_[At(t)] = kNone;
  }

 private:
  bool IsEvicted(TensorIdx t) const { return node_[At(t)] != kNone; }
  Seconds Own(TensorIdx t) const { return graph_.seconds(graph_.producer(t)); }

  const Graph& graph_;
  DisjointSet classes_;
  std::vector<DisjointSet::Node> node_;  // kNone: not evicted.
  std::vector<DisjointSet::Node> roots_;
};

// h_DTR: e*, the evicted ancestors reachable through evicted parents and the
// evicted descendants reachable through evicted children. The seconds of an
// operation with several outputs count once.
class ExactNeighbours final : public Neighbours {
 public:
  explicit ExactNeighbours(const Graph& graph)
      : graph_(graph),
        is_evicted_(At(graph.num_tensors()), 0),
        counted_in_(At(graph.num_ops()), 0) {}

  Seconds Of(TensorIdx t) override {
    ++walk_;
    const OpIdx own = graph_.producer(t);
    counted_in_[At(own)] = walk_;  // Charged by the caller.
    Seconds sum = 0;
    // Up: the producers of evicted inputs.
    stack_ = {own};
    while (!stack_.empty()) {
      const OpIdx op = stack_.back();
      stack_.pop_back();
      for (const TensorIdx u : graph_.inputs(op)) {
        if (is_evicted_[At(u)]) Count(graph_.producer(u), sum);
      }
    }
    // Down: the consumers that have evicted outputs.
    const auto descend = [&](TensorIdx from) {
      for (const OpIdx op : graph_.consumers(from)) {
        if (HasEvictedOutput(op)) Count(op, sum);
      }
    };
    descend(t);
    while (!stack_.empty()) {
      const OpIdx op = stack_.back();
      stack_.pop_back();
      for (const TensorIdx u : graph_.outputs(op)) {
        if (is_evicted_[At(u)]) descend(u);
      }
    }
    return sum;
  }

  void OnEvict(TensorIdx t) override { is_evicted_[At(t)] = 1; }
  void OnMake(TensorIdx t) override { is_evicted_[At(t)] = 0; }

 private:
  bool HasEvictedOutput(OpIdx op) const {
    return std::ranges::any_of(graph_.outputs(op), [&](TensorIdx u) {
      return is_evicted_[At(u)] != 0;
    });
  }

  void Count(OpIdx op, Seconds& sum) {
    if (counted_in_[At(op)] == walk_) return;
    counted_in_[At(op)] = walk_;
    sum += graph_.seconds(op);
    stack_.push_back(op);
  }

  const Graph& graph_;
  std::vector<uint8_t> is_evicted_;
  std::vector<int64_t> counted_in_;  // Walk number, by operation.
  std::vector<OpIdx> stack_;
  int64_t walk_ = 0;
};

std::unique_ptr<Neighbours> MakeNeighbours(const Graph& graph,
                                           Neighbourhood neighbourhood) {
  switch (neighbourhood) {
    case Neighbourhood::kExact:
      return std::make_unique<ExactNeighbours>(graph);
    case Neighbourhood::kComponents:
      return std::make_unique<ComponentNeighbours>(graph);
    case Neighbourhood::kLocal:
      break;
  }
  return std::make_unique<NoNeighbours>();
}

class DtrPolicy final : public Policy {
 public:
  DtrPolicy(const State& state, const DtrOptions& options, uint64_t seed)
      : state_(state),
        neighbours_(MakeNeighbours(state.graph, options.neighbourhood)),
        ignore_small_(options.ignore_small),
        sampling_(options.sampling),
        random_(seed) {}

  double Cost(TensorIdx t) override {
    const Graph& graph = state_.graph;
    const Seconds seconds =
        graph.seconds(graph.producer(t)) + neighbours_->Of(t);
    return PerStaleness(state_, t, seconds,
                        static_cast<double>(graph.bytes(t)));
  }

  std::optional<Eviction> Choose(Bytes) override {
    FindCandidates();
    if (candidates_.empty()) return std::nullopt;
    const auto largest_stride = static_cast<uint64_t>(
        std::sqrt(static_cast<double>(candidates_.size())));
    Eviction best;
    for (size_t i = 0; i < candidates_.size(); i += Stride(largest_stride)) {
      ++pieces_examined_;
      const double cost = Cost(candidates_[i]);
      if (!best.victims.empty() && cost >= best.cost) continue;
      best = {{candidates_[i]}, cost};
    }
    return best;
  }

  void OnEvict(TensorIdx t) override { neighbours_->OnEvict(t); }
  void OnMake(TensorIdx t) override { neighbours_->OnMake(t); }

 private:
  // In address order. Small tensors only if there are no others.
  void FindCandidates() {
    candidates_.clear();
    const Pool& pool = state_.pool;
    Bytes total = 0;
    for (PieceIdx i = pool.first(); i != kNone; i = pool.piece(i).next) {
      const Piece& piece = pool.piece(i);
      if (piece.is_free || !state_.IsEvictableNow(piece)) continue;
      candidates_.push_back(piece.owner);
      total += state_.graph.bytes(piece.owner);
    }
    if (!ignore_small_ || candidates_.empty()) return;
    // Below 1 % of the average: bytes * 100 * count < total. The largest
    // tensor never is, so something remains.
    const auto scale = 100.0 * static_cast<double>(candidates_.size());
    std::erase_if(candidates_, [&](TensorIdx t) {
      return static_cast<double>(state_.graph.bytes(t)) * scale <
             static_cast<double>(total);
    });
  }

  // Not a std distribution: their results differ between libraries.
  size_t Stride(uint64_t largest) {
    return sampling_ ? 1 + random_() % std::max<uint64_t>(largest, 1) : 1;
  }

  const State& state_;
  std::unique_ptr<Neighbours> neighbours_;
  const bool ignore_small_;
  const bool sampling_;
  std::mt19937_64 random_;
  std::vector<TensorIdx> candidates_;
};

}  // namespace

std::unique_ptr<Policy> MakeDtrPolicy(const State& state,
                                      const DtrOptions& options,
                                      uint64_t seed) {
  return std::make_unique<DtrPolicy>(state, options, seed);
}

}  // namespace coop
