#include "fuzz.h"

#include <cstddef>
#include <cstdio>
#include <vector>

#include "core/online/pool.h"
#include "random_graph.h"

namespace coop {

bool FuzzPool(uint64_t seed) {
  Random random(seed);
  const Bytes alignment = Bytes{1} << random.Between(0, 8);
  Pool pool(random.Between(0, 5000), alignment);
  std::vector<PieceIdx> used;
  for (int i = 0; i < 300; ++i) {
    if (!used.empty() && random.Chance(45)) {
      const size_t which = At(random.Between(0, std::ssize(used) - 1));
      pool.Release(used[which]);
      used.erase(used.begin() + static_cast<std::ptrdiff_t>(which));
    } else {
      const Bytes bytes = random.Between(1, 700);
      const bool fits = pool.Fits(bytes);
      const auto piece = pool.Allocate(
          bytes, random.Chance(50) ? Side::kLeft : Side::kRight, i);
      if (piece.has_value() != fits) return false;
      if (piece) used.push_back(*piece);
    }
    if (const auto wrong = pool.CheckInvariants()) {
      std::fprintf(stderr, "pool seed %llu: %s\n",
                   static_cast<unsigned long long>(seed), wrong->c_str());
      return false;
    }
  }
  return true;
}

}  // namespace coop
