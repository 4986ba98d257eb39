#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/base/dtype.h"
#include "engine/base/error.h"

namespace sluice::gpu {

// A matrix in device memory: rows of `cols` elements, `stride` elements apart. A value; owns nothing. The
// pointer is the device's own: only ops, copies and (on the host device) tests may follow it.
struct View {
  std::byte* data = nullptr;
  DType dtype = DType::f32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  View() = default;
  View(void* begin, DType type, int64_t row_count, int64_t col_count)
      : View(begin, type, row_count, col_count, col_count) {}
  View(void* begin, DType type, int64_t row_count, int64_t col_count, int64_t row_stride)
      : data(static_cast<std::byte*>(begin)),
        dtype(type),
        rows(row_count),
        cols(col_count),
        stride(row_stride) {}

  bool empty() const { return data == nullptr || rows == 0 || cols == 0; }
  bool contiguous() const { return stride == cols || rows <= 1; }
  int64_t element_count() const { return rows * cols; }
  // From the first element to one past the last, gaps between rows included.
  size_t span_bytes() const {
    return rows == 0 || cols == 0 ? 0 : static_cast<size_t>((rows - 1) * stride + cols) * size_bytes(dtype);
  }
  View row_range(int64_t begin, int64_t end) const {
    SLUICE_CHECK(0 <= begin && begin <= end && end <= rows);
    return View(data + static_cast<size_t>(begin * stride) * size_bytes(dtype), dtype, end - begin, cols,
                stride);
  }
  View col_range(int64_t begin, int64_t end) const {
    SLUICE_CHECK(0 <= begin && begin <= end && end <= cols);
    return View(data + static_cast<size_t>(begin) * size_bytes(dtype), dtype, rows, end - begin, stride);
  }
  // Row `row` as T, which must have the element's size. Host device and tests only.
  template <class T>
  T* row(int64_t row_index) const {
    SLUICE_CHECK(sizeof(T) == size_bytes(dtype));
    return reinterpret_cast<T*>(data) + row_index * stride;
  }
};

// A range of memory and what a task does with it.
struct MemoryAccess {
  const std::byte* begin = nullptr;
  size_t size_bytes = 0;
  bool write = false;
};

inline MemoryAccess reads(const void* begin, size_t size) {
  return {static_cast<const std::byte*>(begin), size, false};
}
inline MemoryAccess writes(const void* begin, size_t size) {
  return {static_cast<const std::byte*>(begin), size, true};
}
inline MemoryAccess reads(const View& view) {
  return reads(view.data, view.data ? view.span_bytes() : 0);
}
inline MemoryAccess writes(const View& view) {
  return writes(view.data, view.data ? view.span_bytes() : 0);
}

}  // namespace sluice::gpu
