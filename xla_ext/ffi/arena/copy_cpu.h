// Many copies on many threads. Standard library only.
#ifndef COOP_FFI_ARENA_COPY_CPU_H_
#define COOP_FFI_ARENA_COPY_CPU_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "ffi/arena/exchange.h"

namespace coop {

// Gives a task to the threads of a pool; it may start at any time, also after
// CopyAll has returned.
using StartTask = std::function<void(std::function<void()>)>;

// Does all copies, which must be independent of each other: split into pieces
// over the calling thread and `num_threads` - 1 others if they are large. All
// are finished when it returns.
void CopyAll(const std::vector<Copy>& copies, int64_t num_threads,
             const StartTask& start);

}  // namespace coop

#endif  // COOP_FFI_ARENA_COPY_CPU_H_
