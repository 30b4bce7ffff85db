#include "core/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "core/bounds.h"
#include "core/checkpoints.h"
#include "core/cuts.h"
#include "core/fills.h"
#include "core/rollout.h"
#include "core/room.h"
#include "core/splits.h"

namespace coop {
namespace {

// Every repair round applies at most this part of the cuts found before they are
// priced again: one changes the price of others.
constexpr int64_t kCutsPerRound = 24;
// How often a repair that is stuck may keep something that it had dropped.
constexpr int kMostUnblocked = 200;
// A value is found worth keeping in rounds: what is kept changes what is made.
constexpr int kFillRounds = 4;
// How far, relatively, a repair may be worse that starts by dropping something.
constexpr double kMostWorse = 1.5;
// The picks among all gaps for one that is kept.
constexpr int kDropAttempts = 16;
// Attempts without success after which the search goes back to the best.
constexpr int64_t kMostStale = 300;
// Plans that half of the effort for improving is shared among.
constexpr int64_t kMostStarts = 8;
// The most gaps that a plan is polished by keeping, one after the other.
constexpr int kMostPolished = 200;
// The most parts that the way forward is cut into by a plan to start from.
constexpr int64_t kMostSegments = 256;
// How often gaps are parted, each time for half of the effort that is left.
constexpr int kSplitRounds = 2;
// Of the effort, what a first plan from each start may not take.
constexpr int64_t kReserveOfEffort = 2;

class Search {
 public:
  Search(const Graph& graph, const GapTable& gaps, Bytes capacity,
         const SearchOptions& options)
      : graph_(graph),
        gaps_(gaps),
        capacity_(capacity),
        preferred_(
            std::min(capacity, options.preferred_bytes.value_or(capacity))),
        needs_(FindNeeds(graph, options.alignment)),
        effort_(options.effort),
        rollout_(graph, gaps, options.alignment),
        cuts_(graph, gaps, rollout_),
        fills_(graph, gaps, rollout_),
        random_(options.seed),
        touched_(At(graph.num_tensors()), 0),
        barred_(At(gaps.size()), 0),
        reached_(At(graph.num_tensors()), 0) {
    for (OpIdx op = 0; op < graph.num_ops(); ++op) {
      program_seconds_ += graph.seconds(op);
    }
    if (options.overhead_limit) {
      // Beyond, a plan is of no use; it may be on its way to quadratic work.
      most_seconds_ = (*options.overhead_limit - 1) * program_seconds_;
    }
  }

  // From `start`, if there are any.
  SearchResult Run(Decisions start) {
    if (start.empty()) {
      Start();
    } else {
      best_.decisions = std::move(start);
      Evaluate(best_, std::numeric_limits<Seconds>::infinity());
    }
    if (!IsFeasible(best_)) Descend();
    // What is preferred cannot be had everywhere: then a little more of it.
    if (best_.peak_bytes <= capacity_) {
      preferred_ += std::exchange(best_.bytes_above, 0);
    }
    if (IsFeasible(best_)) ImproveStarts();
    return {.gaps = gaps_,
            .decisions = best_.decisions,
            .recompute_seconds = best_.recompute_seconds,
            .peak_bytes = best_.peak_bytes};
  }

  // What was preferred, or as little above it as could be had.
  [[nodiscard]] Bytes preferred_bytes() const { return preferred_; }

 private:
  struct Plan {
    Decisions decisions;
    Seconds recompute_seconds = std::numeric_limits<Seconds>::infinity();
    Bytes peak_bytes = std::numeric_limits<Bytes>::max();
    Bytes bytes_above = std::numeric_limits<Bytes>::max();  // At most, anywhere.
  };

  static bool IsFeasible(const Plan& plan) { return plan.bytes_above == 0; }

  static bool IsBetter(const Plan& a, const Plan& b) {
    if (a.bytes_above != b.bytes_above) return a.bytes_above < b.bytes_above;
    return a.recompute_seconds < b.recompute_seconds;
  }

  // Rolls `plan` out and fills in its figures; false if it takes too long.
  bool Evaluate(Plan& plan, Seconds limit) {
    const bool finished =
        rollout_.Run(plan.decisions, std::min(limit, most_seconds_));
    effort_ -= std::ssize(rollout_.executions()) + 1;
    if (!finished) return false;
    plan.recompute_seconds = rollout_.recompute_seconds();
    plan.peak_bytes = rollout_.peak_bytes();
    MeasureRoom();
    plan.bytes_above = std::max<Bytes>(0, plan.peak_bytes - capacity_);
    for (const Bytes room : room_) {
      plan.bytes_above = std::max(plan.bytes_above, -room);
    }
    return true;
  }

  // The bytes below what is preferred, or needed, by execution of the rollout.
  void MeasureRoom() {
    const auto live = rollout_.live_bytes();
    const auto executions = rollout_.executions();
    room_.resize(live.size());
    for (size_t e = 0; e < live.size(); ++e) {
      Bytes limit = preferred_;
      if (live[e] > limit && limit < capacity_) {
        const auto& [op, position, _] = executions[e];
        limit = std::clamp(needs_.At(op, position), limit, capacity_);
      }
      room_[e] = limit - live[e];
    }
  }

  void Start() {
    const int64_t reserve = effort_ / kReserveOfEffort;
    StartFromEverything(kKeepToEnd);
    if (IsFeasible(best_) && best_.recompute_seconds == 0) return;
    StartFromCheckpoints(reserve);
    for (const uint8_t behind : {uint8_t{0}, uint8_t{kKeep}}) {
      if (effort_ > reserve) StartFromEverything(behind);
    }
  }

  // Everything is kept but what lies behind the last use: that is made again
  // for everyone, made again once, or kept for the recomputations that read it.
  void StartFromEverything(uint8_t behind) {
    Plan plan{.decisions = gaps_.KeepAll()};
    for (GapIdx gap = 0; gap < gaps_.size(); ++gap) {
      if (gaps_.is_behind_last_use(gap) && gaps_.may_drop(gap)) {
        plan.decisions[At(gap)] = behind;
      }
    }
    Consider(std::move(plan));
  }

  void StartFromCheckpoints(int64_t reserve) {
    Plan unmodified{.decisions = gaps_.KeepAll()};
    Evaluate(unmodified, std::numeric_limits<Seconds>::infinity());
    const Checkpoints checkpoints(graph_, gaps_, rollout_);
    for (int64_t parts = 1; parts <= kMostSegments; parts *= 2) {
      for (const int64_t halves : {2, 3}) {
        if (effort_ < reserve) return;
        const Bytes segment_bytes =
            2 * checkpoints.idle_bytes() / (halves * parts);
        Consider({.decisions = checkpoints.Every(segment_bytes)});
      }
    }
  }

  void Consider(Plan plan) {
    ++repair_;
    Repair(plan, std::numeric_limits<Seconds>::infinity(), 0);
    if (IsFeasible(plan)) FillUp(plan, 0);
    if (best_.decisions.empty() || IsBetter(plan, best_)) best_ = plan;
    if (IsFeasible(plan)) starts_.push_back(std::move(plan));
  }

  // Cuts until the capacity is kept; false if that fails or exceeds `limit`.
  // The figures of `plan` are those of its decisions, unless the limit was hit.
  bool Repair(Plan& plan, Seconds limit, double noise) {
    int num_unblocked = 0;
    while (Evaluate(plan, limit)) {
      if (IsFeasible(plan)) return true;
      const auto found = cuts_.Find(plan.decisions, room_);
      effort_ -= std::ssize(rollout_.reads());
      if (effort_ < -max_overdraft()) return false;
      if (Apply(plan, found, noise)) continue;
      if (++num_unblocked > kMostUnblocked || !Unblock(plan)) return false;
    }
    return false;
  }

  // Where nothing else can be dropped, an operation runs again that needs too
  // much by itself. Keeps one value on the way from it to what asked for it, so
  // that it need not run, and bars it from being dropped in this repair. False
  // if the operation does not run again, or all values on the way are kept.
  bool Unblock(Plan& plan) {
    const auto least = std::ranges::min_element(room_);
    if (least == room_.end() || *least >= 0) return false;  // It is the inputs.
    const auto worst = least - room_.begin();
    const auto executions = rollout_.executions();
    const auto [op, position, is_recompute] = executions[At(worst)];
    if (!is_recompute) return false;
    ++walk_;
    for (const TensorIdx t : graph_.outputs(op)) reached_[At(t)] = walk_;
    GapIdx kept = kNone;
    Bytes kept_bytes = 0;
    const auto consider = [&](TensorIdx t) {
      if (!gaps_.has_gaps(t)) return;
      const GapIdx gap = gaps_.at(t, position);
      if (plan.decisions[At(gap)] == kKeep) return;
      // Of the small ones the one that is nearest to who asked.
      if (kept != kNone && rollout_.Size(t) > kept_bytes) return;
      kept = gap;
      kept_bytes = rollout_.Size(t);
    };
    for (const TensorIdx t : graph_.outputs(op)) consider(t);
    for (ExecIdx e = worst + 1;
         e < std::ssize(executions) && executions[At(e)].is_recompute &&
         executions[At(e)].position == position;
         ++e) {
      const OpIdx reader = executions[At(e)].op;
      const bool depends =
          std::ranges::any_of(graph_.inputs(reader), [&](TensorIdx t) {
            return reached_[At(t)] == walk_;
          });
      if (!depends) continue;
      for (const TensorIdx t : graph_.outputs(reader)) {
        reached_[At(t)] = walk_;
        consider(t);
      }
    }
    if (kept == kNone) return false;
    for (;; --kept) {
      plan.decisions[At(kept)] = kKeep;
      barred_[At(kept)] = repair_;
      if (!gaps_.begins_with_split(kept)) return true;
    }
  }

  // A first plan is finished even if the effort is spent.
  int64_t max_overdraft() const {
    return best_.decisions.empty() ? std::numeric_limits<int64_t>::max() : 0;
  }

  // False if there is no cut that may be applied.
  bool Apply(Plan& plan, std::span<const Cut> found, double noise) {
    const double least_price =
        1e-6 * program_seconds_ / static_cast<double>(graph_.num_ops() + 1);
    ranked_.clear();
    for (int64_t i = 0; i < std::ssize(found); ++i) {
      if (barred_[At(found[At(i)].gap)] == repair_) continue;
      double score = (found[At(i)].seconds + least_price) / found[At(i)].relief;
      if (noise > 0) score *= std::exp(noise * (2 * Uniform() - 1));
      ranked_.emplace_back(score, i);
    }
    if (ranked_.empty()) return false;
    const int64_t most = 1 + std::ssize(found) / kCutsPerRound;
    std::ranges::partial_sort(
        ranked_, ranked_.begin() + std::min(4 * most, std::ssize(ranked_)));
    stretches_.Index(room_);
    ++round_;
    int64_t num_applied = 0;
    for (int64_t i = 0; i < std::min(4 * most, std::ssize(ranked_)); ++i) {
      const Cut& cut = found[At(ranked_[At(i)].second)];
      const TensorIdx t = gaps_.tensor(cut.gap);
      if (num_applied > 0 && touched_[At(t)] == round_) continue;
      const bool relieves =
          stretches_.Relieve(cut.from, cut.to, rollout_.Size(t));
      if (num_applied > 0 && !relieves) continue;
      plan.decisions[At(cut.gap)] = cut.decision;
      touched_[At(t)] = round_;
      if (++num_applied == most) break;
      for (const TensorIdx other : cuts_.Touched(cut)) {
        touched_[At(other)] = round_;
      }
    }
    return true;
  }

  // Keeps what there is room for, the most seconds per byte first.
  void FillUp(Plan& plan, double noise) {
    for (int round = 0; round < kFillRounds && effort_ > 0; ++round) {
      if (!Evaluate(plan, std::numeric_limits<Seconds>::infinity())) return;
      const auto found = fills_.Find(plan.decisions);
      effort_ -= std::ssize(rollout_.versions());
      ranked_.clear();
      for (int64_t i = 0; i < std::ssize(found); ++i) {
        if (barred_[At(found[At(i)].gap)] == repair_) continue;
        double score =
            -found[At(i)].seconds /
            static_cast<double>(rollout_.Size(gaps_.tensor(found[At(i)].gap)));
        if (noise > 0) score *= std::exp(noise * (2 * Uniform() - 1));
        ranked_.emplace_back(score, i);
      }
      std::ranges::sort(ranked_);
      stretches_.Index(room_);
      Plan filled{.decisions = plan.decisions};
      bool has_filled = false;
      for (const auto& [_, i] : ranked_) {
        const Fill& fill = found[At(i)];
        const Bytes bytes = rollout_.Size(gaps_.tensor(fill.gap));
        if (!stretches_.Take(fill.from, fill.to, bytes)) continue;
        Keep(filled, fill);
        has_filled = true;
      }
      if (!has_filled) return;
      if (!Evaluate(filled, plan.recompute_seconds)) return;
      if (!IsBetter(filled, plan)) return;
      plan = std::move(filled);
    }
  }

  // No cut is left that helps at the peak: undo some at random, and repair again.
  // Half of the effort; what then fits can still be improved.
  void Descend() {
    const int64_t reserve = effort_ / 2;
    Plan present = best_;
    while (effort_ > reserve && !IsFeasible(present)) {
      Plan plan{.decisions = present.decisions};
      if (!Ruin(plan)) return;
      Repair(plan, std::numeric_limits<Seconds>::infinity(), 1);
      if (!IsBetter(present, plan)) present = std::move(plan);
    }
    if (IsBetter(present, best_)) best_ = std::move(present);
  }

  // A little from each of the best starts, then from the best of what came of it:
  // which start leads furthest cannot be seen at once.
  void ImproveStarts() {
    std::ranges::stable_sort(starts_, {}, &Plan::recompute_seconds);
    const auto equal = std::ranges::unique(starts_, {}, &Plan::recompute_seconds);
    starts_.erase(equal.begin(), equal.end());
    const int64_t num_starts = std::min(kMostStarts, std::ssize(starts_));
    const int64_t share = effort_ / (2 * kMostStarts);
    for (int64_t i = 1; i < num_starts; ++i) {
      Improve(std::move(starts_[At(i)]), effort_ - share);
    }
    Improve(best_, 0);
  }

  // From `present`, until no more than so much effort is left.
  void Improve(Plan present, int64_t effort_at_end) {
    Plan best = present;
    const int64_t effort_at_start = std::max(effort_, effort_at_end + 1);
    int64_t num_stale = 0;
    Polish(present);
    if (IsBetter(present, best)) best = present;
    while (effort_ > effort_at_end && best.recompute_seconds > 0) {
      const double temperature =
          0.02 * static_cast<double>(effort_ - effort_at_end) /
          static_cast<double>(effort_at_start - effort_at_end);
      Plan plan{.decisions = present.decisions};
      if (!Ruin(plan)) break;
      const Seconds limit =
          present.recompute_seconds * (1 + temperature) + 1e-18;
      // What was dropped can only pay once there is room for something else.
      const Seconds repair_limit =
          has_dropped_ ? kMostWorse * present.recompute_seconds : limit;
      if (!Repair(plan, repair_limit, 0.5)) {
        ++num_stale;
        continue;
      }
      FillUp(plan, 0.5);
      if (plan.recompute_seconds < present.recompute_seconds) {
        Polish(plan);
        num_stale = 0;
      }
      if (plan.recompute_seconds <= limit) present = std::move(plan);
      if (IsBetter(present, best)) best = present;
      if (++num_stale > kMostStale) {
        present = best;
        num_stale = 0;
      }
    }
    if (IsBetter(best, best_)) best_ = std::move(best);
  }

  // Keeps a value from where it is last there to where the gap of `fill` ends.
  void Keep(Plan& plan, const Fill& fill, bool bars = false) {
    GapIdx gap = fill.gap;
    plan.decisions[At(gap)] = kKeep;
    if (bars) barred_[At(gap)] = repair_;
    while (gaps_.begins_with_split(gap) && gaps_.begin(gap) >= fill.last_used) {
      --gap;
      const bool is_made_here = fill.made > gaps_.begin(gap);
      plan.decisions[At(gap)] |= is_made_here ? kKeepToEnd : kKeep;
      if (bars) barred_[At(gap)] = repair_;
    }
  }

  // Undoes part of the plan; false if there is nothing to undo. Half of the time
  // what it decides is barred, so that the repair has to find something else.
  bool Ruin(Plan& plan) {
    if (!Evaluate(plan, std::numeric_limits<Seconds>::infinity())) return false;
    const auto found = fills_.Find(plan.decisions);
    if (found.empty()) return false;
    ++repair_;
    has_dropped_ = false;
    const bool bars = Below(2) == 0;
    const int64_t size = std::ssize(found);
    const int64_t pick = Below(size);
    switch (Below(5)) {
      case 0:  // One gap.
        Keep(plan, found[At(pick)], bars);
        break;
      case 4:  // The other way round: drops something, for others to be kept.
        has_dropped_ = Drop(plan);
        break;
      case 1: {  // Neighbours in time.
        const int64_t reach = 1 + Below(8);
        for (int64_t i = std::max<int64_t>(0, pick - reach);
             i < std::min(size, pick + reach); ++i) {
          Keep(plan, found[At(i)], bars);
        }
        break;
      }
      case 2: {  // Some of all.
        const double share = 0.02 + 0.1 * Uniform();
        for (const Fill& fill : found) {
          if (Uniform() < share) Keep(plan, fill, bars);
        }
        break;
      }
      default: {  // The dearer of a few; another way of keeping it.
        int64_t dearest = pick;
        for (int i = 0; i < 4; ++i) {
          const int64_t other = Below(size);
          if (found[At(other)].seconds > found[At(dearest)].seconds) {
            dearest = other;
          }
        }
        constexpr uint8_t kWays[] = {kKeepInGap, kKeepToEnd};
        const int64_t way = Below(3);
        if (way == 2) {
          Keep(plan, found[At(dearest)]);
        } else {
          plan.decisions[At(found[At(dearest)].gap)] = kWays[way];
        }
        break;
      }
    }
    return true;
  }

  bool Drop(Plan& plan) {
    for (int attempt = 0; attempt < kDropAttempts; ++attempt) {
      const GapIdx gap = Below(gaps_.size());
      if (!gaps_.may_drop(gap) || gaps_.is_behind_last_use(gap)) continue;
      if (plan.decisions[At(gap)] != kKeep) continue;
      plan.decisions[At(gap)] = Below(2) == 0 ? 0 : kKeepToEnd;
      barred_[At(gap)] = repair_;
      return true;
    }
    return false;
  }

  // Takes back, dearest first, every decision that the capacity does not need.
  void Polish(Plan& plan) {
    if (!Evaluate(plan, std::numeric_limits<Seconds>::infinity())) return;
    const auto found = fills_.Find(plan.decisions);
    std::vector<Fill> order(found.begin(), found.end());
    std::ranges::stable_sort(order, std::greater<>{}, &Fill::seconds);
    int64_t num_tries = 0;
    for (const Fill& fill : order) {
      if (effort_ <= 0 || ++num_tries > kMostPolished) return;
      Plan kept = plan;
      Keep(kept, fill);
      if (Evaluate(kept, plan.recompute_seconds) && IsBetter(kept, plan)) {
        plan = std::move(kept);
      }
    }
  }

  int64_t Below(int64_t n) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(n));
  }
  double Uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

  const Graph& graph_;
  const GapTable& gaps_;
  const Bytes capacity_;
  Bytes preferred_;
  const Needs needs_;
  int64_t effort_;
  Seconds program_seconds_ = 0;
  Rollout rollout_;
  CutFinder cuts_;
  FillFinder fills_;
  std::mt19937_64 random_;
  Plan best_;
  std::vector<Plan> starts_;  // That keep the capacity.
  std::vector<std::pair<double, int64_t>> ranked_;
  std::vector<Bytes> room_;  // By execution; negative: too many bytes.
  Room stretches_;
  std::vector<int64_t> touched_;  // By tensor: the round that touched it last.
  int64_t round_ = 0;
  std::vector<int64_t> barred_;  // By gap: the repair that has to leave it.
  int64_t repair_ = 0;
  bool has_dropped_ = false;  // By the last Ruin().
  std::vector<int64_t> reached_;  // By tensor: the walk that reached it.
  int64_t walk_ = 0;
  Seconds most_seconds_ = std::numeric_limits<Seconds>::infinity();
};

}  // namespace

SearchResult SearchDecisions(const Graph& graph, Bytes capacity,
                             const SearchOptions& options) {
  GapTable gaps(graph);
  SearchOptions present = options;
  Decisions start;
  for (int round = 0;; ++round) {
    const bool is_last = round == kSplitRounds;
    present.effort = is_last ? options.effort >> round
                             : options.effort >> (round + 1);
    Search search(graph, gaps, capacity, present);
    SearchResult found = search.Run(std::move(start));
    if (is_last || found.recompute_seconds == 0) return found;
    const auto splits = FindSplits(graph, found.gaps, found.decisions);
    if (splits.empty()) return found;
    GapTable finer(graph, splits);
    start = finer.Refine(found.gaps, found.decisions);
    gaps = std::move(finer);
    if (present.preferred_bytes) {
      present.preferred_bytes = search.preferred_bytes();
    }
  }
}

}  // namespace coop
