// The exchange on XLA:CUDA; only in builds with CUDA.
#ifndef COOP_FFI_EXCHANGE_CUDA_H_
#define COOP_FFI_EXCHANGE_CUDA_H_

#include "xla/ffi/api/c_api.h"

namespace coop {

// Execute handler of the custom call "coop_exchange", see exchange.h. Starts
// the copies on XLA's stream and returns. Stateless, safe to capture.
XLA_FFI_Error* ExchangeCuda(XLA_FFI_CallFrame* call_frame);

}  // namespace coop

#endif  // COOP_FFI_EXCHANGE_CUDA_H_
