#include "io/safetensors.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::TemporaryFolder;

std::string length_word(uint64_t length) {
  return {reinterpret_cast<const char*>(&length), sizeof(length)};
}

std::string file_bytes(const std::string& header, size_t data_size) {
  return length_word(header.size()) + header + std::string(data_size, 'd');
}

TEST(Safetensors, ReadsTheHeader) {
  const TemporaryFolder folder;
  // Out of order, a scalar, an empty tensor, an escaped name, metadata, padding.
  test::write_all(
      folder / "a", length_word(300) + [] {
        std::string text = R"({"b":{"dtype":"F32","shape":[],"data_offsets":[6,10]},)"
                           R"("__metadata__":{"format":"pt","x":""},)"
                           R"("a":{"shape":[3,1],"data_offsets":[0,6],"dtype":"BF16"},)"
                           R"("\u00e9":{"dtype":"BOOL","shape":[5,0],"data_offsets":[6,6]}})";
        text.resize(300, ' ');
        return text;
      }() + "aabbcc" + std::string("\0\0\x80\x3f", 4));
  const SafetensorsFile file(folder / "a");
  ASSERT_EQ(file.tensors().size(), 3U);
  EXPECT_EQ(file.tensors()[0].name, "a");
  EXPECT_EQ(file.tensors()[0].dtype, DType::bf16);
  EXPECT_EQ(file.tensors()[0].shape, (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(file.tensors()[0].offset, 308U);
  EXPECT_EQ(file.tensors()[1].name, "é");
  EXPECT_EQ(file.tensors()[1].dtype, std::nullopt);
  EXPECT_EQ(file.tensors()[1].dtype_name, "BOOL");
  EXPECT_EQ(file.tensors()[2].name, "b");
  EXPECT_EQ(file.metadata(), (TensorMetadata{{"format", "pt"}, {"x", ""}}));
  float scalar = 0;
  file.read(*file.find("b"), 0, &scalar, sizeof(scalar));
  EXPECT_EQ(scalar, 1.0F);
  char middle[2];
  file.read(*file.find("a"), 2, middle, 2);
  EXPECT_EQ(std::string(middle, 2), "bb");
  EXPECT_EQ(file.find("c"), nullptr);
}

TEST(Safetensors, ReadsAFileWithoutTensors) {
  const TemporaryFolder folder;
  test::write_all(folder / "a", file_bytes("{}", 0));
  EXPECT_TRUE(SafetensorsFile(folder / "a").tensors().empty());
}

struct Hostile {
  std::string name;
  std::string bytes;
  std::string message;  // must occur beside the file's name
  friend void PrintTo(const Hostile& hostile, std::ostream* out) { *out << hostile.name; }
};

class HostileSafetensors : public ::testing::TestWithParam<Hostile> {};

TEST_P(HostileSafetensors, IsRefusedByName) {
  const TemporaryFolder folder;
  test::write_all(folder / "bad.safetensors", GetParam().bytes);
  expect_error(ErrorKind::data, {"bad.safetensors", GetParam().message},
               [&] { SafetensorsFile(folder / "bad.safetensors"); });
}

// A header with one tensor "w", given its three values.
Hostile tensor(const std::string& name, const std::string& dtype, const std::string& shape,
               const std::string& offsets, size_t data_size, const std::string& message) {
  return {
      name,
      file_bytes("{\"w\":{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}}",
                 data_size),
      message};
}

Hostile header(const std::string& name, const std::string& text, size_t data_size,
               const std::string& message) {
  return {name, file_bytes(text, data_size), message};
}

std::vector<Hostile> hostile_files() {
  const std::string w = R"("w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  const std::string v = R"("v":{"dtype":"F32","shape":[1],"data_offsets":)";
  std::string deep = "{\"w\":";
  deep.append(100000, '[');
  return {
      {"Empty", "", "too few"},
      {"SevenBytes", std::string(7, '\0'), "too few"},
      {"HeaderOverFile", length_word(3) + "{}", "header of 3 bytes"},
      {"Header2To63", length_word(uint64_t{1} << 63) + "{}", "header of 9223372036854775808 bytes"},
      {"HeaderAllOnes", length_word(~uint64_t{0}) + "{}", "header of 18446744073709551615"},
      {"HeaderOverLimit", length_word(100'000'001) + "{}", "allows 100000000"},
      {"HeaderEmpty", length_word(0), "no valid JSON"},
      header("NotJson", "hello", 0, "no valid JSON"),
      header("Truncated", "{\"w\":{", 0, "no valid JSON"),
      header("TwoValues", "{}{}", 0, "no valid JSON"),
      header("NotUtf8", "{\"\xff\":1}", 0, "no valid JSON"),
      header("AList", "[]", 0, "a list"),
      header("ANumber", "1", 0, "the number 1"),
      header("Null", "null", 0, "null"),
      header("Deep", deep, 0, "w is a list"),
      header("TensorIsNumber", R"({"w":1})", 0, "w is the number 1"),
      header("TensorIsText", R"({"w":"x"})", 0, "w is a text"),
      header("NameTwice", "{" + w + "," + w + "}", 4, "w occurs twice"),
      header("MetadataTwice", R"({"__metadata__":{},"__metadata__":{}})", 0, "occurs twice"),
      header("MetadataNumber", R"({"__metadata__":{"a":1}})", 0, "metadata key a"),
      header("MetadataNested", R"({"__metadata__":{"a":{}}})", 0, "metadata key a"),
      header("NoDtype", R"({"w":{"shape":[1],"data_offsets":[0,4]}})", 4, "tensor w has not all"),
      header("NoShape", R"({"w":{"dtype":"F32","data_offsets":[0,4]}})", 4, "tensor w has not all"),
      header("NoOffsets", R"({"w":{"dtype":"F32","shape":[1]}})", 4, "tensor w has not all"),
      header("UnknownKey", R"({"w":{"dtype":"F32","colour":1}})", 0, "colour"),
      header("KeyTwice", R"({"w":{"dtype":"F32","dtype":"F16"}})", 0, "dtype twice"),
      tensor("UnknownDtype", R"("F4")", "[1]", "[0,4]", 4, "tensor w has the unknown dtype F4"),
      tensor("DtypeNumber", "3", "[1]", "[0,4]", 4, "tensor w has the number 3 at dtype"),
      tensor("ShapeNegative", R"("F32")", "[-1]", "[0,4]", 4, "-1"),
      tensor("ShapeFraction", R"("F32")", "[1.5]", "[0,4]", 4, "1.5"),
      tensor("ShapeText", R"("F32")", R"(["1"])", "[0,4]", 4, "a text at shape"),
      tensor("ShapeNested", R"("F32")", "[[1]]", "[0,4]", 4, "a list at shape"),
      tensor("ShapeScalar", R"("F32")", "1", "[0,4]", 4, "the number 1 at shape"),
      tensor("Shape2To63", R"("F32")", "[9223372036854775808]", "[0,4]", 4, "9223372036854775808"),
      tensor("Shape2To64", R"("F32")", "[18446744073709551616]", "[0,4]", 4, "18446744073709551616"),
      tensor("ShapeProduct", R"("F32")", "[4294967296,4294967296]", "[0,4]", 4, "overflows"),
      tensor("ShapeTimesSize", R"("F32")", "[4611686018427387904]", "[0,0]", 0, "overflows"),
      tensor("OffsetsOne", R"("F32")", "[1]", "[4]", 4, "not two numbers"),
      tensor("OffsetsThree", R"("F32")", "[1]", "[0,4,8]", 8, "the number 8"),
      tensor("OffsetsReversed", R"("F32")", "[1]", "[4,0]", 4, "end before"),
      tensor("OffsetsNegative", R"("F32")", "[1]", "[-4,0]", 4, "-4"),
      tensor("OffsetsTooLong", R"("F32")", "[1]", "[0,8]", 8, "need 4"),
      tensor("OffsetsTooShort", R"("F32")", "[2]", "[0,4]", 4, "need 8"),
      tensor("OffsetsOverFile", R"("F32")", "[2]", "[0,8]", 4, "tensor w ends at byte 8"),
      tensor("Offsets2To63", R"("F32")", "[1]", "[9223372036854775808,9223372036854775812]", 4,
             "ends at byte"),
      tensor("OffsetsMost", R"("F32")", "[1]", "[18446744073709551611,18446744073709551615]", 4,
             "ends at byte"),
      tensor("HoleBefore", R"("F32")", "[1]", "[4,8]", 8, "hole before tensor w"),
      tensor("BytesAfter", R"("F32")", "[1]", "[0,4]", 5, "1 bytes at the end"),
      header("Overlap", "{" + w + "," + v + "[0,4]}}", 4, "overlaps"),
      header("OverlapInside", "{" + w + "," + v + "[2,6]}}", 6, "tensor v overlaps"),
      header("HoleBetween", "{" + w + "," + v + "[8,12]}}", 12, "hole before tensor v"),
  };
}

INSTANTIATE_TEST_SUITE_P(All, HostileSafetensors, ::testing::ValuesIn(hostile_files()),
                         [](const auto& test) { return test.param.name; });

// Every length at which a download can break off is noticed, with an Error and nothing else.
TEST(Safetensors, NoticesEveryTruncation) {
  const TemporaryFolder folder;
  const std::string whole = file_bytes(R"({"w":{"dtype":"F16","shape":[2,3],"data_offsets":[0,12]}})", 12);
  for (size_t size = 0; size < whole.size(); ++size) {
    test::write_all(folder / "a", whole.substr(0, size));
    expect_error(ErrorKind::data, {"/a"}, [&] { SafetensorsFile(folder / "a"); });
  }
  test::write_all(folder / "a", whole);
  EXPECT_EQ(SafetensorsFile(folder / "a").tensors().size(), 1U);
}

TEST(Safetensors, NamesTheTensorWhenTheFileShrinksWhileOpen) {
  const TemporaryFolder folder;
  test::write_all(folder / "a", file_bytes(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4));
  const SafetensorsFile file(folder / "a");
  fs::resize_file(folder / "a", fs::file_size(folder / "a") - 2);
  float value = 0;
  expect_error(ErrorKind::data, {"tensor w", "/a", "2 bytes short"},
               [&] { file.read(*file.find("w"), 0, &value, 4); });
}

TEST(Safetensors, NamesEveryDtype) {
  for (const DType dtype :
       {DType::f32, DType::bf16, DType::f16, DType::i16, DType::i32, DType::i64, DType::u8}) {
    EXPECT_FALSE(safetensors_name(dtype).empty());
  }
}

}  // namespace
}  // namespace sluice
