// Many device-to-device copies in few kernel launches.
#ifndef COOP_FFI_ARENA_COPY_CUDA_H_
#define COOP_FFI_ARENA_COPY_CUDA_H_

#include <cuda_runtime_api.h>

#include <span>

#include "ffi/arena/exchange.h"

namespace coop {

// Starts the copies on the stream: one launch for every kCopiesPerLaunch of
// them, whatever their sizes. They must be independent of each other, positive
// in size and on the stream's device. Neither synchronises nor allocates.
[[nodiscard]] cudaError_t LaunchCopies(std::span<const Copy> copies,
                                       cudaStream_t stream);

}  // namespace coop

#endif  // COOP_FFI_ARENA_COPY_CUDA_H_
