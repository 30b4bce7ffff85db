#include "ffi/arena/copy_cpu.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>

namespace coop {
namespace {

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

}  // namespace

void CopyAll(const std::vector<Copy>& copies, int64_t num_threads,
             const StartTask& start) {
  int64_t bytes = 0;
  for (const Copy& copy : copies) bytes += copy.bytes;
  if (bytes < kSmallBytes || num_threads <= 1) {
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
    start([shared] { shared->Work(); });
  }
  shared->Work();
  shared->Wait();
}

}  // namespace coop
