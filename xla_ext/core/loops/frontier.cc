#include "core/loops/frontier.h"

#include <span>
#include <utility>

#include "core/base/csr.h"
#include "core/loops/min_cut.h"
#include "core/loops/time_units.h"

namespace coop {
namespace {

// Values come first among the nodes, then equations.
using Nodes = std::vector<NodeIdx>;

constexpr NodeIdx kFirstNode = 2;  // Of a network, behind its source and its sink.

Csr<int64_t> ResultsOf(const RetentionProblem& problem) {
  std::vector<std::pair<int64_t, int64_t>> results;
  for (int64_t v = 0; v < std::ssize(problem.value_maker); ++v) {
    const OpIdx maker = problem.value_maker[At(v)];
    if (maker != kNone) results.emplace_back(maker, v);
  }
  return Csr<int64_t>(std::ssize(problem.equation_seconds), results);
}

class Search {
 public:
  explicit Search(const RetentionProblem& problem)
      : p_(problem),
        num_values_(std::ssize(problem.value_bytes)),
        units_(TimeUnitsOf(problem)),
        results_(ResultsOf(problem)),
        is_inside_(problem.value_bytes.size() + problem.equation_seconds.size()),
        local_(is_inside_.size(), kNone) {}

  std::vector<Retention> Run() {
    const auto [fastest, slower] = Cut(Undecided(), units_.keeping);
    Decide(fastest);
    corners_.push_back(Corner());
    Between(Cut(slower, {units_.total + 1, 1}).first);
    return std::move(corners_);
  }

 private:
  // Decides what is needed. The rest of what may be needed or run again.
  Nodes Undecided();
  // The undecided nodes of the source's side, and the others.
  std::pair<Nodes, Nodes> Cut(const Nodes& undecided, Price price);
  void AddEdges(FlowNetwork& network, NodeIdx node, Price price) const;
  // All corners after the last one, up to the one that has `last` as well.
  void Between(Nodes last);
  // At which what is decided costs the same with `more` and without.
  Price PriceOf(const Nodes& more);
  // Whether a corner between the last one and the next, which is at `price`, is below
  // the line by more than `rounding` units of time.
  bool IsCorner(const Nodes& earlier, Price price, int64_t rounding);
  void Decide(const Nodes& nodes);
  [[nodiscard]] Retention Corner() const;

  // The node of the equation that may make a value again, or kNone.
  [[nodiscard]] NodeIdx Maker(NodeIdx value) const {
    const OpIdx maker = p_.value_maker[At(value)];
    if (maker == kNone || !p_.equation_may_run_again[At(maker)]) return kNone;
    return num_values_ + maker;
  }

  [[nodiscard]] std::span<const int64_t> Operands(OpIdx equation) const {
    const int64_t begin = p_.operands_ptr[At(equation)];
    const int64_t end = p_.operands_ptr[At(equation) + 1];
    return std::span(p_.operands).subspan(At(begin), At(end - begin));
  }

  // Of the values that are needed as far as decided, those of an equation.
  [[nodiscard]] Bytes BytesMade(OpIdx equation) const {
    Bytes bytes = 0;
    for (const NodeIdx value : results_[equation]) {
      if (is_inside_[At(value)]) bytes += p_.value_bytes[At(value)];
    }
    return bytes;
  }

  const RetentionProblem& p_;
  const int64_t num_values_;
  const TimeUnits units_;
  const Csr<int64_t> results_;
  // By node: whether it is needed, or runs again, at the last corner.
  std::vector<uint8_t> is_inside_;
  // By node: its number in the network of a cut, else kNone.
  std::vector<NodeIdx> local_;
  std::vector<Retention> corners_;
};

Nodes Search::Undecided() {
  Decide(p_.needed);
  std::vector<uint8_t> is_found(is_inside_);
  Nodes nodes;
  const auto find = [&](NodeIdx node) {
    if (node == kNone || is_found[At(node)]) return;
    is_found[At(node)] = 1;
    nodes.push_back(node);
  };
  for (const NodeIdx value : p_.needed) find(Maker(value));
  for (size_t i = 0; i < nodes.size(); ++i) {
    const NodeIdx node = nodes[i];
    if (node < num_values_) {
      find(Maker(node));
    } else {
      for (const NodeIdx value : Operands(node - num_values_)) find(value);
    }
  }
  return nodes;
}

// What is decided is one with the source, and what is neither decided nor
// undecided, as it costs too much at this price, one with the sink.
std::pair<Nodes, Nodes> Search::Cut(const Nodes& undecided, Price price) {
  const int64_t count = std::ssize(undecided);
  for (int64_t i = 0; i < count; ++i) local_[At(undecided[At(i)])] = kFirstNode + i;
  FlowNetwork network(kFirstNode + count);
  for (const NodeIdx node : undecided) AddEdges(network, node, price);
  const std::vector<uint8_t> side = network.SourceSide();
  std::pair<Nodes, Nodes> parts;
  for (const NodeIdx node : undecided) {
    (side[At(local_[At(node)])] ? parts.first : parts.second).push_back(node);
    local_[At(node)] = kNone;
  }
  return parts;
}

void Search::AddEdges(FlowNetwork& network, NodeIdx node, Price price) const {
  const NodeIdx local = local_[At(node)];
  if (node < num_values_) {
    const NodeIdx maker = Maker(node);
    if (maker != kNone && is_inside_[At(maker)]) return;  // Made anyway.
    const bool may_be_made = maker != kNone && local_[At(maker)] != kNone;
    network.AddEdge(local, may_be_made ? local_[At(maker)] : FlowNetwork::kSink,
                    Capacity{price.units} * p_.value_bytes[At(node)]);
    return;
  }
  const OpIdx equation = node - num_values_;
  network.AddEdge(FlowNetwork::kSource, local,
                  Capacity{price.units} * BytesMade(equation));
  network.AddEdge(local, FlowNetwork::kSink,
                  Capacity{price.bytes} * units_.of_equation[At(equation)]);
  for (const NodeIdx value : Operands(equation)) {
    if (is_inside_[At(value)]) continue;
    network.AddEdge(local, local_[At(value)], kInfiniteCapacity);
  }
}

void Search::Between(Nodes last) {
  // The next corner's nodes at the back, without those of the corners before it.
  std::vector<Nodes> corners;
  if (!last.empty()) corners.push_back(std::move(last));
  while (!corners.empty()) {
    const Nodes more = std::move(corners.back());
    corners.pop_back();
    const Price price = PriceOf(more);
    const int64_t rounding = std::ssize(more);
    auto [earlier, later] = Cut(more, price);
    if (IsCorner(earlier, price, rounding)) {
      corners.push_back(std::move(later));
      corners.push_back(std::move(earlier));
      continue;
    }
    // Fewer bytes in the same time as the fastest.
    const bool replaces =
        corners_.size() == 1 &&
        Capacity{price.units - rounding} * units_.keeping.bytes <=
            Capacity{price.bytes} * units_.keeping.units;
    if (replaces) corners_.clear();
    Decide(more);
    corners_.push_back(Corner());
  }
}

Price Search::PriceOf(const Nodes& more) {
  Price price{0, 0};
  for (const NodeIdx node : more) {
    if (node < num_values_) continue;
    price.units += units_.of_equation[At(node - num_values_)];
    price.bytes += BytesMade(node - num_values_);
    is_inside_[At(node)] = 1;
  }
  for (const NodeIdx node : more) {
    if (node >= num_values_) continue;
    const NodeIdx maker = Maker(node);
    const bool is_made = maker != kNone && is_inside_[At(maker)];
    if (!is_made) price.bytes -= p_.value_bytes[At(node)];
  }
  for (const NodeIdx node : more) is_inside_[At(node)] = 0;
  return price;
}

bool Search::IsCorner(const Nodes& earlier, Price price, int64_t rounding) {
  if (earlier.empty()) return false;
  const auto [units, bytes] = PriceOf(earlier);
  return Capacity{price.units} * bytes >
         Capacity{price.bytes} * (units + rounding);
}

void Search::Decide(const Nodes& nodes) {
  for (const NodeIdx node : nodes) is_inside_[At(node)] = 1;
}

Retention Search::Corner() const {
  Retention corner;
  for (NodeIdx node = 0; node < std::ssize(is_inside_); ++node) {
    if (!is_inside_[At(node)]) continue;
    if (node >= num_values_) {
      corner.recomputed.push_back(node - num_values_);
      continue;
    }
    const NodeIdx maker = Maker(node);
    if (maker != kNone && is_inside_[At(maker)]) continue;
    corner.kept.push_back(node);
    corner.kept_bytes += p_.value_bytes[At(node)];
  }
  return corner;
}

}  // namespace

std::vector<Retention> RetentionFrontier(const RetentionProblem& problem) {
  return Search(problem).Run();
}

}  // namespace coop
