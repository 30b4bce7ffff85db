#include "core/graph/bounds.h"

#include <algorithm>
#include <vector>

namespace coop {
namespace {

class Bound {
 public:
  Bound(const Graph& graph, Bytes alignment)
      : graph_(graph), alignment_(alignment), stays_(At(graph.end()) + 3, 0) {
    for (TensorIdx t = 0; t < graph.num_tensors(); ++t) {
      if (!Stays(t)) continue;
      Slot(graph.producer(t)) += Size(t);
      Slot(StaysUntil(t) + 1) -= Size(t);
    }
    for (size_t i = 1; i < stays_.size(); ++i) stays_[i] += stays_[i - 1];
  }

  Bytes AtStart() const {
    Bytes bytes = 0;
    for (TensorIdx t = 0; t < graph_.num_tensors(); ++t) {
      if (graph_.producer(t) == kNone) bytes += Size(t);
    }
    return bytes;
  }

  Bytes AtOp(OpIdx op) const { return stays_[At(op + 1)] + Own(op); }

  // The bytes that `op` needs besides the tensors that stay.
  Bytes Own(OpIdx op) const {
    Bytes bytes = RoundUp(graph_.workspace_bytes(op), alignment_);
    for (const TensorIdx t : graph_.inputs(op)) bytes += Stays(t) ? 0 : Size(t);
    for (const TensorIdx t : graph_.outputs(op)) {
      bytes += Stays(t) ? 0 : Size(t);
    }
    return bytes - SharedAt(op);
  }

  const std::vector<Bytes>& stays() const { return stays_; }

  Bytes AtEnd() const {
    Bytes bytes = stays_[At(graph_.end() + 1)];
    for (TensorIdx t = 0; t < graph_.num_tensors(); ++t) {
      if (graph_.is_output(t) && !Stays(t)) bytes += Size(t);
    }
    return bytes;
  }

 private:
  Bytes Size(TensorIdx t) const {
    return graph_.is_external(t) ? 0 : RoundUp(graph_.bytes(t), alignment_);
  }

  // Once there, it must stay until its last read.
  bool Stays(TensorIdx t) const { return !graph_.has_way_back(t); }

  Position StaysUntil(TensorIdx t) const {
    if (!graph_.is_pinned(t)) return graph_.last_use(t);
    return std::min(graph_.overwritten_at(t), graph_.end());
  }

  // stays_ begins at position -1.
  Bytes& Slot(Position position) { return stays_[At(position + 1)]; }

  // Bytes counted twice because an output may take over an input's block: at
  // most the sum of those outputs, and of those inputs.
  Bytes SharedAt(OpIdx op) const {
    Bytes shared = 0;
    for (const Overwrite& overwrite : graph_.overwrites(op)) {
      shared += Size(overwrite.old_tensor);
    }
    std::vector<TensorIdx> inputs;
    std::vector<TensorIdx> outputs;
    for (const InPlacePair& pair : graph_.in_place(op)) {
      const bool must_outlive_op =
          Stays(pair.input) && StaysUntil(pair.input) > op;
      if (must_outlive_op) continue;
      inputs.push_back(pair.input);
      outputs.push_back(pair.output);
    }
    return shared +
           std::min(DistinctBytes(inputs), DistinctBytes(outputs));
  }

  Bytes DistinctBytes(std::vector<TensorIdx>& tensors) const {
    std::ranges::sort(tensors);
    const auto repeated = std::ranges::unique(tensors);
    tensors.erase(repeated.begin(), repeated.end());
    Bytes bytes = 0;
    for (const TensorIdx t : tensors) bytes += Size(t);
    return bytes;
  }

  const Graph& graph_;
  const Bytes alignment_;
  std::vector<Bytes> stays_;  // By position, of the tensors that stay.
};

}  // namespace

Needs FindNeeds(const Graph& graph, Bytes alignment) {
  const Bound bound(graph, alignment);
  Needs needs{.stays = bound.stays(), .own = {}};
  for (OpIdx op = 0; op < graph.num_ops(); ++op) {
    needs.own.push_back(bound.Own(op));
  }
  return needs;
}

LowerBound FindLowerBound(const Graph& graph, Bytes alignment) {
  const Bound bound(graph, alignment);
  LowerBound best{bound.AtStart(), kNone};
  const auto consider = [&](Bytes bytes, Position position) {
    if (bytes > best.bytes) best = {bytes, position};
  };
  for (OpIdx op = 0; op < graph.num_ops(); ++op) consider(bound.AtOp(op), op);
  consider(bound.AtEnd(), graph.end());
  return best;
}

}  // namespace coop
