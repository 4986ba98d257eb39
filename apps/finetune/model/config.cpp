#include "apps/finetune/model/config.h"

#include <array>
#include <cmath>

#include "apps/finetune/model/json_object.h"
#include "engine/base/error.h"
#include "io/file.h"

namespace sluice {
namespace {

constexpr uint64_t kLargestConfig = uint64_t{16} << 20;
// Products of two such sizes, and of a count of bytes, stay far below 2^63.
constexpr int64_t kLargestSize = int64_t{1} << 24;
constexpr int64_t kMostLayers = 4096;

// What one family does differently from another: its names, and what an absent key means.
struct FamilyTraits {
  ModelFamily family;
  std::string_view model_type;
  std::string_view architecture;
  float default_rms_norm_eps;
  double default_rope_theta;
  bool default_tied_embeddings;
  std::string_view activation;  // the only one that is supported
};

constexpr std::array<FamilyTraits, 1> kFamilies = {{
    {ModelFamily::llama, "llama", "LlamaForCausalLM", 1e-6F, 10000.0, false, "silu"},
}};

std::string supported_types() {
  std::string names;
  for (const FamilyTraits& traits : kFamilies)
    names += (names.empty() ? "" : ", ") + std::string(traits.model_type);
  return names;
}

const FamilyTraits& find_family(const JsonObject& json) {
  const std::optional<std::string> type = json.text("model_type");
  if (!type) json.refuse("model_type", "is missing");
  for (const FamilyTraits& traits : kFamilies) {
    if (traits.model_type != *type) continue;
    const std::vector<std::string> architectures = json.texts("architectures");
    for (const std::string& name : architectures) {
      // LlamaModel: the same weights saved without a head, which only tied embeddings can do without.
      if (name != traits.architecture && name != "LlamaModel") {
        json.refuse("architectures", "names " + name + ", which is not supported; " +
                                         std::string(traits.architecture) + " is");
      }
    }
    return traits;
  }
  json.refuse("model_type",
              "is " + *type + ", which is not supported yet; supported are: " + supported_types());
}

int64_t in_range(const JsonObject& json, std::string_view key, int64_t value, int64_t largest) {
  if (value < 1 || value > largest) {
    json.refuse(key,
                "is " + std::to_string(value) + ", and must lie between 1 and " + std::to_string(largest));
  }
  return value;
}

int64_t size_of(const JsonObject& json, std::string_view key) {
  return in_range(json, key, json.required_integer(key), kLargestSize);
}

double positive(const JsonObject& json, std::string_view key, std::optional<double> value) {
  if (!value) json.refuse(key, "is missing");
  if (!(*value > 0) || !std::isfinite(*value))
    json.refuse(key, "is " + std::to_string(*value) + " and not positive");
  return *value;
}

void refuse_unless_false(const JsonObject& json, std::string_view key) {
  if (json.boolean(key).value_or(false)) json.refuse(key, "is true, which is not supported yet");
}

void refuse_unsupported(const JsonObject& json, const FamilyTraits& traits) {
  refuse_unless_false(json, "attention_bias");
  refuse_unless_false(json, "mlp_bias");
  if (json.has("quantization_config")) {
    json.refuse("quantization_config",
                "says that the weights are quantised, which is not supported; take the "
                "model's bf16, fp16 or fp32 weights");
  }
  if (json.number("attention_dropout").value_or(0) != 0) {
    json.refuse("attention_dropout", "is not 0, which is not supported");
  }
  const std::string activation = json.text("hidden_act").value_or(std::string(traits.activation));
  if (activation != traits.activation)
    json.refuse("hidden_act", "is " + activation + ", which is not supported yet");
}

// `json` holds rope_type and its parameters: rope_parameters of transformers 5, or rope_scaling of 4.
void read_rope_scaling(const JsonObject& json, RopeConfig& rope) {
  const std::string_view key = json.has("rope_type") ? "rope_type" : "type";
  const std::string type = json.text(key).value_or("default");
  if (json.number("partial_rotary_factor").value_or(1) != 1) {
    json.refuse("partial_rotary_factor", "is not 1, which is not supported yet");
  }
  if (type == "default") return;
  if (type != "llama3")
    json.refuse(key, "is " + type + ", which is not supported yet; default and llama3 are");
  rope.scaling = RopeScaling::llama3;
  rope.factor = positive(json, "factor", json.number("factor"));
  rope.low_freq_factor = positive(json, "low_freq_factor", json.number("low_freq_factor"));
  rope.high_freq_factor = positive(json, "high_freq_factor", json.number("high_freq_factor"));
  rope.original_max_position_embeddings = size_of(json, "original_max_position_embeddings");
  if (rope.factor < 1) json.refuse("factor", "is below 1");
  if (rope.low_freq_factor >= rope.high_freq_factor)
    json.refuse("low_freq_factor", "is not below high_freq_factor");
}

RopeConfig read_rope(const JsonObject& json, const FamilyTraits& traits) {
  RopeConfig rope;
  rope.theta = positive(json, "rope_theta", json.number("rope_theta").value_or(traits.default_rope_theta));
  if (const std::optional<JsonObject> parameters = json.object("rope_parameters")) {
    rope.theta = positive(*parameters, "rope_theta", parameters->number("rope_theta").value_or(rope.theta));
    read_rope_scaling(*parameters, rope);
  } else if (const std::optional<JsonObject> scaling = json.object("rope_scaling")) {
    read_rope_scaling(*scaling, rope);
  }
  if (json.number("partial_rotary_factor").value_or(1) != 1) {
    json.refuse("partial_rotary_factor", "is not 1, which is not supported yet");
  }
  return rope;
}

void read_heads(const JsonObject& json, ModelConfig& config) {
  config.head_count = size_of(json, "num_attention_heads");
  config.kv_head_count = json.integer("num_key_value_heads").value_or(config.head_count);
  in_range(json, "num_key_value_heads", config.kv_head_count, config.head_count);
  if (config.head_count % config.kv_head_count != 0) {
    json.refuse("num_key_value_heads", "is " + std::to_string(config.kv_head_count) +
                                           " and does not divide the " + std::to_string(config.head_count) +
                                           " attention heads");
  }
  if (const std::optional<int64_t> head_dim = json.integer("head_dim")) {
    config.head_dim = in_range(json, "head_dim", *head_dim, kLargestSize);
  } else {
    if (config.hidden_size % config.head_count != 0) {
      json.refuse("hidden_size", "is " + std::to_string(config.hidden_size) + ", no multiple of the " +
                                     std::to_string(config.head_count) +
                                     " attention heads, and head_dim is absent");
    }
    config.head_dim = config.hidden_size / config.head_count;
  }
  if (config.head_dim % 2 != 0) {
    json.refuse("head_dim", "is " + std::to_string(config.head_dim) +
                                ": rotary embeddings turn pairs, so it must be even");
  }
  in_range(json, "num_attention_heads x head_dim", config.head_count * config.head_dim, kLargestSize);
}

void check_token(const JsonObject& json, std::string_view key, int64_t token, int64_t vocab_size) {
  if (token >= 0 && token < vocab_size) return;
  json.refuse(
      key, "names token " + std::to_string(token) + ", but the vocabulary has " + std::to_string(vocab_size));
}

void read_tokens(const JsonObject& json, ModelConfig& config) {
  for (const int64_t token : json.integers("bos_token_id")) {
    check_token(json, "bos_token_id", token, config.vocab_size);
    if (!config.bos_token_id) config.bos_token_id = token;
  }
  config.eos_token_ids = json.integers("eos_token_id");
  for (const int64_t token : config.eos_token_ids)
    check_token(json, "eos_token_id", token, config.vocab_size);
}

std::optional<DType> read_dtype(const JsonObject& json) {
  const std::string_view key = json.has("dtype") ? "dtype" : "torch_dtype";
  std::optional<std::string> name = json.text(key);
  if (!name || *name == "auto") return std::nullopt;
  if (name->starts_with("torch.")) name->erase(0, 6);
  if (*name == "bfloat16") return DType::bf16;
  if (*name == "float16") return DType::f16;
  if (*name == "float32") return DType::f32;
  json.refuse(key, "is " + *name + ", which is not supported; bfloat16, float16 and float32 are");
}

}  // namespace

ModelConfig parse_model_config(std::string_view text, const std::filesystem::path& file) {
  const JsonObject json = JsonObject::parse(text, file);
  const FamilyTraits& traits = find_family(json);
  refuse_unsupported(json, traits);
  ModelConfig config;
  config.family = traits.family;
  config.hidden_size = size_of(json, "hidden_size");
  config.intermediate_size = size_of(json, "intermediate_size");
  config.layer_count =
      in_range(json, "num_hidden_layers", json.required_integer("num_hidden_layers"), kMostLayers);
  config.vocab_size = size_of(json, "vocab_size");
  config.max_position_embeddings =
      in_range(json, "max_position_embeddings", json.integer("max_position_embeddings").value_or(2048),
               int64_t{1} << 40);
  config.rms_norm_eps = static_cast<float>(positive(
      json, "rms_norm_eps", json.number("rms_norm_eps").value_or(double{traits.default_rms_norm_eps})));
  config.rope = read_rope(json, traits);
  config.tied_embeddings = json.boolean("tie_word_embeddings").value_or(traits.default_tied_embeddings);
  config.dtype = read_dtype(json);
  read_heads(json, config);
  read_tokens(json, config);
  return config;
}

ModelConfig read_model_config(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "config.json";
  return parse_model_config(read_text_file(file, kLargestConfig), file);
}

std::vector<int64_t> generation_end_tokens(const std::filesystem::path& folder, const ModelConfig& config) {
  const std::filesystem::path file = folder / "generation_config.json";
  if (!std::filesystem::exists(file)) return config.eos_token_ids;
  const JsonObject json = JsonObject::parse(read_text_file(file, kLargestConfig), file);
  const std::vector<int64_t> tokens = json.integers("eos_token_id");
  for (const int64_t token : tokens) check_token(json, "eos_token_id", token, config.vocab_size);
  return tokens.empty() ? config.eos_token_ids : tokens;
}

}  // namespace sluice
