#include "ffi/after.h"

#include "xla/ffi/api/ffi.h"

namespace coop {
namespace {

namespace ffi = xla::ffi;

ffi::Error RunAfter(ffi::AnyBuffer value, ffi::RemainingArgs others,
                    ffi::Result<ffi::AnyBuffer> result) {
  (void)others;
  if (value.untyped_data() == result->untyped_data()) {
    return ffi::Error::Success();
  }
  return ffi::Error::Internal(
      "coop_after: the result must be aliased to the first operand; XLA gave "
      "it a buffer of its own");
}

// Not for command buffers: XLA refuses to capture a call that launches nothing.
XLA_FFI_DEFINE_HANDLER(
    kAfter, RunAfter,
    ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().RemainingArgs().Ret<ffi::AnyBuffer>());

}  // namespace

XLA_FFI_Error* After(XLA_FFI_CallFrame* call_frame) {
  return kAfter(call_frame);
}

}  // namespace coop
