// The exchange of the checked mode, "coop_checked_exchange": the same operands
// and results as "coop_exchange", and attributes that say which values these
// are. Its handlers keep the books of the arena (books.h), fill what is free
// with a pattern, and fail at the first call that does not do what was planned.
//
//   attributes  those of the exchange,
//               store_tensors s64[s], load_tensors s64[l]: who they are,
//               names: for messages, one line each, stores then loads,
//               boundary (s64), is_first, is_last: of the step's exchanges,
//               books (s64): the number of the step's books
#ifndef COOP_FFI_ARENA_CHECKED_EXCHANGE_H_
#define COOP_FFI_ARENA_CHECKED_EXCHANGE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ffi/arena/books.h"
#include "ffi/arena/exchange_call.h"

namespace coop {

inline constexpr char kCheckedExchangeTarget[] = "coop_checked_exchange";
// Fills the bytes of no block. As a float of any width it is not a number.
inline constexpr int kPoison = 0xFF;

// The arguments of every checked handler, behind those of an exchange.
template <typename Binding>
constexpr auto BindCheckedExchange(Binding&& binding) {
  return BindExchange(std::move(binding))
      .template Attr<Offsets>("store_tensors")
      .template Attr<Offsets>("load_tensors")
      .template Attr<std::string_view>("names")
      .template Attr<int64_t>("boundary")
      .template Attr<bool>("is_first")
      .template Attr<bool>("is_last")
      .template Attr<int64_t>("books");
}

struct BooksCall {
  Offsets store_tensors;
  Offsets load_tensors;
  std::string_view names;
  int64_t boundary;
  bool is_first;
  bool is_last;
  int64_t number;
};

// One pass over the books for one exchange, before anything is copied. `digest`
// tells the bytes at an address from others.
template <typename Digest>
std::optional<std::string> FindBooksFault(const Exchange& exchange,
                                          const BooksCall& call,
                                          Digest digest) {
  if (call.store_tensors.size() != exchange.store_offsets.size() ||
      call.load_tensors.size() != exchange.load_offsets.size()) {
    return "every store and every load must have one tensor";
  }
  const std::string here = "at boundary " + std::to_string(call.boundary) + " ";
  if (exchange.arena.data != exchange.arena_result.data) {
    return here +
           "the arena is copied, not aliased: it is in memory twice. It must "
           "be donated, and nothing else may read it";
  }
  const std::shared_ptr<Books> books =
      call.is_first ? TheBookShelf().Begin(call.number, exchange.arena.data)
                    : TheBookShelf().Find(call.number, exchange.arena.data);
  if (!books) {
    return here +
           "this is not the arena of the boundary before: it was moved, or "
           "what came before did not run";
  }
  std::string_view names = call.names;
  const auto next_name = [&names] {
    const size_t end = names.find('\n');
    const std::string_view name = names.substr(0, end);
    names.remove_prefix(end == names.npos ? names.size() : end + 1);
    return name;
  };
  const auto passed = static_cast<size_t>(exchange.num_pass_through);
  std::vector<ArenaEntry> stores;
  for (size_t i = 0; i < exchange.store_offsets.size(); ++i) {
    const ExchangeInput& value = exchange.operands[passed + i];
    stores.push_back({call.store_tensors[i], next_name(),
                      exchange.store_offsets[i], value.bytes,
                      digest(value.data, value.bytes)});
  }
  const auto* arena = static_cast<const char*>(exchange.arena.data);
  for (size_t i = 0; i < exchange.load_offsets.size(); ++i) {
    const int64_t offset = exchange.load_offsets[i];
    const int64_t bytes = exchange.results[passed + i].bytes;
    if (auto fault = books->Load(
            call.boundary, {call.load_tensors[i], next_name(), offset, bytes,
                            digest(arena + offset, bytes)})) {
      return fault;
    }
  }
  for (const ArenaEntry& store : stores) {
    if (auto fault = books->Store(call.boundary, store)) return fault;
  }
  if (!call.is_last) return std::nullopt;
  if (auto fault = books->Close(call.boundary)) return fault;
  TheBookShelf().Finish(call.number, exchange.arena.data);
  return std::nullopt;
}

// The whole of a checked exchange: books, then copies; what nobody owns any
// longer is filled in between. `copy` takes a list of copies, `fill` an address
// and a size; both return an error.
template <typename Digest, typename CopyFn, typename Fill>
xla::ffi::Error RunCheckedExchange(const Exchange& exchange,
                                   const BooksCall& call, Digest digest,
                                   CopyFn copy, Fill fill) {
  using xla::ffi::Error;
  if (auto fault = FindBooksFault(exchange, call, digest)) {
    return Error::Internal(std::string(kCheckedExchangeTarget) + ": " +
                           *std::move(fault));
  }
  auto* arena = static_cast<char*>(exchange.arena_result.data);
  if (call.is_first) {
    if (Error error = fill(arena, exchange.arena_result.bytes);
        error.failure()) {
      return error;
    }
  }
  const ExchangeCopies copies = ListCopies(exchange);
  if (Error error = copy(copies.before); error.failure()) return error;
  // Stores among the copies so far touch nothing that is loaded.
  const auto passed = static_cast<size_t>(exchange.num_pass_through);
  for (size_t i = 0; i < exchange.load_offsets.size(); ++i) {
    const int64_t bytes = exchange.results[passed + i].bytes;
    if (Error error = fill(arena + exchange.load_offsets[i], bytes);
        error.failure()) {
      return error;
    }
  }
  return copy(copies.after);
}

// A handler of what BindCheckedExchange binds behind a context: `Run(context,
// exchange, call)` for an exchange without fault.
template <typename Context, auto Run>
xla::ffi::Error HandleCheckedExchange(
    Context context, AnyArena arena, xla::ffi::RemainingArgs args,
    xla::ffi::Result<AnyArena> arena_result, xla::ffi::RemainingRets results,
    int64_t num_pass_through, Offsets store_offsets, Offsets load_offsets,
    Offsets store_tensors, Offsets load_tensors, std::string_view names,
    int64_t boundary, bool is_first, bool is_last, int64_t books) {
  const xla::ffi::ErrorOr<Exchange> exchange =
      DecodeExchange(arena, args, arena_result, results, num_pass_through,
                     store_offsets, load_offsets);
  if (exchange.has_error()) return exchange.error();
  return Run(context, *exchange,
             BooksCall{store_tensors, load_tensors, names, boundary, is_first,
                       is_last, books});
}

}  // namespace coop

#endif  // COOP_FFI_ARENA_CHECKED_EXCHANGE_H_
