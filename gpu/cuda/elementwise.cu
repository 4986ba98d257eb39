#include <algorithm>
#include <cuda_fp16.h>

#include "gpu/cuda/cuda_error.h"
#include "gpu/cuda/elementwise.h"

namespace sluice::gpu::cuda {
namespace {

constexpr int kBlockThreads = 256;
constexpr int64_t kMaxBlocks = 4096;  // the rest is a loop in the kernel

// What a kernel needs of a View.
struct Matrix {
  std::byte* data;
  DType dtype;
  int64_t stride;

  explicit Matrix(const View& view) : data(view.data), dtype(view.dtype), stride(view.stride) {}
  template <class T>
  __device__ T& at(int64_t row, int64_t col) const {
    return reinterpret_cast<T*>(data)[row * stride + col];
  }
};

// Round to nearest, ties to even, as engine/base/float_bits.h does on the host: NaN keeps its upper bits,
// where the intrinsic would replace it.
__device__ uint16_t bf16_bits(float value) {
  const uint32_t bits = __float_as_uint(value);
  if (isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

__device__ uint16_t f16_bits(float value) {
  if (isnan(value)) return static_cast<uint16_t>(((__float_as_uint(value) >> 16) & 0x8000) | 0x7e00);
  return __half_as_ushort(__float2half_rn(value));
}

__device__ float load(const Matrix& x, int64_t row, int64_t col) {
  if (x.dtype == DType::f32) return x.at<const float>(row, col);
  const uint16_t bits = x.at<const uint16_t>(row, col);
  if (x.dtype == DType::bf16) return __uint_as_float(static_cast<uint32_t>(bits) << 16);
  return __half2float(__ushort_as_half(bits));
}

__device__ void store(const Matrix& y, int64_t row, int64_t col, float value) {
  if (y.dtype == DType::f32) {
    y.at<float>(row, col) = value;
  } else {
    y.at<uint16_t>(row, col) = y.dtype == DType::bf16 ? bf16_bits(value) : f16_bits(value);
  }
}

struct CastElement {
  Matrix x, y;
  __device__ void operator()(int64_t row, int64_t col) const { store(y, row, col, load(x, row, col)); }
};

struct AddElement {
  Matrix a, b, y;
  __device__ void operator()(int64_t row, int64_t col) const {
    store(y, row, col, load(a, row, col) + load(b, row, col));
  }
};

struct ScaleElement {
  Matrix x;
  float factor;
  __device__ void operator()(int64_t row, int64_t col) const {
    store(x, row, col, load(x, row, col) * factor);
  }
};

struct FillElement {
  Matrix x;
  float value;
  __device__ void operator()(int64_t row, int64_t col) const { store(x, row, col, value); }
};

struct JoinElement {
  Matrix high, low, y;
  __device__ void operator()(int64_t row, int64_t col) const {
    const uint32_t upper = static_cast<uint32_t>(high.at<const uint16_t>(row, col)) << 16;
    y.at<uint32_t>(row, col) = upper + static_cast<uint32_t>(int32_t{low.at<const int16_t>(row, col)});
  }
};

template <class Element>
__global__ void for_each_element(int64_t count, int64_t cols, Element element) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    element(i / cols, i % cols);
  }
}

template <class Element>
void launch_elements(const View& shape, const Element& element, const char* what, cudaStream_t stream) {
  const int64_t count = shape.element_count();
  if (count == 0) return;
  const int64_t block_count = std::min(kMaxBlocks, (count + kBlockThreads - 1) / kBlockThreads);
  for_each_element<<<static_cast<unsigned>(block_count), kBlockThreads, 0, stream>>>(count, shape.cols,
                                                                                     element);
  check(cudaGetLastError(), what);
}

}  // namespace

void launch(const Cast& op, cudaStream_t stream) {
  launch_elements(op.y, CastElement{Matrix(op.x), Matrix(op.y)}, Cast::kName, stream);
}

void launch(const Add& op, cudaStream_t stream) {
  launch_elements(op.y, AddElement{Matrix(op.a), Matrix(op.b), Matrix(op.y)}, Add::kName, stream);
}

void launch(const Scale& op, cudaStream_t stream) {
  launch_elements(op.x, ScaleElement{Matrix(op.x), op.factor}, Scale::kName, stream);
}

void launch(const Fill& op, cudaStream_t stream) {
  if (op.x.empty()) return;
  if (op.x.dtype == DType::f32 || op.x.dtype == DType::bf16) {
    launch_elements(op.x, FillElement{Matrix(op.x), op.value}, Fill::kName, stream);
    return;
  }
  const size_t element_bytes = size_bytes(op.x.dtype);  // zero bytes
  const size_t row_bytes = static_cast<size_t>(op.x.cols) * element_bytes;
  const size_t pitch = op.x.rows <= 1 ? row_bytes : static_cast<size_t>(op.x.stride) * element_bytes;
  check(cudaMemset2DAsync(op.x.data, pitch, 0, row_bytes, static_cast<size_t>(op.x.rows), stream),
        Fill::kName);
}

void launch(const JoinSplit& op, cudaStream_t stream) {
  launch_elements(op.y, JoinElement{Matrix(op.high), Matrix(op.low), Matrix(op.y)}, JoinSplit::kName, stream);
}

}  // namespace sluice::gpu::cuda
