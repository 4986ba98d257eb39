#include "apps/finetune/model/hf_folder.h"

#include <bit>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/safetensors_builder.h"
#include "tests/support/source_tree.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::TemporaryFolder;
using test::write_safetensors;

const fs::path kModels = test::source_folder() / "tests/data/models";

const std::string kOne = std::string("\x80\x3f", 2);      // bf16 1
const std::string kTwo = std::string("\x00\x40", 2);      // bf16 2
const std::string kHalfOne = std::string("\x00\x3c", 2);  // fp16 1
const std::string kFloatOne = std::string("\0\0\x80\x3f", 4);

std::vector<std::string> names(const HfFolder& folder) {
  std::vector<std::string> result;
  for (const ModelTensor& tensor : folder.tensors()) result.push_back(tensor.name);
  return result;
}

float first_value(const HfFolder& folder, std::string_view name) {
  float value = -1;
  folder.read_rows(*folder.find(name), 0, 1, &value);
  return value;
}

void copy_model(const std::string& name, const fs::path& to) {
  fs::create_directories(to);
  for (const auto& entry : fs::directory_iterator(kModels / name)) {
    if (entry.is_regular_file()) fs::copy_file(entry.path(), to / entry.path().filename());
  }
}

TEST(HfFolder, ReadsShardsWithAnIndex) {
  const HfFolder folder(kModels / "llama3");
  EXPECT_EQ(folder.files().size(), 3U);
  EXPECT_EQ(folder.tensors().size(), 21U);
  const ModelTensor& head = *folder.find("lm_head.weight");
  EXPECT_EQ(head.file, 2U);
  EXPECT_EQ(head.dtype, DType::bf16);
  EXPECT_EQ(head.row_count(), 272);
  EXPECT_EQ(head.row_length(), 64);
  EXPECT_EQ(folder.find("golden"), nullptr);
  EXPECT_EQ(folder.other_files(), (std::vector<std::string>{"config.json", "generation_config.json",
                                                            "model.safetensors.index.json"}));
}

// The golden gradients are not weights, and adapters lie in a folder of their own or under their own name.
TEST(HfFolder, ReadsShardsWithoutAnIndexAndNoOtherFiles) {
  const TemporaryFolder temporary;
  copy_model("llama3", temporary / "m");
  fs::remove(temporary / "m/model.safetensors.index.json");
  fs::copy_file(kModels / "llama3/lora/adapter_model.safetensors", temporary / "m/adapter_model.safetensors");
  const HfFolder folder(temporary / "m");
  EXPECT_EQ(folder.files().size(), 3U);
  EXPECT_EQ(names(folder), names(HfFolder(kModels / "llama3")));
}

TEST(HfFolder, PrefersTheSingleFile) {
  const TemporaryFolder temporary;
  copy_model("llama_tied", temporary / "m");
  test::write_all(temporary / "m/model-00001-of-00002.safetensors", "broken, and not to be read");
  test::write_all(temporary / "m/model.safetensors.index.json", "broken as well");
  const HfFolder folder(temporary / "m");
  EXPECT_EQ(folder.files().size(), 1U);
  EXPECT_EQ(folder.find("lm_head.weight"), nullptr);
  EXPECT_EQ(folder.other_files(), (std::vector<std::string>{"config.json", "generation_config.json"}));
}

TEST(HfFolder, ReadsEveryDtype) {
  const TemporaryFolder folder;
  write_safetensors(folder / "model.safetensors", {{"model.a", DType::bf16, {2, 1}, kOne + kTwo},
                                                   {"model.b", DType::f16, {1}, kHalfOne},
                                                   {"model.c", DType::f32, {}, kFloatOne}});
  const HfFolder model(folder.path());
  EXPECT_EQ(first_value(model, "model.a"), 1.0F);
  EXPECT_EQ(first_value(model, "model.b"), 1.0F);
  EXPECT_EQ(first_value(model, "model.c"), 1.0F);
  EXPECT_EQ(model.find("model.c")->row_count(), 1);
  float second = 0;
  model.read_rows(*model.find("model.a"), 1, 2, &second);
  EXPECT_EQ(second, 2.0F);
  std::string raw(2, ' ');
  model.read_raw(*model.find("model.a"), 1, 2, raw.data());
  EXPECT_EQ(raw, kTwo);
}

// More than one internal buffer, begun in the middle of the tensor.
TEST(HfFolder, ReadsLongRanges) {
  const int64_t rows = 3000;
  const int64_t columns = 400;
  std::string bytes(static_cast<size_t>(rows * columns) * 2, '\0');
  for (size_t i = 0; i < bytes.size(); i += 2) {
    bytes[i] = static_cast<char>((i / 2) % 127);
    bytes[i + 1] = static_cast<char>(0x3f);
  }
  const TemporaryFolder folder;
  write_safetensors(folder / "model.safetensors", {{"model.w", DType::bf16, {rows, columns}, bytes}});
  const HfFolder model(folder.path());
  std::vector<float> values(static_cast<size_t>((rows - 1) * columns));
  model.read_rows(*model.find("model.w"), 1, rows, values.data());
  for (size_t i = 0; i < values.size(); ++i) {
    const auto index = static_cast<uint32_t>(i + static_cast<size_t>(columns));
    ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), (0x3f00 + index % 127) << 16) << i;
  }
}

TEST(HfFolder, GivesNamesTheirPrefixAndDropsStoredFrequencies) {
  const TemporaryFolder folder;
  write_safetensors(folder / "model.safetensors",
                    {{"embed_tokens.weight", DType::bf16, {1}, kOne},
                     {"lm_head.weight", DType::bf16, {1}, kTwo},
                     {"layers.0.self_attn.rotary_emb.inv_freq", DType::i64, {1}, std::string(8, ' ')}});
  const HfFolder model(folder.path());
  EXPECT_EQ(names(model), (std::vector<std::string>{"model.embed_tokens.weight", "lm_head.weight"}));
  EXPECT_EQ(model.tensors()[0].stored_name, "embed_tokens.weight");
}

TEST(HfFolder, NamesAMissingShard) {
  const TemporaryFolder temporary;
  copy_model("llama3", temporary / "m");
  fs::remove(temporary / "m/model-00002-of-00003.safetensors");
  expect_error(ErrorKind::data, {"model-00002-of-00003.safetensors", "index.json"},
               [&] { HfFolder(temporary / "m"); });
}

TEST(HfFolder, NamesATruncatedShard) {
  const TemporaryFolder temporary;
  copy_model("llama3", temporary / "m");
  const fs::path shard = temporary / "m/model-00002-of-00003.safetensors";
  fs::resize_file(shard, fs::file_size(shard) - 1);
  expect_error(ErrorKind::data, {"model-00002-of-00003.safetensors", "tensor"},
               [&] { HfFolder(temporary / "m"); });
}

TEST(HfFolder, NamesATensorThatTheIndexPromises) {
  const TemporaryFolder folder;
  write_safetensors(folder / "a.safetensors", {{"model.a", DType::bf16, {1}, kOne}});
  test::write_all(folder / "model.safetensors.index.json",
                  R"({"weight_map": {"model.a": "a.safetensors", "model.b": "a.safetensors"}})");
  expect_error(ErrorKind::data, {"model.b", "a.safetensors"}, [&] { HfFolder(folder.path()); });
}

TEST(HfFolder, NamesATensorThatIsThereTwice) {
  const TemporaryFolder folder;
  write_safetensors(folder / "a.safetensors", {{"model.x", DType::bf16, {1}, kOne}});
  write_safetensors(folder / "b.safetensors", {{"x", DType::bf16, {1}, kOne}});
  expect_error(ErrorKind::data, {"tensor x", "a.safetensors", "b.safetensors"},
               [&] { HfFolder(folder.path()); });
}

TEST(HfFolder, RefusesDtypesItCannotTrain) {
  const TemporaryFolder folder;
  write_safetensors(folder / "model.safetensors", {{"model.x", DType::i64, {1}, std::string(8, ' ')}});
  expect_error(ErrorKind::data, {"model.x", "I64"}, [&] { HfFolder(folder.path()); });
}

TEST(HfFolder, RefusesABadIndex) {
  const TemporaryFolder folder;
  const fs::path index = folder / "model.safetensors.index.json";
  for (const auto& [text, message] : std::vector<std::pair<std::string, std::string>>{
           {"{", "no valid JSON"},
           {"{}", "weight_map is missing"},
           {R"({"weight_map": []})", "weight_map is []"},
           {R"({"weight_map": {}})", "weight_map is empty"},
           {R"({"weight_map": {"x": 1}})", "weight_map.x is 1"},
           {R"({"weight_map": {"x": "../y.safetensors"}})", "no plain file name"},
           {R"({"weight_map": {"x": ""}})", "no plain file name"}}) {
    test::write_all(index, text);
    expect_error(ErrorKind::data, {"index.json", message}, [&] { HfFolder(folder.path()); });
  }
}

TEST(HfFolder, SaysWhereThereIsNoModel) {
  const TemporaryFolder folder;
  expect_error(ErrorKind::data, {"none"}, [&] { HfFolder(folder / "none"); });
  expect_error(ErrorKind::data, {"no weights", "finetune import"}, [&] { HfFolder(folder.path()); });
  write_safetensors(folder / "model.safetensors", {});
  expect_error(ErrorKind::data, {"no tensors"}, [&] { HfFolder(folder.path()); });
}

TEST(HfFolder, KeepsWhatBelongsToAModel) {
  const TemporaryFolder folder;
  write_safetensors(folder / "model.safetensors", {{"model.a", DType::bf16, {1}, kOne}});
  for (const char* name :
       {"config.json", "tokenizer.json", "tokenizer.model", "chat_template.jinja", "merges.txt", "README.md",
        "LICENSE", "LICENSE.pdf", "modeling_x.py", ".gitattributes", ".hidden.json", "pytorch_model.bin",
        "optimizer.pt", "x.gguf", "pytorch_model.bin.index.json", "training.log", "adapter_config.json"}) {
    test::write_all(folder / name, "x");
  }
  fs::create_directory(folder / "onnx.json");
  const HfFolder model(folder.path());
  EXPECT_EQ(
      model.other_files(),
      (std::vector<std::string>{"LICENSE", "LICENSE.pdf", "README.md", "chat_template.jinja", "config.json",
                                "merges.txt", "modeling_x.py", "tokenizer.json", "tokenizer.model"}));
  EXPECT_EQ(model.size_bytes(), fs::file_size(folder / "model.safetensors") + 9);
}

// A Hugging Face cache: the folder holds links to files named by their hash.
TEST(HfFolder, ReadsACacheFolder) {
  const TemporaryFolder cache;
  const fs::path snapshot = cache / "models--x/snapshots/abc";
  fs::create_directories(snapshot);
  fs::create_directories(cache / "models--x/blobs");
  write_safetensors(cache / "models--x/blobs/1234", {{"model.a", DType::bf16, {1}, kOne}});
  test::write_all(cache / "models--x/blobs/5678", "{}");
  fs::create_symlink("../../blobs/1234", snapshot / "model.safetensors");
  fs::create_symlink("../../blobs/5678", snapshot / "config.json");
  const HfFolder model(snapshot);
  EXPECT_EQ(model.other_files(), std::vector<std::string>{"config.json"});
}

TEST(HfFolder, RefusesLinksThatLeadElsewhere) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "m");
  write_safetensors(folder / "m/model.safetensors", {{"model.a", DType::bf16, {1}, kOne}});
  test::write_all(folder / "secret", "s");
  fs::create_symlink(folder / "secret", folder / "m/README.md");
  expect_error(ErrorKind::data, {"README.md", "symbolic link"}, [&] { HfFolder(folder / "m"); });
}

}  // namespace
}  // namespace sluice
