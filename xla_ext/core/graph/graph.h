// The program to plan: operations in execution order and the tensors between.
#ifndef COOP_CORE_GRAPH_GRAPH_H_
#define COOP_CORE_GRAPH_GRAPH_H_

#include <optional>
#include <span>
#include <vector>

#include "core/base/csr.h"
#include "core/base/types.h"

namespace coop {

// `op` may let `output` take over the block of `input`.
struct InPlacePair {
  OpIdx op;
  TensorIdx input;
  TensorIdx output;
};

// `op` mutates: `new_tensor` takes the place of `old_tensor` for good.
struct Overwrite {
  OpIdx op;
  TensorIdx old_tensor;
  TensorIdx new_tensor;
};

// The program drops its handle on `tensor` right after `op`.
struct Release {
  OpIdx op;
  TensorIdx tensor;
};

// A graph as a caller hands it over. Operation i reads
// op_inputs[op_inputs_ptr[i], op_inputs_ptr[i + 1]) and makes the same range of
// op_outputs. Flags are 0 or 1.
struct GraphArrays {
  std::vector<Seconds> op_seconds;
  std::vector<Bytes> op_workspace_bytes;
  std::vector<uint8_t> op_recomputable;
  std::vector<int64_t> op_inputs_ptr;
  std::vector<TensorIdx> op_inputs;
  std::vector<int64_t> op_outputs_ptr;
  std::vector<TensorIdx> op_outputs;

  std::vector<Bytes> tensor_bytes;
  // Lives outside the pool: no pool bytes, never evicted.
  std::vector<uint8_t> tensor_external;
  // Lives in the pool from its creation to the end, never evicted, never moved.
  std::vector<uint8_t> tensor_pinned;
  // Must be resident when the program ends.
  std::vector<uint8_t> tensor_output;

  std::vector<InPlacePair> in_place;
  std::vector<Overwrite> overwrites;
  // Absent: every tensor is released after its last use. Present: exactly as
  // listed, and a tensor that is not listed is held to the end.
  std::optional<std::vector<Release>> releases;
};

// Immutable and checked. A tensor without producer is a graph input.
//
//   position   -1        0 ... num_ops - 1         num_ops
//              inputs    the operations            the end: outputs are read
class Graph {
 public:
  // Throws std::invalid_argument, naming the operation or tensor at fault.
  explicit Graph(GraphArrays arrays);

  [[nodiscard]] OpIdx num_ops() const { return num_ops_; }
  [[nodiscard]] TensorIdx num_tensors() const { return num_tensors_; }
  [[nodiscard]] Position end() const { return num_ops_; }

  // Of an operation.
  [[nodiscard]] Seconds seconds(OpIdx op) const { return op_seconds_[At(op)]; }
  [[nodiscard]] Bytes workspace_bytes(OpIdx op) const {
    return op_workspace_bytes_[At(op)];
  }
  [[nodiscard]] bool is_recomputable(OpIdx op) const {
    return op_recomputable_[At(op)] != 0;
  }
  // Distinct operands, in the order of their first appearance.
  [[nodiscard]] std::span<const TensorIdx> inputs(OpIdx op) const {
    return inputs_[op];
  }
  [[nodiscard]] std::span<const TensorIdx> outputs(OpIdx op) const {
    return outputs_[op];
  }
  [[nodiscard]] std::span<const InPlacePair> in_place(OpIdx op) const {
    return in_place_[op];
  }
  [[nodiscard]] std::span<const Overwrite> overwrites(OpIdx op) const {
    return overwrites_[op];
  }
  // Tensors the program lets go of right after `position`, which may be -1: a
  // graph input that nothing reads.
  [[nodiscard]] std::span<const TensorIdx> released_after(
      Position position) const {
    return released_after_[position + 1];
  }

  // Of a tensor.
  [[nodiscard]] Bytes bytes(TensorIdx t) const { return tensor_bytes_[At(t)]; }
  [[nodiscard]] bool is_external(TensorIdx t) const {
    return tensor_external_[At(t)] != 0;
  }
  [[nodiscard]] bool is_pinned(TensorIdx t) const {
    return tensor_pinned_[At(t)] != 0;
  }
  [[nodiscard]] bool is_output(TensorIdx t) const {
    return tensor_output_[At(t)] != 0;
  }
  // kNone for a graph input.
  [[nodiscard]] OpIdx producer(TensorIdx t) const { return producer_[At(t)]; }
  // Operations that read `t`, ascending.
  [[nodiscard]] std::span<const OpIdx> consumers(TensorIdx t) const {
    return consumers_[t];
  }
  // Position of the last read. end() for an output; the producer (-1 for a
  // graph input) when nothing reads it.
  [[nodiscard]] Position last_use(TensorIdx t) const {
    return last_use_[At(t)];
  }
  // First read after `position`, end() for an output, kNever if there is none.
  [[nodiscard]] Position next_use(TensorIdx t, Position position) const;
  // After this position the program no longer holds `t`; kNever: held to the
  // end (outputs, pinned and external tensors, handles never released).
  [[nodiscard]] Position release(TensorIdx t) const { return release_[At(t)]; }
  // The operation that destroys `t`, or kNever.
  [[nodiscard]] Position overwritten_at(TensorIdx t) const {
    return overwritten_at_[At(t)];
  }
  // Some operation can make `t` again (its operands permitting).
  [[nodiscard]] bool has_way_back(TensorIdx t) const {
    return way_back_[At(t)] != 0;
  }
  // The position after which `t` may no longer be recomputable.
  [[nodiscard]] Position deadline(TensorIdx t) const {
    return deadline_[At(t)];
  }
  // A planner may drop `t` while the program still holds it.
  [[nodiscard]] bool is_evictable(TensorIdx t) const {
    return evictable_[At(t)] != 0;
  }

 private:
  void DeriveUses();
  void DeriveReleases(const std::optional<std::vector<Release>>& releases);
  void DeriveDeadlines();

  OpIdx num_ops_ = 0;
  TensorIdx num_tensors_ = 0;
  std::vector<Seconds> op_seconds_;
  std::vector<Bytes> op_workspace_bytes_;
  std::vector<uint8_t> op_recomputable_;
  std::vector<Bytes> tensor_bytes_;
  std::vector<uint8_t> tensor_external_;
  std::vector<uint8_t> tensor_pinned_;
  std::vector<uint8_t> tensor_output_;
  Csr<TensorIdx> inputs_;
  Csr<TensorIdx> outputs_;
  Csr<InPlacePair> in_place_;
  Csr<Overwrite> overwrites_;
  Csr<OpIdx> consumers_;
  Csr<TensorIdx> released_after_;
  std::vector<OpIdx> producer_;
  std::vector<Position> last_use_;
  std::vector<Position> release_;
  std::vector<Position> overwritten_at_;
  std::vector<uint8_t> way_back_;
  std::vector<Position> deadline_;
  std::vector<uint8_t> evictable_;
};

}  // namespace coop

#endif  // COOP_CORE_GRAPH_GRAPH_H_
