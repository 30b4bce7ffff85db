// Repair: makes a plan of the search keep its limit, and use all of it.
#ifndef COOP_CORE_SEARCH_REPAIR_H_
#define COOP_CORE_SEARCH_REPAIR_H_

#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/types.h"
#include "core/graph/bounds.h"
#include "core/graph/graph.h"
#include "core/search/cuts.h"
#include "core/search/fills.h"
#include "core/search/gaps.h"
#include "core/search/options.h"
#include "core/search/plan.h"
#include "core/search/random_choice.h"
#include "core/search/rollout.h"
#include "core/search/room.h"

namespace coop {

class Repairer {
 public:
  // All must outlive the repairer.
  Repairer(const Graph& graph, const GapTable& gaps, Bytes capacity,
           const SearchOptions& options, RandomChoice& random);

  // Rolls `plan` out and fills in its figures; false if it takes too long.
  bool Evaluate(SearchPlan& plan,
                Seconds limit = std::numeric_limits<Seconds>::infinity());

  // The gaps barred from here on, until the next call, stay as they are decided.
  void Begin() { ++repair_; }
  void Bar(GapIdx gap) { barred_[At(gap)] = repair_; }

  // Cuts until the capacity is kept; false if that fails or exceeds `limit`.
  // The figures of `plan` are those of its decisions, unless the limit was hit.
  // With more `noise`, dearer cuts are chosen more often. A repair that
  // `finishes` goes on for a while if the effort is spent.
  bool Repair(SearchPlan& plan, Seconds limit, double noise,
              bool finishes = false);

  // Keeps what there is room for, the most seconds per byte first.
  void FillUp(SearchPlan& plan, double noise);

  // Keeps a value from where it is last there to where the gap of `fill` ends.
  void Keep(SearchPlan& plan, const Fill& fill, bool bars = false);

  // The values that the last evaluated plan recomputes; valid until the next.
  [[nodiscard]] std::span<const Fill> Recomputed(const SearchPlan& plan) {
    return fills_.Find(plan.decisions);
  }

  // What the last evaluated plan, which keeps the capacity, keeps where the smallest of
  // the values that it makes again has no room: a cut's relief is its bytes times the
  // executions of which that holds. Valid until the next.
  [[nodiscard]] std::span<const Cut> KeptInTheWay(const SearchPlan& plan);

  // The room of what is evaluated from now on; no bytes are preferred any more.
  void SetCapacity(Bytes capacity) {
    capacity_ = preferred_ = capacity;
    has_fit_ = false;
  }

  // From now on; see SearchOptions.
  void Reserve(std::vector<Bytes> reserved) { reserved_ = std::move(reserved); }
  // Such a part of what the last evaluated plan leaves, by position.
  [[nodiscard]] std::vector<Bytes> PartOfRoom(double part) const;

  void Spend(int64_t effort) { effort_ -= effort; }
  [[nodiscard]] const Rollout& rollout() const { return rollout_; }
  [[nodiscard]] int64_t effort() const { return effort_; }
  // While no plan kept the capacity.
  [[nodiscard]] int64_t lookups() const { return lookups_; }
  [[nodiscard]] Bytes preferred_bytes() const { return preferred_; }
  [[nodiscard]] Seconds program_seconds() const { return program_seconds_; }
  void AllowMore(Bytes bytes) { preferred_ += bytes; }

 private:
  bool RollOut(const Decisions& decisions, Seconds limit);
  void MeasureRoom();
  bool Unblock(SearchPlan& plan);
  bool Apply(SearchPlan& plan, std::span<const Cut> found, double noise);
  bool IsBarred(GapIdx gap) const { return barred_[At(gap)] == repair_; }

  const Graph& graph_;
  const GapTable& gaps_;
  Bytes capacity_;
  Bytes preferred_;
  std::vector<Bytes> reserved_;
  const Needs needs_;
  int64_t effort_;
  const int64_t least_effort_;  // Where what finishes ends, too.
  const Deadline deadline_;
  const int64_t most_lookups_;
  int64_t lookups_ = 0;
  bool has_fit_ = false;  // Some plan, as it was evaluated.
  Seconds program_seconds_ = 0;
  Seconds most_seconds_ = std::numeric_limits<Seconds>::infinity();
  Rollout rollout_;
  Decisions rolled_out_;  // Of the last rollout.
  bool is_rolled_out_ = false;  // To its end.
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
