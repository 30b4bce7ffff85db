#include "core/packing/compose.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

namespace coop {

Composition::Composition(const PackingProblem& problem)
    : problem_(problem), num_pieces_(problem.blocks.size()) {
  for (const SectionBlock& block : problem.blocks) {
    pieces_.push_back({block.begin, block.end, block.bytes});
  }
}

void Composition::Add(int32_t first, int32_t second, bool is_stack) {
  Piece& a = pieces_[At(first)];
  Piece& b = pieces_[At(second)];
  a.is_joined = b.is_joined = true;
  const Piece joined{std::min(a.begin, b.begin),
                     std::max(a.end, b.end),
                     is_stack ? a.bytes + b.bytes : std::max(a.bytes, b.bytes),
                     first,
                     second,
                     is_stack};
  pieces_.push_back(joined);
  --num_pieces_;
}

void Composition::StackAll(int64_t& work) {
  std::map<std::pair<int32_t, int32_t>, int32_t> by_lifetime;
  for (int32_t i = 0; i < std::ssize(pieces_); ++i) {
    work += 32;
    const Piece piece = pieces_[At(i)];
    if (piece.is_joined) continue;
    const auto [at, is_new] =
        by_lifetime.try_emplace({piece.begin, piece.end}, i);
    if (is_new) continue;
    // The stack comes by later.
    Add(at->second, i, true);
    by_lifetime.erase(at);
  }
}

bool Composition::JoinSides(double tolerance, int64_t& work) {
  // By where they begin, and size.
  std::map<std::pair<int32_t, Bytes>, std::vector<int32_t>> begins;
  for (int32_t i = 0; i < std::ssize(pieces_); ++i) {
    const Piece& piece = pieces_[At(i)];
    if (!piece.is_joined) begins[{piece.begin, piece.bytes}].push_back(i);
  }
  std::vector<std::tuple<double, int32_t, int32_t>> pairs;
  for (int32_t i = 0; i < std::ssize(pieces_); ++i) {
    const Piece& piece = pieces_[At(i)];
    work += 64;
    if (piece.is_joined) continue;
    const auto consider = [&](auto at) {
      if (at->first.first != piece.end) return;
      const auto larger =
          static_cast<double>(std::max(piece.bytes, at->first.second));
      const double difference =
          std::abs(static_cast<double>(piece.bytes - at->first.second)) / larger;
      if (difference > tolerance) return;
      for (const int32_t next : at->second) {
        pairs.emplace_back(difference, i, next);
      }
    };
    const auto at = begins.lower_bound({piece.end, piece.bytes});
    if (at != begins.end()) consider(at);
    if (at != begins.begin()) consider(std::prev(at));
  }
  std::sort(pairs.begin(), pairs.end());
  bool has_joined = false;
  for (const auto& [_, first, second] : pairs) {
    if (pieces_[At(first)].is_joined || pieces_[At(second)].is_joined) continue;
    Add(first, second, false);
    has_joined = true;
  }
  return has_joined;
}

void Composition::Join(double tolerance, int64_t& work) {
  do {
    StackAll(work);
  } while (JoinSides(tolerance, work));
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
