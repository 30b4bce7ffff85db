#include "core/graph/graph.h"

#include <algorithm>
#include <utility>

#include "core/graph/graph_check.h"

namespace coop {
namespace {

// Rows of a caller's CSR arrays, repeated values in a row kept once.
Csr<TensorIdx> DistinctRows(const std::vector<int64_t>& ptr,
                            const std::vector<TensorIdx>& values,
                            TensorIdx num_tensors) {
  const auto num_rows = std::ssize(ptr) - 1;
  std::vector<int64_t> seen_in_row(At(num_tensors), kNone);
  std::vector<std::pair<int64_t, TensorIdx>> entries;
  entries.reserve(values.size());
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t i = ptr[At(row)]; i < ptr[At(row) + 1]; ++i) {
      const TensorIdx t = values[At(i)];
      if (std::exchange(seen_in_row[At(t)], row) == row) continue;
      entries.emplace_back(row, t);
    }
  }
  return Csr<TensorIdx>(num_rows, entries);
}

template <typename T>
Csr<T> ByOp(OpIdx num_ops, const std::vector<T>& records) {
  std::vector<std::pair<int64_t, T>> entries;
  entries.reserve(records.size());
  for (const T& record : records) entries.emplace_back(record.op, record);
  return Csr<T>(num_ops, entries);
}

}  // namespace

Graph::Graph(GraphArrays arrays) {
  CheckGraphArrays(arrays);
  num_ops_ = std::ssize(arrays.op_seconds);
  num_tensors_ = std::ssize(arrays.tensor_bytes);
  inputs_ = DistinctRows(arrays.op_inputs_ptr, arrays.op_inputs, num_tensors_);
  outputs_ =
      DistinctRows(arrays.op_outputs_ptr, arrays.op_outputs, num_tensors_);
  in_place_ = ByOp(num_ops_, arrays.in_place);
  overwrites_ = ByOp(num_ops_, arrays.overwrites);
  op_seconds_ = std::move(arrays.op_seconds);
  op_workspace_bytes_ = std::move(arrays.op_workspace_bytes);
  op_recomputable_ = std::move(arrays.op_recomputable);
  tensor_bytes_ = std::move(arrays.tensor_bytes);
  tensor_external_ = std::move(arrays.tensor_external);
  tensor_pinned_ = std::move(arrays.tensor_pinned);
  tensor_output_ = std::move(arrays.tensor_output);
  DeriveUses();
  DeriveReleases(arrays.releases);
  DeriveDeadlines();
}

Position Graph::next_use(TensorIdx t, Position position) const {
  const auto uses = consumers(t);
  const auto next = std::upper_bound(uses.begin(), uses.end(), position);
  if (next != uses.end()) return *next;
  return is_output(t) && position < end() ? end() : kNever;
}

void Graph::DeriveUses() {
  producer_.assign(At(num_tensors_), kNone);
  overwritten_at_.assign(At(num_tensors_), kNever);
  std::vector<std::pair<int64_t, OpIdx>> reads;
  for (OpIdx op = 0; op < num_ops_; ++op) {
    for (const TensorIdx t : outputs(op)) producer_[At(t)] = op;
    for (const TensorIdx t : inputs(op)) reads.emplace_back(t, op);
    for (const Overwrite& overwrite : overwrites(op)) {
      overwritten_at_[At(overwrite.old_tensor)] = op;
    }
  }
  consumers_ = Csr<OpIdx>(num_tensors_, reads);
  last_use_ = producer_;
  for (TensorIdx t = 0; t < num_tensors_; ++t) {
    if (!consumers(t).empty()) last_use_[At(t)] = consumers(t).back();
    if (is_output(t)) last_use_[At(t)] = end();
  }
}

void Graph::DeriveReleases(
    const std::optional<std::vector<Release>>& releases) {
  release_.assign(At(num_tensors_), kNever);
  if (releases) {
    for (const auto& [op, t] : *releases) release_[At(t)] = op;
  } else {
    release_ = last_use_;
  }
  std::vector<std::pair<int64_t, TensorIdx>> entries;
  for (TensorIdx t = 0; t < num_tensors_; ++t) {
    if (is_output(t) || is_pinned(t) || is_external(t)) {
      release_[At(t)] = kNever;
    }
    if (release_[At(t)] != kNever) {
      entries.emplace_back(release_[At(t)] + 1, t);
    }
  }
  released_after_ = Csr<TensorIdx>(num_ops_ + 1, entries);
}

// The static rule behind every eviction. A tensor dropped early must still be
// computable whenever it is asked for:
//
//   Claim. An evictable tensor, asked for at a position p <= deadline(t), can
//   be recomputed there, and so can everything its recomputation asks for.
//
// A recomputation for the operation at p runs before that operation. It asks
// for the producer's inputs i, and deadline(i) >= deadline(t) >= p by the
// minimum below. An input that is external or pinned leaves only when it is
// overwritten, at its deadline, hence not before p. A graph input or the output
// of an operation that may not run twice is not evictable, so it leaves only at
// its release, which is its deadline, hence after p. Any other input is resident
// or, by induction over the execution order, recomputable at p. And t is asked
// for no later than last_use(t) <= deadline(t), or on behalf of an evictable
// tensor u made from it, at a position <= deadline(u) <= deadline(t).
//
// Could be sharper: an input that is not evictable, but recomputable, stays to
// its release, which may lie beyond its deadline.
void Graph::DeriveDeadlines() {
  way_back_.assign(At(num_tensors_), 0);
  deadline_.assign(At(num_tensors_), kNever);
  evictable_.assign(At(num_tensors_), 0);
  const auto derive = [&](TensorIdx t) {
    const OpIdx op = producer(t);
    const bool in_place_for_good = is_external(t) || is_pinned(t);
    const bool way_back =
        op != kNone && is_recomputable(op) && !in_place_for_good;
    Position deadline = kNever;
    if (in_place_for_good) {
      deadline = overwritten_at(t);
    } else if (!way_back) {
      deadline = release(t);  // kNever for an output.
    } else {
      for (const TensorIdx input : inputs(op)) {
        deadline = std::min(deadline, deadline_[At(input)]);
      }
    }
    way_back_[At(t)] = way_back;
    deadline_[At(t)] = deadline;
    evictable_[At(t)] = way_back && bytes(t) > 0 && last_use(t) <= deadline;
  };
  for (TensorIdx t = 0; t < num_tensors_; ++t) {
    if (producer(t) == kNone) derive(t);
  }
  for (OpIdx op = 0; op < num_ops_; ++op) {
    for (const TensorIdx t : outputs(op)) derive(t);
  }
}

}  // namespace coop
