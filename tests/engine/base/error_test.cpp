#include "engine/base/error.h"

#include <cerrno>
#include <gtest/gtest.h>
#include <unordered_set>

#include "engine/base/dtype.h"
#include "engine/base/ids.h"
#include "engine/base/math.h"

namespace sluice {
namespace {

TEST(Error, KindsAreExitCodes) {
  EXPECT_EQ(exit_code(ErrorKind::runtime), 1);
  EXPECT_EQ(exit_code(ErrorKind::usage), 2);
  EXPECT_EQ(exit_code(ErrorKind::data), 3);
  EXPECT_EQ(exit_code(ErrorKind::resource), 4);
  EXPECT_EQ(exit_code(ErrorKind::diverged), 5);
  const Error error(ErrorKind::data, "row 3");
  EXPECT_EQ(error.kind(), ErrorKind::data);
  EXPECT_STREQ(error.what(), "row 3");
}

TEST(Error, ErrnoIsWordsAndNumber) {
  EXPECT_EQ(errno_text(ENOSPC), "No space left on device (" + std::to_string(ENOSPC) + ")");
  EXPECT_NE(errno_text(99999).find("99999"), std::string::npos);
}

TEST(CheckDeathTest, NamesConditionPlaceAndMessage) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const int rows = 3;
  EXPECT_DEATH(SLUICE_CHECK(rows == 4, "of wq"), "error_test.cpp.*rows == 4.*of wq");
  SLUICE_CHECK(rows == 3);
}

TEST(Math, RoundsUp) {
  EXPECT_EQ(divide_up(0, 4), 0);
  EXPECT_EQ(divide_up(1, 4), 1);
  EXPECT_EQ(divide_up(4, 4), 1);
  EXPECT_EQ(round_up(int64_t{0}, int64_t{256}), 0);
  EXPECT_EQ(round_up(int64_t{255}, int64_t{256}), 256);
  EXPECT_EQ(round_up(int64_t{256}, int64_t{256}), 256);
  EXPECT_EQ(round_up(int64_t{257}, int64_t{256}), 512);
}

TEST(DTypes, SizesAndNames) {
  EXPECT_EQ(size_bytes(DType::f32), 4u);
  EXPECT_EQ(size_bytes(DType::bf16), 2u);
  EXPECT_EQ(size_bytes(DType::f16), 2u);
  EXPECT_EQ(size_bytes(DType::i16), 2u);
  EXPECT_EQ(size_bytes(DType::i32), 4u);
  EXPECT_EQ(size_bytes(DType::i64), 8u);
  EXPECT_EQ(size_bytes(DType::u8), 1u);
  EXPECT_EQ(name(DType::bf16), "bf16");
  EXPECT_EQ(name(DType::f32), "fp32");
}

TEST(Ids, AreOrderedHashedAndInvalidFromBirth) {
  EXPECT_FALSE(BlockId{}.valid());
  EXPECT_TRUE(BlockId{0}.valid());
  EXPECT_LT(BlockId{1}, BlockId{2});
  EXPECT_EQ((std::unordered_set<TensorId>{TensorId{1}, TensorId{1}, TensorId{2}}.size()), 2u);
}

}  // namespace
}  // namespace sluice
