#include "ffi/exchange_cpu.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "ffi/checked_exchange.h"
#include "ffi/exchange_call.h"

namespace coop {
namespace {

namespace ffi = xla::ffi;

// Large enough that handing a piece to another thread (microseconds) costs
// little beside copying it (tens of microseconds).
constexpr int64_t kPieceBytes = int64_t{512} << 10;
// Below this, one thread is as fast as many.
constexpr int64_t kSmallBytes = int64_t{2} << 20;

// Copies shared between the calling thread and those of the pool. Whoever is
// free takes the next piece, the caller too, which therefore only ever waits
// for pieces that a running thread has already taken. Were it to wait for tasks
// still in the queue, exchanges that run on the pool's own threads could wait
// for each other for ever.
class SharedCopies {
 public:
  explicit SharedCopies(const std::vector<Copy>& copies) {
    for (const Copy& copy : copies) {
      for (int64_t at = 0; at < copy.bytes; at += kPieceBytes) {
        pieces_.push_back({static_cast<char*>(copy.to) + at,
                           static_cast<const char*>(copy.from) + at,
                           std::min(kPieceBytes, copy.bytes - at)});
      }
    }
  }

  [[nodiscard]] size_t num_pieces() const { return pieces_.size(); }

  // Copies until every piece is taken.
  void Work() {
    for (;;) {
      const size_t piece = next_.fetch_add(1, std::memory_order_relaxed);
      if (piece >= pieces_.size()) return;
      const Copy& copy = pieces_[piece];
      std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes));
      if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == pieces_.size()) {
        done_.notify_all();
      }
    }
  }

  void Wait() {
    size_t done = done_.load(std::memory_order_acquire);
    while (done != pieces_.size()) {
      done_.wait(done, std::memory_order_acquire);
      done = done_.load(std::memory_order_acquire);
    }
  }

 private:
  std::vector<Copy> pieces_;
  std::atomic<size_t> next_{0};
  std::atomic<size_t> done_{0};
};

void CopyAll(const std::vector<Copy>& copies, ffi::ThreadPool& pool) {
  int64_t bytes = 0;
  for (const Copy& copy : copies) bytes += copy.bytes;
  const int64_t num_threads = bytes < kSmallBytes ? 1 : pool.num_threads();
  if (num_threads <= 1) {
    for (const Copy& copy : copies) {
      std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes));
    }
    return;
  }
  // A task may start after the last piece is done and this call has returned:
  // it finds nothing to do and touches no buffer.
  const auto shared = std::make_shared<SharedCopies>(copies);
  const auto num_helpers = std::min(static_cast<size_t>(num_threads),
                                    shared->num_pieces()) - 1;
  for (size_t i = 0; i < num_helpers; ++i) {
    pool.Schedule([shared] { shared->Work(); });
  }
  shared->Work();
  shared->Wait();
}

ffi::Error RunExchange(ffi::ThreadPool pool, Arena arena,
                       ffi::RemainingArgs args,
                       ffi::Result<Arena> arena_result,
                       ffi::RemainingRets results, int64_t num_pass_through,
                       Offsets store_offsets, Offsets load_offsets) {
  const ffi::ErrorOr<Exchange> exchange =
      DecodeExchange(arena, args, arena_result, results, num_pass_through,
                     store_offsets, load_offsets);
  if (exchange.has_error()) return exchange.error();
  const ExchangeCopies copies = ListCopies(*exchange);
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

ffi::Error RunChecked(ffi::ThreadPool pool, Arena arena,
                      ffi::RemainingArgs args,
                      ffi::Result<Arena> arena_result,
                      ffi::RemainingRets results, int64_t num_pass_through,
                      Offsets store_offsets, Offsets load_offsets,
                      Offsets store_tensors, Offsets load_tensors,
                      std::string_view names, int64_t boundary, bool is_first,
                      bool is_last, int64_t books) {
  const ffi::ErrorOr<Exchange> exchange =
      DecodeExchange(arena, args, arena_result, results, num_pass_through,
                     store_offsets, load_offsets);
  if (exchange.has_error()) return exchange.error();
  return RunCheckedExchange(
      *exchange,
      {store_tensors, load_tensors, names, boundary, is_first, is_last, books},
      Digest,
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

XLA_FFI_DEFINE_HANDLER(kExchange, RunExchange,
                       BindExchange(ffi::Ffi::Bind().Ctx<ffi::ThreadPool>()));
XLA_FFI_DEFINE_HANDLER(
    kChecked, RunChecked,
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
