#include "core/packing/skyline_search.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

namespace coop {
namespace {

constexpr Offset kWall = std::numeric_limits<Offset>::max();
// Elementary steps from one look at the clock to the next.
constexpr int64_t kWorkPerLook = 1'000'000;
// The choice that nothing lies at a corner.
constexpr int32_t kWaste = -1;

}  // namespace

PackingSearch::PackingSearch(const PackingProblem& problem)
    : problem_(problem),
      begin_at_(At(problem.num_sections)),
      end_at_(At(problem.num_sections) + 1),
      least_beginning_at_(At(problem.num_sections),
                          std::numeric_limits<Bytes>::max()),
      weights_(At(problem.num_sections) + 1, 1) {
  for (int32_t i = 0; i < std::ssize(problem.blocks); ++i) {
    const SectionBlock& block = problem.blocks[At(i)];
    begin_at_[At(block.begin)].push_back(i);
    end_at_[At(block.end)].push_back(i);
    Bytes& least = least_beginning_at_[At(block.begin)];
    least = std::min(least, block.bytes);
  }
  const auto narrow_first = [&](int32_t i, int32_t j) {
    const SectionBlock& a = problem.blocks[At(i)];
    const SectionBlock& b = problem.blocks[At(j)];
    return std::tuple(a.end - a.begin, a.bytes, i) <
           std::tuple(b.end - b.begin, b.bytes, j);
  };
  for (auto* lists : {&begin_at_, &end_at_}) {
    for (auto& list : *lists) std::sort(list.begin(), list.end(), narrow_first);
  }
}

void PackingSearch::Set(int64_t& cell, int64_t value) {
  trail_.push_back({&cell, cell});
  cell = value;
}

void PackingSearch::Undo(const Frame& frame) {
  while (trail_.size() > frame.trail_size) {
    *trail_.back().cell = trail_.back().old_value;
    trail_.pop_back();
  }
  while (placed_.size() > frame.num_placed) {
    offsets_[At(placed_.back())] = kNone;
    placed_.pop_back();
  }
}

void PackingSearch::Reset(Bytes peak, uint64_t seed) {
  const size_t num_sections = At(problem_.num_sections);
  height_.assign(num_sections, 0);
  remaining_ = problem_.load;
  slack_.resize(num_sections);
  for (size_t s = 0; s < num_sections; ++s) slack_[s] = peak - remaining_[s];
  closed_.assign(num_sections, 0);
  top_.assign(num_sections, kNone);
  offsets_.assign(problem_.blocks.size(), kNone);
  placed_.clear();
  trail_.clear();
  frames_.clear();
  choices_.clear();
  random_.seed(seed);
  shuffle_ = seed != 0;
}

Offset PackingSearch::HeightLeftOf(int32_t section) const {
  return section == 0 ? kWall : height_[At(section) - 1];
}

Offset PackingSearch::HeightRightOf(int32_t section) const {
  return section == problem_.num_sections ? kWall : height_[At(section)];
}

int64_t PackingSearch::ListBlocks(int32_t begin, int32_t end, bool is_left,
                                  std::vector<int32_t>* choices,
                                  int64_t& work) const {
  const auto& list = is_left ? begin_at_[At(begin)] : end_at_[At(end)];
  const int64_t below = top_[At(is_left ? begin : end - 1)];
  int64_t count = 0;
  const SectionBlock* previous = nullptr;
  for (const int32_t i : list) {
    const SectionBlock& block = problem_.blocks[At(i)];
    ++work;
    if (block.end - block.begin > end - begin) break;
    if (offsets_[At(i)] != kNone) continue;
    // One of several equal blocks will do.
    if (previous != nullptr && previous->bytes == block.bytes &&
        previous->begin == block.begin && previous->end == block.end) {
      continue;
    }
    previous = &block;
    // Of two blocks with one lifetime, right above each other, the smaller one
    // is the lower one: swapping them changes nothing else.
    if (below != kNone) {
      const SectionBlock& under = problem_.blocks[At(below)];
      if (under.begin == block.begin && under.end == block.end &&
          under.bytes > block.bytes) {
        continue;
      }
    }
    ++count;
    if (choices != nullptr) choices->push_back(i);
  }
  return count;
}

// The valley with what is closed at its height around it.
std::pair<int32_t, int32_t> PackingSearch::Plateau(int32_t begin,
                                                   int32_t end) const {
  const Offset height = height_[At(begin)];
  while (begin > 0 && height_[At(begin) - 1] == height) --begin;
  while (end < problem_.num_sections && height_[At(end)] == height) ++end;
  return {begin, end};
}

// The least that is lost where nothing rests on `section` of the valley
// [begin, end): the gap reaches up to a side of the valley or to the end of a
// block in it.
bool PackingSearch::CanWaste(int32_t section, int32_t begin, int32_t end,
                             int64_t& work) const {
  const int64_t slack = slack_[At(section)];
  if (slack == 0) return false;
  const Offset height = height_[At(section)];
  const auto [left, right] = Plateau(begin, end);
  const Offset side = std::min(HeightLeftOf(left), HeightRightOf(right));
  if (side - height <= slack) return true;
  for (int32_t s = left; s < right; ++s) {
    if (least_beginning_at_[At(s)] <= slack) return true;
  }
  work += right - left;
  return false;
}

// Nothing rests on [begin, end), and its neighbours are higher: the next block
// above rests on one of them at least.
bool PackingSearch::Lift(int32_t begin, int32_t end, int64_t& work) {
  const Offset height = height_[At(begin)];
  const Offset side = std::min(HeightLeftOf(begin), HeightRightOf(end));
  if (side == kWall) return false;
  const Bytes wasted = side - height;
  for (int32_t s = begin; s < end; ++s) {
    if (slack_[At(s)] < wasted) return false;
  }
  // A block that fits into the gap could be moved down into it.
  for (int32_t s = begin; s < end; ++s) {
    if (least_beginning_at_[At(s)] > wasted) continue;
    for (const int32_t i : begin_at_[At(s)]) {
      const SectionBlock& block = problem_.blocks[At(i)];
      ++work;
      if (block.end > end) break;
      if (block.bytes <= wasted && offsets_[At(i)] == kNone) return false;
    }
  }
  for (int32_t s = begin; s < end; ++s) {
    Set(height_[At(s)], side);
    Set(slack_[At(s)], slack_[At(s)] - wasted);
    Set(closed_[At(s)], 0);
    Set(top_[At(s)], kNone);
  }
  work += 4 * (end - begin);
  return true;
}

bool PackingSearch::FindCorner(Corner& corner, int64_t& work) {
  const int32_t num_sections = problem_.num_sections;
  corner = {};
  Offset corner_height = kWall;
  work += num_sections;
  int32_t end = 0;
  for (int32_t begin = 0; begin < num_sections; begin = end) {
    const Offset height = height_[At(begin)];
    const bool closed = closed_[At(begin)];
    end = begin + 1;
    while (end < num_sections && height_[At(end)] == height &&
           closed_[At(end)] == closed) {
      ++end;
    }
    if (height == kWall) continue;
    const Offset left = HeightLeftOf(begin);
    const Offset right = HeightRightOf(end);
    if (closed) {
      if (left == height || right == height) continue;  // Not known yet.
      if (!Lift(begin, end, work)) return false;
      // It may be a part of another stretch now, and all is to be seen again.
      corner = {};
      corner_height = kWall;
      work += num_sections;
      end = 0;
      continue;
    }
    // At the same height and not in this stretch: closed, a side as well.
    if (left < height || right < height) continue;
    for (const bool is_left : {true, false}) {
      const int32_t section = is_left ? begin : end - 1;
      const int64_t count =
          ListBlocks(begin, end, is_left, nullptr, work) +
          (CanWaste(section, begin, end, work) ? 1 : 0);
      int64_t& weight = weights_[At(is_left ? begin : end)];
      if (count == 0) {
        ++weight;
        return false;
      }
      // Few choices, and choices that were refuted often, come first.
      const int64_t rank = count * corner.weight;
      const int64_t best_rank = corner.num_choices * weight;
      if (rank < best_rank || (rank == best_rank && height < corner_height)) {
        corner = {section, is_left, count, weight};
        corner_height = height;
        if (count == 1) return true;
      }
    }
  }
  return true;
}

void PackingSearch::PushChoices(const Corner& corner, int64_t& work) {
  const Offset height = height_[At(corner.section)];
  int32_t begin = corner.section;
  int32_t end = corner.section + 1;
  const auto is_open_at = [&](int32_t s) {
    return height_[At(s)] == height && !closed_[At(s)];
  };
  while (begin > 0 && is_open_at(begin - 1)) --begin;
  while (end < problem_.num_sections && is_open_at(end)) ++end;
  // The last one is tried first: waste never, wide blocks early.
  const size_t first = choices_.size();
  if (CanWaste(corner.section, begin, end, work)) choices_.push_back(kWaste);
  const size_t first_block = choices_.size();
  ListBlocks(begin, end, corner.is_left, &choices_, work);
  if (shuffle_) {
    for (size_t i = choices_.size(); i > first_block + 1; --i) {
      if (random_() % 2) continue;
      std::swap(choices_[i - 1],
                choices_[first_block + random_() % (i - first_block)]);
    }
  }
  frames_.push_back(
      {trail_.size(), placed_.size(), first, corner.section});
}

void PackingSearch::Apply(int32_t choice, int32_t section) {
  if (choice == kWaste) {
    Set(closed_[At(section)], 1);
    return;
  }
  const SectionBlock& block = problem_.blocks[At(choice)];
  const Offset offset = height_[At(section)];
  offsets_[At(choice)] = offset;
  placed_.push_back(choice);
  for (int32_t s = block.begin; s < block.end; ++s) {
    const int64_t remaining = remaining_[At(s)] - block.bytes;
    Set(remaining_[At(s)], remaining);
    Set(height_[At(s)], remaining == 0 ? kWall : offset + block.bytes);
    Set(top_[At(s)], choice);
  }
}

PackingSearch::Outcome PackingSearch::Find(Bytes peak, uint64_t seed,
                                           int64_t work_limit,
                                           const Deadline& deadline,
                                           int64_t& work) {
  if (peak < problem_.lower_bound_bytes) return Outcome::kRefuted;
  Reset(peak, seed);
  const int64_t work_end = work + work_limit;
  int64_t next_look = work + kWorkPerLook;
  while (placed_.size() < problem_.blocks.size()) {
    if (work > work_end) return Outcome::kGaveUp;
    if (work >= next_look) {
      if (deadline.IsOver()) return Outcome::kGaveUp;
      next_look = work + kWorkPerLook;
    }
    Corner corner;
    if (FindCorner(corner, work)) {
      PushChoices(corner, work);
    } else {
      // Back to the last frame with a choice left.
      while (!frames_.empty() &&
             choices_.size() == frames_.back().first_choice) {
        frames_.pop_back();
      }
      if (frames_.empty()) return Outcome::kRefuted;
      Undo(frames_.back());
    }
    const Frame& frame = frames_.back();
    const int32_t choice = choices_.back();
    choices_.pop_back();
    Apply(choice, frame.section);
    if (choice == kWaste) continue;
    const SectionBlock& block = problem_.blocks[At(choice)];
    work += 4 * (block.end - block.begin);
  }
  return Outcome::kFound;
}

PackingSolution PackingSearch::solution() const {
  PackingSolution solution{offsets_, 0};
  for (size_t i = 0; i < offsets_.size(); ++i) {
    solution.peak_bytes = std::max(solution.peak_bytes,
                                   offsets_[i] + problem_.blocks[i].bytes);
  }
  return solution;
}

}  // namespace coop
