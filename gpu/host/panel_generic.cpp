#include "gpu/host/panel.h"
#include "gpu/host/panel_scalar.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/host/panel_generic.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace sluice::gpu::host {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace {

using Lanes = hn::CappedTag<float, 16>;
using Vector = hn::Vec<Lanes>;

// Two vectors of columns by four rows: eight sums, which leaves registers for operands on every target.
constexpr int kRows = 4;

template <int rows>
HWY_INLINE void multiply_part(const Tile& tile, int row_begin, int64_t col_begin, float* sums) {
  const Lanes d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t stride = tile.left.row_stride_bytes;
  const std::byte* a = tile.left.data + row_begin * stride;
  const float* b = reinterpret_cast<const float*>(tile.panel) + col_begin;
  const bool two = col_begin + lanes < tile.width;
  Vector sum[rows][2];
  for (int r = 0; r < rows; ++r) sum[r][0] = sum[r][1] = hn::Zero(d);
  for (int64_t k = 0; k < tile.depth; ++k) {
    const Vector b0 = hn::LoadU(d, b);
    const Vector b1 = two ? hn::LoadU(d, b + lanes) : b0;
    HWY_UNROLL(4)
    for (int r = 0; r < rows; ++r) {
      const Vector factor = hn::Set(d, *reinterpret_cast<const float*>(a + r * stride));
      sum[r][0] = hn::MulAdd(factor, b0, sum[r][0]);
      sum[r][1] = hn::MulAdd(factor, b1, sum[r][1]);
    }
    a += tile.left.depth_stride_bytes;
    b += tile.width;
  }
  for (int r = 0; r < rows; ++r) {
    float* to = sums + (row_begin + r) * tile.width + col_begin;
    hn::StoreU(sum[r][0], d, to);
    if (two) hn::StoreU(sum[r][1], d, to + lanes);
  }
}

void multiply(const Tile& tile) {
  float sums[kTileRows * 48];
  const int64_t step = 2 * static_cast<int64_t>(hn::Lanes(Lanes()));
  for (int64_t col = 0; col < tile.width; col += step) {
    int row = 0;
    for (; row + kRows <= tile.rows; row += kRows) multiply_part<kRows>(tile, row, col, sums);
    for (; row < tile.rows; ++row) multiply_part<1>(tile, row, col, sums);
  }
  if (tile.partial != nullptr)
    for (int64_t i = 0; i < tile.rows * tile.width; ++i) sums[i] += tile.partial[i];
  finish_tile(tile, sums, tile.width);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace sluice::gpu::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::gpu::host {

HWY_EXPORT(multiply);

const PanelKernel& generic_panel() {
  static constexpr PanelKernel kKernel{
      .name = "generic_fp32",
      .operand = DType::f32,
      .pack = [](const PanelPack& job) { pack_scalar(job, DType::f32); },
      .turn = [](const View& source, std::byte* out,
                 int64_t stride_bytes) { copy_transposed(source, DType::f32, out, stride_bytes); },
      .multiply =
          [](const Tile& tile) {
            HWY_DYNAMIC_DISPATCH(multiply)
            (tile);
          },
  };
  return kKernel;
}

}  // namespace sluice::gpu::host
#endif
