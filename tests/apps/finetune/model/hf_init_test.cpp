#include "apps/finetune/model/hf_init.h"

#include <cmath>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "apps/common/pool.h"
#include "apps/finetune/model/decoder_spec.h"
#include "apps/finetune/model/hf_folder.h"
#include "apps/finetune/run_setup.h"
#include "tests/support/expect_error.h"
#include "tests/support/source_tree.h"
#include "tests/support/temporary_folder.h"

namespace sluice::finetune {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const fs::path kConfig = test::source_folder() / "tests/data/models/llama3/config.json";  // untied, bf16

class InitTest : public ::testing::Test {
 protected:
  HfInitReport init(const fs::path& config, const fs::path& output, const HfInitOptions& options = {}) {
    return init_hf_folder(serial_, config, output, options);
  }
  static std::vector<float> values(const HfFolder& folder, const ModelTensor& tensor) {
    std::vector<float> found(static_cast<size_t>(tensor.row_count() * tensor.row_length()));
    folder.read_rows(tensor, 0, tensor.row_count(), found.data());
    return found;
  }
  // A config in the temporary folder.
  fs::path edited_config(const std::function<void(json&)>& edit) {
    json config = json::parse(test::read_all(kConfig));
    edit(config);
    test::write_all(folder_ / "config.json", config.dump());
    return folder_ / "config.json";
  }

  const test::TemporaryFolder folder_;
  const fs::path output_ = folder_ / "out";
  SerialExecutor serial_;
};

TEST_F(InitTest, MakesAWholeModel) {
  const HfInitReport report = init(kConfig, output_, {.seed = 3});
  EXPECT_EQ(test::list_all(output_),
            (std::vector<std::string>{"config.json", "generation_config.json", "model.safetensors"}));
  EXPECT_EQ(test::read_all(output_ / "config.json"), test::read_all(kConfig));
  const OpenModel model = open_model(output_);  // every tensor in its shape
  int64_t parameters = 0;
  double square = 0, count = 0;
  for (const ModelTensor& tensor : model.folder.tensors()) {
    EXPECT_EQ(tensor.dtype, DType::bf16);
    parameters += tensor.row_count() * tensor.row_length();
    const std::vector<float> found = values(model.folder, tensor);
    if (tensor.name.ends_with("norm.weight")) {
      EXPECT_EQ(tensor.shape.size(), 1u) << tensor.name;
      EXPECT_EQ(found, std::vector<float>(found.size(), 1.0F)) << tensor.name;
    } else {
      for (const float value : found) square += double{value} * value, ++count;
    }
  }
  EXPECT_EQ(report.parameters, parameters);
  EXPECT_EQ(report.size_bytes, static_cast<uint64_t>(parameters) * 2);
  EXPECT_NEAR(std::sqrt(square / count), 0.02, 0.02 * 6 / std::sqrt(2 * count));
}

TEST_F(InitTest, WeightsAreAFunctionOfSeedTensorAndPlace) {
  init(kConfig, output_, {.seed = 3});
  init(kConfig.parent_path(), folder_ / "shards", {.seed = 3, .max_shard_size = 40000});
  const std::unique_ptr<Executor> pool = make_pool(3);
  init_hf_folder(*pool, kConfig, folder_ / "again", {.seed = 3});
  init(kConfig, folder_ / "other", {.seed = 4});
  EXPECT_TRUE(test::read_all(output_ / "model.safetensors") ==
              test::read_all(folder_ / "again/model.safetensors"));
  const HfFolder one(output_), shards(folder_ / "shards"), other(folder_ / "other");
  std::vector<float> before;
  for (const ModelTensor& tensor : one.tensors()) {
    const std::vector<float> found = values(one, tensor);
    EXPECT_EQ(found, values(shards, *shards.find(tensor.name))) << tensor.name;
    if (tensor.name.ends_with("norm.weight")) continue;
    EXPECT_NE(found, values(other, *other.find(tensor.name))) << tensor.name;
    EXPECT_NE(found, before) << tensor.name;
    before = found;
  }
}

// The files of fp32 hold what those of bf16 round.
TEST_F(InitTest, DTypeChangesNothingElse) {
  init(kConfig, output_);
  init(kConfig, folder_ / "fp32", {.dtype = DType::f32});
  const json config = json::parse(test::read_all(folder_ / "fp32/config.json"));
  EXPECT_EQ(config["dtype"], "float32");
  const HfFolder narrow(output_), wide(folder_ / "fp32");
  for (const ModelTensor& tensor : narrow.tensors()) {
    const ModelTensor& same = *wide.find(tensor.name);
    EXPECT_EQ(same.dtype, DType::f32);
    const std::vector<float> a = values(narrow, tensor), b = values(wide, same);
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], std::abs(b[i]) / 256) << tensor.name << i;
  }
}

TEST_F(InitTest, CutsFilesAsTransformersDoes) {
  const HfInitReport report = init(kConfig, output_, {.max_shard_size = 40000});
  const json index = json::parse(test::read_all(output_ / "model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], report.size_bytes);
  EXPECT_EQ(index["metadata"]["total_parameters"], report.parameters);
  const HfFolder folder(output_);
  EXPECT_EQ(folder.files().size(), report.file_count);
  EXPECT_EQ(index["weight_map"].size(), folder.tensors().size());
  EXPECT_GT(report.file_count, 2u);
  uint64_t before = 0;
  for (const SafetensorsFile& file : folder.files()) {
    uint64_t bytes = 0;
    for (const TensorInfo& tensor : file.tensors()) bytes += tensor.size_bytes;
    EXPECT_TRUE(bytes <= 40000 || file.tensors().size() == 1) << file.path();
    if (before > 0 && bytes <= 40000 && before <= 40000) {
      EXPECT_GT(before + file.tensors()[0].size_bytes, 40000u) << file.path();
    }
    before = bytes;
  }
  init(kConfig, folder_ / "one", {.max_shard_size = report.size_bytes});
  EXPECT_FALSE(fs::exists(folder_ / "one/model.safetensors.index.json"));
}

TEST_F(InitTest, TakesTheDeviationOfTheConfig) {
  init(edited_config([](json& config) { config["initializer_range"] = 0; }), output_);
  const HfFolder folder(output_);
  const std::vector<float> zeros = values(folder, *folder.find("model.layers.0.mlp.up_proj.weight"));
  EXPECT_EQ(zeros, std::vector<float>(zeros.size(), 0.0F));
  test::expect_error(ErrorKind::data, {"config.json", "initializer_range"}, [&] {
    init(edited_config([](json& config) { config["initializer_range"] = -1; }), folder_ / "bad");
  });
}

TEST_F(InitTest, BringsTheTokenizerBesideTheConfigAndNothingElse) {
  const fs::path config = edited_config([](json& edited) { edited.erase("dtype"); });
  test::write_all(folder_ / "tokenizer.json", "{}");
  test::write_all(folder_ / "chat_template.jinja", "x");
  test::write_all(folder_ / "thesis.json", "{}");
  EXPECT_EQ(init(config, output_).dtype, DType::bf16);
  EXPECT_EQ(test::list_all(output_), (std::vector<std::string>{"chat_template.jinja", "config.json",
                                                               "model.safetensors", "tokenizer.json"}));
}

TEST_F(InitTest, RefusesWithoutATrace) {
  test::expect_error(ErrorKind::data, {"config.json", "mystery", "not supported"}, [&] {
    init(edited_config([](json& config) { config["model_type"] = "mystery"; }), output_);
  });
  test::expect_error(ErrorKind::data, {"absent.json"}, [&] { init(folder_ / "absent.json", output_); });
  EXPECT_FALSE(fs::exists(output_));
  fs::create_directory(output_);
  test::write_all(output_ / "thesis.tex", "");
  test::expect_error(ErrorKind::usage, {"not an empty folder"}, [&] { init(kConfig, output_); });
  EXPECT_EQ(test::list_all(output_), std::vector<std::string>{"thesis.tex"});
  // More than any disk.
  test::expect_error(ErrorKind::resource, {"not enough disk space"}, [&] {
    init(edited_config([](json& config) {
           config["vocab_size"] = 1 << 24;
           config["hidden_size"] = 1 << 22;
           config["head_dim"] = 16;
         }),
         folder_ / "huge");
  });
  EXPECT_FALSE(fs::exists(folder_ / "huge"));
}

}  // namespace
}  // namespace sluice::finetune
