#pragma once

#include <hwy/base.h>
#include <immintrin.h>

#include "gpu/host/panel.h"

// Shared by the fp32 and the bf16 panel kernel of AVX-512. To be included once, within
// HWY_PUSH_ATTRIBUTES(...), by each: everything here has internal linkage.
namespace sluice::gpu::host {
namespace {

// bf16 bits (low half of each lane) of fp32, to nearest even; NaN stays NaN: engine/base/float_bits.h.
inline __m512i round_to_bf16(__m512 value) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded =
      _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __m512i nan = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
  return _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q), rounded, nan);
}

inline __m512i load_u16(const void* data, __mmask16 mask) {
  return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, data));
}

inline __m512 load_float(const void* data, DType dtype, int64_t index, __mmask16 mask) {
  if (dtype == DType::f32) return _mm512_maskz_loadu_ps(mask, static_cast<const float*>(data) + index);
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(load_u16(static_cast<const uint16_t*>(data) + index, mask), 16));
}

inline void store_float(void* data, DType dtype, int64_t index, __mmask16 mask, __m512 value) {
  if (dtype == DType::f32)
    _mm512_mask_storeu_ps(static_cast<float*>(data) + index, mask, value);
  else
    _mm256_mask_storeu_epi16(static_cast<uint16_t*>(data) + index, mask,
                             _mm512_cvtepi32_epi16(round_to_bf16(value)));
}

inline __mmask16 lane_mask(int64_t count) {
  return count >= 16  ? __mmask16{0xffff}
         : count <= 0 ? __mmask16{0}
                      : static_cast<__mmask16>((1u << count) - 1);
}

// 16 elements as bf16 bits, one a lane.
inline __m512i load_bf16_bits(const StackedRows::Row& row, int64_t col, __mmask16 mask) {
  if (row.dtype == DType::f32)
    return round_to_bf16(_mm512_maskz_loadu_ps(mask, reinterpret_cast<const float*>(row.high) + col));
  return load_u16(reinterpret_cast<const uint16_t*>(row.high) + col, mask);
}

// 16 elements as fp32; split masters are joined: bits = (high << 16) + low.
inline __m512 load_elements(const StackedRows::Row& row, int64_t col, __mmask16 mask, bool as_bf16) {
  if (row.dtype == DType::f32 && !as_bf16)
    return _mm512_maskz_loadu_ps(mask, reinterpret_cast<const float*>(row.high) + col);
  const __m512i high = _mm512_slli_epi32(load_bf16_bits(row, col, mask), 16);
  if (row.low == nullptr || as_bf16) return _mm512_castsi512_ps(high);
  const __m512i low = _mm512_cvtepi16_epi32(_mm256_maskz_loadu_epi16(mask, row.low + col));
  return _mm512_castsi512_ps(_mm512_add_epi32(high, low));
}

// 32 elements as bf16: 16 pairs.
inline __m512i load_pairs(const StackedRows::Row& row, int64_t col, int64_t count) {
  if (row.dtype != DType::f32) {
    const __mmask32 mask = count >= 32 ? ~__mmask32{0} : (__mmask32{1} << count) - 1;
    return _mm512_maskz_loadu_epi16(mask, reinterpret_cast<const uint16_t*>(row.high) + col);
  }
  const __m256i first = _mm512_cvtepi32_epi16(load_bf16_bits(row, col, lane_mask(count)));
  const __m256i second = _mm512_cvtepi32_epi16(load_bf16_bits(row, col + 16, lane_mask(count - 16)));
  return _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
}

// 16 x 16 lanes of 32 bits.
inline void transpose(__m512i* rows) {
  __m512i t[16];
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {
    rows[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    rows[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    rows[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    rows[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0xdd);
  }
  for (int i = 0; i < 8; ++i) {
    rows[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    rows[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
  }
}

// One step of the depth in the panel: `width` lanes of 32 bits (an fp32, or a pair of bf16).
template <bool bf16>
void pack_depth_rows(const PanelPack& job) {
  const StackedRows rows(job.sources);
  __m512i* to = reinterpret_cast<__m512i*>(job.panel);
  constexpr int64_t kStep = bf16 ? 2 : 1;
  for (int64_t d = 0; d < job.depth; d += kStep) {
    const StackedRows::Row row = rows[job.depth_begin + d];
    const bool second = bf16 && d + 1 < job.depth;
    const StackedRows::Row next = second ? rows[job.depth_begin + d + 1] : row;
    for (int64_t c = 0; c < job.width; c += 16, ++to) {
      const __mmask16 mask = lane_mask(job.col_count - c);
      const int64_t col = job.col_begin + c;
      if constexpr (bf16) {
        __m512i pair = load_bf16_bits(row, col, mask);
        if (second) pair = _mm512_or_si512(pair, _mm512_slli_epi32(load_bf16_bits(next, col, mask), 16));
        _mm512_storeu_si512(to, pair);
      } else {
        _mm512_storeu_ps(to, load_elements(row, col, mask, job.round_to_bf16));
      }
    }
  }
}

template <bool bf16>
void pack_depth_cols(const PanelPack& job) {
  const StackedRows rows(job.sources);
  constexpr int64_t kStep = bf16 ? 32 : 16;
  for (int64_t c = 0; c < job.width; c += 16) {
    const int64_t row_count = std::clamp<int64_t>(job.col_count - c, 0, 16);
    StackedRows::Row row[16];
    for (int64_t i = 0; i < row_count; ++i) row[i] = rows[job.col_begin + c + i];
    for (int64_t d = 0; d < job.depth; d += kStep) {
      __m512i lanes[16];
      const int64_t count = std::min(kStep, job.depth - d);
      for (int64_t i = 0; i < 16; ++i) {
        if (i >= row_count)
          lanes[i] = _mm512_setzero_si512();
        else if constexpr (bf16)
          lanes[i] = load_pairs(row[i], job.depth_begin + d, count);
        else
          lanes[i] = _mm512_castps_si512(
              load_elements(row[i], job.depth_begin + d, lane_mask(count), job.round_to_bf16));
      }
      transpose(lanes);
      const int64_t steps = bf16 ? (count + 1) / 2 : count;
      std::byte* to = job.panel + ((bf16 ? d / 2 : d) * job.width + c) * 4;
      for (int64_t i = 0; i < steps; ++i) _mm512_storeu_si512(to + i * job.width * 4, lanes[i]);
    }
  }
}

// Lanes of 32 bits (an fp32, or two rows of bf16 side by side) go through the transpose in squares of 16.
template <bool bf16>
void turn(const View& source, std::byte* out, int64_t stride_bytes) {
  constexpr int64_t kStep = bf16 ? 2 : 1;
  const PackRows whole{source, {}};
  const StackedRows rows({&whole, 1});
  for (int64_t r = 0; r < source.rows; r += 16 * kStep) {
    for (int64_t c = 0; c < source.cols; c += 16) {
      const __mmask16 mask = lane_mask(source.cols - c);
      __m512i lanes[16];
      for (int64_t i = 0; i < 16; ++i) {
        const int64_t row = r + i * kStep;
        lanes[i] = _mm512_setzero_si512();
        if (row >= source.rows) continue;
        if constexpr (bf16) {
          lanes[i] = load_bf16_bits(rows[row], c, mask);
          if (row + 1 < source.rows)
            lanes[i] =
                _mm512_or_si512(lanes[i], _mm512_slli_epi32(load_bf16_bits(rows[row + 1], c, mask), 16));
        } else {
          lanes[i] = _mm512_castps_si512(load_elements(rows[row], c, mask, false));
        }
      }
      transpose(lanes);
      const int64_t count = std::min<int64_t>(16, source.cols - c);
      for (int64_t i = 0; i < count; ++i)
        _mm512_storeu_si512(out + (c + i) * stride_bytes + r / kStep * 4, lanes[i]);
    }
  }
}

template <bool bf16>
void pack_panel(const PanelPack& job) {
  if (job.order == PackOrder::depth_is_row)
    pack_depth_rows<bf16>(job);
  else
    pack_depth_cols<bf16>(job);
}

// Ragged edges, other dtypes, partial sums; `sums` is rows x 16 * vectors.
template <int vectors, int rows>
HWY_NOINLINE void finish_any(const Tile& tile, const float* sums) {
  for (int r = 0; r < rows; ++r) {
    for (int v = 0; v < vectors; ++v, sums += 16) {
      const __mmask16 mask = lane_mask(tile.cols - 16 * v);
      __m512 value = _mm512_load_ps(sums);
      if (tile.partial != nullptr)
        value = _mm512_add_ps(value, _mm512_loadu_ps(tile.partial + (r * vectors + v) * 16));
      if (tile.addend != nullptr)
        value = _mm512_add_ps(
            value, load_float(tile.addend, tile.addend_dtype, r * tile.addend_stride + 16 * v, mask));
      store_float(tile.out, tile.out_dtype, r * tile.out_stride + 16 * v, mask, value);
    }
  }
}

// Whole panels of fp32 go straight from registers to memory. Inlined, and the sums copied before they are
// handed on: an array whose address leaves would live on the stack all the time.
template <int vectors, int rows>
HWY_INLINE void finish(const Tile& tile, const __m512 (&sum)[rows][vectors]) {
  const bool whole = tile.cols == 16 * vectors && tile.partial == nullptr && tile.out_dtype == DType::f32;
  float* out = static_cast<float*>(tile.out);
  if (whole && tile.addend == nullptr) {
    HWY_UNROLL(8)
    for (int r = 0; r < rows; ++r, out += tile.out_stride) HWY_UNROLL(8)
    for (int v = 0; v < vectors; ++v) _mm512_storeu_ps(out + 16 * v, sum[r][v]);
  } else if (whole && tile.addend_dtype == DType::f32) {
    const float* addend = static_cast<const float*>(tile.addend);
    HWY_UNROLL(8)
    for (int r = 0; r < rows; ++r, out += tile.out_stride, addend += tile.addend_stride) HWY_UNROLL(8)
    for (int v = 0; v < vectors; ++v)
      _mm512_storeu_ps(out + 16 * v, _mm512_add_ps(sum[r][v], _mm512_loadu_ps(addend + 16 * v)));
  } else {
    alignas(64) float sums[rows * vectors * 16];
    HWY_UNROLL(8)
    for (int r = 0; r < rows; ++r) HWY_UNROLL(8)
    for (int v = 0; v < vectors; ++v) _mm512_store_ps(sums + (r * vectors + v) * 16, sum[r][v]);
    finish_any<vectors, rows>(tile, sums);
  }
}

// The addend comes from memory (a gradient) and stores want their lines: asked for before the loop, they are
// there after it.
template <int vectors, int rows>
HWY_INLINE void prefetch_result(const Tile& tile) {
  const auto prefetch = [](const void* data, DType dtype, int64_t stride) {
    const int64_t size = static_cast<int64_t>(size_bytes(dtype));
    const char* row = static_cast<const char*>(data);
    for (int64_t r = 0; r < rows; ++r, row += stride * size)
      for (int64_t c = 0; c < 16 * vectors * size; c += 64) __builtin_prefetch(row + c, 1);
  };
  prefetch(tile.out, tile.out_dtype, tile.out_stride);
  if (tile.addend != nullptr && tile.addend != tile.out)
    prefetch(tile.addend, tile.addend_dtype, tile.addend_stride);
}

// Operand is what a lane of 32 bits holds: an fp32, or a pair of bf16 along the depth (kGroup).
// rows x 16 * vectors sums in registers (8 x 3: 24 of 32), a broadcast from row-major memory, the panel
// streamed and asked for 16 steps ahead.
template <class Operand, int vectors, int rows>
void multiply_tile(const Tile& tile) {
  prefetch_result<vectors, rows>(tile);
  __m512 sum[rows][vectors];
  HWY_UNROLL(8)
  for (int r = 0; r < rows; ++r) HWY_UNROLL(8)
  for (int v = 0; v < vectors; ++v) sum[r][v] = _mm512_setzero_ps();
  const int64_t stride = tile.left.row_stride_bytes;
  const std::byte* left[3] = {tile.left.data, tile.left.data + 3 * stride, tile.left.data + 6 * stride};
  const float* right = reinterpret_cast<const float*>(tile.panel);
  const int64_t steps = tile.depth / Operand::kGroup;
  for (int64_t k = 0; k < steps; ++k) {
    __m512 b[vectors];
    HWY_UNROLL(8)
    for (int v = 0; v < vectors; ++v) {
      _mm_prefetch(reinterpret_cast<const char*>(right + 16 * (16 * vectors + v)), _MM_HINT_T0);
      b[v] = _mm512_loadu_ps(right + 16 * v);
    }
    right += 16 * vectors;
    HWY_UNROLL(8)
    for (int r = 0; r < rows; ++r) {
      float unit;
      std::memcpy(&unit, left[r / 3] + r % 3 * stride, sizeof unit);
      const __m512 a = _mm512_set1_ps(unit);
      HWY_UNROLL(8)
      for (int v = 0; v < vectors; ++v) sum[r][v] = Operand::multiply_add(a, b[v], sum[r][v]);
    }
    for (const std::byte*& row : left) row += tile.left.depth_stride_bytes;
  }
  if (tile.depth % Operand::kGroup != 0) {  // half a pair: the other half may be another row's, or no memory
    HWY_UNROLL(8)
    for (int r = 0; r < rows; ++r) {
      uint16_t last;
      std::memcpy(&last, left[r / 3] + r % 3 * stride, sizeof last);
      const __m512 a = _mm512_castsi512_ps(_mm512_set1_epi32(last));
      HWY_UNROLL(8)
      for (int v = 0; v < vectors; ++v)
        sum[r][v] = Operand::multiply_add(a, _mm512_loadu_ps(right + 16 * v), sum[r][v]);
    }
  }
  finish<vectors, rows>(tile, sum);
}

template <class Operand, int vectors>
void multiply_rows(const Tile& tile) {
  switch (tile.rows) {
    case 8:
      return multiply_tile<Operand, vectors, 8>(tile);
    case 7:
      return multiply_tile<Operand, vectors, 7>(tile);
    case 6:
      return multiply_tile<Operand, vectors, 6>(tile);
    case 5:
      return multiply_tile<Operand, vectors, 5>(tile);
    case 4:
      return multiply_tile<Operand, vectors, 4>(tile);
    case 3:
      return multiply_tile<Operand, vectors, 3>(tile);
    case 2:
      return multiply_tile<Operand, vectors, 2>(tile);
    case 1:
      return multiply_tile<Operand, vectors, 1>(tile);
    default:
      SLUICE_CHECK(false, "a tile has 1 to 8 rows");
  }
}

template <class Operand>
void multiply_panel(const Tile& tile) {
  if (tile.width == 48) return multiply_rows<Operand, 3>(tile);
  if (tile.width == 32) return multiply_rows<Operand, 2>(tile);
  SLUICE_CHECK(tile.width == 16);
  multiply_rows<Operand, 1>(tile);
}

}  // namespace
}  // namespace sluice::gpu::host
