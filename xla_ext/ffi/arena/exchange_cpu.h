// The exchange on XLA:CPU.
#ifndef COOP_FFI_ARENA_EXCHANGE_CPU_H_
#define COOP_FFI_ARENA_EXCHANGE_CPU_H_

#include "xla/ffi/api/c_api.h"

namespace coop {

// Execute handler of the custom call "coop_exchange", see exchange.h. Large
// copies are split over XLA's thread pool; all are finished when it returns.
// Stateless.
XLA_FFI_Error* ExchangeCpu(XLA_FFI_CallFrame* call_frame);
// The same of "coop_checked_exchange", see checked_exchange.h.
XLA_FFI_Error* CheckedExchangeCpu(XLA_FFI_CallFrame* call_frame);
// Of "coop_empty_arena": no operands, one result u8[n], which stays as it is.
XLA_FFI_Error* EmptyArenaCpu(XLA_FFI_CallFrame* call_frame);

}  // namespace coop

#endif  // COOP_FFI_ARENA_EXCHANGE_CPU_H_
