#pragma once

#include <functional>

#include "gpu/host/matmul.h"

namespace sluice::gpu::host {

// The matmul library that the linker took (CMake option SLUICE_MATMUL): oneDNN or Eigen.
const char* library_name();
// Its kernel for an operand dtype, or null where this processor is not served.
const MatmulKernel* library_matmul(DType operand);

// One call of the library for a whole product, on threads of its own: what benches and tests compare with.
struct LibraryShape {
  DType operand = DType::f32;
  DType out = DType::f32;
  int64_t rows = 0, depth = 0, cols = 0;
  bool left_turned = false;                   // left is stored as (depth, rows)
  PackOrder right = PackOrder::depth_is_row;  // right is stored as (depth, cols), or (cols, depth)
  bool pack_right = true;                     // reorder it once, into the layout that the library asks for
};
using LibraryProduct = std::function<void(const void* left, void* out)>;
// `right` is dense and must outlive the product. Null where the library lacks it.
LibraryProduct make_library_product(const LibraryShape& shape, const void* right, int thread_count);

}  // namespace sluice::gpu::host
