#include "core/packing/compose.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>

namespace coop {

Composition::Composition(const PackingProblem& problem, Bytes peak)
    : problem_(problem),
      begins_(At(problem.num_sections) + 1),
      ends_(At(problem.num_sections) + 1) {
  slack_.reserve(problem.load.size());
  for (const Bytes load : problem.load) slack_.push_back(peak - load);
  // Offsets are looked up by the indices of blocks: they come first.
  for (const SectionBlock& block : problem.blocks) {
    pieces_.push_back({block.begin, block.end, block.bytes});
  }
}

bool Composition::PassesOver(std::mt19937_64& random, double share) {
  if (share == 0) return false;
  return std::ldexp(static_cast<double>(random() >> 11), -53) < share;
}

void Composition::Insert(int32_t index, std::mt19937_64& random, double share) {
  const Piece piece = pieces_[At(index)];
  const auto [at, is_new] =
      by_lifetime_.try_emplace({piece.begin, piece.end}, index);
  if (is_new || PassesOver(random, share)) {
    at->second = index;
    ++num_pieces_;
    begins_[At(piece.begin)].insert({piece.bytes, index});
    ends_[At(piece.end)].insert({piece.bytes, index});
    return;
  }
  const int32_t below = at->second;
  Remove(below);
  pieces_[At(index)].is_joined = true;
  pieces_.push_back({piece.begin, piece.end,
                     pieces_[At(below)].bytes + piece.bytes, below, index,
                     true});
  Insert(static_cast<int32_t>(std::ssize(pieces_)) - 1, random, share);
}

void Composition::Remove(int32_t index) {
  --num_pieces_;
  Piece& piece = pieces_[At(index)];
  piece.is_joined = true;
  begins_[At(piece.begin)].erase({piece.bytes, index});
  ends_[At(piece.end)].erase({piece.bytes, index});
  const auto at = by_lifetime_.find({piece.begin, piece.end});
  if (at != by_lifetime_.end() && at->second == index) by_lifetime_.erase(at);
}

void Composition::PushPairs(int32_t line, int64_t& work) {
  const BySize& before = ends_[At(line)];
  const BySize& after = begins_[At(line)];
  const auto num_pairs = static_cast<double>(before.size() * after.size());
  const auto push = [&](const auto& a, const auto& b) {
    const auto difference = static_cast<double>(std::abs(a.first - b.first));
    const auto larger = static_cast<double>(std::max(a.first, b.first));
    pairs_.push({difference / larger * num_pairs, a.second, b.second});
    work += 64;
  };
  for (const auto& piece : before) {
    // The next larger and the next smaller one.
    const auto at = after.lower_bound({piece.first, 0});
    if (at != after.end()) push(piece, *at);
    if (at != after.begin()) push(piece, *std::prev(at));
  }
}

bool Composition::Afford(const Piece& a, const Piece& b, int64_t& work) {
  const Piece& lower = a.bytes < b.bytes ? a : b;
  const Bytes lost = std::abs(a.bytes - b.bytes);
  const auto begin = slack_.begin() + lower.begin;
  const auto end = slack_.begin() + lower.end;
  work += 2 * (lower.end - lower.begin);
  if (std::any_of(begin, end, [&](Bytes slack) { return slack < lost; })) {
    return false;
  }
  std::for_each(begin, end, [&](Bytes& slack) { slack -= lost; });
  return true;
}

void Composition::Join(std::mt19937_64& random, double passed_over,
                       int64_t work_end, const Deadline& deadline,
                       int64_t& work) {
  const auto num_blocks = static_cast<int32_t>(std::ssize(problem_.blocks));
  const double share = passed_over / num_blocks;
  for (int32_t i = 0; i < num_blocks; ++i) Insert(i, random, share);
  for (int32_t line = 1; line < problem_.num_sections; ++line) {
    PushPairs(line, work);
  }
  std::set<std::pair<int32_t, int32_t>> refused;
  while (!pairs_.empty() && work < work_end && !deadline.IsOver()) {
    const auto [_, first, second] = pairs_.top();
    pairs_.pop();
    work += 32;
    const Piece a = pieces_[At(first)];
    const Piece b = pieces_[At(second)];
    if (a.is_joined || b.is_joined || refused.contains({first, second})) continue;
    if (PassesOver(random, share)) {
      refused.insert({first, second});
      continue;
    }
    if (!Afford(a, b, work)) continue;
    Remove(first);
    Remove(second);
    pieces_.push_back(
        {a.begin, b.end, std::max(a.bytes, b.bytes), first, second});
    Insert(static_cast<int32_t>(std::ssize(pieces_)) - 1, random, share);
    for (const int32_t line : {a.begin, a.end, b.end}) PushPairs(line, work);
  }
}

PackingProblem Composition::Reduced(Bytes alignment) const {
  std::vector<PackingBlock> blocks;
  std::vector<int64_t> sources;
  for (int64_t i = 0; i < std::ssize(pieces_); ++i) {
    const Piece& piece = pieces_[At(i)];
    if (piece.is_joined) continue;
    blocks.push_back({piece.begin, piece.end - 1, piece.bytes});
    sources.push_back(i);
  }
  // One part still: no section of the problem is without blocks.
  PackingProblem reduced = std::move(SplitPacking(blocks, alignment).front());
  for (SectionBlock& block : reduced.blocks) {
    block.source = sources[At(block.source)];
  }
  return reduced;
}

PackingSolution Composition::Expand(const PackingProblem& reduced,
                                    const PackingSolution& solution) const {
  std::vector<Offset> offsets(pieces_.size(), 0);
  for (size_t i = 0; i < reduced.blocks.size(); ++i) {
    offsets[At(reduced.blocks[i].source)] = solution.offsets[i];
  }
  // Pieces come after what they are made of.
  for (size_t i = pieces_.size(); i-- > problem_.blocks.size();) {
    const Piece& piece = pieces_[i];
    offsets[At(piece.first)] = offsets[i];
    offsets[At(piece.second)] =
        offsets[i] + (piece.is_stack ? pieces_[At(piece.first)].bytes : 0);
  }
  offsets.resize(problem_.blocks.size());
  PackingSolution expanded{std::move(offsets), 0};
  for (size_t i = 0; i < problem_.blocks.size(); ++i) {
    expanded.peak_bytes =
        std::max(expanded.peak_bytes,
                 expanded.offsets[i] + problem_.blocks[i].bytes);
  }
  return expanded;
}

}  // namespace coop
