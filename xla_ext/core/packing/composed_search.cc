#include "core/packing/composed_search.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "core/packing/compose.h"
#include "core/packing/skyline_search.h"

namespace coop {
namespace {

// Elementary steps of the shortest try, of each part of it, and more for each
// block.
constexpr int64_t kShortestTry = 50'000;
constexpr int64_t kTryPerBlock = 2'000;
// What a composition passes over: two to the power of less than this.
constexpr uint64_t kPassedOver = 6;

// 1 1 2 1 1 2 4 1 ...: restarts that take long are as rare as they are long
// (Luby, Sinclair and Zuckerman, 1993).
int64_t Luby(uint64_t number) {
  // Of 2^k - 1 numbers the last one is 2^(k-1), and two such rows come before it.
  while (!std::has_single_bit(number + 1)) {
    number -= std::bit_floor(number + 1) - 1;
  }
  return static_cast<int64_t>((number + 1) / 2);
}

// 0 1/2 1/4 3/4 1/8 5/8 ...: evenly in [0, 1) however many there are.
double Spread(uint64_t number) {
  double part = 0;
  for (double half = 0.5; number > 0; number /= 2, half /= 2) {
    if (number % 2) part += half;
  }
  return part;
}

}  // namespace

ComposedSearch::ComposedSearch(const PackingProblem& problem,
                               const PackingOptions& options)
    : problem_(problem), options_(options), random_(options.seed) {}

void ComposedSearch::Try(Bytes aim, const Deadline& deadline, int64_t& work,
                         PackingSolution& best) {
  const int64_t before = work;
  Kind& kind = tight_.work < loose_.work ? tight_ : loose_;
  const bool is_tight = &kind == &tight_;
  double part = Spread(kind.num_tries);
  if (is_tight) part *= part * part * part;
  ++kind.num_tries;
  const Bytes peak = PeakAt(part, aim, best);
  const auto limit = [&](size_t num_blocks) {
    const int64_t shortest =
        kShortestTry + kTryPerBlock * static_cast<int64_t>(num_blocks);
    return std::min(shortest * Luby(kind.num_tries), options_.effort - work);
  };
  const double passed_over =
      std::exchange(is_first_, false)
          ? 0
          : std::ldexp(1, static_cast<int>(random_() % kPassedOver));
  Composition composition(problem_, peak);
  composition.Join(random_, passed_over, work + limit(problem_.blocks.size()),
                   deadline, work);
  const PackingProblem reduced = composition.Reduced(options_.alignment);
  work += 16 * std::ssize(problem_.blocks);
  PackingSearch search(reduced);
  const auto look_for = [&](Bytes at_most) {
    const auto outcome = search.Find(
        at_most, random_(), limit(reduced.blocks.size()), deadline, work);
    if (outcome != PackingSearch::Outcome::kFound) return false;
    best = composition.Expand(reduced, search.solution());
    return true;
  };
  if (!look_for(peak) && is_tight) {
    look_for(PeakAt(Spread(random_() >> 48), peak, best));
  }
  kind.work += work - before;
}

Bytes ComposedSearch::PeakAt(double part, Bytes low,
                             const PackingSolution& best) {
  const auto gap = static_cast<double>(best.peak_bytes - low);
  return std::min(low + static_cast<Bytes>(part * gap), best.peak_bytes - 1);
}

}  // namespace coop
