// The device side of copy_cuda.h, and how copies are laid out over its blocks.
// Also compiles for the host, so that every thread's share can be run there.
#ifndef COOP_FFI_ARENA_COPY_KERNEL_H_
#define COOP_FFI_ARENA_COPY_KERNEL_H_

#include <cstdint>

#ifdef __CUDACC__
#define COOP_HOST_DEVICE __host__ __device__
#else
#define COOP_HOST_DEVICE
#endif

namespace coop {

inline constexpr int kThreadsPerBlock = 256;
// Eight vectors of 16 bytes per thread.
inline constexpr int64_t kBytesPerBlock = 8 * 16 * kThreadsPerBlock;
// As many as fit in the 4 KiB of arguments that every device accepts.
inline constexpr int kCopiesPerLaunch = 127;

struct CopyBatch {
  struct Item {
    char* to;
    const char* from;
    int64_t bytes;
    int64_t first_block;  // Blocks of earlier items come before.
  };
  int64_t num_items;
  Item items[kCopiesPerLaunch];
};
static_assert(sizeof(CopyBatch) <= 4096);

struct alignas(16) Vector {
  uint32_t words[4];
};

COOP_HOST_DEVICE inline int64_t NumBlocks(int64_t bytes) {
  return (bytes + kBytesPerBlock - 1) / kBytesPerBlock;
}

// One thread's part of a copy whose ends are multiples of sizeof(Word).
template <typename Word>
COOP_HOST_DEVICE inline void CopyWords(char* to, const char* from,
                                       int64_t bytes, int thread) {
  Word* __restrict__ to_words = reinterpret_cast<Word*>(to);
  const Word* __restrict__ from_words = reinterpret_cast<const Word*>(from);
  const int num_words = static_cast<int>(bytes / sizeof(Word));
#pragma unroll 4
  for (int i = thread; i < num_words; i += kThreadsPerBlock) {
    to_words[i] = from_words[i];
  }
}

// The work of one thread of one block.
COOP_HOST_DEVICE inline void CopyShare(const CopyBatch& batch, int64_t block,
                                       int thread) {
  // The last item that begins at or before this block.
  int64_t low = 0;
  int64_t high = batch.num_items;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (batch.items[middle].first_block <= block) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const CopyBatch::Item& item = batch.items[low];
  const int64_t begin = (block - item.first_block) * kBytesPerBlock;
  const int64_t left = item.bytes - begin;
  const int64_t bytes = left < kBytesPerBlock ? left : kBytesPerBlock;
  char* to = item.to + begin;
  const char* from = item.from + begin;
  const auto ends =
      reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from);
  if (ends % sizeof(Vector) == 0) {
    const int64_t whole = bytes - bytes % int64_t{sizeof(Vector)};
    CopyWords<Vector>(to, from, whole, thread);
    CopyWords<char>(to + whole, from + whole, bytes - whole, thread);
  } else if (ends % sizeof(uint32_t) == 0) {
    const int64_t whole = bytes - bytes % int64_t{sizeof(uint32_t)};
    CopyWords<uint32_t>(to, from, whole, thread);
    CopyWords<char>(to + whole, from + whole, bytes - whole, thread);
  } else {
    CopyWords<char>(to, from, bytes, thread);
  }
}

}  // namespace coop

#endif  // COOP_FFI_ARENA_COPY_KERNEL_H_
