#include "gpu/cuda/cuda_device.h"

#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <vector>

#include "engine/base/float_bits.h"
#include "gpu/reference/reference.h"
#include "tests/contract/device_contract.h"

namespace sluice::gpu {
namespace {

INSTANTIATE_TEST_SUITE_P(
    Cuda, DeviceContract,
    testing::Values(DeviceCase{
        .name = "device0",
        .make = [](size_t limit) { return make_cuda_device(0, {.memory_limit_bytes = limit}); },
        .unavailable_reason = cuda_unavailable_reason}),
    device_case_name);

TEST(CudaSeam, SaysWhyThereIsNoDevice) {
  const std::string reason = cuda_unavailable_reason();
  if (reason.empty()) GTEST_SKIP() << "there is a CUDA device";
  EXPECT_EQ(reason.find("no CUDA device: "), 0u) << reason;
  try {
    (void)make_cuda_device(0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::resource);
    EXPECT_EQ(error.what(), reason);
  }
}

// Values that rounding, range and sign may get wrong, in turn.
float awkward(size_t index) {
  static const std::vector<float> kValues = {
      0.0F,        -0.0F,       1.0F,
      1.00390625F, 1.01171875F, -3.5F,
      65504.0F,    65520.0F,    6.1e-5F,
      5.96e-8F,    2.9e-8F,     1e-40F,
      3.4e38F,     -3.39e38F,   1e-3F,
      0.1F,        -0.3F,       12345.678F,
      INFINITY,    -INFINITY,   std::numeric_limits<float>::quiet_NaN()};
  return kValues[index % kValues.size()] * (index % 2 == 0 ? 1.0F : 1.0009765F);
}

// A matrix inside a larger buffer, on the host and on the device.
struct Operand {
  DType dtype;
  int64_t rows, cols, stride;
  std::vector<std::byte> bytes;
  std::unique_ptr<DeviceMemory> memory;

  View host() { return View(bytes.data(), dtype, rows, cols, stride); }
  View device() const { return View(memory->data(), dtype, rows, cols, stride); }
};

class CudaElementwise : public testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = cuda_unavailable_reason();
    if (!reason.empty()) GTEST_SKIP() << reason;
    device_ = make_cuda_device(0);
    compute_ = device_->make_stream(StreamKind::compute, "compute");
  }

  Operand operand(DType dtype, int64_t rows, int64_t cols, int64_t stride, size_t salt) {
    Operand result{dtype, rows, cols, stride, {}, nullptr};
    result.bytes.resize(static_cast<size_t>(rows * stride) * size_bytes(dtype));
    View whole(result.bytes.data(), dtype, 1, rows * stride);
    for (int64_t i = 0; i < whole.cols; ++i) {
      const float value = awkward(salt + static_cast<size_t>(i) * 7);
      if (dtype == DType::f32) {
        whole.row<float>(0)[i] = value;
      } else if (dtype == DType::bf16) {
        whole.row<BFloat16>(0)[i] = to_bfloat16(value);
      } else if (dtype == DType::f16) {
        whole.row<Float16>(0)[i] = to_float16(value);
      } else {
        std::memset(result.bytes.data() + static_cast<size_t>(i) * size_bytes(dtype),
                    0x80 + static_cast<int>(i % 100), size_bytes(dtype));
      }
    }
    result.memory = device_->allocate(result.bytes.size());
    device_->copy_to_device(*compute_, result.memory->data(), result.bytes.data(), result.bytes.size());
    return result;
  }

  static bool is_nan(const View& view, int64_t i) {
    if (view.dtype == DType::f32) return std::isnan(view.row<float>(0)[i]);
    if (view.dtype == DType::bf16) return std::isnan(to_float(view.row<BFloat16>(0)[i]));
    return view.dtype == DType::f16 && std::isnan(to_float(view.row<Float16>(0)[i]));
  }

  // Equal bits, except that a NaN need not be the same NaN: arithmetic on the GPU gives another one than x86.
  static bool same(const View& got, const View& expected) {
    const size_t element_bytes = size_bytes(got.dtype);
    for (int64_t i = 0; i < got.cols; ++i) {
      const size_t at = static_cast<size_t>(i) * element_bytes;
      if (std::memcmp(got.data + at, expected.data + at, element_bytes) == 0) continue;
      if (!is_nan(got, i) || !is_nan(expected, i)) return false;
    }
    return true;
  }

  // Runs both and compares the whole buffer, gaps between rows included.
  void expect_equal(const Op& on_host, const Op& on_device, Operand& result) {
    reference::run(on_host, {});
    device_->ops().submit(*compute_, on_device, {});
    std::vector<std::byte> got(result.bytes.size());
    device_->copy_to_host(*compute_, got.data(), result.memory->data(), got.size());
    compute_->record().wait();
    const int64_t count = result.rows * result.stride;
    EXPECT_TRUE(
        same(View(got.data(), result.dtype, 1, count), View(result.bytes.data(), result.dtype, 1, count)));
  }

  template <class Body>
  static void for_each_shape(const Body& body) {
    for (const int64_t rows : {1, 3, 64}) {
      for (const int64_t cols : {1, 2, 31, 255, 257, 1000}) {
        for (const int64_t gap : {0, 5}) {
          SCOPED_TRACE(testing::Message() << rows << " x " << cols << ", gap " << gap);
          body(rows, cols, cols + gap);
        }
      }
    }
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> compute_;
};

TEST_F(CudaElementwise, CastEqualsReference) {
  for (const DType from : {DType::f32, DType::bf16, DType::f16}) {
    for (const DType to : {DType::f32, DType::bf16, DType::f16}) {
      SCOPED_TRACE(testing::Message() << name(from) << " to " << name(to));
      for_each_shape([&](int64_t rows, int64_t cols, int64_t stride) {
        Operand x = operand(from, rows, cols, stride, 0), y = operand(to, rows, cols, stride, 1);
        expect_equal(Cast{x.host(), y.host()}, Cast{x.device(), y.device()}, y);
      });
    }
  }
}

TEST_F(CudaElementwise, AddEqualsReference) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for_each_shape([&](int64_t rows, int64_t cols, int64_t stride) {
      Operand a = operand(dtype, rows, cols, stride, 0), b = operand(dtype, rows, cols, stride, 0);
      Operand y = operand(dtype, rows, cols, stride, 2);
      expect_equal(Add{a.host(), b.host(), y.host()}, Add{a.device(), b.device(), y.device()}, y);
    });
  }
}

TEST_F(CudaElementwise, ScaleEqualsReference) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for_each_shape([&](int64_t rows, int64_t cols, int64_t stride) {
      Operand x = operand(dtype, rows, cols, stride, 0);
      expect_equal(Scale{x.host(), 0.37F}, Scale{x.device(), 0.37F}, x);
    });
  }
}

TEST_F(CudaElementwise, FillEqualsReference) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::i32, DType::u8, DType::i64}) {
    for_each_shape([&](int64_t rows, int64_t cols, int64_t stride) {
      Operand x = operand(dtype, rows, cols, stride, 0);
      const float value = dtype == DType::f32 || dtype == DType::bf16 ? 1.7F : 0.0F;
      expect_equal(Fill{x.host(), value}, Fill{x.device(), value}, x);
    });
  }
}

TEST_F(CudaElementwise, JoinSplitEqualsReference) {
  for_each_shape([&](int64_t rows, int64_t cols, int64_t stride) {
    Operand high = operand(DType::bf16, rows, cols, stride, 0),
            low = operand(DType::i16, rows, cols, stride, 0);
    Operand y = operand(DType::f32, rows, cols, stride, 1);
    expect_equal(JoinSplit{high.host(), low.host(), y.host()},
                 JoinSplit{high.device(), low.device(), y.device()}, y);
  });
}

TEST_F(CudaElementwise, OpWithoutAKernelIsRefusedByName) {
  const Operand gate_up = operand(DType::f32, 4, 8, 8, 0), y = operand(DType::f32, 4, 4, 4, 0);
  try {
    device_->ops().submit(*compute_, SwigluForward{gate_up.device(), y.device()}, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("swiglu_forward has no CUDA kernel yet"), std::string::npos);
  }
}

}  // namespace
}  // namespace sluice::gpu
