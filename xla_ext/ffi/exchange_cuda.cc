#include "ffi/exchange_cuda.h"

#include <cuda_runtime_api.h>

#include "ffi/copy_cuda.h"
#include "ffi/cuda_try.h"
#include "ffi/exchange_call.h"

namespace coop {
namespace {

namespace ffi = xla::ffi;

ffi::Error RunExchange(cudaStream_t stream, Arena arena,
                       ffi::RemainingArgs args,
                       ffi::Result<Arena> arena_result,
                       ffi::RemainingRets results, int64_t num_pass_through,
                       Offsets store_offsets, Offsets load_offsets) {
  const ffi::ErrorOr<ExchangeCopies> copies =
      DecodeExchange(arena, args, arena_result, results, num_pass_through,
                     store_offsets, load_offsets);
  if (copies.has_error()) return copies.error();
  // The stream's order keeps them apart.
  COOP_CUDA_TRY(kExchangeTarget, LaunchCopies(copies->before, stream));
  COOP_CUDA_TRY(kExchangeTarget, LaunchCopies(copies->after, stream));
  return ffi::Error::Success();
}

// Safe to capture into a CUDA graph and to replay without this function:
// - it only launches kernels, on XLA's own stream, and passes all their
//   arguments by value;
// - which kernels, on what, follows from attributes, sizes and addresses alone;
//   XLA captures again when addresses change;
// - it neither allocates device memory, nor synchronises, nor asks the stream
//   for its state, and reads no buffer on the host.
XLA_FFI_DEFINE_HANDLER(
    kExchange, RunExchange,
    BindExchange(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>()),
    {ffi::Traits::kCmdBufferCompatible});

}  // namespace

XLA_FFI_Error* ExchangeCuda(XLA_FFI_CallFrame* call_frame) {
  return kExchange(call_frame);
}

}  // namespace coop
