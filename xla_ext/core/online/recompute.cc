#include "core/online/recompute.h"

#include <stdexcept>
#include <string>

namespace coop {

RecomputeOrder::RecomputeOrder(const State& state)
    : state_(state), visited_in_(At(state.graph.num_ops()), 0) {}

// Pushes the producer of the first missing tensor at or behind `next` that was
// not visited in this walk; `next` ends behind it.
void RecomputeOrder::Visit(std::span<const TensorIdx> tensors, size_t& next) {
  while (next < tensors.size()) {
    const TensorIdx t = tensors[next++];
    if (state_.tensors[At(t)].is_resident) continue;
    if (!state_.graph.has_way_back(t)) {
      throw std::logic_error("tensor " + std::to_string(t) +
                             " is missing and cannot be recomputed. This is a "
                             "bug in coop_jax, please report it");
    }
    const OpIdx op = state_.graph.producer(t);
    if (visited_in_[At(op)] == walk_) continue;
    visited_in_[At(op)] = walk_;
    stack_.emplace_back(op, 0);
    return;
  }
}

std::span<const OpIdx> RecomputeOrder::For(
    std::span<const TensorIdx> wanted) {
  ++walk_;
  order_.clear();
  for (size_t next = 0; next < wanted.size();) {
    Visit(wanted, next);
    while (!stack_.empty()) {
      const auto [op, position] = stack_.back();
      const size_t depth = stack_.size();
      size_t next_input = position;
      Visit(state_.graph.inputs(op), next_input);
      stack_[depth - 1].second = next_input;
      if (stack_.size() > depth) continue;
      order_.push_back(op);
      stack_.pop_back();
    }
  }
  return order_;
}

}  // namespace coop
