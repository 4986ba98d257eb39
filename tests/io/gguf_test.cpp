#include "io/gguf.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::GgufWriter;
using test::TemporaryFolder;

GgufWriter small_file() {
  GgufWriter gguf;
  gguf.set("a.u8", uint8_t{200});
  gguf.set("a.i32", int32_t{-5});
  gguf.set("a.u64", ~uint64_t{0});
  gguf.set("a.f32", 0.1F);
  gguf.set("a.f64", 0.1);
  gguf.set("a.bool", true);
  gguf.set("a.text", std::string("é"));
  gguf.set("a.texts", std::vector<std::string>{"x", "", "yz"});
  gguf.set("a.numbers", std::vector<int32_t>{-1, 2});
  gguf.set("a.floats", std::vector<float>{0.5F});
  gguf.add("m", {2, 3}, {1, 2, 3, 4, 5, 6});
  gguf.add_raw("q", {2, 32}, 8, std::string(68, '\0'));
  return gguf;
}

template <class T>
T value(const GgufFile& file, std::string_view key) {
  return std::get<T>(*file.metadata(key));
}

TEST(Gguf, ReadsMetadataAndTensors) {
  for (const uint32_t version : {2U, 3U}) {
    const TemporaryFolder folder;
    GgufWriter writer = small_file();
    writer.version = version;
    writer.write(folder / "a");
    const GgufFile file(folder / "a");
    EXPECT_EQ(value<uint64_t>(file, "a.u8"), 200U);
    EXPECT_EQ(value<int64_t>(file, "a.i32"), -5);
    EXPECT_EQ(value<uint64_t>(file, "a.u64"), ~uint64_t{0});
    EXPECT_EQ(value<float>(file, "a.f32"), 0.1F);
    EXPECT_EQ(value<double>(file, "a.f64"), 0.1);
    EXPECT_EQ(value<bool>(file, "a.bool"), true);
    EXPECT_EQ(value<std::string>(file, "a.text"), "é");
    EXPECT_EQ(value<std::vector<std::string>>(file, "a.texts"), (std::vector<std::string>{"x", "", "yz"}));
    EXPECT_EQ(value<std::vector<int64_t>>(file, "a.numbers"), (std::vector<int64_t>{-1, 2}));
    EXPECT_EQ(value<std::vector<double>>(file, "a.floats"), std::vector<double>{0.5});
    EXPECT_EQ(file.metadata("none"), nullptr);
    ASSERT_EQ(file.tensors().size(), 2U);
    EXPECT_EQ(file.find("m")->shape, (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(file.find("q")->size_bytes, 68U);
    EXPECT_EQ(file.find("none"), nullptr);
    std::vector<float> row(3);
    file.dequantize(*file.find("m"), 1, 2, row.data());
    EXPECT_EQ(row, (std::vector<float>{4, 5, 6}));
  }
}

TEST(Gguf, HonoursTheAlignment) {
  const TemporaryFolder folder;
  GgufWriter writer;
  writer.alignment = 256;
  writer.set("general.alignment", uint32_t{256});
  writer.add("a", {1}, {1});
  writer.add("b", {1}, {2});
  writer.write(folder / "a");
  const GgufFile file(folder / "a");
  float number = 0;
  file.dequantize(*file.find("b"), 0, 1, &number);
  EXPECT_EQ(number, 2.0F);
  EXPECT_EQ(file.find("b")->offset, 512U);
}

TEST(Gguf, RefusesATypeItCannotReadOnlyWhenItIsRead) {
  const TemporaryFolder folder;
  GgufWriter writer;
  writer.add_raw("w", {1, 256}, 12, std::string(144, '\0'));
  writer.write(folder / "a");
  const GgufFile file(folder / "a");
  std::vector<float> row(256);
  expect_error(ErrorKind::data, {"tensor w", "/a", "Q4_K"},
               [&] { file.dequantize(file.tensors()[0], 0, 1, row.data()); });
}

TEST(Gguf, NoticesEveryTruncation) {
  const TemporaryFolder folder;
  const GgufWriter writer = small_file();
  const size_t header_size = writer.header().size();
  std::string whole = writer.bytes();
  whole.resize(whole.size() -
               28);  // the last tensor's padding is not needed: 68 bytes end 28 before a multiple of 32
  test::write_all(folder / "a", whole);
  EXPECT_EQ(GgufFile(folder / "a").tensors().size(), 2U);
  for (size_t size = 0; size < whole.size(); ++size) {
    test::write_all(folder / "a", whole.substr(0, size));
    const std::string what = size < header_size ? "the header of" : "tensor";
    expect_error(ErrorKind::data, {"/a", what}, [&] { GgufFile(folder / "a"); });
  }
}

struct Hostile {
  std::string name;
  std::string bytes;
  std::string message;
  friend void PrintTo(const Hostile& hostile, std::ostream* out) { *out << hostile.name; }
};

class HostileGguf : public ::testing::TestWithParam<Hostile> {};

TEST_P(HostileGguf, IsRefusedByName) {
  const TemporaryFolder folder;
  test::write_all(folder / "bad.gguf", GetParam().bytes);
  expect_error(ErrorKind::data, {"bad.gguf", GetParam().message}, [&] { GgufFile(folder / "bad.gguf"); });
}

Hostile changed(const std::string& name, const std::string& message,
                const std::function<void(GgufWriter&)>& change) {
  GgufWriter writer = small_file();
  change(writer);
  return {name, writer.bytes(), message};
}

Hostile pair(const std::string& name, uint32_t type, const std::string& bytes, const std::string& message) {
  GgufWriter writer;
  writer.set_raw("the.key", type, bytes);
  return {name, writer.bytes() + std::string(64, '\0'), message};
}

std::string counts(uint64_t tensors, uint64_t pairs) {
  return "GGUF" + GgufWriter::number(uint32_t{3}) + GgufWriter::number(tensors) + GgufWriter::number(pairs) +
         std::string(100, '\0');
}

std::vector<Hostile> hostile_files() {
  const auto n32 = [](uint32_t value) { return GgufWriter::number(value); };
  const auto n64 = [](uint64_t value) { return GgufWriter::number(value); };
  const uint64_t high = uint64_t{1} << 63;
  return {
      {"Empty", "", "magic number"},
      {"Magic", "GGML" + std::string(60, '\0'), "does not begin with GGUF"},
      changed("Version1", "version 1", [](GgufWriter& w) { w.version = 1; }),
      changed("Version4", "version 4", [](GgufWriter& w) { w.version = 4; }),
      changed("BigEndian", "big-endian", [](GgufWriter& w) { w.version = 0x03000000; }),
      {"TensorCount2To63", counts(high, 0), "9223372036854775808 tensors"},
      {"TensorCountMost", counts(~uint64_t{0}, 0), "more than the file can hold"},
      {"PairCount2To63", counts(0, high), "9223372036854775808 metadata"},
      {"PairCount", counts(0, 8), "more than the file can hold"},
      {"KeyLength", "GGUF" + n32(3) + n64(0) + n64(1) + n64(high) + std::string(50, 'k'), "a metadata key"},
      pair("ValueType", 13, "", "the.key has the unknown value type 13"),
      pair("TextLength", 8, n64(high), "the.key has 9223372036854775808 bytes"),
      pair("TextLengthMost", 8, n64(~uint64_t{0}), "the.key"),
      pair("Bool", 7, "\2", "the.key is a bool"),
      pair("ListType", 9, n32(99) + n64(1), "unknown value type 99"),
      pair("ListOfLists", 9, n32(9) + n64(1) + n32(0) + n64(0), "list of lists"),
      pair("ListCount", 9, n32(4) + n64(1000), "1000 elements"),
      pair("ListCount2To63", 9, n32(0) + n64(high), "9223372036854775808 elements"),
      pair("ListCountTimesSize", 9, n32(10) + n64(uint64_t{1} << 61), "2305843009213693952 elements"),
      pair("ListOfTexts", 9, n32(8) + n64(2) + n64(1) + "a" + n64(high),
           "the.key has 9223372036854775808 bytes"),
      changed("KeyTwice", "a.u8 occurs twice", [](GgufWriter& w) { w.add_pair_again("a.u8"); }),
      changed("NameTwice", "tensor m occurs twice", [](GgufWriter& w) { w.add("m", {1}, {1}); }),
      changed("NoDimensions", "tensor z has 0 dimensions", [](GgufWriter& w) { w.add("z", {}, {1}); }),
      changed("FiveDimensions", "tensor z has 5",
              [](GgufWriter& w) {
                w.add("z", {1, 1, 1, 1, 1}, {1});
              }),
      changed("DimensionZero", "a dimension of 0",
              [](GgufWriter& w) {
                w.add("z", {1, 0}, {1});
              }),
      changed("Dimension2To63", "a dimension of 9223372036854775808",
              [&](GgufWriter& w) { w.add("z", {uint64_t{1} << 63}, {1}); }),
      changed("Product", "overflows",
              [](GgufWriter& w) {
                w.add("z", {uint64_t{1} << 32, uint64_t{1} << 32}, {1});
              }),
      changed("ProductTimesSize", "overflows", [](GgufWriter& w) { w.add("z", {uint64_t{1} << 62}, {1}); }),
      changed("QuantisedElements", "overflows",
              [](GgufWriter& w) {
                w.add_raw("z", {uint64_t{1} << 60, 32}, 3, std::string(20, ' '));
              }),
      changed("Type", "tensor z has the unknown type 4", [](GgufWriter& w) { w.add_raw("z", {32}, 4, "x"); }),
      changed("Row", "rows of 33", [](GgufWriter& w) { w.add_raw("z", {33}, 3, std::string(40, ' ')); }),
      changed("OffsetUnaligned", "multiple of the alignment", [](GgufWriter& w) { w.set_offset(1, 33); }),
      changed("OffsetOverFile", "tensor q takes 68 bytes", [](GgufWriter& w) { w.set_offset(1, 1 << 20); }),
      changed("Offset2To63", "tensor q takes", [&](GgufWriter& w) { w.set_offset(1, uint64_t{1} << 63); }),
      changed("OffsetMost", "tensor q takes", [](GgufWriter& w) { w.set_offset(1, ~uint64_t{31}); }),
      changed("Overlap", "overlaps", [](GgufWriter& w) { w.set_offset(1, 0); }),
      changed("SizeOverFile", "tensor z takes 4000 bytes", [](GgufWriter& w) { w.add("z", {1000}, {1}); }),
      changed("Alignment0", "general.alignment",
              [](GgufWriter& w) { w.set("general.alignment", uint32_t{0}); }),
      changed("Alignment48", "general.alignment",
              [](GgufWriter& w) { w.set("general.alignment", uint32_t{48}); }),
      changed("AlignmentHuge", "general.alignment",
              [](GgufWriter& w) { w.set("general.alignment", uint64_t{1} << 63); }),
      changed("AlignmentText", "general.alignment",
              [](GgufWriter& w) { w.set("general.alignment", std::string("32")); }),
  };
}

INSTANTIATE_TEST_SUITE_P(All, HostileGguf, ::testing::ValuesIn(hostile_files()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace sluice
