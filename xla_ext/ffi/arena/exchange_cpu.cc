#include "ffi/arena/exchange_cpu.h"

#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "ffi/arena/checked_exchange.h"
#include "ffi/arena/copy_cpu.h"
#include "ffi/arena/exchange_call.h"

namespace coop {
namespace {

namespace ffi = xla::ffi;

void CopyAll(const std::vector<Copy>& copies, ffi::ThreadPool& pool) {
  CopyAll(copies, pool.num_threads(), [&pool](std::function<void()> task) {
    pool.Schedule(std::move(task));
  });
}

ffi::Error RunExchange(ffi::ThreadPool& pool, const Exchange& exchange) {
  const ExchangeCopies copies = ListCopies(exchange);
  CopyAll(copies.before, pool);
  CopyAll(copies.after, pool);
  return ffi::Error::Success();
}

// FNV-1a over words, then over the bytes that are left.
uint64_t Digest(const void* data, int64_t bytes) {
  constexpr uint64_t kPrime = 0x100000001b3;
  uint64_t digest = 0xcbf29ce484222325;
  const auto* at = static_cast<const unsigned char*>(data);
  for (; bytes >= 8; bytes -= 8, at += 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    digest = (digest ^ word) * kPrime;
  }
  for (; bytes > 0; --bytes, ++at) digest = (digest ^ *at) * kPrime;
  return digest;
}

ffi::Error RunChecked(ffi::ThreadPool& pool, const Exchange& exchange,
                      const BooksCall& call) {
  return RunCheckedExchange(
      exchange, call, Digest,
      [&pool](const std::vector<Copy>& copies) {
        CopyAll(copies, pool);
        return ffi::Error::Success();
      },
      [](void* data, int64_t bytes) {
        std::memset(data, kPoison, static_cast<size_t>(bytes));
        return ffi::Error::Success();
      });
}

ffi::Error MakeEmptyArena(ffi::Result<Arena> arena) {
  (void)arena;  // XLA's own memory, as it is.
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kExchange,
                       (HandleExchange<ffi::ThreadPool, RunExchange>),
                       BindExchange(ffi::Ffi::Bind().Ctx<ffi::ThreadPool>()));
XLA_FFI_DEFINE_HANDLER(
    kChecked, (HandleCheckedExchange<ffi::ThreadPool, RunChecked>),
    BindCheckedExchange(ffi::Ffi::Bind().Ctx<ffi::ThreadPool>()));
XLA_FFI_DEFINE_HANDLER(kEmptyArena, MakeEmptyArena,
                       ffi::Ffi::Bind().Ret<Arena>());

}  // namespace

XLA_FFI_Error* ExchangeCpu(XLA_FFI_CallFrame* call_frame) {
  return kExchange(call_frame);
}

XLA_FFI_Error* CheckedExchangeCpu(XLA_FFI_CallFrame* call_frame) {
  return kChecked(call_frame);
}

XLA_FFI_Error* EmptyArenaCpu(XLA_FFI_CallFrame* call_frame) {
  return kEmptyArena(call_frame);
}

}  // namespace coop
