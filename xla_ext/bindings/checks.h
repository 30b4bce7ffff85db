// Checks of arguments that several parts of the module share.
#ifndef COOP_BINDINGS_CHECKS_H_
#define COOP_BINDINGS_CHECKS_H_

#include <nanobind/nanobind.h>

#include <sstream>

#include "core/base/types.h"

namespace coop {

template <typename... Parts>
[[noreturn]] void RaiseValueError(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw nanobind::value_error(text.str().c_str());
}

// Sums of sizes that are rounded up to an alignment must not overflow.
inline constexpr Bytes kLargestAlignment = Bytes{1} << 30;

inline void CheckAlignment(const char* where, Bytes alignment) {
  if (alignment <= 0 || (alignment & (alignment - 1)) != 0) {
    RaiseValueError(where, ": `alignment` must be a power of two, got ",
                    alignment);
  }
  if (alignment > kLargestAlignment) {
    RaiseValueError(where, ": `alignment` must be at most 2**30, got ",
                    alignment);
  }
}

}  // namespace coop

#endif  // COOP_BINDINGS_CHECKS_H_
