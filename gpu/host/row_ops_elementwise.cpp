#include <cstring>

#include "gpu/host/row_ops.h"

// foreach_target.h compiles this file once per instruction set, so its place matters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/host/row_ops_elementwise.cpp"
// clang-format off
#include "gpu/host/row_ops_pieces.h"
#include "hwy/foreach_target.h"
#include "gpu/host/row_ops-inl.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace sluice::gpu::host {
namespace HWY_NAMESPACE {

template <class From, class To>
HWY_INLINE void cast_window(const Cast& op, const Window& window) {
  for (int64_t r = window.row_begin; r < window.row_end; ++r) {
    const From* x = op.x.row<From>(r);
    To* y = op.y.row<To>(r);
    for_each_vector(window.col_begin, window.col_end, [&](int64_t i, auto access) SLUICE_SIMD_LAMBDA {
      access.store(access.load(x + i), y + i);
    });
  }
}

template <class Body>
HWY_INLINE void with_float_type(DType dtype, const Body& body) {
  if (dtype == DType::f16)
    body(Float16());
  else
    with_compute_type(dtype, body);
}

void cast_pieces(const Cast& op, const Window& window) {
  with_float_type(op.x.dtype, [&](auto from) SLUICE_SIMD_LAMBDA {
    with_float_type(op.y.dtype, [&](auto to) SLUICE_SIMD_LAMBDA {
      cast_window<decltype(from), decltype(to)>(op, window);
    });
  });
}

void add_pieces(const gpu::Add& op, const Window& window) {
  with_compute_type(op.y.dtype, [&](auto type) SLUICE_SIMD_LAMBDA {
    using T = decltype(type);
    for (int64_t r = window.row_begin; r < window.row_end; ++r) {
      const T* a = op.a.row<T>(r);
      const T* b = op.b.row<T>(r);
      T* y = op.y.row<T>(r);
      for_each_vector(window.col_begin, window.col_end, [&](int64_t i, auto access) SLUICE_SIMD_LAMBDA {
        access.store(hn::Add(access.load(a + i), access.load(b + i)), y + i);
      });
    }
  });
}

void scale_pieces(const Scale& op, const Window& window) {
  const FloatVec factor = set(op.factor);
  with_compute_type(op.x.dtype, [&](auto type) SLUICE_SIMD_LAMBDA {
    using T = decltype(type);
    for (int64_t r = window.row_begin; r < window.row_end; ++r) {
      T* x = op.x.row<T>(r);
      for_each_vector(window.col_begin, window.col_end, [&](int64_t i, auto access) SLUICE_SIMD_LAMBDA {
        access.store(hn::Mul(access.load(x + i), factor), x + i);
      });
    }
  });
}

void fill_pieces(const Fill& op, const Window& window) {
  const FloatVec value = set(op.value);
  with_compute_type(op.x.dtype, [&](auto type) SLUICE_SIMD_LAMBDA {
    using T = decltype(type);
    for (int64_t r = window.row_begin; r < window.row_end; ++r) {
      T* x = op.x.row<T>(r);
      for_each_vector(window.col_begin, window.col_end,
                      [&](int64_t i, auto access) SLUICE_SIMD_LAMBDA { access.store(value, x + i); });
    }
  });
}

// bits(y) = (high << 16) + low, the low half signed: integers, so the vectors are loaded by hand.
HWY_INLINE void join_vector(const uint16_t* high, const int16_t* low, float* y) {
  const hn::Rebind<int16_t, FloatTag> words;
  const BitsVec upper = hn::ShiftLeft<16>(hn::PromoteTo(BitsTag(), hn::LoadU(Word(), high)));
  const auto lower = hn::PromoteTo(IntTag(), hn::LoadU(words, low));
  store(hn::BitCast(FloatTag(), hn::Add(upper, hn::BitCast(BitsTag(), lower))), y);
}

void join_pieces(const JoinSplit& op, const Window& window) {
  for (int64_t r = window.row_begin; r < window.row_end; ++r) {
    const BFloat16* high = op.high.row<BFloat16>(r);
    const int16_t* low = op.low.row<int16_t>(r);
    float* y = op.y.row<float>(r);
    int64_t i = window.col_begin;
    for (; i + kLanes <= window.col_end; i += kLanes)
      join_vector(reinterpret_cast<const uint16_t*>(high + i), low + i, y + i);
    for (; i < window.col_end; ++i) y[i] = join(high[i], low[i]);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice::gpu::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::gpu::host {

HWY_EXPORT(cast_pieces);
HWY_EXPORT(add_pieces);
HWY_EXPORT(scale_pieces);
HWY_EXPORT(fill_pieces);
HWY_EXPORT(join_pieces);

void run(const Cast& given, Executor& executor, Workspace) {
  Cast op = given;
  flatten(op.x, op.y);
  run_windows(executor, op.x.rows, op.x.cols, [&](const Window& window) {
    HWY_DYNAMIC_DISPATCH(cast_pieces)(op, window);
  });
}

void run(const Add& given, Executor& executor, Workspace) {
  Add op = given;
  flatten(op.a, op.b, op.y);
  run_windows(executor, op.y.rows, op.y.cols, [&](const Window& window) {
    HWY_DYNAMIC_DISPATCH(add_pieces)(op, window);
  });
}

void run(const Scale& given, Executor& executor, Workspace) {
  Scale op = given;
  flatten(op.x);
  run_windows(executor, op.x.rows, op.x.cols, [&](const Window& window) {
    HWY_DYNAMIC_DISPATCH(scale_pieces)(op, window);
  });
}

void run(const Fill& given, Executor& executor, Workspace) {
  Fill op = given;
  flatten(op.x);
  const bool number = op.x.dtype == DType::f32 || op.x.dtype == DType::bf16;
  const size_t size = size_bytes(op.x.dtype);
  run_windows(executor, op.x.rows, op.x.cols, [&](const Window& window) {
    if (number) return HWY_DYNAMIC_DISPATCH(fill_pieces)(op, window);
    for (int64_t r = window.row_begin; r < window.row_end; ++r)
      std::memset(op.x.data + static_cast<size_t>(r * op.x.stride + window.col_begin) * size, 0,
                  static_cast<size_t>(window.col_end - window.col_begin) * size);
  });
}

void run(const JoinSplit& given, Executor& executor, Workspace) {
  JoinSplit op = given;
  flatten(op.high, op.low, op.y);
  run_windows(executor, op.y.rows, op.y.cols, [&](const Window& window) {
    HWY_DYNAMIC_DISPATCH(join_pieces)(op, window);
  });
}

}  // namespace sluice::gpu::host
#endif  // HWY_ONCE
