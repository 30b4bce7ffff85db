// The options of the search.
#ifndef COOP_CORE_SEARCH_OPTIONS_H_
#define COOP_CORE_SEARCH_OPTIONS_H_

#include <cstdint>
#include <optional>

#include "core/base/common_options.h"
#include "core/base/types.h"

namespace coop {

struct SearchOptions {
  // Plans above the overhead limit are not followed up.
  CommonOptions common;
  // Work allowed, in executions rolled out; what makes the search end. A count
  // rather than a time: the same plan on every machine.
  int64_t effort = 10'000'000;
  // Keep so few bytes alive wherever no single operation needs more; the
  // capacity stays the limit. One operation that needs nearly all of a pool
  // leaves the others room that they need not use; used, it would be room for a
  // compiler to fragment.
  std::optional<Bytes> preferred_bytes;
};

}  // namespace coop

#endif  // COOP_CORE_SEARCH_OPTIONS_H_
