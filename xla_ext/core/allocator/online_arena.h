// The paper's allocator at run time, for programs whose graph is not known
// ahead: real memory, tensors that are evicted when room is needed and
// recomputed when they are touched again.
#ifndef COOP_CORE_ALLOCATOR_ONLINE_ARENA_H_
#define COOP_CORE_ALLOCATOR_ONLINE_ARENA_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/base/types.h"
#include "core/online/disjoint_set.h"
#include "core/online/pool.h"
#include "core/online/window.h"

namespace coop {

// A tensor of an OnlineArena. Never used again for another one.
using Handle = int64_t;

using Memory = std::span<std::byte>;
// Writes a tensor's value again, from those of the inputs that it was allocated
// with, in their order. Must not use the arena. What it throws is passed on.
using Recompute =
    std::function<void(Memory value, std::span<const Memory> inputs)>;

// There is no room and nothing that could be evicted makes enough.
class ArenaExhausted : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Sliding-window eviction, cheap tensors on one side, recomputable in-place:
// Coop (NeurIPS 2023), sections 3.3 to 3.5, over the planner's own Pool and
// WindowSearch. A tensor's cost is its seconds and those of the evicted tensors
// it would be recomputed from, over the time since it was last used.
//
// Every method throws std::invalid_argument for a handle that is not in use,
// and leaves the arena as it was if it throws. Not safe for use from threads.
class OnlineArena {
 public:
  struct Options {
    Bytes alignment = 64;  // Of every block; a power of two.
    // Seconds per byte below which a tensor is cheap, and lies at the high end.
    double cheap_density = 0;
  };

  struct Counts {
    int64_t evictions = 0;
    int64_t recomputations = 0;
    Seconds recomputed_seconds = 0;
  };

  // A tensor to allocate. `seconds` is the time it takes to compute the value
  // from the `inputs`; the clock moves on by that time. Without `recompute`
  // the tensor is never evicted.
  struct Request {
    Bytes bytes = 0;  // Positive.
    Seconds seconds = 0;
    std::vector<Handle> inputs;
    Recompute recompute;
    // An input whose block the new tensor takes over, kNone for none. It must
    // have the same size and not be pinned. If it can be recomputed it counts
    // as evicted from now on; else nothing may be recomputed from it, and all
    // that can be done with it is to release it.
    Handle take_over = kNone;
  };

  OnlineArena(Bytes capacity, const Options& options);
  OnlineArena(const OnlineArena&) = delete;
  OnlineArena& operator=(const OnlineArena&) = delete;

  // A block for a new tensor; evicts others if it has to. The inputs are made
  // resident first and stay so until it returns.
  [[nodiscard]] Handle Allocate(Request request);
  // The tensor's memory, its value recomputed if it was evicted. Valid until
  // the next call that may evict: pin it to keep it.
  Memory Touch(Handle tensor);
  // A pinned tensor stays where it is. Pins are counted. Recomputes as Touch.
  Memory Pin(Handle tensor);
  void Unpin(Handle tensor);
  // Frees its memory now, whatever its cost; it is recomputed when touched.
  void Evict(Handle tensor);
  // The program will not touch it again. Its memory is free at once, unless it
  // cannot be recomputed and another tensor may have to be, from it.
  void Release(Handle tensor);

  [[nodiscard]] bool IsResident(Handle tensor) const;
  // kNone if it is not resident.
  [[nodiscard]] Offset OffsetOf(Handle tensor) const;
  // All of it, with whatever is in it.
  [[nodiscard]] Memory memory() {
    return {memory_.get(), At(pool_.capacity())};
  }
  [[nodiscard]] const Pool& pool() const { return pool_; }
  [[nodiscard]] const Counts& counts() const { return counts_; }
  [[nodiscard]] Seconds clock() const { return clock_; }
  // The first violated invariant, or nullopt. O(everything), for tests.
  [[nodiscard]] std::optional<std::string> CheckInvariants() const;

 private:
  struct Tensor {
    Bytes bytes = 0;
    Seconds seconds = 0;
    Seconds last_access = 0;
    std::vector<Handle> inputs;
    Recompute recompute;
    PieceIdx piece = kNone;  // kNone: not resident.
    DisjointSet::Node evicted_as = kNone;
    int64_t pins = 0;
    int64_t dependents = 0;  // Tensors that may be recomputed from it.
    bool is_released = false;
    bool is_overwritten = false;  // Taken over, and not to be recomputed.
  };

  [[nodiscard]] Tensor& Get(Handle tensor);
  [[nodiscard]] const Tensor& Get(Handle tensor) const;
  [[nodiscard]] Tensor& InUse(const char* method, Handle tensor);
  void CheckReadable(const char* method, Handle tensor);
  [[nodiscard]] static bool IsEvictable(const Tensor& tensor) {
    return tensor.piece != kNone && tensor.pins == 0 && tensor.recompute;
  }
  [[nodiscard]] double CostOf(const Tensor& tensor);
  [[nodiscard]] Memory MemoryOf(const Tensor& tensor);
  [[nodiscard]] Side SideOf(const Tensor& tensor) const;
  // Makes room and takes it.
  [[nodiscard]] PieceIdx TakeRoom(Handle owner, const Tensor& tensor);
  void EvictNow(Handle tensor);
  void CountAsEvicted(Tensor& tensor);
  [[nodiscard]] std::vector<Handle> Missing(
      std::span<const Handle> wanted) const;
  // Afterwards all of them are resident, with one more pin each.
  void MakeResident(std::span<const Handle> wanted);
  void RunAgain(Handle tensor);
  void Access(std::span<const Handle> tensors);
  void Unhold(Handle tensor);
  // Frees memory and record, as far as nobody needs them.
  void Drop(Handle tensor);

  struct FreeMemory {
    size_t alignment;
    void operator()(std::byte* memory) const {
      ::operator delete(memory, std::align_val_t{alignment});
    }
  };

  Pool pool_;
  double cheap_density_;
  std::unique_ptr<std::byte[], FreeMemory> memory_;
  std::vector<std::optional<Tensor>> tensors_;  // Empty: gone for good.
  DisjointSet components_;
  WindowSearch search_;
  std::vector<WindowPiece> window_pieces_;
  std::vector<Handle> owners_;
  Seconds clock_ = 0;
  Counts counts_;
  bool is_busy_ = false;  // A recomputation is running.
};

}  // namespace coop

#endif  // COOP_CORE_ALLOCATOR_ONLINE_ARENA_H_
