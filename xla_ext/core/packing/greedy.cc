#include "core/packing/greedy.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <utility>

namespace coop {
namespace {

// A chunk of so many is cut in two.
constexpr size_t kMaxChunk = 128;

}  // namespace

GreedyPacker::GreedyPacker(const PackingProblem& problem) : problem_(problem) {}

Offset GreedyPacker::FindGap(const SectionBlock& block, Fit fit,
                             int64_t& work) const {
  Offset low = 0;  // The highest end of the neighbours so far.
  Offset best = kNone;
  Bytes best_bytes = std::numeric_limits<Bytes>::max();
  std::array<const Placed*, kMaxChunk> met;
  work += std::ssize(chunks_);
  for (const Chunk& chunk : chunks_) {
    if (chunk.begin >= block.end || chunk.end <= block.begin) continue;
    work += std::ssize(chunk.placed);
    // In two passes, the first without branches: which blocks meet this one is
    // hard to predict.
    size_t num_met = 0;
    for (size_t i = 0; i < chunk.placed.size(); ++i) {
      const Placed& other = chunk.placed[i];
      met[num_met] = &other;
      num_met += static_cast<size_t>(other.begin < block.end) &
                 static_cast<size_t>(other.end > block.begin);
    }
    for (size_t i = 0; i < num_met; ++i) {
      const Placed& other = *met[i];
      const Bytes gap = other.offset - low;
      if (gap >= block.bytes && gap < best_bytes) {
        if (fit == Fit::kLowest) return low;
        best = low;
        best_bytes = gap;
      }
      low = std::max(low, other.end_offset);
    }
  }
  return best == kNone ? low : best;
}

void GreedyPacker::Insert(const SectionBlock& block, Offset offset,
                          int64_t& work) {
  // The last chunk that begins at or below the offset, or the first.
  auto chunk = std::upper_bound(
      chunks_.begin(), chunks_.end(), offset,
      [](Offset o, const Chunk& c) { return o < c.placed.front().offset; });
  if (chunk != chunks_.begin()) --chunk;
  if (chunk == chunks_.end()) {
    chunk = chunks_.insert(chunk, {block.begin, block.end, {}});
  }
  auto& placed = chunk->placed;
  placed.insert(
      std::upper_bound(placed.begin(), placed.end(), offset,
                       [](Offset o, const Placed& p) { return o < p.offset; }),
      {offset, offset + block.bytes, block.begin, block.end});
  chunk->begin = std::min(chunk->begin, block.begin);
  chunk->end = std::max(chunk->end, block.end);
  work += 32;
  if (placed.size() < kMaxChunk) return;
  const auto middle = placed.begin() + kMaxChunk / 2;
  Chunk upper{0, 0, {middle, placed.end()}};
  placed.erase(middle, placed.end());
  for (Chunk* half : {&*chunk, &upper}) {
    half->begin = half->placed.front().begin;
    half->end = half->placed.front().end;
    for (const Placed& p : half->placed) {
      half->begin = std::min(half->begin, p.begin);
      half->end = std::max(half->end, p.end);
    }
  }
  chunks_.insert(chunk + 1, std::move(upper));
}

std::optional<PackingSolution> GreedyPacker::Place(
    std::span<const int32_t> order, Fit fit, Bytes limit, int64_t& work) {
  chunks_.clear();
  obstacle_ = kNone;
  PackingSolution solution;
  solution.offsets.assign(problem_.blocks.size(), kNone);
  const auto place = [&](int32_t i, Offset offset) {
    const SectionBlock& block = problem_.blocks[At(i)];
    solution.offsets[At(i)] = offset;
    solution.peak_bytes = std::max(solution.peak_bytes, offset + block.bytes);
    if (solution.peak_bytes > limit) {
      obstacle_ = i;
      return false;
    }
    Insert(block, offset, work);
    return true;
  };
  if (problem_.has_fixed) {
    for (int32_t i = 0; i < std::ssize(problem_.blocks); ++i) {
      const Offset offset = problem_.blocks[At(i)].fixed_offset;
      if (offset != kNone && !place(i, offset)) return std::nullopt;
    }
  }
  for (const int32_t i : order) {
    const SectionBlock& block = problem_.blocks[At(i)];
    if (block.fixed_offset != kNone) continue;
    if (!place(i, FindGap(block, fit, work))) return std::nullopt;
  }
  return solution;
}

std::vector<int32_t> GreedyOrder(const PackingProblem& problem, int which) {
  const auto& blocks = problem.blocks;
  std::vector<std::pair<double, double>> keys(blocks.size());
  // The highest load that each block takes part in, by doubling.
  std::vector<std::vector<Bytes>> highest{problem.load};
  if (which == 3) {
    for (size_t width = 1; 2 * width <= problem.load.size(); width *= 2) {
      const auto& previous = highest.back();
      std::vector<Bytes> next(previous.size() - width);
      for (size_t s = 0; s < next.size(); ++s) {
        next[s] = std::max(previous[s], previous[s + width]);
      }
      highest.push_back(std::move(next));
    }
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    const SectionBlock& block = blocks[i];
    const auto width = static_cast<size_t>(block.end - block.begin);
    const auto length = static_cast<double>(width);
    const auto bytes = static_cast<double>(block.bytes);
    switch (which) {
      case 0:
        keys[i] = {length, bytes};
        break;
      case 1:
        keys[i] = {bytes, length};
        break;
      case 2:
        keys[i] = {length * bytes, length};
        break;
      case 3: {
        size_t level = 0;
        while ((size_t{2} << level) <= width) ++level;
        const auto& row = highest[level];
        const Bytes load =
            std::max(row[At(block.begin)],
                     row[At(block.end) - (size_t{1} << level)]);
        keys[i] = {static_cast<double>(load), length * bytes};
        break;
      }
      default:
        keys[i] = {-static_cast<double>(block.begin), length};
    }
  }
  std::vector<int32_t> order(blocks.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return keys[At(a)] > keys[At(b)];
  });
  return order;
}

}  // namespace coop
