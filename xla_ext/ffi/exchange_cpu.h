// The exchange on XLA:CPU.
#ifndef COOP_FFI_EXCHANGE_CPU_H_
#define COOP_FFI_EXCHANGE_CPU_H_

#include "xla/ffi/api/c_api.h"

namespace coop {

// Execute handler of the custom call "coop_exchange", see exchange.h. Large
// copies are split over XLA's thread pool; all are finished when it returns.
// Stateless.
XLA_FFI_Error* ExchangeCpu(XLA_FFI_CallFrame* call_frame);

}  // namespace coop

#endif  // COOP_FFI_EXCHANGE_CPU_H_
