// Rollout: the executions and live ranges that the decisions of all gaps lead to.
#ifndef COOP_CORE_SEARCH_ROLLOUT_H_
#define COOP_CORE_SEARCH_ROLLOUT_H_

#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "core/base/types.h"
#include "core/graph/graph.h"
#include "core/search/gaps.h"

namespace coop {

using ExecIdx = int64_t;     // Executions are numbered in their order.
using VersionIdx = int64_t;  // So are the values they make.

inline constexpr ExecIdx kNotYet = std::numeric_limits<ExecIdx>::max();

struct Execution {
  OpIdx op = kNone;
  Position position = 0;  // The operation on whose behalf it runs, or itself.
  bool is_recompute = false;
};

// One value of a tensor: a block of the pool from `made` to `last_read`.
struct Version {
  TensorIdx tensor = kNone;
  ExecIdx made = kNone;  // kNone: resident from the start.
  ExecIdx last_read = kNone;
  // Nothing that runs after this execution may read it, by decision.
  ExecIdx expires = kNotYet;
  VersionIdx takes_over = kNone;  // Whose block it is made in.
};

// Runs the program in order; what is missing is recomputed just before it is
// read, in program order. A value lives until its last read, whatever was
// decided: keeping what nobody reads costs nothing. O(executions + reads).
class Rollout {
 public:
  // Both must outlive the rollout.
  Rollout(const Graph& graph, const GapTable& gaps, Bytes alignment);

  // False if the recomputations take longer than `limit`; nothing but
  // recompute_seconds() is valid then.
  bool Run(const Decisions& decisions,
           Seconds limit = std::numeric_limits<Seconds>::infinity());

  [[nodiscard]] Seconds recompute_seconds() const { return recompute_seconds_; }
  [[nodiscard]] Bytes peak_bytes() const { return peak_bytes_; }
  [[nodiscard]] std::span<const Execution> executions() const {
    return executions_;
  }
  [[nodiscard]] std::span<const Version> versions() const { return versions_; }
  // Bytes in use while an execution runs.
  [[nodiscard]] std::span<const Bytes> live_bytes() const { return live_; }
  // (version, execution), by execution.
  [[nodiscard]] std::span<const std::pair<VersionIdx, ExecIdx>> reads() const {
    return reads_;
  }
  // Outputs that a recomputation makes though nobody needs them:
  // (execution, tensor). They live while it runs.
  [[nodiscard]] std::span<const std::pair<ExecIdx, TensorIdx>> discarded()
      const {
    return discarded_;
  }
  // On whose behalf an execution runs: kNone before the first one, the end of
  // the program behind the last one.
  [[nodiscard]] Position PositionOf(ExecIdx e) const;
  [[nodiscard]] Bytes Size(TensorIdx t) const { return size_[At(t)]; }

 private:
  void IndexTensors();
  void Start(const Decisions& decisions);
  bool MakeInputs(std::span<const TensorIdx> wanted, Position position,
                  Seconds limit);
  void FindChain(std::span<const TensorIdx> wanted);
  void Execute(OpIdx op, Position position, bool is_recompute);
  void Make(TensorIdx t, ExecIdx made);
  void Read(TensorIdx t, ExecIdx reader);
  void Expire(TensorIdx t);
  void Hold(TensorIdx t);
  std::span<const TensorIdx> Wanted(OpIdx op);
  void FinishPosition(OpIdx op);
  void FindTakeOvers();
  void SweepLiveBytes();
  // Of tensors with gaps, as everything below: the others are always there.
  bool IsThere(TensorIdx t) const { return now_[At(t)].version != kNone; }
  uint8_t decision(TensorIdx t) const {
    return (*decisions_)[At(now_[At(t)].gap)];
  }

  struct Now {
    VersionIdx version = kNone;
    GapIdx gap = kNone;
  };

  const Graph& graph_;
  const GapTable& gaps_;
  std::vector<Bytes> size_;
  std::vector<Bytes> workspace_;
  std::vector<Bytes> pinned_;  // By position + 1: pinned bytes while it runs.
  Bytes start_bytes_ = 0;      // All graph inputs.
  std::vector<Now> at_start_;  // By tensor, nothing made yet.
  std::vector<TensorIdx> with_gaps_at_start_;  // Of the graph inputs.
  std::vector<TensorIdx> outputs_;             // Of the program.
  std::vector<TensorIdx> held_to_end_;         // And those held after an operation.
  std::vector<std::vector<TensorIdx>> held_to_;
  std::vector<uint8_t> may_hand_over_;  // By operation: whether it may make in place.

  const Decisions* decisions_ = nullptr;
  Seconds recompute_seconds_ = 0;
  Bytes peak_bytes_ = 0;
  std::vector<Execution> executions_;
  std::vector<Version> versions_;
  std::vector<std::pair<VersionIdx, ExecIdx>> reads_;
  std::vector<std::pair<ExecIdx, TensorIdx>> discarded_;
  std::vector<Bytes> live_;
  std::vector<Now> now_;  // By tensor: its present version and gap.
  // Versions that were skipped over by a recomputation of their operation,
  // because they were resident already: (execution, version).
  std::vector<std::pair<ExecIdx, VersionIdx>> skipped_;
  // Of the position at hand.
  std::vector<OpIdx> chain_;
  std::vector<TensorIdx> remade_;
  std::vector<TensorIdx> made_at_split_;
  std::vector<TensorIdx> wanted_;
  std::vector<int64_t> visited_;  // By operation: the walk that saw it last.
  int64_t walk_ = 0;
  std::vector<Bytes> difference_;
  // By execution: where what it reads and makes begins.
  std::vector<std::pair<size_t, VersionIdx>> begins_;
  size_t end_of_reads_ = 0;
};

}  // namespace coop

#endif  // COOP_CORE_SEARCH_ROLLOUT_H_
