// Sliding-window search: the cheapest run of neighbours that makes enough room.
#ifndef COOP_CORE_ONLINE_WINDOW_H_
#define COOP_CORE_ONLINE_WINDOW_H_

#include <optional>
#include <span>
#include <vector>

#include "core/base/types.h"

namespace coop {

// One piece of the pool as the search sees it.
struct WindowPiece {
  Bytes bytes;
  double cost;      // 0 for a free piece; not negative, may be infinite.
  bool is_barrier;  // In use and not evictable now: no window contains it.
};

struct Window {
  size_t begin;  // Pieces [begin, end).
  size_t end;
  double cost;
  Bytes bytes;
};

// Finds the window of neighbouring pieces with at least `required` (> 0) bytes
// and the lowest total cost, nullopt if there is none. Equal costs: the fewest
// bytes, then the lowest address. O(pieces).
//
// Coop (NeurIPS 2023), section 3.3. Unlike the authors' public code, the last
// window is shrunk like every other, and sums are never formed by subtraction,
// so an infinite cost (zero staleness) leaves no NaN behind when it leaves the
// window.
class WindowSearch {
 public:
  [[nodiscard]] std::optional<Window> Find(std::span<const WindowPiece> pieces,
                                           Bytes required);

 private:
  std::vector<double> suffix_;  // Reused from search to search.
};

}  // namespace coop

#endif  // COOP_CORE_ONLINE_WINDOW_H_
