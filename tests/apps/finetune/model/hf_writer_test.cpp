#include "apps/finetune/model/hf_writer.h"

#include <gtest/gtest.h>
#include <limits>
#include <sys/mount.h>
#include <unistd.h>

#include "engine/base/float_bits.h"
#include "tests/support/expect_error.h"
#include "tests/support/safetensors_builder.h"
#include "tests/support/source_tree.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::TemporaryFolder;

const fs::path kModels = test::source_folder() / "tests/data/models";

FillRows from(const HfFolder& source) {
  return [&source](const ModelTensor& tensor, int64_t begin, int64_t end, std::span<float> out) {
    ASSERT_EQ(out.size(), static_cast<size_t>((end - begin) * tensor.row_length()));
    source.read_rows(tensor, begin, end, out.data());
  };
}

void expect_same_files(const fs::path& a, const fs::path& b, const std::vector<std::string>& names) {
  EXPECT_EQ(test::list_all(b), names);
  for (const std::string& name : names)
    EXPECT_TRUE(test::read_all(a / name) == test::read_all(b / name)) << name;
}

// In through fp32 and out again: every file is the same, byte for byte, for pieces of one row, some rows, or
// all.
TEST(WriteHfFolder, ReproducesAnUntrainedModel) {
  for (const int64_t piece_bytes : {4, 1000, 8 << 20}) {
    const TemporaryFolder folder;
    const HfFolder shards(kModels / "llama3");
    write_hf_folder(shards, folder / "bf16", from(shards), {.piece_bytes = piece_bytes});
    expect_same_files(kModels / "llama3", folder / "bf16",
                      {"config.json", "generation_config.json", "model-00001-of-00003.safetensors",
                       "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors",
                       "model.safetensors.index.json"});
    const HfFolder single(kModels / "llama_tied");
    write_hf_folder(single, folder / "fp16", from(single), {.piece_bytes = piece_bytes});
    expect_same_files(kModels / "llama_tied", folder / "fp16",
                      {"config.json", "generation_config.json", "model.safetensors"});
  }
}

TEST(WriteHfFolder, WritesOtherWeightsInTheStoredDtype) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "in");
  test::write_safetensors(folder / "in/model.safetensors",
                          {{"a", DType::bf16, {2, 2}, std::string(8, ' ')},
                           {"x.rotary_emb.inv_freq", DType::f32, {1}, "freq"},
                           {"b", DType::f16, {3}, std::string(6, ' ')},
                           {"c", DType::f32, {}, std::string(4, ' ')}});
  const HfFolder source(folder / "in");
  std::vector<std::string> asked;
  write_hf_folder(source, folder / "out",
                  [&](const ModelTensor& tensor, int64_t begin, int64_t end, std::span<float> out) {
                    asked.push_back(tensor.name + " " + std::to_string(begin) + " " + std::to_string(end));
                    const float tie = 1.0F + 0x1p-8F;  // halfway between two bf16: to the even one, 1
                    if (tensor.name == "model.a") out[0] = out[1] = begin == 0 ? tie : 3.0F;
                    if (tensor.name == "model.b") out[0] = 1.0F + 0x1p-11F, out[1] = -2.0F, out[2] = 1e9F;
                    if (tensor.name == "model.c") out[0] = 0.1F;
                  },
                  {.piece_bytes = 12});
  EXPECT_EQ(asked, (std::vector<std::string>{"model.a 0 1", "model.a 1 2", "model.b 0 3", "model.c 0 1"}));
  const HfFolder written(folder / "out");
  float a[4], b[3], c[1];
  written.read_rows(*written.find("model.a"), 0, 2, a);
  written.read_rows(*written.find("model.b"), 0, 3, b);
  written.read_rows(*written.find("model.c"), 0, 1, c);
  EXPECT_EQ(a[0], 1.0F);
  EXPECT_EQ(a[2], 3.0F);
  EXPECT_EQ(b[0], 1.0F);
  EXPECT_EQ(b[1], -2.0F);
  EXPECT_EQ(b[2], std::numeric_limits<float>::infinity());
  EXPECT_EQ(c[0], 0.1F);
  const SafetensorsFile file(folder / "out/model.safetensors");
  std::string frequencies(4, ' ');
  file.read(*file.find("x.rotary_emb.inv_freq"), 0, frequencies.data(), 4);
  EXPECT_EQ(frequencies, "freq");
}

// Into fp32 and back: no bit is lost, and but for dtypes, offsets and sums nothing changes on the way.
TEST(WriteHfFolder, WritesAllWeightsInAnotherDtype) {
  const TemporaryFolder folder;
  const HfFolder source(kModels / "llama3");
  write_hf_folder(source, folder / "fp32", from(source), {.dtype = DType::f32});
  const HfFolder wide(folder / "fp32");
  ASSERT_EQ(wide.tensors().size(), source.tensors().size());
  uint64_t bytes = 0;
  for (size_t i = 0; i < wide.tensors().size(); ++i) {
    EXPECT_EQ(wide.tensors()[i].name, source.tensors()[i].name);
    EXPECT_EQ(wide.tensors()[i].dtype, DType::f32);
    bytes += static_cast<uint64_t>(wide.tensors()[i].row_count() * wide.tensors()[i].row_length()) * 4;
  }
  EXPECT_EQ(wide.files()[0].metadata(), source.files()[0].metadata());
  const std::string index = test::read_all(folder / "fp32/model.safetensors.index.json");
  EXPECT_NE(index.find("\"total_size\": " + std::to_string(bytes)), std::string::npos)
      << index.substr(0, 200);
  std::string config = test::read_all(folder / "fp32/config.json");
  const size_t at = config.find("float32");
  ASSERT_NE(at, std::string::npos);
  EXPECT_EQ(config.replace(at, 7, "bfloat16"), test::read_all(kModels / "llama3/config.json"));

  write_hf_folder(wide, folder / "bf16", from(wide), {.dtype = DType::bf16});
  expect_same_files(kModels / "llama3", folder / "bf16",
                    {"config.json", "generation_config.json", "model-00001-of-00003.safetensors",
                     "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors",
                     "model.safetensors.index.json"});
  write_hf_folder(source, folder / "same", from(source), {.dtype = DType::bf16});
  expect_same_files(folder / "bf16", folder / "same", test::list_all(folder / "bf16"));
}

TEST(WriteHfFolder, KeepsTheDtypeOfWhatIsNoWeight) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "in");
  test::write_safetensors(folder / "in/model.safetensors", {{"a", DType::f16, {2}, std::string(4, ' ')},
                                                            {"x.rotary_emb.inv_freq", DType::f16, {1}, "fr"},
                                                            {"b", DType::f32, {1}, std::string(4, ' ')}});
  const HfFolder source(folder / "in");
  write_hf_folder(source, folder / "out", from(source), {.dtype = DType::f32});
  const SafetensorsFile file(folder / "out/model.safetensors");
  EXPECT_EQ(file.find("a")->dtype, DType::f32);
  EXPECT_EQ(file.find("x.rotary_emb.inv_freq")->dtype, DType::f16);
  std::string frequencies(2, ' ');
  file.read(*file.find("x.rotary_emb.inv_freq"), 0, frequencies.data(), 2);
  EXPECT_EQ(frequencies, "fr");
}

TEST(WriteHfFolder, CopiesTheContentsOfLinks) {
  const TemporaryFolder cache;
  const fs::path snapshot = cache / "m/snapshots/abc";
  fs::create_directories(snapshot);
  fs::create_directories(cache / "m/blobs");
  test::write_safetensors(cache / "m/blobs/1", {{"a", DType::f32, {}, "abcd"}});
  test::write_all(cache / "m/blobs/2", "{}");
  fs::create_symlink("../../blobs/1", snapshot / "model.safetensors");
  fs::create_symlink("../../blobs/2", snapshot / "config.json");
  const HfFolder source(snapshot);
  write_hf_folder(source, cache / "out", from(source));
  EXPECT_FALSE(fs::is_symlink(cache / "out/config.json"));
  EXPECT_EQ(test::read_all(cache / "out/config.json"), "{}");
}

TEST(WriteHfFolder, LeavesNothingWhenWeightsFail) {
  const TemporaryFolder folder;
  const HfFolder source(kModels / "llama3");
  int calls = 0;
  const FillRows fail = [&](const ModelTensor& tensor, int64_t, int64_t, std::span<float>) {
    if (++calls > 10) throw Error(ErrorKind::runtime, "no more of " + tensor.name);
  };
  expect_error(ErrorKind::runtime, {"no more of"}, [&] { write_hf_folder(source, folder / "x/out", fail); });
  EXPECT_TRUE(fs::is_empty(folder.path()));
  fs::create_directory(folder / "out");
  test::write_all(folder / "out/events.jsonl", "{}");
  expect_error(ErrorKind::runtime, {"no more of"}, [&] { write_hf_folder(source, folder / "out", fail); });
  EXPECT_EQ(test::list_all(folder / "out"), std::vector<std::string>{"events.jsonl"});
}

TEST(WriteHfFolder, RefusesToOverwriteItsSource) {
  const TemporaryFolder folder;
  fs::copy(kModels / "llama_tied", folder / "m");
  const HfFolder source(folder / "m");
  expect_error(ErrorKind::usage, {"model folder itself"},
               [&] { write_hf_folder(source, folder / "m/../m", from(source)); });
}

TEST(WriteHfFolder, NamesAFolderThatCannotBeWritten) {
  const TemporaryFolder folder;
  test::write_all(folder / "file", "");
  const HfFolder source(kModels / "llama_tied");
  expect_error(ErrorKind::runtime, {"file/out"},
               [&] { write_hf_folder(source, folder / "file/out", from(source)); });
}

// A file system of 256 KiB, on which the room runs out either before the first byte or halfway.
class SmallDisk : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::mount("none", folder_.path().c_str(), "tmpfs", 0, "size=256k") != 0) {
      GTEST_SKIP() << "mounting a small file system needs the right to";
    }
    mounted_ = true;
  }
  void TearDown() override {
    if (mounted_) ::umount2(folder_.path().c_str(), MNT_DETACH);
  }

  TemporaryFolder folder_;
  bool mounted_ = false;
};

TEST_F(SmallDisk, IsNoticedBeforeAnythingIsWritten) {
  const HfFolder source(kModels / "llama3");  // 208 KB, and the megabyte of slack
  bool asked = false;
  expect_error(ErrorKind::resource, {"not enough disk space", "out"}, [&] {
    write_hf_folder(source, folder_ / "out", [&](const auto&, auto, auto, auto) { asked = true; });
  });
  EXPECT_FALSE(asked);
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

TEST_F(SmallDisk, FillingUpMeanwhileLeavesNothing) {
  const std::string block(4096, 'x');
  expect_error(ErrorKind::resource, {"model.safetensors", "No space left"}, [&] {
    SafetensorsWriter writer(folder_ / "model.safetensors", {{"w", DType::u8, {1 << 20}}});
    for (int i = 0; i < 256; ++i) writer.write("w", block.data(), block.size());
  });
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

}  // namespace
}  // namespace sluice
