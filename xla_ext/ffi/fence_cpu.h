// The boundary between two segments of a rewritten program, on XLA:CPU.
#ifndef COOP_FFI_FENCE_CPU_H_
#define COOP_FFI_FENCE_CPU_H_

#include "xla/ffi/api/c_api.h"

namespace coop {

// Execute handler of the custom call "coop_fence": n operands in, the same n
// values out, every result aliased to its operand. It does nothing but be
// opaque, so XLA can neither merge a recomputation behind it with the original
// before it, nor run what depends on its results any earlier. Stateless.
XLA_FFI_Error* FenceCpu(XLA_FFI_CallFrame* call_frame);

}  // namespace coop

#endif  // COOP_FFI_FENCE_CPU_H_
