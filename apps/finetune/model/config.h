#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/dtype.h"

namespace sluice {

// Which row of the table in config.cpp describes the model. Families differ by such rows and not by code.
enum class ModelFamily { llama };

// How the rotary frequencies inv_freq[i] = theta^(-2i / head_dim) are stretched.
enum class RopeScaling {
  none,
  llama3,  // by wavelength: kept below original/high_freq_factor, divided above original/low_freq_factor,
           // else between
};

struct RopeConfig {
  double theta = 10000.0;
  RopeScaling scaling = RopeScaling::none;
  // The rest is for llama3 only.
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_position_embeddings = 8192;
};

// A decoder's shape and constants, as config.json of a Hugging Face folder gives them. A value. What reads it
// may rely on: all counts positive, head_count a multiple of kv_head_count, head_dim even, token ids inside
// the vocabulary.
struct ModelConfig {
  ModelFamily family = ModelFamily::llama;
  int64_t hidden_size = 0;        // C
  int64_t intermediate_size = 0;  // rows of gate and up
  int64_t layer_count = 0;
  int64_t head_count = 0;
  int64_t kv_head_count = 0;
  int64_t head_dim = 0;  // head_count * head_dim need not be hidden_size
  int64_t vocab_size = 0;
  int64_t max_position_embeddings = 0;
  float rms_norm_eps = 0;
  RopeConfig rope;
  bool tied_embeddings =
      false;  // the head is the embedding; there is no lm_head.weight, or it is to be ignored
  std::optional<int64_t> bos_token_id;
  std::vector<int64_t> eos_token_ids;  // empty where the file names none
  std::optional<DType> dtype;          // what the file says; the weight files decide
};

// Reads FOLDER/config.json. Both spellings of keys are understood (transformers 4: rope_theta, rope_scaling,
// torch_dtype; 5: rope_parameters, dtype), and null means absent. Throws kind `data`, naming file and key,
// where a key is missing, of the wrong type or out of range, and where the model needs something that is not
// supported.
ModelConfig read_model_config(const std::filesystem::path& folder);
// The same from text; `file` is for messages.
ModelConfig parse_model_config(std::string_view json, const std::filesystem::path& file);

// The tokens that end a generated text: those of generation_config.json where it names any, else the
// config's.
std::vector<int64_t> generation_end_tokens(const std::filesystem::path& folder, const ModelConfig& config);

}  // namespace sluice
