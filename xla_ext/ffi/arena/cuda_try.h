// Every CUDA call in a handler goes through COOP_CUDA_TRY.
#ifndef COOP_FFI_ARENA_CUDA_TRY_H_
#define COOP_FFI_ARENA_CUDA_TRY_H_

#include <cuda_runtime_api.h>

#include <string>

#include "xla/ffi/api/ffi.h"

// Returns from the handler of `target` with an error if `call` fails.
#define COOP_CUDA_TRY(target, call)                                       \
  do {                                                                    \
    if (const cudaError_t coop_error = (call); coop_error != cudaSuccess) \
      return ::xla::ffi::Error::Internal(                                 \
          std::string(target) + ": " #call " failed with " +              \
          cudaGetErrorName(coop_error) + ", " +                           \
          cudaGetErrorString(coop_error));                                \
  } while (false)

#endif  // COOP_FFI_ARENA_CUDA_TRY_H_
