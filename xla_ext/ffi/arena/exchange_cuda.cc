#include "ffi/arena/exchange_cuda.h"

#include <cuda_runtime_api.h>

#include <vector>

#include "ffi/arena/checked_exchange.h"
#include "ffi/arena/copy_cuda.h"
#include "ffi/arena/cuda_try.h"
#include "ffi/arena/exchange_call.h"

namespace coop {
namespace {

namespace ffi = xla::ffi;

ffi::Error RunExchange(cudaStream_t stream, const Exchange& exchange) {
  const ExchangeCopies copies = ListCopies(exchange);
  // The stream's order keeps them apart.
  COOP_CUDA_TRY(kExchangeTarget, LaunchCopies(copies.before, stream));
  COOP_CUDA_TRY(kExchangeTarget, LaunchCopies(copies.after, stream));
  return ffi::Error::Success();
}

ffi::Error RunChecked(cudaStream_t stream, const Exchange& exchange,
                      const BooksCall& call) {
  return RunCheckedExchange(
      exchange, call,
      // Nothing is read on the host: the books alone are checked.
      [](const void*, int64_t) { return uint64_t{0}; },
      [stream](const std::vector<Copy>& copies) -> ffi::Error {
        COOP_CUDA_TRY(kCheckedExchangeTarget, LaunchCopies(copies, stream));
        return ffi::Error::Success();
      },
      [stream](void* data, int64_t bytes) -> ffi::Error {
        COOP_CUDA_TRY(kCheckedExchangeTarget,
                      cudaMemsetAsync(data, kPoison,
                                      static_cast<size_t>(bytes), stream));
        return ffi::Error::Success();
      });
}

ffi::Error MakeEmptyArena(ffi::Result<Arena> arena) {
  (void)arena;  // XLA's own memory, as it is.
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
    kExchange, (HandleExchange<cudaStream_t, RunExchange>),
    BindExchange(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>()),
    {ffi::Traits::kCmdBufferCompatible});

// Not to be captured: a replay would keep no books.
XLA_FFI_DEFINE_HANDLER(
    kChecked, (HandleCheckedExchange<cudaStream_t, RunChecked>),
    BindCheckedExchange(
        ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>()));

// Nor this: XLA refuses to capture a call that launches nothing.
XLA_FFI_DEFINE_HANDLER(kEmptyArena, MakeEmptyArena,
                       ffi::Ffi::Bind().Ret<Arena>());

}  // namespace

XLA_FFI_Error* ExchangeCuda(XLA_FFI_CallFrame* call_frame) {
  return kExchange(call_frame);
}

XLA_FFI_Error* CheckedExchangeCuda(XLA_FFI_CallFrame* call_frame) {
  return kChecked(call_frame);
}

XLA_FFI_Error* EmptyArenaCuda(XLA_FFI_CallFrame* call_frame) {
  return kEmptyArena(call_frame);
}

}  // namespace coop
