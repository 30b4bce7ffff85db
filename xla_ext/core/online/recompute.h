// The operations to run again so that missing tensors come back, in order.
#ifndef COOP_CORE_ONLINE_RECOMPUTE_H_
#define COOP_CORE_ONLINE_RECOMPUTE_H_

#include <span>
#include <utility>
#include <vector>

#include "core/base/types.h"
#include "core/online/state.h"

namespace coop {

// Post-order walk over producers of what is missing. An explicit stack: chains
// may be 100,000 operations deep.
class RecomputeOrder {
 public:
  // `state` must outlive the order.
  explicit RecomputeOrder(const State& state);

  // The producers to run, each once, every one after those it needs. Empty if
  // all of `wanted` is resident. Valid until the next call.
  [[nodiscard]] std::span<const OpIdx> For(std::span<const TensorIdx> wanted);

 private:
  void Visit(std::span<const TensorIdx> tensors, size_t& next);

  const State& state_;
  std::vector<OpIdx> order_;
  std::vector<std::pair<OpIdx, size_t>> stack_;  // Operation, next input.
  std::vector<int64_t> visited_in_;              // By operation.
  int64_t walk_ = 0;
};

}  // namespace coop

#endif  // COOP_CORE_ONLINE_RECOMPUTE_H_
