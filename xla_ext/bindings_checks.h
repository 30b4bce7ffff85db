// Checks of arguments that several parts of the module share.
#ifndef COOP_BINDINGS_CHECKS_H_
#define COOP_BINDINGS_CHECKS_H_

#include <nanobind/nanobind.h>

#include <sstream>

#include "core/types.h"

namespace coop {

template <typename... Parts>
[[noreturn]] void RaiseValueError(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw nanobind::value_error(text.str().c_str());
}

inline void CheckAlignment(const char* where, Bytes alignment) {
  if (alignment > 0 && (alignment & (alignment - 1)) == 0) return;
  RaiseValueError(where, ": `alignment` must be a power of two, got ",
                  alignment);
}

}  // namespace coop

#endif  // COOP_BINDINGS_CHECKS_H_
