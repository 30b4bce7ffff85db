// Repair: what makes a plan of a search keep its limit, and use all of it.
#ifndef COOP_CORE_SEARCH_REPAIR_H_
#define COOP_CORE_SEARCH_REPAIR_H_

#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "core/base/types.h"
#include "core/graph/bounds.h"
#include "core/graph/graph.h"
#include "core/search/cuts.h"
#include "core/search/fills.h"
#include "core/search/gaps.h"
#include "core/search/rollout.h"
#include "core/search/room.h"
#include "core/search/search.h"

namespace coop {

// Decisions with the figures of their rollout.
struct Plan {
  Decisions decisions;
  Seconds recompute_seconds = std::numeric_limits<Seconds>::infinity();
  Bytes peak_bytes = std::numeric_limits<Bytes>::max();
  Bytes bytes_above = std::numeric_limits<Bytes>::max();  // At most, anywhere.

  [[nodiscard]] bool IsFeasible() const { return bytes_above == 0; }
  [[nodiscard]] bool IsBetterThan(const Plan& other) const {
    if (bytes_above != other.bytes_above) {
      return bytes_above < other.bytes_above;
    }
    return recompute_seconds < other.recompute_seconds;
  }
};

// Reproducible on every machine, unlike the distributions of <random>.
class RandomChoice {
 public:
  explicit RandomChoice(uint64_t seed) : engine_(seed) {}

  int64_t Below(int64_t n) {
    return static_cast<int64_t>(engine_() % static_cast<uint64_t>(n));
  }
  double Uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }

 private:
  std::mt19937_64 engine_;
};

class Repairer {
 public:
  // All must outlive the repairer.
  Repairer(const Graph& graph, const GapTable& gaps, Bytes capacity,
           const SearchOptions& options, RandomChoice& random);

  // Rolls `plan` out and fills in its figures; false if it takes too long.
  bool Evaluate(Plan& plan,
                Seconds limit = std::numeric_limits<Seconds>::infinity());

  // What is barred from here on, until the next call, is left as it is decided.
  void Begin() { ++repair_; }
  void Bar(GapIdx gap) { barred_[At(gap)] = repair_; }

  // Cuts until the capacity is kept; false if that fails or exceeds `limit`.
  // The figures of `plan` are those of its decisions, unless the limit was hit.
  // With more `noise`, dearer cuts are chosen more often. A repair that
  // `finishes` goes on even if the effort is spent.
  bool Repair(Plan& plan, Seconds limit, double noise, bool finishes = false);

  // Keeps what there is room for, the most seconds per byte first.
  void FillUp(Plan& plan, double noise);

  // Keeps a value from where it is last there to where the gap of `fill` ends.
  void Keep(Plan& plan, const Fill& fill, bool bars = false);

  // What the last plan that was evaluated makes again; valid until the next.
  [[nodiscard]] std::span<const Fill> Recomputed(const Plan& plan) {
    return fills_.Find(plan.decisions);
  }

  [[nodiscard]] const Rollout& rollout() const { return rollout_; }
  [[nodiscard]] int64_t effort() const { return effort_; }
  [[nodiscard]] Bytes preferred_bytes() const { return preferred_; }
  void AllowMore(Bytes bytes) { preferred_ += bytes; }

 private:
  void MeasureRoom();
  bool Unblock(Plan& plan);
  bool Apply(Plan& plan, std::span<const Cut> found, double noise);
  bool IsBarred(GapIdx gap) const { return barred_[At(gap)] == repair_; }

  const Graph& graph_;
  const GapTable& gaps_;
  const Bytes capacity_;
  Bytes preferred_;
  const Needs needs_;
  int64_t effort_;
  Seconds program_seconds_ = 0;
  Seconds most_seconds_ = std::numeric_limits<Seconds>::infinity();
  Rollout rollout_;
  CutFinder cuts_;
  FillFinder fills_;
  RandomChoice& random_;
  std::vector<std::pair<double, int64_t>> ranked_;
  std::vector<Bytes> room_;  // By execution; negative: too many bytes.
  Room stretches_;
  std::vector<int64_t> touched_;  // By tensor: the round that touched it last.
  int64_t round_ = 0;
  std::vector<int64_t> barred_;  // By gap: the repair that has to leave it.
  int64_t repair_ = 0;
  std::vector<int64_t> reached_;  // By tensor: the walk that reached it.
  int64_t walk_ = 0;
};

}  // namespace coop

#endif  // COOP_CORE_SEARCH_REPAIR_H_
