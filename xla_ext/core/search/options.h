// What the search for a plan is given beside the graph and the capacity.
#ifndef COOP_CORE_SEARCH_OPTIONS_H_
#define COOP_CORE_SEARCH_OPTIONS_H_

#include <cstdint>
#include <optional>

#include "core/base/types.h"

namespace coop {

struct SearchOptions {
  Bytes alignment = 64;
  // Work allowed, in executions rolled out; what makes the search end. A count
  // rather than a time: the same plan on every machine.
  int64_t effort = 10'000'000;
  uint64_t seed = 0;
  // Keep so few bytes alive wherever no single operation needs more; the
  // capacity stays the limit.
  std::optional<Bytes> preferred_bytes;
  // Times what the program takes; plans above are not followed up.
  std::optional<double> overhead_limit;
};

}  // namespace coop

#endif  // COOP_CORE_SEARCH_OPTIONS_H_
