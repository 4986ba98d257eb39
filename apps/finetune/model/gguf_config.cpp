#include "apps/finetune/model/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "engine/base/error.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

// What all published Llama 3.x models have; the factor (8 or 32) is read off the tensor.
constexpr double kLowFreqFactor = 1.0;
constexpr double kHighFreqFactor = 4.0;
constexpr double kOriginalContext = 8192.0;

// The divisor of frequency i under llama3 scaling (transformers, `_compute_llama3_parameters`).
double llama3_divisor(double factor, double theta, int64_t index, int64_t head_dim) {
  const double frequency = std::pow(theta, -2.0 * static_cast<double>(index) / static_cast<double>(head_dim));
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < kOriginalContext / kHighFreqFactor) return 1.0;
  if (wavelength > kOriginalContext / kLowFreqFactor) return factor;
  const double smooth = (kOriginalContext / wavelength - kLowFreqFactor) / (kHighFreqFactor - kLowFreqFactor);
  return 1.0 / ((1.0 - smooth) / factor + smooth);
}

// rope_scaling from the tensor of factors, or null where there is none.
Json rope_scaling(const GgufFile& file, const GgufMetadata& metadata, double theta, int64_t head_dim) {
  const std::string type = metadata.text("llama.rope.scaling.type").value_or("none");
  const double linear = metadata.number("llama.rope.scaling.factor")
                            .value_or(metadata.number("llama.rope.scale_linear").value_or(1.0));
  if (type != "none" && !(type == "linear" && linear == 1.0)) {
    metadata.refuse("llama.rope.scaling.type", "is " + type + ", which is not supported yet");
  }
  const GgufTensor* tensor = file.find(kRopeFactorsName);
  if (tensor == nullptr) return nullptr;
  if (tensor->shape != std::vector<int64_t>{head_dim / 2}) {
    metadata.refuse(kRopeFactorsName,
                    "has not the " + std::to_string(head_dim / 2) + " elements of half a head");
  }
  std::vector<float> factors(static_cast<size_t>(head_dim / 2));
  file.dequantize(*tensor, 0, 1, factors.data());
  const double factor = *std::max_element(factors.begin(), factors.end());
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    const double expected = llama3_divisor(factor, theta, i, head_dim);
    // The converter computes in fp32: a few roundings of 2^-24 each, enlarged by the subtraction in `smooth`.
    if (std::abs(factors[static_cast<size_t>(i)] - expected) <= 1e-4 * expected) continue;
    metadata.refuse(kRopeFactorsName,
                    "holds factors that are not those of llama3 rope scaling with low_freq_factor 1, "
                    "high_freq_factor 4 and 8192 original positions, the only ones supported");
  }
  return {{"rope_type", "llama3"},
          {"factor", factor},
          {"low_freq_factor", kLowFreqFactor},
          {"high_freq_factor", kHighFreqFactor},
          {"original_max_position_embeddings", static_cast<int64_t>(kOriginalContext)}};
}

Json token(const GgufMetadata& metadata, std::string_view key) {
  const std::optional<int64_t> id = metadata.integer(key);
  return id ? Json(*id) : Json(nullptr);
}

// JSON has no word for infinities and NaN; they would be written as null and read as the default.
void refuse_unless_finite(const GgufMetadata& metadata, std::string_view key, double value) {
  if (!std::isfinite(value)) metadata.refuse(key, "is not a finite number");
}

int64_t vocabulary_size(const GgufFile& file, const GgufMetadata& metadata) {
  const GgufTensor* embedding = file.find("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2) {
    metadata.refuse("token_embd.weight", "is missing, or no matrix: this file holds no model");
  }
  const auto tokens = static_cast<int64_t>(metadata.required_texts("tokenizer.ggml.tokens").size());
  if (tokens > embedding->shape[0]) {
    metadata.refuse("tokenizer.ggml.tokens", "has " + std::to_string(tokens) +
                                                 " tokens, but the embedding only " +
                                                 std::to_string(embedding->shape[0]) + " rows");
  }
  return embedding->shape[0];
}

int64_t read_head_dim(const GgufMetadata& metadata, int64_t hidden, int64_t heads) {
  if (heads < 1 || hidden < 1)
    metadata.refuse("llama.attention.head_count", "or llama.embedding_length is not positive");
  const int64_t head_dim = metadata.integer("llama.attention.key_length").value_or(hidden / heads);
  if (head_dim < 2 || head_dim > hidden || head_dim % 2 != 0) {
    metadata.refuse("llama.attention.key_length",
                    "makes heads of " + std::to_string(head_dim) +
                        ", which must be even and not above llama.embedding_length");
  }
  if (metadata.integer("llama.attention.value_length").value_or(head_dim) != head_dim) {
    metadata.refuse("llama.attention.value_length", "differs from key_length, which is not supported");
  }
  if (metadata.integer("llama.rope.dimension_count").value_or(head_dim) != head_dim) {
    metadata.refuse("llama.rope.dimension_count", "is not the size of a head, which is not supported yet");
  }
  return head_dim;
}

}  // namespace

std::string make_config_json(const GgufFile& file) {
  const GgufMetadata metadata(file);
  const std::string architecture = metadata.required_text("general.architecture");
  if (architecture != "llama") {
    metadata.refuse("general.architecture", "is " + architecture + ", which is not supported yet; llama is");
  }
  if (metadata.integer("llama.expert_count").value_or(0) != 0) {
    metadata.refuse("llama.expert_count", "is not 0: mixtures of experts are not supported yet");
  }
  const int64_t hidden = metadata.required_integer("llama.embedding_length");
  const int64_t heads = metadata.required_integer("llama.attention.head_count");
  const int64_t head_dim = read_head_dim(metadata, hidden, heads);
  const double theta = metadata.number("llama.rope.freq_base").value_or(10000.0);
  const std::optional<double> eps = metadata.number("llama.attention.layer_norm_rms_epsilon");
  if (!eps) metadata.refuse("llama.attention.layer_norm_rms_epsilon", "is missing");
  refuse_unless_finite(metadata, "llama.rope.freq_base", theta);
  refuse_unless_finite(metadata, "llama.attention.layer_norm_rms_epsilon", *eps);
  const Json config = {
      {"architectures", Json::array({"LlamaForCausalLM"})},
      {"attention_bias", false},
      {"attention_dropout", 0.0},
      {"bos_token_id", token(metadata, "tokenizer.ggml.bos_token_id")},
      {"eos_token_id", token(metadata, "tokenizer.ggml.eos_token_id")},
      {"head_dim", head_dim},
      {"hidden_act", "silu"},
      {"hidden_size", hidden},
      {"initializer_range", 0.02},
      {"intermediate_size", metadata.required_integer("llama.feed_forward_length")},
      {"max_position_embeddings", metadata.required_integer("llama.context_length")},
      {"mlp_bias", false},
      {"model_type", "llama"},
      {"num_attention_heads", heads},
      {"num_hidden_layers", metadata.required_integer("llama.block_count")},
      {"num_key_value_heads", metadata.integer("llama.attention.head_count_kv").value_or(heads)},
      // Padding stays out, it stands in the tokenizer's files: torch would drop the lookup's gradient of that
      // row (padding_idx), and often the padding token is the end token, which has to be learned.
      {"pad_token_id", nullptr},
      {"pretraining_tp", 1},
      {"rms_norm_eps", *eps},
      {"rope_scaling", rope_scaling(file, metadata, theta, head_dim)},
      {"rope_theta", theta},
      {"tie_word_embeddings", file.find("output.weight") == nullptr},
      {"torch_dtype", "bfloat16"},
      {"use_cache", true},
      {"vocab_size", vocabulary_size(file, metadata)},
  };
  return config.dump(2) + "\n";
}

std::string make_generation_config_json(const GgufMetadata& metadata) {
  Json config = {{"_from_model_config", true}};
  for (const auto& [name, key] : {std::pair{"bos_token_id", "tokenizer.ggml.bos_token_id"},
                                  std::pair{"eos_token_id", "tokenizer.ggml.eos_token_id"},
                                  std::pair{"pad_token_id", "tokenizer.ggml.padding_token_id"}}) {
    if (const std::optional<int64_t> id = metadata.integer(key)) config[name] = *id;
  }
  return config.dump(2) + "\n";
}

}  // namespace sluice
