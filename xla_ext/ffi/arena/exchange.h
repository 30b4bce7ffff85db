// One exchange between XLA's memory and the arena: the contract of the custom
// call "coop_exchange", the same on CPU and CUDA. Standard library only.
//
//   operands    arena u8[n] | p values to pass through | s values to store
//   results     arena u8[n] | p values passed through  | l values loaded
//   attributes  num_pass_through = p (s64),
//               store_offsets s64[s], load_offsets s64[l]
//
// Load k is the bytes [load_offsets[k], + its size) of the arena as it came in;
// store k becomes the bytes [store_offsets[k], + its size) of the arena that
// goes out. All loads come before all stores, so a store may take the block
// of a tensor that the same exchange brings back. Loads may overlap; stores may
// not. A value without elements may have any offset inside the arena.
//
// The arena and the values passed through are meant to be aliased to their
// results, and then not touched. Where they are not, they are copied.
#ifndef COOP_FFI_ARENA_EXCHANGE_H_
#define COOP_FFI_ARENA_EXCHANGE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace coop {

inline constexpr char kExchangeTarget[] = "coop_exchange";
inline constexpr char kEmptyArenaTarget[] = "coop_empty_arena";

struct ExchangeInput {
  const void* data;
  int64_t bytes;
};

struct ExchangeOutput {
  void* data;
  int64_t bytes;
};

// A call as it arrives. Operands and results are those behind the arena.
struct Exchange {
  ExchangeInput arena;
  ExchangeOutput arena_result;
  std::vector<ExchangeInput> operands;
  std::vector<ExchangeOutput> results;
  int64_t num_pass_through;
  std::span<const int64_t> store_offsets;
  std::span<const int64_t> load_offsets;
};

// Why the exchange cannot be done, nullopt if it can. Reads no buffer.
[[nodiscard]] std::optional<std::string> FindFault(const Exchange& exchange);

struct Copy {
  void* to;
  const void* from;
  int64_t bytes;  // Positive.
};

// Copies in the same list are independent; `before` must be finished when
// `after` starts. `after` is empty if nothing stored touches what is read.
struct ExchangeCopies {
  std::vector<Copy> before;
  std::vector<Copy> after;
};

// The exchange must be without fault. The lists depend on sizes, offsets and
// addresses only, never on contents.
[[nodiscard]] ExchangeCopies ListCopies(const Exchange& exchange);

}  // namespace coop

#endif  // COOP_FFI_ARENA_EXCHANGE_H_
