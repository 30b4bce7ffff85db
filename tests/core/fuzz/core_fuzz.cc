// Random graphs through every policy and ablation, the validator as oracle; random
// pools, windows, packings and bodies of loops against simple checks.
//
//   core_fuzz [number of graphs] [first seed]
//
// Exits with 1 at the first violation, after printing the seed and the options.
// Meant to be built with COOP_SANITIZE.

#include <cstdio>
#include <cstdlib>

#include "fuzz.h"

int main(int argc, char** argv) {
  const uint64_t count = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 2000;
  const uint64_t first = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  coop::Counts counts;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    if (!coop::FuzzPool(seed) || !coop::FuzzWindow(seed) ||
        !coop::FuzzPacking(seed) || !coop::FuzzSplits(seed) ||
        !coop::FuzzRetention(seed) || !coop::FuzzPlans(seed, counts)) {
      return EXIT_FAILURE;
    }
  }
  std::printf(
      "%llu graphs: %lld plans, %lld failed for memory, %lld evictions, %lld "
      "recomputations, %lld take-overs, no violation\n",
      static_cast<unsigned long long>(count),
      static_cast<long long>(counts.plans),
      static_cast<long long>(counts.failures),
      static_cast<long long>(counts.evictions),
      static_cast<long long>(counts.recomputations),
      static_cast<long long>(counts.takeovers));
  return EXIT_SUCCESS;
}
