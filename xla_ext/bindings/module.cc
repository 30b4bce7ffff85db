// The module coop_jax._ext: the planner and the custom-call handlers.

#include "bindings/module.h"

#include <type_traits>

#include "ffi/after.h"
#include "ffi/arena/checked_exchange.h"
#include "ffi/arena/exchange.h"
#include "ffi/arena/exchange_cpu.h"
#include "ffi/fence_cpu.h"
#ifdef COOP_HAS_CUDA
#include "ffi/arena/exchange_cuda.h"
#endif

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

#ifdef COOP_HAS_CUDA
constexpr bool kHasCuda = true;
#else
constexpr bool kHasCuda = false;
#endif

using Handlers = nb::typed<nb::dict, nb::str, nb::capsule>;

nb::typed<nb::dict, nb::str, Handlers> Registrations() {
  nb::dict platforms;
  nb::dict cpu;
  cpu["coop_fence"] = Encapsulate(coop::FenceCpu);
  cpu[coop::kExchangeTarget] = Encapsulate(coop::ExchangeCpu);
  cpu[coop::kCheckedExchangeTarget] = Encapsulate(coop::CheckedExchangeCpu);
  cpu[coop::kEmptyArenaTarget] = Encapsulate(coop::EmptyArenaCpu);
  platforms["cpu"] = cpu;
  nb::dict cuda;
  // Touches no memory, so it needs no CUDA to be built.
  cuda[coop::kAfterTarget] = Encapsulate(coop::After);
  cpu[coop::kAfterTarget] = Encapsulate(coop::After);
#ifdef COOP_HAS_CUDA
  cuda[coop::kExchangeTarget] = Encapsulate(coop::ExchangeCuda);
  cuda[coop::kCheckedExchangeTarget] = Encapsulate(coop::CheckedExchangeCuda);
  cuda[coop::kEmptyArenaTarget] = Encapsulate(coop::EmptyArenaCuda);
#endif
  platforms["CUDA"] = cuda;
  return platforms;
}

}  // namespace

NB_MODULE(_ext, m) {
  m.doc() = "The planner of coop_jax and its XLA custom-call handlers.";
  // JAX's caches hold the static arguments of a step, `self` often, and by them its plan until the
  // interpreter is gone. That is no leak of ours to be warned of.
  nb::set_leak_warnings(false);
  coop::BindBooks(m);
  coop::BindGraph(m);
  coop::BindOnlineArena(m);
  coop::BindOptions(m);
  coop::BindPacking(m);
  coop::BindSchedule(m);
  coop::BindPlan(m);
  coop::BindPool(m);
  coop::BindRetention(m);
  m.attr("has_cuda") = kHasCuda;
  m.def("registrations", &Registrations,
        "The XLA FFI handlers of this build: platform to custom-call target "
        "name to capsule, ready for `jax.ffi.register_ffi_target`. Those of "
        "\"CUDA\" that copy are there if `has_cuda`.");
}
