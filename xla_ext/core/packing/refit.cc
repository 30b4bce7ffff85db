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
        cost_(blocks.size(), 1),
        alive_with_(blocks.size()) {
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
    double price = 0;
    // Of what a block would meet that ends where it begins, or begins where it ends.
    double price_below = 0;
    double price_above = 0;
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

  // The blocks alive at one time with `block`, itself included: those that take each
  // other's place do so again and again.
  [[nodiscard]] const std::vector<size_t>& AliveWith(size_t block) {
    std::vector<size_t>& found = alive_with_[block];
    if (!found.empty()) return found;
    const PackingBlock& here = blocks_[block];
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const PackingBlock& other = blocks_[i];
      const bool meets = other.first <= here.last && other.last >= here.first;
      if (meets && bytes_[i] > 0) found.push_back(i);
    }
    return found;
  }

  void FindNeighbours(size_t block, int64_t& work) {
    neighbours_.clear();
    for (const size_t i : AliveWith(block)) {
      if (offset_[i] == kNone) continue;
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
    for (const Neighbour& neighbour : neighbours_) {
      if (neighbour.begin >= end || neighbour.end <= offset_[block]) continue;
      offset_[neighbour.block] = kNone;
      waiting_.push_back(neighbour.block);
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

  // At the start, at the end, or next to a neighbour.
  Offset CheapestPlace(Bytes bytes, int64_t& work) {
    PricePlacesBeside(bytes);
    Offset best = 0;
    double best_price = std::numeric_limits<double>::infinity();
    const auto consider = [&](Offset offset, double price) {
      if (offset < 0 || offset + bytes > capacity_) return;
      price *= 1 + 0.2 * static_cast<double>(random_() >> 11) * 0x1p-53;
      if (price < best_price) {
        best = offset;
        best_price = price;
      }
    };
    consider(0, PriceSweep(*this, bytes).At(0));
    consider(capacity_ - bytes, PriceSweep(*this, bytes).At(capacity_ - bytes));
    for (const Neighbour& neighbour : neighbours_) {
      consider(neighbour.end, neighbour.price_above);
      consider(neighbour.begin - bytes, neighbour.price_below);
    }
    const int64_t num = std::ssize(neighbours_);
    work += num * num / 2;
    return best;
  }

  // What the neighbours that so many bytes meet cost, at one offset after the other.
  class PriceSweep {
   public:
    PriceSweep(const Refitter& refitter, Bytes bytes)
        : neighbours_(refitter.neighbours_), ends_(refitter.ends_), bytes_(bytes) {}

    // No offset may be below the last.
    [[nodiscard]] double At(Offset offset) {
      for (; num_begun_ < neighbours_.size(); ++num_begun_) {
        const Neighbour& next = neighbours_[num_begun_];
        if (next.begin >= offset + bytes_) break;
        price_ += next.price;
      }
      for (; num_ended_ < ends_.size(); ++num_ended_) {
        const Neighbour& next = neighbours_[ends_[num_ended_]];
        if (next.end > offset) break;
        price_ -= next.price;
      }
      return price_;
    }

   private:
    const std::vector<Neighbour>& neighbours_;
    const std::vector<size_t>& ends_;
    const Bytes bytes_;
    size_t num_begun_ = 0;
    size_t num_ended_ = 0;
    double price_ = 0;
  };

  void PricePlacesBeside(Bytes bytes) {
    for (Neighbour& neighbour : neighbours_) {
      neighbour.price = Price(neighbour.block);
    }
    ends_.resize(neighbours_.size());
    std::iota(ends_.begin(), ends_.end(), size_t{0});
    std::ranges::sort(ends_, {}, [&](size_t k) { return neighbours_[k].end; });
    PriceSweep below(*this, bytes);
    for (Neighbour& neighbour : neighbours_) {
      neighbour.price_below = below.At(neighbour.begin - bytes);
    }
    PriceSweep above(*this, bytes);
    for (const size_t k : ends_) {
      neighbours_[k].price_above = above.At(neighbours_[k].end);
    }
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
  std::vector<std::vector<size_t>> alive_with_;  // Empty: not asked for yet.
  std::vector<Neighbour> neighbours_;  // Of the block at hand, that are placed.
  std::vector<size_t> ends_;  // The neighbours, by where they end.
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
