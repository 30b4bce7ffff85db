#include "ffi/fence_cpu.h"

#include <cstring>
#include <string>

#include "xla/ffi/api/ffi.h"

namespace coop {
namespace {

namespace ffi = xla::ffi;

ffi::Error Fence(ffi::RemainingArgs args, ffi::RemainingRets results) {
  if (args.size() != results.size()) {
    return ffi::Error::InvalidArgument(
        "coop_fence: every operand must have one result, got " +
        std::to_string(args.size()) + " operands and " +
        std::to_string(results.size()) + " results");
  }
  for (size_t i = 0; i < args.size(); ++i) {
    const auto arg = args.get<ffi::AnyBuffer>(i);
    if (arg.has_error()) return arg.error();
    auto result = results.get<ffi::AnyBuffer>(i);
    if (result.has_error()) return result.error();
    const size_t bytes = arg->size_bytes();
    if (bytes != (*result)->size_bytes()) {
      return ffi::Error::InvalidArgument(
          "coop_fence: operand and result " + std::to_string(i) +
          " must have the same size, got " + std::to_string(bytes) + " and " +
          std::to_string((*result)->size_bytes()) + " bytes");
    }
    // Without input_output_aliases XLA may give the result its own buffer.
    void* to = (*result)->untyped_data();
    const void* from = arg->untyped_data();
    if (to != from && bytes > 0) std::memcpy(to, from, bytes);
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kFence, Fence,
                       ffi::Ffi::Bind().RemainingArgs().RemainingRets());

}  // namespace

XLA_FFI_Error* FenceCpu(XLA_FFI_CallFrame* call_frame) {
  return kFence(call_frame);
}

}  // namespace coop
