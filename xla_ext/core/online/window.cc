#include "core/online/window.h"

namespace coop {

// The pieces now in the window and the sums of their costs:
//
//   begin        middle            end
//   |  front     |  back           |
//   suffix_[i] = cost[i] + ... + cost[middle - 1], back_cost = the rest
//
// When the front is used up the whole back becomes the front, so each piece is
// added up twice in all and nothing is ever subtracted from a cost.
std::optional<Window> WindowSearch::Find(std::span<const WindowPiece> pieces,
                                         Bytes required) {
  if (suffix_.size() < pieces.size()) suffix_.resize(pieces.size());
  std::optional<Window> best;
  size_t begin = 0;
  size_t middle = 0;
  Bytes bytes = 0;
  double back_cost = 0;

  const auto drop_first = [&](size_t end) {
    if (begin == middle) {
      double sum = 0;
      for (size_t i = end; i-- > begin;) suffix_[i] = sum += pieces[i].cost;
      middle = end;
      back_cost = 0;
    }
    bytes -= pieces[begin].bytes;
    ++begin;
  };

  for (size_t end = 1; end <= pieces.size(); ++end) {
    const WindowPiece& last = pieces[end - 1];
    if (last.is_barrier) {
      begin = middle = end;
      bytes = 0;
      back_cost = 0;
      continue;
    }
    if (last.bytes >= required) {  // Alone it is the shortest: quick, common.
      begin = middle = end - 1;
      bytes = 0;
      back_cost = 0;
    }
    bytes += last.bytes;
    back_cost += last.cost;
    if (bytes < required) continue;
    // Costs are not negative: for a given end the shortest window is cheapest.
    while (bytes - pieces[begin].bytes >= required) drop_first(end);
    const double cost = begin < middle ? suffix_[begin] + back_cost : back_cost;
    if (!best || cost < best->cost ||
        (cost == best->cost && bytes < best->bytes)) {
      best = {begin, end, cost, bytes};
    }
  }
  return best;
}

}  // namespace coop
