#include "gpu/timed/gpu_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>

namespace sluice::gpu {
namespace {

std::string message_of(const std::string& text) {
  try {
    (void)gpu_model(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.what();
  }
  return "";
}

TEST(GpuModels, NamesAreReadLoosely) {
  for (const char* text : {"RTX 4090", "rtx4090", "NVIDIA GeForce RTX 4090", "Rtx-4090"}) {
    const GpuModel model = gpu_model(text);
    EXPECT_EQ(model.name, "RTX 4090") << text;
    EXPECT_EQ(model.bf16_flops_per_second, 165.2e12);
    EXPECT_EQ(model.memory_bytes, size_t{24564} << 20);
    EXPECT_EQ(model.copy_in_bytes_per_second, 25e9);
  }
}

TEST(GpuModels, EveryRateOfTheTableIsFilledIn) {
  EXPECT_EQ(gpu_model_names().size(), 7u);
  for (const std::string& name : gpu_model_names()) {
    const GpuModel model = gpu_model(name);
    EXPECT_EQ(model.name, name);
    EXPECT_GT(model.bf16_flops_per_second, model.f32_flops_per_second) << name;
    EXPECT_GT(model.f32_flops_per_second, 1e12) << name;
    EXPECT_GT(model.memory_bytes_per_second, 1e11) << name;
    EXPECT_GT(model.memory_bytes, size_t{7} << 30) << name;
    EXPECT_GT(model.copy_out_bytes_per_second, 1e9) << name;
    EXPECT_GT(model.launch_seconds, 0) << name;
  }
}

TEST(GpuModels, UnknownNamesAreAnsweredWithTheNearest) {
  EXPECT_THAT(message_of("RTX 4080"), testing::HasSubstr("Did you mean 'RTX 4090'?"));
  EXPECT_THAT(message_of("4060"), testing::HasSubstr("Did you mean 'laptop RTX 4060'?"));
  EXPECT_THAT(message_of("A100"), testing::HasSubstr("Did you mean 'A100 80GB'?"));
  EXPECT_THAT(message_of("h20"), testing::HasSubstr("Did you mean 'H200'?"));
  EXPECT_THAT(message_of(""), testing::HasSubstr("'H100'"));
}

TEST(GpuModels, NumbersAreTakenDirectly) {
  const GpuModel model = gpu_model("flops=80e12,memory=1e12,pcie=25e9");
  EXPECT_EQ(model.bf16_flops_per_second, 80e12);
  EXPECT_EQ(model.f32_flops_per_second, 40e12);
  EXPECT_EQ(model.memory_bytes_per_second, 1e12);
  EXPECT_EQ(model.copy_in_bytes_per_second, 25e9);
  EXPECT_EQ(model.copy_out_bytes_per_second, 25e9);
  EXPECT_EQ(model.memory_bytes, 0u);
  const GpuModel all =
      gpu_model("flops=8e12,f32_flops=1e12,memory=1e11,pcie_in=2e9,pcie_out=1e9,launch=1e-6,capacity=4e9");
  EXPECT_EQ(all.f32_flops_per_second, 1e12);
  EXPECT_EQ(all.copy_in_bytes_per_second, 2e9);
  EXPECT_EQ(all.copy_out_bytes_per_second, 1e9);
  EXPECT_EQ(all.launch_seconds, 1e-6);
  EXPECT_EQ(all.memory_bytes, 4'000'000'000u);
}

TEST(GpuModels, WrongNumbersAreNamed) {
  EXPECT_THAT(message_of("flops=80e12,memroy=1e12"), testing::HasSubstr("'memroy=1e12'"));
  EXPECT_THAT(message_of("flops=80e12,pcie"), testing::HasSubstr("'pcie'"));
  for (const char* value : {"", "fast", "-1", "0", "1e12x", "inf", "nan"}) {
    EXPECT_THAT(message_of(std::string("flops=") + value + ",memory=1,pcie=1"),
                testing::HasSubstr(std::string("'flops=") + value + "' is no number above 0"));
  }
  EXPECT_THAT(message_of("flops=80e12,memory=1e12"), testing::HasSubstr("lacks a rate"));
  EXPECT_THAT(message_of("flops=80e12,memory=1e12,pcie_in=1e9"), testing::HasSubstr("lacks a rate"));
}

TEST(GpuModels, TraitsAreTheModels) {
  const DeviceTraits traits = traits_of(gpu_model("A100 80GB"));
  EXPECT_EQ(traits.name, "A100 80GB");
  EXPECT_EQ(traits.preferred_compute_dtype, DType::bf16);
  EXPECT_FALSE(traits.shares_host_memory);
  EXPECT_EQ(traits.bf16_flops_per_second, 312e12);
  EXPECT_EQ(traits.f32_flops_per_second, 19.5e12);
  EXPECT_EQ(traits.copy_in_bytes_per_second, 25e9);
  EXPECT_EQ(traits.copy_out_bytes_per_second, 25e9);
}

TEST(GpuModels, SecondsAreTheLongerSideAndALaunch) {
  const GpuModel model = gpu_model("flops=8e12,f32_flops=1e12,memory=1e11,pcie=1e9,launch=0.5");
  EXPECT_DOUBLE_EQ(op_seconds(model, {.flops = 16e12, .rate = DType::bf16, .bytes = 1e11}), 2.5);
  EXPECT_DOUBLE_EQ(op_seconds(model, {.flops = 16e12, .rate = DType::f32, .bytes = 1e11}), 16.5);
  EXPECT_DOUBLE_EQ(op_seconds(model, {.flops = 1, .rate = DType::f32, .bytes = 3e11}), 3.5);
  EXPECT_DOUBLE_EQ(op_seconds(model, {}), 0.5);
}

}  // namespace
}  // namespace sluice::gpu
