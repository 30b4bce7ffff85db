// The part that all handlers of "coop_exchange" share: an XLA call is decoded to
// an exchange.
#ifndef COOP_FFI_ARENA_EXCHANGE_CALL_H_
#define COOP_FFI_ARENA_EXCHANGE_CALL_H_

#include <cstdint>
#include <string>
#include <utility>

#include "ffi/arena/exchange.h"
#include "xla/ffi/api/ffi.h"

namespace coop {

using Arena = xla::ffi::Buffer<xla::ffi::U8, 1>;
// As exchanges are bound to it, and say themselves what is wrong with one: on an
// H200 with JAX 0.11.2, XLA crashed where a call could not be decoded.
using AnyArena = xla::ffi::AnyBuffer;
using Offsets = xla::ffi::Span<const int64_t>;

// The arguments of every handler, behind its own context.
template <typename Binding>
constexpr auto BindExchange(Binding&& binding) {
  return std::move(binding)
      .template Arg<AnyArena>()
      .RemainingArgs()
      .template Ret<AnyArena>()
      .RemainingRets()
      .template Attr<int64_t>("num_pass_through")
      .template Attr<Offsets>("store_offsets")
      .template Attr<Offsets>("load_offsets");
}

// How XLA packs such values is not in the call, so their size is unknown. They
// can pass, if aliased, but neither be stored, loaded nor copied.
inline bool IsSmallerThanByte(xla::ffi::DataType type) {
  using xla::ffi::DataType;
  switch (type) {
    case DataType::S1:
    case DataType::U1:
    case DataType::S2:
    case DataType::U2:
    case DataType::S4:
    case DataType::U4:
    case DataType::F4E2M1FN:
      return true;
    default:
      return false;
  }
}

inline bool IsBytes(const AnyArena& arena) {
  return arena.element_type() == xla::ffi::U8 && arena.dimensions().size() == 1;
}

// The call as an exchange without fault. It refers to the attributes.
inline xla::ffi::ErrorOr<Exchange> DecodeExchange(
    AnyArena arena, xla::ffi::RemainingArgs args,
    xla::ffi::Result<AnyArena> arena_result, xla::ffi::RemainingRets results,
    int64_t num_pass_through, Offsets store_offsets, Offsets load_offsets) {
  namespace ffi = xla::ffi;
  const auto fail = [](std::string text) {
    return ffi::Unexpected(ffi::Error::InvalidArgument(std::move(text)));
  };
  const auto small = [&](const char* kind, size_t i) {
    return fail(std::string(kExchangeTarget) + ": " + kind + " " +
                std::to_string(i + 1) +
                " has elements smaller than a byte, which is not supported");
  };
  const auto is_passed = [&](size_t i) {
    return static_cast<int64_t>(i) < num_pass_through;
  };
  if (!IsBytes(arena) || !IsBytes(*arena_result)) {
    return fail(std::string(kExchangeTarget) +
                ": the arena must be bytes in one dimension, u8[n]");
  }
  Exchange exchange{
      .arena = {arena.untyped_data(),
                static_cast<int64_t>(arena.size_bytes())},
      .arena_result = {arena_result->untyped_data(),
                       static_cast<int64_t>(arena_result->size_bytes())},
      .operands = {},
      .results = {},
      .num_pass_through = num_pass_through,
      .store_offsets = {store_offsets.begin(), store_offsets.size()},
      .load_offsets = {load_offsets.begin(), load_offsets.size()},
  };
  exchange.operands.reserve(args.size());
  for (size_t i = 0; i < args.size(); ++i) {
    const auto arg = args.get<ffi::AnyBuffer>(i);
    if (arg.has_error()) return ffi::Unexpected(arg.error());
    if (IsSmallerThanByte(arg->element_type()) && !is_passed(i)) {
      return small("operand", i);
    }
    exchange.operands.push_back(
        {arg->untyped_data(), static_cast<int64_t>(arg->size_bytes())});
  }
  exchange.results.reserve(results.size());
  for (size_t i = 0; i < results.size(); ++i) {
    auto result = results.get<ffi::AnyBuffer>(i);
    if (result.has_error()) return ffi::Unexpected(result.error());
    if (IsSmallerThanByte((*result)->element_type()) &&
        !(is_passed(i) && i < args.size() &&
          exchange.operands[i].data == (*result)->untyped_data())) {
      return small("result", i);
    }
    exchange.results.push_back({(*result)->untyped_data(),
                                static_cast<int64_t>((*result)->size_bytes())});
  }
  if (auto fault = FindFault(exchange)) return fail(*std::move(fault));
  return exchange;
}

// A handler of what BindExchange binds behind a context: `Run(context,
// exchange)` for an exchange without fault.
template <typename Context, auto Run>
xla::ffi::Error HandleExchange(Context context, AnyArena arena,
                               xla::ffi::RemainingArgs args,
                               xla::ffi::Result<AnyArena> arena_result,
                               xla::ffi::RemainingRets results,
                               int64_t num_pass_through, Offsets store_offsets,
                               Offsets load_offsets) {
  const xla::ffi::ErrorOr<Exchange> exchange =
      DecodeExchange(arena, args, arena_result, results, num_pass_through,
                     store_offsets, load_offsets);
  if (exchange.has_error()) return exchange.error();
  return Run(context, *exchange);
}

}  // namespace coop

#endif  // COOP_FFI_ARENA_EXCHANGE_CALL_H_
