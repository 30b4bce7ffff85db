// A custom call that orders: its result is its first operand, in place.
#ifndef COOP_FFI_AFTER_H_
#define COOP_FFI_AFTER_H_

#include "xla/ffi/api/c_api.h"

namespace coop {

inline constexpr char kAfterTarget[] = "coop_after";

// Execute handler of "coop_after": operands are a value and others, the one
// result is aliased to the value. Nothing is done, on no platform; what the
// others are for is that XLA makes them first. Stateless.
XLA_FFI_Error* After(XLA_FFI_CallFrame* call_frame);

}  // namespace coop

#endif  // COOP_FFI_AFTER_H_
