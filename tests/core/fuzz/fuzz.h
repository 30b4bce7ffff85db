// The parts of core_fuzz. Each tries one random case and returns false at a fault,
// after printing the seed.
#ifndef COOP_TESTS_CORE_FUZZ_FUZZ_H_
#define COOP_TESTS_CORE_FUZZ_FUZZ_H_

#include <cstdint>

namespace coop {

// Of all plans so far.
struct Counts {
  int64_t plans = 0;
  int64_t failures = 0;
  int64_t evictions = 0;
  int64_t recomputations = 0;
  int64_t takeovers = 0;
};

// Every policy and ablation, the validator as oracle.
bool FuzzPlans(uint64_t seed, Counts& counts);
bool FuzzPool(uint64_t seed);
// Against brute force.
bool FuzzWindow(uint64_t seed);
// Checked pair by pair. Fixed blocks are some of an earlier packing's.
bool FuzzPacking(uint64_t seed);
// Parting gaps changes nothing until the parts are decided differently.
bool FuzzSplits(uint64_t seed);
// The corners of a loop's body, against all choices if it is small.
bool FuzzRetention(uint64_t seed);

}  // namespace coop

#endif  // COOP_TESTS_CORE_FUZZ_FUZZ_H_
