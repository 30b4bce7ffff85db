// The module coop_jax._ext: the planner and the custom-call handlers.

#include "bindings.h"

#include <type_traits>

#include "ffi/fence_cpu.h"

namespace nb = nanobind;

namespace {

// A handler as jax.ffi.register_ffi_target wants it.
template <typename Handler>
nb::capsule Encapsulate(Handler* handler) {
  static_assert(
      std::is_invocable_r_v<XLA_FFI_Error*, Handler, XLA_FFI_CallFrame*>,
      "an XLA FFI handler takes a call frame and returns an error");
  return nb::capsule(reinterpret_cast<void*>(handler));
}

nb::typed<nb::dict, nb::str, nb::capsule> Registrations() {
  nb::dict handlers;
  handlers["coop_fence"] = Encapsulate(coop::FenceCpu);
  return handlers;
}

}  // namespace

NB_MODULE(_ext, m) {
  m.doc() = "The planner of coop_jax and its XLA custom-call handlers.";
  coop::BindGraph(m);
  coop::BindPlan(m);
  coop::BindPool(m);
  m.def("registrations", &Registrations,
        "The XLA FFI handlers for platform \"cpu\": custom-call target name to "
        "capsule, ready for `jax.ffi.register_ffi_target`.");
}
