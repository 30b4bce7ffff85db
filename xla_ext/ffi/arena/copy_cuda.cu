#include "ffi/arena/copy_cuda.h"

#include <algorithm>

#include "ffi/arena/copy_kernel.h"

namespace coop {
namespace {

// __grid_constant__: items are read where the arguments lie, not from a copy in
// every thread's local memory.
__global__ void __launch_bounds__(kThreadsPerBlock)
    CopyKernel(const __grid_constant__ CopyBatch batch) {
  CopyShare(batch, blockIdx.x, static_cast<int>(threadIdx.x));
}

}  // namespace

cudaError_t LaunchCopies(std::span<const Copy> copies, cudaStream_t stream) {
  while (!copies.empty()) {
    const size_t num_items =
        std::min(copies.size(), static_cast<size_t>(kCopiesPerLaunch));
    CopyBatch batch;
    batch.num_items = static_cast<int64_t>(num_items);
    int64_t num_blocks = 0;
    for (size_t i = 0; i < num_items; ++i) {
      batch.items[i] = {static_cast<char*>(copies[i].to),
                        static_cast<const char*>(copies[i].from),
                        copies[i].bytes, num_blocks};
      num_blocks += NumBlocks(copies[i].bytes);
    }
    // 2^31 blocks are 64 TiB: no device's memory reaches the limit.
    void* arguments[] = {&batch};
    // Returns its own error, unlike <<<>>>, so that none is taken from others.
    const cudaError_t error = cudaLaunchKernel(
        reinterpret_cast<const void*>(&CopyKernel),
        dim3(static_cast<unsigned>(num_blocks)), dim3(kThreadsPerBlock),
        arguments, /*sharedMem=*/0, stream);
    if (error != cudaSuccess) return error;
    copies = copies.subspan(num_items);
  }
  return cudaSuccess;
}

}  // namespace coop
