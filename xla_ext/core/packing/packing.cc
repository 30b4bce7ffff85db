#include "core/packing/packing.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/packing/greedy.h"
#include "core/packing/order_search.h"
#include "core/packing/problem.h"
#include "core/packing/skyline_search.h"
#include "core/packing/turns.h"

namespace coop {
namespace {

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
      .Run(target, search ? start + effort / 4 * 3 : options.effort,
           Deadline(std::nullopt), work, best);
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
  std::vector<PackingSolution> solutions;
  if (options.seconds) {
    solutions = SolveInTurns(problems, options, packing.lower_bound_bytes, enough,
                             Deadline(options.seconds), work);
  } else {
    for (const PackingProblem& problem : problems) {
      solutions.push_back(SolveInShares(problem, options, enough, work));
      enough = std::max(enough, solutions.back().peak_bytes);
    }
  }
  for (size_t part = 0; part < problems.size(); ++part) {
    const PackingSolution& solution = solutions[part];
    for (size_t i = 0; i < solution.offsets.size(); ++i) {
      packing.offsets[At(problems[part].blocks[i].source)] = solution.offsets[i];
    }
    packing.peak_bytes = std::max(packing.peak_bytes, solution.peak_bytes);
  }
  return packing;
}

}  // namespace coop
