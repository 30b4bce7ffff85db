// The exchange on XLA:CUDA; only in builds with CUDA.
#ifndef COOP_FFI_ARENA_EXCHANGE_CUDA_H_
#define COOP_FFI_ARENA_EXCHANGE_CUDA_H_

#include "xla/ffi/api/c_api.h"

namespace coop {

// Execute handler of the custom call "coop_exchange", see exchange.h. Starts
// the copies on XLA's stream and returns. Stateless, safe to capture.
XLA_FFI_Error* ExchangeCuda(XLA_FFI_CallFrame* call_frame);
// The same of "coop_checked_exchange", see checked_exchange.h. Not to be captured.
XLA_FFI_Error* CheckedExchangeCuda(XLA_FFI_CallFrame* call_frame);
// Of "coop_empty_arena": no operands, one result u8[n], which stays as it is.
XLA_FFI_Error* EmptyArenaCuda(XLA_FFI_CallFrame* call_frame);

}  // namespace coop

#endif  // COOP_FFI_ARENA_EXCHANGE_CUDA_H_
