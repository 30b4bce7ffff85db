// A search over what blocks are composed of.
#ifndef COOP_CORE_PACKING_COMPOSED_SEARCH_H_
#define COOP_CORE_PACKING_COMPOSED_SEARCH_H_

#include <cstdint>
#include <random>

#include "core/base/deadline.h"
#include "core/base/types.h"
#include "core/packing/packing.h"
#include "core/packing/problem.h"

namespace coop {

// Composes blocks for some peak (compose.h) and looks for a packing of the pieces
// (skyline_search.h), again and again: one pair that met by chance spoils a
// composition, and another one differs in it.
class ComposedSearch {
 public:
  // `problem` has no fixed blocks; it and `options` must outlive this.
  ComposedSearch(const PackingProblem& problem, const PackingOptions& options);

  // One composition for a peak in [aim, best) and its search. Adds to `work` what
  // it did, and replaces `best` by what is better.
  void Try(Bytes aim, const Deadline& deadline, int64_t& work,
           PackingSolution& best);

 private:
  struct Kind {
    uint64_t num_tries = 0;
    int64_t work = 0;
  };

  // At `part` of the way from `low` to what is better than `best`.
  [[nodiscard]] static Bytes PeakAt(double part, Bytes low,
                                    const PackingSolution& best);

  const PackingProblem& problem_;
  const PackingOptions& options_;
  std::mt19937_64 random_;
  bool is_first_ = true;
  // Of two kinds with about as much work each. One composes for the peak that it
  // looks for. The other composes with less waste and may need more: where no
  // straight cut separates blocks, joining what is alike by chance costs most.
  Kind loose_;
  Kind tight_;
};

}  // namespace coop

#endif  // COOP_CORE_PACKING_COMPOSED_SEARCH_H_
