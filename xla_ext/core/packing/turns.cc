#include "core/packing/turns.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <optional>
#include <utility>

#include "core/packing/composed_search.h"
#include "core/packing/greedy.h"
#include "core/packing/order_search.h"
#include "core/packing/skyline_search.h"

namespace coop {
namespace {

// The first turn of each way to improve, in elementary steps.
constexpr int64_t kFirstTurn = 50'000;
constexpr int64_t kTurnPerBlock = 2'000;
// Tries at the bound itself, of every turn.
constexpr int kTriesAtBound = 6;
constexpr int64_t kMostTurn = int64_t{1} << 40;
// Turns of the search over the order to one of the other.
constexpr int64_t kTurnsOfOrder = 6;
// Of all turns together; only so that different seeds try different things.
constexpr uint64_t kMostTries = 1'000'000;

// Improves on a packing by the search over skylines and by that over the order.
class Improver {
 public:
  // No packing has a peak below `aim`; one of at most `enough` ends the search.
  // `best` came from `order`. All that is referred to must outlive this.
  Improver(const PackingProblem& problem, std::vector<int32_t> order,
           const PackingOptions& options, Bytes aim, Bytes enough,
           const Deadline& deadline)
      : options_(options),
        aim_(aim),
        enough_(enough),
        deadline_(deadline),
        order_search_(problem, std::move(order), options.seed),
        turn_(kFirstTurn + kTurnPerBlock * std::ssize(problem.blocks)) {
    if (!problem.has_fixed) search_.emplace(problem);
  }

  // No packing has a peak below this.
  [[nodiscard]] Bytes aim() const { return aim_; }

  [[nodiscard]] bool MayGoOn(const PackingSolution& best, int64_t work) const {
    return best.peak_bytes > std::max(aim_, enough_) &&
           (search_ || !order_search_.has_ended()) &&
           work < options_.effort && !deadline_.IsOver();
  }

  void TakeTurn(int64_t& work, PackingSolution& best) {
    // Often and short at the bound: a lucky start needs little, an unlucky one
    // never ends.
    for (int i = 0; search_ && i < kTriesAtBound && MayGoOn(best, work); ++i) {
      LookFor(aim_, turn_ / 4, work, best);
    }
    // More than that, so that there is something to show; what is found makes
    // the next step smaller.
    for (int eighths = 1; search_ && eighths < 8 && MayGoOn(best, work);) {
      const Bytes peak = aim_ + (best.peak_bytes - 1 - aim_) * eighths / 8;
      eighths = LookFor(peak, turn_, work, best) ? 1 : 2 * eighths;
    }
    if (!MayGoOn(best, work)) return;
    order_search_.Run(aim_,
                      std::min(options_.effort, work + kTurnsOfOrder * turn_),
                      deadline_, work, best);
    turn_ = std::min(turn_ + turn_ / 16, kMostTurn);
    ++work;
  }

 private:
  bool LookFor(Bytes peak, int64_t limit, int64_t& work,
               PackingSolution& best) {
    const uint64_t seed =
        num_tries_ == 0 ? 0 : options_.seed * kMostTries + num_tries_;
    ++num_tries_;
    const auto outcome =
        search_->Find(peak, seed, std::min(limit, options_.effort - work),
                      deadline_, work);
    if (outcome == PackingSearch::Outcome::kRefuted) {
      aim_ = std::max(aim_, peak + options_.alignment);
    }
    if (outcome != PackingSearch::Outcome::kFound) return false;
    best = search_->solution();
    return true;
  }

  const PackingOptions& options_;
  Bytes aim_;
  const Bytes enough_;
  const Deadline& deadline_;
  std::optional<PackingSearch> search_;
  OrderSearch order_search_;
  int64_t turn_;
  uint64_t num_tries_ = 0;
};

// The best of the greedy orders in `best`, which may be empty before; `order` is
// the one that it came from.
void PackGreedily(const PackingProblem& problem, const PackingOptions& options,
                  Bytes enough, const Deadline& deadline, int64_t& work,
                  std::optional<PackingSolution>& best,
                  std::vector<int32_t>& order) {
  GreedyPacker packer(problem);
  for (int which = 0; which < kNumGreedyOrders; ++which) {
    if (best && (work >= options.effort || deadline.IsOver())) return;
    const auto present = GreedyOrder(problem, which);
    for (const Fit fit : {Fit::kLowest, Fit::kBest}) {
      if (best && best->peak_bytes <= enough) return;
      const Bytes limit = best ? best->peak_bytes - 1
                               : std::numeric_limits<Bytes>::max();
      auto solution = packer.Place(present, fit, limit, work);
      if (!solution) continue;
      best = std::move(solution);
      order = present;
      if (work >= options.effort) return;
    }
  }
}

// One part of the problem and its best packing.
class Part {
 public:
  Part(const PackingProblem& problem, const PackingOptions& options, Bytes aim,
       Bytes enough, const Deadline& deadline, int64_t& work)
      : deadline_(deadline) {
    std::optional<PackingSolution> best;
    std::vector<int32_t> order;
    PackGreedily(problem, options, enough, deadline, work, best, order);
    best_ = *std::move(best);
    improver_.emplace(problem, std::move(order), options, aim, enough, deadline);
    if (!problem.has_fixed) composed_.emplace(problem, options);
  }

  [[nodiscard]] const PackingSolution& best() const { return best_; }
  [[nodiscard]] bool MayGoOn(int64_t work) const {
    return improver_->MayGoOn(best_, work);
  }

  // Either way is given about as much work as the other.
  void TakeTurn(int64_t& work) {
    const int64_t before = work;
    if (composed_ && composed_work_ <= improver_work_) {
      composed_->Try(improver_->aim(), deadline_, work, best_);
      composed_work_ += work - before;
    } else {
      improver_->TakeTurn(work, best_);
      improver_work_ += work - before;
    }
  }

 private:
  const Deadline& deadline_;
  PackingSolution best_;
  std::optional<Improver> improver_;
  std::optional<ComposedSearch> composed_;
  int64_t improver_work_ = 0;
  int64_t composed_work_ = 0;
};

}  // namespace

std::vector<PackingSolution> SolveInTurns(
    std::span<const PackingProblem> problems, const PackingOptions& options,
    Bytes aim, Bytes enough, const Deadline& deadline, int64_t& work) {
  std::deque<Part> parts;  // They do not move.
  for (const PackingProblem& problem : problems) {
    parts.emplace_back(problem, options, aim, enough, deadline, work);
  }
  // Only the highest part counts.
  while (!parts.empty()) {
    Part& highest = *std::max_element(
        parts.begin(), parts.end(), [](const Part& a, const Part& b) {
          return a.best().peak_bytes < b.best().peak_bytes;
        });
    if (!highest.MayGoOn(work)) break;
    highest.TakeTurn(work);
  }
  std::vector<PackingSolution> solutions;
  for (const Part& part : parts) solutions.push_back(part.best());
  return solutions;
}

}  // namespace coop
