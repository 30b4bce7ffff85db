#include "fuzz.h"

#include <cstdio>
#include <limits>
#include <optional>
#include <vector>

#include "core/online/window.h"
#include "random_graph.h"

namespace coop {

// Small integer costs, so that sums are exact in any order.
bool FuzzWindow(uint64_t seed) {
  Random random(seed);
  std::vector<WindowPiece> pieces;
  for (int64_t i = random.Between(0, 30); i > 0; --i) {
    pieces.push_back(
        {random.Between(1, 8),
         random.Chance(10) ? std::numeric_limits<double>::infinity()
                           : static_cast<double>(random.Between(0, 5)),
         random.Chance(10)});
  }
  const Bytes required = random.Between(1, 25);
  std::optional<Window> best;
  for (size_t begin = 0; begin < pieces.size(); ++begin) {
    Window window{begin, begin, 0, 0};
    while (window.end < pieces.size() && !pieces[window.end].is_barrier) {
      window.bytes += pieces[window.end].bytes;
      window.cost += pieces[window.end].cost;
      ++window.end;
      if (window.bytes < required) continue;
      if (!best || window.cost < best->cost ||
          (window.cost == best->cost && window.bytes < best->bytes)) {
        best = window;
      }
    }
  }
  const auto found = WindowSearch().Find(pieces, required);
  const bool same = found.has_value() == best.has_value() &&
                    (!found || (found->begin == best->begin &&
                                found->end == best->end &&
                                found->cost == best->cost));
  if (!same) {
    std::fprintf(stderr, "window seed %llu differs from brute force\n",
                 static_cast<unsigned long long>(seed));
  }
  return same;
}

}  // namespace coop
