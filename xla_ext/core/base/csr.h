// Compressed rows: many short lists in two arrays.
#ifndef COOP_CORE_BASE_CSR_H_
#define COOP_CORE_BASE_CSR_H_

#include <span>
#include <utility>
#include <vector>

#include "core/base/types.h"

namespace coop {

// Row r is values[ptr[r], ptr[r + 1]).
template <typename T>
class Csr {
 public:
  Csr() : ptr_{0} {}

  // Groups (row, value) pairs by row; the order within a row is kept.
  Csr(int64_t num_rows, const std::vector<std::pair<int64_t, T>>& entries)
      : ptr_(At(num_rows) + 1, 0), values_(entries.size()) {
    for (const auto& [row, value] : entries) ++ptr_[At(row) + 1];
    for (size_t row = 1; row < ptr_.size(); ++row) ptr_[row] += ptr_[row - 1];
    std::vector<size_t> cursor(ptr_.begin(), ptr_.end() - 1);
    for (const auto& [row, value] : entries) {
      values_[cursor[At(row)]++] = value;
    }
  }

  [[nodiscard]] std::span<const T> operator[](int64_t row) const {
    const size_t begin = ptr_[At(row)];
    return {values_.data() + begin, ptr_[At(row) + 1] - begin};
  }

 private:
  std::vector<size_t> ptr_;
  std::vector<T> values_;
};

}  // namespace coop

#endif  // COOP_CORE_BASE_CSR_H_
