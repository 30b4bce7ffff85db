// Cuts, the eviction candidates of the search: live-range intervals to drop where a
// rollout needs too many bytes, each with the cost of recomputing the value.
#ifndef COOP_CORE_SEARCH_CUTS_H_
#define COOP_CORE_SEARCH_CUTS_H_

#include <limits>
#include <span>
#include <vector>

#include "core/base/types.h"
#include "core/graph/graph.h"
#include "core/search/gaps.h"
#include "core/search/rollout.h"

namespace coop {

// Deciding `gap` as `decision` drops a version between two of its reads, where
// it is idle: in executions (from, to), both exclusive. That includes the last
// one that reads it, if that makes something which then has its block.
struct Cut {
  GapIdx gap = kNone;
  uint8_t decision = 0;
  ExecIdx from = 0;
  ExecIdx to = 0;
  Seconds seconds = 0;  // Of the recomputations this adds, about.
  double relief = 0;    // Bytes above capacity that it removes, summed.
};

class CutFinder {
 public:
  // All must outlive the finder; `rollout` is read anew by every Find.
  CutFinder(const Graph& graph, const GapTable& gaps, const Rollout& rollout);

  // All cuts that relieve a place where the rollout of `decisions` needs more
  // than it may: where `room`, by execution, is negative; without those that add
  // more than `most_seconds`. Valid until the next call.
  [[nodiscard]] std::span<const Cut> Find(
      const Decisions& decisions, std::span<const Bytes> room,
      Seconds most_seconds = std::numeric_limits<Seconds>::infinity());

  // Whether the last call left one out that adds too much.
  [[nodiscard]] bool has_too_dear() const { return has_too_dear_; }

  // Of all prices so far: the values that they asked for.
  [[nodiscard]] int64_t lookups() const { return lookups_; }

  // The tensors on which the price of `cut` rests: what its recomputation reads
  // and what it makes. Valid until the next call.
  [[nodiscard]] std::span<const TensorIdx> Touched(const Cut& cut);

 private:
  // Of a version, what a price asks for: together, as prices are most of the work.
  struct Lifetime {
    ExecIdx made;
    ExecIdx expires;
    ExecIdx last_read;
    VersionIdx version;
  };

  void IndexVersions();
  void IndexReads();
  void IndexFirstRuns();
  void IndexExcess(std::span<const Bytes> room);
  [[nodiscard]] bool CouldBeTakenOver(VersionIdx version, ExecIdx e) const;
  void Consider(const Decisions& decisions, VersionIdx version, ExecIdx from,
                ExecIdx to, int64_t read, bool frees_at_once);
  void ConsiderSplit(const Decisions& decisions, VersionIdx version,
                     ExecIdx from, ExecIdx to);
  void Add(const Cut& cut);
  Seconds Price(TensorIdx t, ExecIdx reader, double* relief);
  Seconds PriceChain(TensorIdx t, ExecIdx reader, double* relief);
  const Lifetime* VersionAt(TensorIdx t, ExecIdx reader) const;
  double Excess(Bytes bytes, ExecIdx from, ExecIdx to) const;

  const Graph& graph_;
  const GapTable& gaps_;
  const Rollout& rollout_;
  std::vector<Cut> cuts_;
  Seconds most_seconds_ = std::numeric_limits<Seconds>::infinity();
  bool has_too_dear_ = false;
  // Versions by tensor and reads by version, both in their order.
  std::vector<int64_t> versions_ptr_;
  std::vector<Lifetime> versions_;
  std::vector<int64_t> reads_ptr_;
  std::vector<ExecIdx> reads_;
  std::vector<ExecIdx> first_run_;  // By operation.
  // Up to an execution: how many were above capacity, and by how much in all.
  std::vector<int64_t> num_above_;
  std::vector<double> bytes_above_;
  // Of one price.
  std::vector<OpIdx> stack_;
  std::vector<TensorIdx> touched_;
  std::vector<int64_t> visited_;
  int64_t walk_ = 0;
  int64_t lookups_ = 0;
};

}  // namespace coop

#endif  // COOP_CORE_SEARCH_CUTS_H_
