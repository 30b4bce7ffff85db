// Random numbers for the search.
#ifndef COOP_CORE_SEARCH_RANDOM_CHOICE_H_
#define COOP_CORE_SEARCH_RANDOM_CHOICE_H_

#include <cstdint>
#include <random>

namespace coop {

// Reproducible on every machine, unlike the distributions of <random>.
class RandomChoice {
 public:
  explicit RandomChoice(uint64_t seed) : engine_(seed) {}

  int64_t Below(int64_t n) {
    return static_cast<int64_t>(engine_() % static_cast<uint64_t>(n));
  }
  double Uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }

 private:
  std::mt19937_64 engine_;
};

}  // namespace coop

#endif  // COOP_CORE_SEARCH_RANDOM_CHOICE_H_
