#include "fuzz.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "core/packing/packing.h"
#include "random_graph.h"

namespace coop {

bool FuzzPacking(uint64_t seed) {
  Random random(seed);
  std::vector<PackingBlock> blocks;
  const int64_t num_steps = random.Between(1, 40);
  for (int64_t i = random.Between(0, 60); i > 0; --i) {
    const int64_t first = random.Between(-num_steps, num_steps);
    blocks.push_back({first, first + random.Between(0, num_steps),
                      random.Chance(5) ? 0 : random.Between(1, 400)});
  }
  PackingOptions options;
  options.alignment = Bytes{1} << random.Between(0, 8);
  options.effort = random.Chance(30) ? 0 : random.Between(1, 1'000'000);
  options.seed = seed;
  for (const bool fix : {false, true}) {
    const Packing packing = Pack(blocks, options);
    Bytes peak = 0;
    Bytes bound = 0;
    bool right = packing.offsets.size() == blocks.size();
    for (size_t i = 0; right && i < blocks.size(); ++i) {
      const PackingBlock& a = blocks[i];
      const Offset offset = packing.offsets[i];
      const Bytes bytes = RoundUp(a.bytes, options.alignment);
      right = offset >= 0 && offset % options.alignment == 0 &&
              (a.fixed_offset == kNone || offset == a.fixed_offset);
      if (bytes == 0) continue;
      peak = std::max(peak, offset + bytes);
      Bytes live = 0;
      for (size_t j = 0; j < blocks.size(); ++j) {
        const PackingBlock& b = blocks[j];
        const Bytes other = RoundUp(b.bytes, options.alignment);
        if (b.first <= a.first && a.first <= b.last) live += other;
        if (j == i || other == 0 || a.last < b.first || b.last < a.first) {
          continue;
        }
        right = right && (offset + bytes <= packing.offsets[j] ||
                          packing.offsets[j] + other <= offset);
      }
      bound = std::max(bound, live);
      if (a.fixed_offset != kNone) bound = std::max(bound, offset + bytes);
    }
    if (!right || peak != packing.peak_bytes ||
        bound != packing.lower_bound_bytes) {
      std::fprintf(stderr, "packing seed %llu is wrong\n",
                   static_cast<unsigned long long>(seed));
      return false;
    }
    if (fix) break;
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (blocks[i].bytes > 0 && random.Chance(30)) {
        blocks[i].fixed_offset = packing.offsets[i];
      }
    }
  }
  return true;
}

}  // namespace coop
