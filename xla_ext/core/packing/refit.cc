#include "core/packing/refit.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "core/base/deadline.h"

namespace coop {
namespace {

// How much more a block costs each time that it fits nowhere.
constexpr double kCostPerFailure = 0.5;

class Refitter {
 public:
  Refitter(std::span<const PackingBlock> blocks, const RefitOptions& options)
      : blocks_(blocks),
        options_(options),
        effort_(options.effort),
        deadline_(options.seconds),
        random_(options.seed),
        offset_(blocks.size(), kNone),
        bytes_(blocks.size()),
        cost_(blocks.size(), 1) {
    Bytes unit = 0;
    for (size_t i = 0; i < blocks.size(); ++i) {
      bytes_[i] = RoundUp(blocks[i].bytes, options.alignment);
      unit = std::gcd(unit, bytes_[i]);
    }
    // Blocks that rest on each other end at multiples of it.
    if (unit > 0) capacity_ = options.capacity / unit * unit;
  }

  std::optional<std::vector<Offset>> Run(std::span<const Offset> wished,
                                         int64_t& work) {
    for (size_t i = 0; i < blocks_.size(); ++i) {
      if (bytes_[i] > capacity_) return std::nullopt;
    }
    KeepPlaces(wished, work);
    const int64_t end = work + effort_;
    while (!waiting_.empty()) {
      if (work > end || deadline_.IsOver()) return std::nullopt;
      work += std::ssize(waiting_);
      Place(TakeLargest(), work);
    }
    return std::move(offset_);
  }

 private:
  struct Neighbour {
    Offset begin;
    Offset end;
    size_t block;
  };

  // Where they do not meet: those that begin first.
  void KeepPlaces(std::span<const Offset> wished, int64_t& work) {
    std::vector<size_t> order(blocks_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, {},
                             [&](size_t i) { return blocks_[i].first; });
    std::vector<size_t> live;
    for (const size_t i : order) {
      if (bytes_[i] == 0) {
        offset_[i] = 0;
        continue;
      }
      std::erase_if(live, [&](size_t other) {
        return blocks_[other].last < blocks_[i].first;
      });
      const Offset begin = wished[i];
      const Offset end = begin + bytes_[i];
      work += std::ssize(live);
      const bool is_free =
          begin != kNone && end <= capacity_ &&
          std::ranges::none_of(live, [&](size_t other) {
            return offset_[other] < end &&
                   offset_[other] + bytes_[other] > begin;
          });
      if (is_free) {
        offset_[i] = begin;
        live.push_back(i);
      } else {
        waiting_.push_back(i);
      }
    }
  }

  size_t TakeLargest() {
    const auto largest = std::ranges::max_element(
        waiting_, {}, [&](size_t i) { return Price(i); });
    std::swap(*largest, waiting_.back());
    const size_t block = waiting_.back();
    waiting_.pop_back();
    return block;
  }

  [[nodiscard]] double Price(size_t i) const {
    const int64_t steps = blocks_[i].last - blocks_[i].first + 1;
    return cost_[i] * static_cast<double>(bytes_[i]) *
           static_cast<double>(steps);
  }

  void FindNeighbours(size_t block, int64_t& work) {
    neighbours_.clear();
    const auto& [first, last, bytes, fixed] = blocks_[block];
    for (size_t i = 0; i < blocks_.size(); ++i) {
      if (blocks_[i].first > last || blocks_[i].last < first) continue;
      if (offset_[i] == kNone || bytes_[i] == 0) continue;
      neighbours_.push_back({offset_[i], offset_[i] + bytes_[i], i});
    }
    work += std::ssize(blocks_);
    std::ranges::sort(neighbours_, {}, &Neighbour::begin);
  }

  void Place(size_t block, int64_t& work) {
    FindNeighbours(block, work);
    offset_[block] = SmallestGap(bytes_[block]);
    if (offset_[block] != kNone) return;
    cost_[block] += kCostPerFailure;
    offset_[block] = CheapestPlace(bytes_[block], work);
    const Offset end = offset_[block] + bytes_[block];
    for (const auto& [begin, other_end, i] : neighbours_) {
      if (begin >= end || other_end <= offset_[block]) continue;
      offset_[i] = kNone;
      waiting_.push_back(i);
    }
  }

  // That holds so many bytes; kNone if there is none.
  [[nodiscard]] Offset SmallestGap(Bytes bytes) const {
    Offset low = 0;
    Offset best = kNone;
    Bytes best_bytes = std::numeric_limits<Bytes>::max();
    const auto consider = [&](Offset end) {
      if (end - low < bytes || end - low >= best_bytes) return;
      best = low;
      best_bytes = end - low;
    };
    for (const Neighbour& neighbour : neighbours_) {
      consider(neighbour.begin);
      low = std::max(low, neighbour.end);
    }
    consider(capacity_);
    return best;
  }

  Offset CheapestPlace(Bytes bytes, int64_t& work) {
    Offset best = 0;
    double best_price = std::numeric_limits<double>::infinity();
    const auto consider = [&](Offset offset) {
      if (offset < 0 || offset + bytes > capacity_) return;
      double price = 0;
      for (const auto& [begin, end, i] : neighbours_) {
        if (begin >= offset + bytes) break;
        if (end > offset) price += Price(i);
      }
      price *= 1 + 0.2 * static_cast<double>(random_() >> 11) * 0x1p-53;
      if (price < best_price) {
        best = offset;
        best_price = price;
      }
    };
    consider(0);
    consider(capacity_ - bytes);
    for (const Neighbour& neighbour : neighbours_) {
      consider(neighbour.end);
      consider(neighbour.begin - bytes);
    }
    const int64_t num = std::ssize(neighbours_);
    work += num * num / 2;
    return best;
  }

  std::span<const PackingBlock> blocks_;
  const RefitOptions& options_;
  Bytes capacity_ = 0;
  const int64_t effort_;
  const Deadline deadline_;
  std::mt19937_64 random_;
  std::vector<Offset> offset_;  // kNone: not placed.
  std::vector<Bytes> bytes_;
  std::vector<double> cost_;
  std::vector<size_t> waiting_;
  std::vector<Neighbour> neighbours_;  // Of the block at hand, that are placed.
};

}  // namespace

std::optional<std::vector<Offset>> Refit(std::span<const PackingBlock> blocks,
                                         std::span<const Offset> wished,
                                         const RefitOptions& options,
                                         int64_t& work) {
  return Refitter(blocks, options).Run(wished, work);
}

Packing PackingAt(std::vector<Offset> offsets,
                  std::span<const PackingBlock> blocks, Bytes alignment) {
  Packing packing{.offsets = std::move(offsets)};
  for (size_t i = 0; i < blocks.size(); ++i) {
    const Offset end =
        packing.offsets[i] + RoundUp(blocks[i].bytes, alignment);
    packing.peak_bytes = std::max(packing.peak_bytes, end);
  }
  return packing;
}

}  // namespace coop
