#include "core/packing/problem.h"

#include <algorithm>
#include <tuple>

namespace coop {
namespace {

// Numbers the sections of `blocks`, sorted by first step, and makes the blocks'
// lifetimes ranges of them.
PackingProblem Compress(std::span<const PackingBlock> blocks,
                        std::span<const int64_t> sorted, Bytes alignment) {
  std::vector<int64_t> lasts;
  lasts.reserve(sorted.size());
  for (const int64_t i : sorted) lasts.push_back(blocks[At(i)].last);
  std::sort(lasts.begin(), lasts.end());

  // The first step of every block that begins after some block has ended in the
  // section before opens a new section.
  PackingProblem problem;
  std::vector<int64_t> section_starts;
  size_t ended = 0;
  for (const int64_t i : sorted) {
    const int64_t first = blocks[At(i)].first;
    const size_t before = ended;
    while (ended < lasts.size() && lasts[ended] < first) ++ended;
    if (section_starts.empty() || ended > before) {
      section_starts.push_back(first);
    }
  }
  problem.num_sections = static_cast<int32_t>(section_starts.size());
  const auto section_of = [&](int64_t step) {
    const auto after = std::upper_bound(section_starts.begin(),
                                        section_starts.end(), step);
    return static_cast<int32_t>(after - section_starts.begin()) - 1;
  };
  problem.load.assign(At(problem.num_sections) + 1, 0);
  for (const int64_t i : sorted) {
    const PackingBlock& block = blocks[At(i)];
    const SectionBlock compressed{section_of(block.first),
                                  section_of(block.last) + 1,
                                  RoundUp(block.bytes, alignment),
                                  block.fixed_offset, i};
    problem.blocks.push_back(compressed);
    problem.load[At(compressed.begin)] += compressed.bytes;
    problem.load[At(compressed.end)] -= compressed.bytes;
    if (block.fixed_offset != kNone) {
      problem.has_fixed = true;
      problem.lower_bound_bytes =
          std::max(problem.lower_bound_bytes,
                   block.fixed_offset + compressed.bytes);
    }
  }
  problem.load.pop_back();
  Bytes live = 0;
  for (Bytes& load : problem.load) {
    load = live += load;
    problem.lower_bound_bytes = std::max(problem.lower_bound_bytes, live);
  }
  std::sort(problem.blocks.begin(), problem.blocks.end(),
            [](const SectionBlock& a, const SectionBlock& b) {
              return std::tuple(a.begin, a.end, a.source) <
                     std::tuple(b.begin, b.end, b.source);
            });
  return problem;
}

}  // namespace

std::vector<PackingProblem> SplitPacking(std::span<const PackingBlock> blocks,
                                         Bytes alignment) {
  std::vector<int64_t> sorted;
  for (int64_t i = 0; i < std::ssize(blocks); ++i) {
    if (blocks[At(i)].bytes > 0) sorted.push_back(i);
  }
  std::sort(sorted.begin(), sorted.end(), [&](int64_t a, int64_t b) {
    return std::tuple(blocks[At(a)].first, a) <
           std::tuple(blocks[At(b)].first, b);
  });
  std::vector<PackingProblem> problems;
  for (size_t begin = 0, end = 0; begin < sorted.size(); begin = end) {
    int64_t last = blocks[At(sorted[begin])].last;
    for (end = begin + 1; end < sorted.size(); ++end) {
      const PackingBlock& block = blocks[At(sorted[end])];
      if (block.first > last) break;
      last = std::max(last, block.last);
    }
    problems.push_back(Compress(
        blocks, std::span(sorted).subspan(begin, end - begin), alignment));
  }
  return problems;
}

}  // namespace coop
