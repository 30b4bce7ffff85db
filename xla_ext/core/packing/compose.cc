#include "core/packing/compose.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>

namespace coop {
namespace {

// In [1, 1 + most).
double Factor(std::mt19937_64& random, double most) {
  const double below_one = std::ldexp(static_cast<double>(random() >> 11), -53);
  return 1 + most * below_one;
}

}  // namespace

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
  for (int32_t i = 0; i < std::ssize(problem.blocks); ++i) Insert(i);
}

void Composition::Insert(int32_t index) {
  ++num_pieces_;
  const Piece piece = pieces_[At(index)];
  const auto [at, is_new] =
      by_lifetime_.try_emplace({piece.begin, piece.end}, index);
  if (is_new) {
    begins_[At(piece.begin)].insert({piece.bytes, index});
    ends_[At(piece.end)].insert({piece.bytes, index});
    return;
  }
  const int32_t below = at->second;
  Remove(below);
  --num_pieces_;
  pieces_[At(index)].is_joined = true;
  pieces_.push_back({piece.begin, piece.end,
                     pieces_[At(below)].bytes + piece.bytes, below, index,
                     true});
  Insert(static_cast<int32_t>(std::ssize(pieces_)) - 1);
}

void Composition::Remove(int32_t index) {
  --num_pieces_;
  Piece& piece = pieces_[At(index)];
  piece.is_joined = true;
  begins_[At(piece.begin)].erase({piece.bytes, index});
  ends_[At(piece.end)].erase({piece.bytes, index});
  by_lifetime_.erase({piece.begin, piece.end});
}

void Composition::PushPairs(int32_t line, std::mt19937_64& random, double noise,
                            int64_t& work) {
  const BySize& before = ends_[At(line)];
  const BySize& after = begins_[At(line)];
  const auto num_pairs = static_cast<double>(before.size() * after.size());
  const auto push = [&](const auto& a, const auto& b) {
    const auto difference = static_cast<double>(std::abs(a.first - b.first));
    const auto larger = static_cast<double>(std::max(a.first, b.first));
    double badness = difference / larger * num_pairs;
    badness *= Factor(random, noise) / Factor(random, noise);
    pairs_.push({badness, a.second, b.second});
    work += 64;
  };
  if (after.empty()) return;
  for (const auto& piece : before) {
    // The next larger and the next smaller one.
    const auto at = after.lower_bound({piece.first, 0});
    if (at != after.end()) push(piece, *at);
    if (at != after.begin()) push(piece, *std::prev(at));
  }
}

bool Composition::JoinSides(const Pair& pair, int64_t& work) {
  const Piece a = pieces_[At(pair.first)];
  const Piece b = pieces_[At(pair.second)];
  const Piece& lower = a.bytes < b.bytes ? a : b;
  const Bytes lost = std::abs(a.bytes - b.bytes);
  work += 2 * (lower.end - lower.begin);
  const auto begin = slack_.begin() + lower.begin;
  const auto end = slack_.begin() + lower.end;
  if (std::any_of(begin, end, [&](Bytes slack) { return slack < lost; })) {
    return false;
  }
  std::for_each(begin, end, [&](Bytes& slack) { slack -= lost; });
  Remove(pair.first);
  Remove(pair.second);
  pieces_.push_back(
      {a.begin, b.end, std::max(a.bytes, b.bytes), pair.first, pair.second});
  Insert(static_cast<int32_t>(std::ssize(pieces_)) - 1);
  return true;
}

void Composition::Join(std::mt19937_64& random, double noise, int64_t work_end,
                       const Deadline& deadline, int64_t& work) {
  for (int32_t line = 1; line < problem_.num_sections; ++line) {
    PushPairs(line, random, noise, work);
  }
  while (!pairs_.empty() && work < work_end) {
    const Pair pair = pairs_.top();
    pairs_.pop();
    work += 32;
    const Piece a = pieces_[At(pair.first)];
    const Piece b = pieces_[At(pair.second)];
    if (a.is_joined || b.is_joined || !JoinSides(pair, work)) continue;
    if (deadline.IsOver()) return;
    for (const int32_t line : {a.begin, a.end, b.end}) {
      PushPairs(line, random, noise, work);
    }
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
