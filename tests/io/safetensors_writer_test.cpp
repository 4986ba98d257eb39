#include "io/safetensors_writer.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/source_tree.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;

const fs::path kModels = test::source_folder() / "tests/data/models";

// Layout and spelling of the reference implementation, byte by byte.
TEST(SafetensorsWriter, WritesTheFormat) {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder / "a",
                           {{"w", DType::bf16, {2, 1}}, {"empty", DType::f32, {0}}, {"s", DType::u8, {}}});
  writer.write("w", "ab", 2);
  writer.write("w", "", 0);
  writer.write("w", "cd", 2);
  writer.write("s", "e", 1);
  EXPECT_FALSE(fs::exists(folder / "a"));
  writer.finish();
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]},)"
      R"("empty":{"dtype":"F32","shape":[0],"data_offsets":[4,4]},"s":{"dtype":"U8","shape":[],"data_offsets":[4,5]}})";
  const std::string bytes = test::read_all(folder / "a");
  EXPECT_EQ(bytes.substr(8, header.size()), header);
  EXPECT_EQ(static_cast<unsigned char>(bytes[0]), (header.size() + 7) / 8 * 8);
  EXPECT_EQ(bytes.substr(bytes.size() - 5), "abcde");
  EXPECT_EQ((bytes.size() - 5) % 8, 0U);
  EXPECT_EQ(SafetensorsFile(folder / "a").tensors().size(), 3U);
}

// Files written by the reference implementation come out byte for byte, in pieces of any size.
TEST(SafetensorsWriter, ReproducesFilesOfTheReference) {
  for (const fs::path& path :
       {kModels / "llama_tied/model.safetensors", kModels / "llama_tied/golden.safetensors",
        kModels / "llama3/model-00001-of-00003.safetensors"}) {
    const TemporaryFolder folder;
    const SafetensorsFile source(path);
    SafetensorsWriter writer(folder / "copy", source);
    uint64_t piece = 1;
    for (const TensorInfo& tensor : source.tensors()) {
      for (uint64_t begin = 0; begin < tensor.size_bytes; begin += piece, piece = piece * 3 % 4099) {
        std::string bytes(std::min(piece, tensor.size_bytes - begin), ' ');
        source.read(tensor, begin, bytes.data(), bytes.size());
        writer.write(tensor.name, bytes.data(), bytes.size());
        if (begin + piece >= tensor.size_bytes) break;
      }
    }
    writer.finish();
    EXPECT_TRUE(test::read_all(path) == test::read_all(folder / "copy")) << path;
  }
}

// The header made from names, dtypes and shapes is the one that the reference makes.
TEST(SafetensorsWriter, MakesTheHeaderOfTheReference) {
  const TemporaryFolder folder;
  const SafetensorsFile source(kModels / "llama_tied/model.safetensors");
  std::vector<SafetensorsEntry> entries;
  for (const TensorInfo& tensor : source.tensors())
    entries.push_back({tensor.name, *tensor.dtype, tensor.shape});
  SafetensorsWriter writer(folder / "copy", entries, source.metadata());
  for (const TensorInfo& tensor : source.tensors()) {
    const std::string zeros(tensor.size_bytes, '\0');
    writer.write(tensor.name, zeros.data(), zeros.size());
  }
  writer.finish();
  EXPECT_EQ(SafetensorsFile(folder / "copy").read_header(), source.read_header());
}

TEST(SafetensorsWriter, LeavesNothingUnlessFinished) {
  const TemporaryFolder folder;
  {
    SafetensorsWriter writer(folder / "a", {{"w", DType::f32, {2}}});
    writer.write("w", "abcd", 4);
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(SafetensorsWriterDeathTest, StopsAtBytesOutOfTurn) {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder / "a", {{"v", DType::u8, {2}}, {"w", DType::u8, {2}}});
  EXPECT_DEATH(writer.write("w", "ab", 2), "out of turn");
  EXPECT_DEATH(writer.write("v", "abc", 3), "size_bytes");
  EXPECT_DEATH(writer.finish(), "not all");
  writer.write("v", "ab", 2);
  EXPECT_DEATH(writer.write("v", "a", 1), "size_bytes");
}

}  // namespace
}  // namespace sluice
