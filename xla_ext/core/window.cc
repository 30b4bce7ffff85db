#include "core/window.h"

#include <vector>

namespace coop {
namespace {

// The pieces now in the window and their sums.
//
//   begin        middle            end
//   |  front     |  back           |
//   suffix[i] = cost[i] + ... + cost[middle - 1], back_cost = the rest
//
// When the front is used up the whole back becomes the front, so each piece is
// added up twice in all and nothing is ever subtracted from a cost.
class Sliding {
 public:
  explicit Sliding(std::span<const WindowPiece> pieces)
      : pieces_(pieces), suffix_(pieces.size()) {}

  size_t begin() const { return begin_; }
  size_t end() const { return end_; }
  Bytes bytes() const { return bytes_; }
  Bytes first_bytes() const { return pieces_[begin_].bytes; }
  double cost() const {
    return begin_ < middle_ ? suffix_[begin_] + back_cost_ : back_cost_;
  }

  void Grow() {
    bytes_ += pieces_[end_].bytes;
    back_cost_ += pieces_[end_].cost;
    ++end_;
  }

  void DropFirst() {
    if (begin_ == middle_) BackToFront();
    bytes_ -= pieces_[begin_].bytes;
    ++begin_;
  }

  void RestartBehind(size_t barrier) {
    begin_ = middle_ = end_ = barrier + 1;
    bytes_ = 0;
    back_cost_ = 0;
  }

 private:
  void BackToFront() {
    double sum = 0;
    for (size_t i = end_; i-- > begin_;) suffix_[i] = sum += pieces_[i].cost;
    middle_ = end_;
    back_cost_ = 0;
  }

  std::span<const WindowPiece> pieces_;
  std::vector<double> suffix_;
  size_t begin_ = 0;
  size_t middle_ = 0;
  size_t end_ = 0;
  Bytes bytes_ = 0;
  double back_cost_ = 0;
};

}  // namespace

std::optional<Window> FindWindow(std::span<const WindowPiece> pieces,
                                 Bytes required) {
  std::optional<Window> best;
  Sliding window(pieces);
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].is_barrier) {
      window.RestartBehind(i);
      continue;
    }
    window.Grow();
    if (window.bytes() < required) continue;
    // Costs are not negative: for a given end the shortest window is cheapest.
    while (window.bytes() - window.first_bytes() >= required) {
      window.DropFirst();
    }
    const double cost = window.cost();
    if (!best || cost < best->cost ||
        (cost == best->cost && window.bytes() < best->bytes)) {
      best = {window.begin(), window.end(), cost, window.bytes()};
    }
  }
  return best;
}

}  // namespace coop
