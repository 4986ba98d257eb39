#include "apps/finetune/model/config.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/expect_error.h"
#include "tests/support/source_tree.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const fs::path kModels = test::source_folder() / "tests/data/models";

// What Llama-2-7b's file holds, less what nobody reads.
json small_config() {
  return {{"architectures", json::array({"LlamaForCausalLM"})},
          {"model_type", "llama"},
          {"hidden_size", 64},
          {"intermediate_size", 96},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"vocab_size", 100},
          {"max_position_embeddings", 128}};
}

ModelConfig parse(const json& config) {
  return parse_model_config(config.dump(), "DIR/config.json");
}

json with(const std::string& key, const json& value) {
  json config = small_config();
  config[key] = value;
  return config;
}

TEST(ModelConfig, ReadsTheSpellingOfTransformers5) {
  const ModelConfig config = read_model_config(kModels / "llama3");
  EXPECT_EQ(config.family, ModelFamily::llama);
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.intermediate_size, 112);
  EXPECT_EQ(config.layer_count, 2);
  EXPECT_EQ(config.head_count, 4);
  EXPECT_EQ(config.kv_head_count, 2);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.vocab_size, 272);
  EXPECT_EQ(config.max_position_embeddings, 512);
  EXPECT_EQ(config.rms_norm_eps, 1e-5F);
  EXPECT_FALSE(config.tied_embeddings);
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_EQ(config.eos_token_ids, std::vector<int64_t>{2});
  EXPECT_EQ(config.dtype, DType::bf16);
  EXPECT_EQ(config.rope.theta, 500000.0);
  EXPECT_EQ(config.rope.scaling, RopeScaling::llama3);
  EXPECT_EQ(config.rope.factor, 8.0);
  EXPECT_EQ(config.rope.low_freq_factor, 1.0);
  EXPECT_EQ(config.rope.high_freq_factor, 4.0);
  EXPECT_EQ(config.rope.original_max_position_embeddings, 64);
}

TEST(ModelConfig, ReadsTheSpellingOfTransformers4) {
  const ModelConfig config = read_model_config(kModels / "llama_tied");
  EXPECT_EQ(config.kv_head_count, 3);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_TRUE(config.tied_embeddings);
  EXPECT_EQ(config.dtype, DType::f16);
  EXPECT_EQ(config.rope.theta, 25000.0);
  EXPECT_EQ(config.rope.scaling, RopeScaling::none);
}

TEST(ModelConfig, KnowsWhatAnAbsentKeyMeans) {
  json config = small_config();
  for (const bool null : {false, true}) {
    if (null) {
      for (const char* key :
           {"num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta", "rope_scaling",
            "rope_parameters", "tie_word_embeddings", "bos_token_id", "eos_token_id", "dtype", "torch_dtype",
            "attention_bias", "mlp_bias", "quantization_config", "hidden_act"}) {
        config[key] = nullptr;
      }
    }
    const ModelConfig read = parse(config);
    EXPECT_EQ(read.kv_head_count, 4);
    EXPECT_EQ(read.head_dim, 16);
    EXPECT_EQ(read.rms_norm_eps, 1e-6F);
    EXPECT_EQ(read.rope.theta, 10000.0);
    EXPECT_EQ(read.rope.scaling, RopeScaling::none);
    EXPECT_FALSE(read.tied_embeddings);
    EXPECT_EQ(read.bos_token_id, std::nullopt);
    EXPECT_TRUE(read.eos_token_ids.empty());
    EXPECT_EQ(read.dtype, std::nullopt);
  }
}

TEST(ModelConfig, ReadsOtherSpellings) {
  EXPECT_EQ(parse(with("head_dim", 10)).head_dim, 10);  // 4 x 10 is not 64
  EXPECT_EQ(parse(with("eos_token_id", json::array({3, 5}))).eos_token_ids, (std::vector<int64_t>{3, 5}));
  EXPECT_EQ(parse(with("torch_dtype", "torch.bfloat16")).dtype, DType::bf16);
  EXPECT_EQ(parse(with("dtype", "float32")).dtype, DType::f32);
  EXPECT_EQ(parse(with("hidden_size", 64.0)).hidden_size, 64);
  EXPECT_EQ(parse(with("rope_theta", 500000)).rope.theta, 500000.0);
  EXPECT_EQ(parse(with("pretraining_tp", 2)).hidden_size, 64);
  EXPECT_EQ(parse(with("architectures", nullptr)).hidden_size, 64);
  EXPECT_EQ(parse(with("rope_scaling", {{"type", "default"}})).rope.scaling, RopeScaling::none);
  const json llama3 = {{"type", "llama3"},
                       {"factor", 32},
                       {"low_freq_factor", 1},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192}};
  EXPECT_EQ(parse(with("rope_scaling", llama3)).rope.factor, 32.0);
  // rope_parameters wins; a theta beside it counts where it names none.
  json both = with("rope_scaling", {{"type", "yarn"}});
  both["rope_parameters"] = {{"rope_type", "default"}, {"type", "whatever"}};
  both["rope_theta"] = 77.0;
  EXPECT_EQ(parse(both).rope.theta, 77.0);
  both["rope_parameters"]["rope_theta"] = 88.0;
  EXPECT_EQ(parse(both).rope.theta, 88.0);
}

struct Refusal {
  std::string name;
  json config;
  std::string message;
  friend void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.name; }
};

class ModelConfigRefusal : public ::testing::TestWithParam<Refusal> {};

TEST_P(ModelConfigRefusal, NamesFileAndKey) {
  test::expect_error(ErrorKind::data, {"DIR/config.json", GetParam().message},
                     [] { parse(GetParam().config); });
}

json without(const std::string& key) {
  json config = small_config();
  config.erase(key);
  return config;
}

std::vector<Refusal> refusals() {
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 4.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 64}};
  json factor_missing = llama3;
  factor_missing.erase("factor");
  json factor_text = llama3;
  factor_text["factor"] = "8";
  return {
      {"AList", json::array(), "no JSON object"},
      {"NoType", without("model_type"), "model_type is missing"},
      {"Type", with("model_type", "mamba"), "model_type is mamba"},
      {"TypeNumber", with("model_type", 7), "model_type is 7 and not a text"},
      {"Architecture", with("architectures", json::array({"LlamaForSequenceClassification"})),
       "LlamaForSequenceClassification"},
      {"ArchitecturesText", with("architectures", "LlamaForCausalLM"), "architectures"},
      {"AttentionBias", with("attention_bias", true), "attention_bias is true"},
      {"MlpBias", with("mlp_bias", true), "mlp_bias is true"},
      {"BiasText", with("mlp_bias", "no"), "mlp_bias is \"no\""},
      {"Activation", with("hidden_act", "gelu"), "hidden_act is gelu"},
      {"Quantised", with("quantization_config", {{"quant_method", "gptq"}}), "quantization_config"},
      {"Dropout", with("attention_dropout", 0.1), "attention_dropout"},
      {"NoHidden", without("hidden_size"), "hidden_size is missing"},
      {"NoIntermediate", without("intermediate_size"), "intermediate_size is missing"},
      {"NoLayers", without("num_hidden_layers"), "num_hidden_layers is missing"},
      {"NoHeads", without("num_attention_heads"), "num_attention_heads is missing"},
      {"NoVocabulary", without("vocab_size"), "vocab_size is missing"},
      {"HiddenNull", with("hidden_size", nullptr), "hidden_size is missing"},
      {"HiddenText", with("hidden_size", "64"), "hidden_size is \"64\""},
      {"HiddenBool", with("hidden_size", true), "hidden_size is true"},
      {"HiddenFraction", with("hidden_size", 64.5), "hidden_size is 64.5"},
      {"HiddenZero", with("hidden_size", 0), "hidden_size is 0"},
      {"HiddenNegative", with("hidden_size", -64), "hidden_size is -64"},
      {"Hidden2To63", with("hidden_size", uint64_t{1} << 63), "hidden_size is 9223372036854775808"},
      {"HiddenLarge", with("hidden_size", int64_t{1} << 40), "hidden_size is 1099511627776"},
      {"HiddenOdd", with("hidden_size", 66), "hidden_size is 66"},
      {"LayersLarge", with("num_hidden_layers", 100000), "num_hidden_layers is 100000"},
      {"KvHeads", with("num_key_value_heads", 3), "num_key_value_heads is 3"},
      {"KvHeadsMore", with("num_key_value_heads", 8), "num_key_value_heads is 8"},
      {"KvHeadsZero", with("num_key_value_heads", 0), "num_key_value_heads is 0"},
      {"HeadDimOdd", with("head_dim", 15), "head_dim is 15"},
      {"HeadDimZero", with("head_dim", 0), "head_dim is 0"},
      {"EpsZero", with("rms_norm_eps", 0.0), "rms_norm_eps"},
      {"EpsText", with("rms_norm_eps", "1e-5"), "rms_norm_eps is \"1e-5\""},
      {"ThetaNegative", with("rope_theta", -1), "rope_theta"},
      {"RopeText", with("rope_scaling", "llama3"), "rope_scaling"},
      {"RopeLinear", with("rope_scaling", {{"type", "linear"}, {"factor", 2}}),
       "rope_scaling.type is linear"},
      {"RopeYarn", with("rope_parameters", {{"rope_type", "yarn"}}), "rope_parameters.rope_type is yarn"},
      {"RopeDynamic", with("rope_scaling", {{"type", "dynamic"}}), "dynamic"},
      {"RopeLongrope", with("rope_scaling", {{"rope_type", "longrope"}}), "longrope"},
      {"RopeFactors", with("rope_scaling", llama3), "rope_scaling.low_freq_factor"},
      {"RopeFactorMissing", with("rope_scaling", factor_missing), "rope_scaling.factor is missing"},
      {"RopeFactorText", with("rope_scaling", factor_text), "rope_scaling.factor is \"8\""},
      {"RopePartial", with("partial_rotary_factor", 0.5), "partial_rotary_factor"},
      {"TiedNumber", with("tie_word_embeddings", 1), "tie_word_embeddings is 1"},
      {"Dtype", with("dtype", "float8_e4m3fn"), "dtype is float8_e4m3fn"},
      {"EosRange", with("eos_token_id", json::array({1, 100})), "eos_token_id names token 100"},
      {"EosNegative", with("eos_token_id", -1), "eos_token_id names token -1"},
      {"EosText", with("eos_token_id", json::array({"</s>"})), "eos_token_id holds \"</s>\""},
      {"BosRange", with("bos_token_id", 100), "bos_token_id names token 100"},
  };
}

INSTANTIATE_TEST_SUITE_P(All, ModelConfigRefusal, ::testing::ValuesIn(refusals()),
                         [](const auto& test) { return test.param.name; });

TEST(ModelConfig, RefusesWhatIsNestedTooDeep) {
  const std::string deep =
      std::string(300'000, '[') + std::string(300'000, ']');  // printing it overflowed the stack
  test::expect_error(ErrorKind::data, {"config.json", "nested too deep"},
                     [&] { parse_model_config("{\"hidden_size\": " + deep + "}", "config.json"); });
  test::expect_error(ErrorKind::data, {"config.json", "overflow"},
                     [] { parse_model_config(R"({"rms_norm_eps": 1e999})", "config.json"); });
}

TEST(ModelConfig, NamesAFileThatIsMissingOrBroken) {
  const test::TemporaryFolder folder;
  test::expect_error(ErrorKind::data, {"config.json", "No such file"},
                     [&] { read_model_config(folder.path()); });
  test::write_all(folder / "config.json", "{\"a\":");
  test::expect_error(ErrorKind::data, {"config.json", "no valid JSON"},
                     [&] { read_model_config(folder.path()); });
}

TEST(GenerationEndTokens, PrefersTheGenerationConfig) {
  const test::TemporaryFolder folder;
  ModelConfig config = parse(with("eos_token_id", 7));
  EXPECT_EQ(generation_end_tokens(folder.path(), config), std::vector<int64_t>{7});
  test::write_all(folder / "generation_config.json", R"({"bos_token_id": 1})");
  EXPECT_EQ(generation_end_tokens(folder.path(), config), std::vector<int64_t>{7});
  test::write_all(folder / "generation_config.json", R"({"eos_token_id": [8, 9]})");
  EXPECT_EQ(generation_end_tokens(folder.path(), config), (std::vector<int64_t>{8, 9}));
  test::write_all(folder / "generation_config.json", R"({"eos_token_id": 100})");
  test::expect_error(ErrorKind::data, {"generation_config.json", "token 100"},
                     [&] { generation_end_tokens(folder.path(), config); });
}

}  // namespace
}  // namespace sluice
