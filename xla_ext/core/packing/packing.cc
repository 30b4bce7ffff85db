#include "core/packing/packing.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/packing/compose.h"
#include "core/packing/greedy.h"
#include "core/packing/order_search.h"
#include "core/packing/problem.h"
#include "core/packing/skyline_search.h"

namespace coop {
namespace {

// How unlike the sizes of blocks may be that are laid side by side.
constexpr double kTolerances[] = {0, 0.003, 0.01, 0.02, 0.04, 0.08, 0.2, 0.4};
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

template <typename... Parts>
[[noreturn]] void Fail(std::string_view function, const Parts&... parts) {
  std::ostringstream text;
  text << function << "(...): ";
  (text << ... << parts);
  throw std::invalid_argument(text.str());
}

// Fixed blocks in address order; two that meet are neighbours in time at some
// step, where the one below must end first.
void CheckFixed(std::span<const PackingBlock> blocks,
                const PackingProblem& problem, Bytes alignment) {
  std::vector<const SectionBlock*> fixed;
  for (const SectionBlock& block : problem.blocks) {
    if (block.fixed_offset != kNone) fixed.push_back(&block);
  }
  std::stable_sort(fixed.begin(), fixed.end(),
                   [](const SectionBlock* a, const SectionBlock* b) {
                     return a->fixed_offset < b->fixed_offset;
                   });
  std::vector<const SectionBlock*> below(At(problem.num_sections), nullptr);
  for (const SectionBlock* block : fixed) {
    for (int32_t s = block->begin; s < block->end; ++s) {
      const SectionBlock* other = below[At(s)];
      if (other != nullptr &&
          other->fixed_offset + other->bytes > block->fixed_offset) {
        Fail("pack",
             "`fixed_offsets` must keep blocks that live at one step apart, "
             "but blocks ",
             other->source, " and ", block->source, " at ", other->fixed_offset,
             " and ", block->fixed_offset, " of ",
             blocks[At(other->source)].bytes, " and ",
             blocks[At(block->source)].bytes, " bytes (alignment ", alignment,
             ") overlap; move one of them or use -1");
      }
      below[At(s)] = block;
    }
  }
}

// Improves on a packing in two ways that take turns. The turns are the same with
// any effort and whatever is enough, only more or fewer of them: what is found
// for less is found for more.
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
                      work, best);
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

// What blocks can be composed of, and its packing.
class Composed {
 public:
  Composed(Composition composition, const PackingOptions& options, Bytes enough,
           const Deadline& deadline, int64_t& work)
      : composition_(std::move(composition)),
        reduced_(composition_.Reduced(options.alignment)) {
    std::optional<PackingSolution> solution;
    std::vector<int32_t> order;
    PackGreedily(reduced_, options, enough, deadline, work, solution, order);
    solution_ = *std::move(solution);
    improver_.emplace(reduced_, std::move(order), options,
                      reduced_.lower_bound_bytes, enough, deadline);
  }

  void TakeTurn(int64_t& work) {
    if (improver_->MayGoOn(solution_, work)) {
      improver_->TakeTurn(work, solution_);
    }
  }
  // Replaces `best` by what is better.
  void Offer(PackingSolution& best) const {
    PackingSolution expanded = composition_.Expand(reduced_, solution_);
    if (expanded.peak_bytes < best.peak_bytes) best = std::move(expanded);
  }

 private:
  const Composition composition_;
  const PackingProblem reduced_;
  PackingSolution solution_;
  std::optional<Improver> improver_;
};

PackingSolution SolveInTurns(const PackingProblem& problem,
                      const PackingOptions& options, Bytes aim, Bytes enough,
                      const Deadline& deadline, int64_t& work) {
  std::optional<PackingSolution> best;
  std::vector<int32_t> order;
  PackGreedily(problem, options, enough, deadline, work, best, order);
  Improver improver(problem, std::move(order), options, aim, enough, deadline);
  const auto may_go_on = [&] { return improver.MayGoOn(*best, work); };
  // Ever more loosely.
  std::deque<Composed> all_composed;  // They do not move.
  if (!problem.has_fixed) {
    Composition composition(problem);
    size_t num_before = problem.blocks.size();
    for (const double tolerance : kTolerances) {
      if (!may_go_on()) break;
      composition.Join(tolerance, work);
      if (composition.num_pieces() == num_before) continue;
      num_before = composition.num_pieces();
      all_composed.emplace_back(composition, options, enough, deadline, work)
          .Offer(*best);
    }
  }
  for (size_t turn = 0; may_go_on(); ++turn) {
    if (!all_composed.empty()) {
      Composed& composed = all_composed[turn % all_composed.size()];
      composed.TakeTurn(work);
      composed.Offer(*best);
    }
    if (may_go_on()) improver.TakeTurn(work, *best);
  }
  return *std::move(best);
}

// Shares what is left of the effort between the two ways to improve on `best`,
// which came from `order`.
void ImproveInShares(const PackingProblem& problem, const std::vector<int32_t>& order,
             const PackingOptions& options, Bytes target, int64_t& work,
             PackingSolution& best) {
  const int64_t start = work;
  const int64_t effort = options.effort - start;
  std::optional<PackingSearch> search;
  if (!problem.has_fixed) search.emplace(problem);
  const auto search_until = [&](int64_t work_end) {
    // Short at first: a lucky start needs little, an unlucky one never ends.
    int64_t limit = effort / 200;
    for (uint64_t round = 0; best.peak_bytes > target && work < work_end;
         ++round) {
      // Now and then for less than all, so that there is something to show.
      const Bytes peak = round % 4 == 3
                             ? target + (best.peak_bytes - 1 - target) / 2
                             : target;
      const uint64_t seed = round == 0 ? 0 : options.seed * 1000 + round;
      const auto outcome =
          search->Find(peak, seed, std::min(limit, work_end - work),
                       Deadline(std::nullopt), work);
      if (outcome == PackingSearch::Outcome::kFound) {
        best = search->solution();
      } else if (outcome == PackingSearch::Outcome::kRefuted) {
        target = peak + options.alignment;
      }
      limit += limit / 20;
    }
  };
  if (search) search_until(start + effort / 2);
  OrderSearch(problem, order, options.seed)
      .Run(target, search ? start + effort / 4 * 3 : options.effort, work,
           best);
  if (search) search_until(options.effort);
}

PackingSolution SolveInShares(const PackingProblem& problem,
                      const PackingOptions& options, Bytes target,
                      int64_t& work) {
  GreedyPacker packer(problem);
  std::optional<PackingSolution> best;
  std::vector<int32_t> best_order;
  for (int which = 0; which < kNumGreedyOrders; ++which) {
    // At most half of it: searching is worth more than yet another order.
    if (best && work >= options.effort / 2) break;
    const auto order = GreedyOrder(problem, which);
    for (const Fit fit : {Fit::kLowest, Fit::kBest}) {
      if (best && best->peak_bytes <= target) return *std::move(best);
      const Bytes limit = best ? best->peak_bytes - 1
                               : std::numeric_limits<Bytes>::max();
      auto solution = packer.Place(order, fit, limit, work);
      if (!solution) continue;
      best = std::move(solution);
      best_order = order;
      if (work >= options.effort / 2) break;
    }
  }
  if (best->peak_bytes > target && work < options.effort) {
    ImproveInShares(problem, best_order, options, target, work, *best);
  }
  return *std::move(best);
}

}  // namespace

void CheckBlocks(std::string_view function,
                 std::span<const PackingBlock> blocks, Bytes alignment) {
  if (alignment <= 0 || (alignment & (alignment - 1)) != 0) {
    Fail(function, "`alignment` must be a power of two, got ", alignment,
         "; round it up to one");
  }
  // Half of what fits: an offset plus a size never overflows.
  constexpr Bytes kMaxTotal = std::numeric_limits<Bytes>::max() / 2;
  Bytes total = 0;
  for (int64_t i = 0; i < std::ssize(blocks); ++i) {
    const PackingBlock& block = blocks[At(i)];
    if (block.bytes < 0) {
      Fail(function, "`bytes` must not be negative, but block ", i, " has ",
           block.bytes,
           "; leave out blocks that need no memory or give them 0");
    }
    if (block.last < block.first) {
      Fail(function, "`last` must not be before `first`, but block ", i,
           " lives from ", block.first, " to ", block.last,
           "; `last` is the last step that needs it, itself included");
    }
    // Rounding up needs room as well.
    if (block.bytes > kMaxTotal - alignment ||
        RoundUp(block.bytes, alignment) > kMaxTotal - total) {
      Fail(function,
           "`bytes` must add up to at most 2**62 - 1 after rounding up to the "
           "alignment, but block ",
           i, " of ", block.bytes, " exceeds that; check its unit");
    }
    total += RoundUp(block.bytes, alignment);
    if (block.fixed_offset == kNone) continue;
    if (block.fixed_offset < 0 || block.fixed_offset % alignment != 0 ||
        block.fixed_offset > kMaxTotal) {
      Fail(function, "`fixed_offsets` must be multiples of the alignment (",
           alignment, ") in [0, 2**62) or -1, but block ", i, " has ",
           block.fixed_offset,
           "; use -1 for a block that may be anywhere");
    }
  }
}

Packing Pack(std::span<const PackingBlock> blocks,
             const PackingOptions& options) {
  CheckBlocks("pack", blocks, options.alignment);
  Packing packing;
  packing.offsets.reserve(blocks.size());
  for (const PackingBlock& block : blocks) {
    packing.offsets.push_back(std::max<Offset>(block.fixed_offset, 0));
  }
  const auto problems = SplitPacking(blocks, options.alignment);
  for (const PackingProblem& problem : problems) {
    if (problem.has_fixed) CheckFixed(blocks, problem, options.alignment);
    packing.lower_bound_bytes =
        std::max(packing.lower_bound_bytes, problem.lower_bound_bytes);
  }
  // A part whose peak stays below that of another need not get any better.
  Bytes enough =
      std::max(packing.lower_bound_bytes, options.target_peak_bytes);
  int64_t work = 0;
  const Deadline deadline(options.seconds);
  for (const PackingProblem& problem : problems) {
    const PackingSolution solution =
        options.seconds
            ? SolveInTurns(problem, options, packing.lower_bound_bytes, enough,
                           deadline, work)
            : SolveInShares(problem, options, enough, work);
    for (size_t i = 0; i < problem.blocks.size(); ++i) {
      packing.offsets[At(problem.blocks[i].source)] = solution.offsets[i];
    }
    packing.peak_bytes = std::max(packing.peak_bytes, solution.peak_bytes);
    enough = std::max(enough, packing.peak_bytes);
  }
  return packing;
}

}  // namespace coop
