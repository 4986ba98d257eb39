#include <cmath>

#include "apps/finetune/model/config.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/support/source_tree.h"
#include "tests/support/temporary_folder.h"

namespace sluice::test {
namespace {

void check_promises(const ModelConfig& config) {
  for (const int64_t count :
       {config.hidden_size, config.intermediate_size, config.layer_count, config.head_count,
        config.kv_head_count, config.head_dim, config.vocab_size, config.max_position_embeddings})
    promise(count > 0, "counts are positive");
  promise(config.head_count % config.kv_head_count == 0, "heads are a multiple of key and value heads");
  promise(config.head_dim % 2 == 0, "a head's size is even");
  promise(config.head_count * config.head_dim < (int64_t{1} << 31), "sizes can be multiplied");
  promise(config.rms_norm_eps > 0 && std::isfinite(config.rms_norm_eps), "the norm's epsilon is a number");
  promise(config.rope.theta > 0 && std::isfinite(config.rope.theta), "the rotary base is a number");
  if (config.rope.scaling == RopeScaling::llama3) {
    promise(config.rope.factor >= 1 && std::isfinite(config.rope.factor), "the rotary factor is a number");
    promise(config.rope.low_freq_factor < config.rope.high_freq_factor, "the rotary factors are in order");
    promise(config.rope.original_max_position_embeddings > 0, "the old length is positive");
  }
  if (config.bos_token_id)
    promise(0 <= *config.bos_token_id && *config.bos_token_id < config.vocab_size, "bos is a token");
  for (const int64_t token : config.eos_token_ids)
    promise(0 <= token && token < config.vocab_size, "eos is a token");
}

}  // namespace

Verdict check_config(std::string_view bytes) {
  return verdict_of([&] { check_promises(parse_model_config(bytes, "config.json")); });
}

std::vector<std::string> config_seeds() {
  std::vector<std::string> seeds;
  for (const char* model : {"llama3", "llama_tied"})
    seeds.push_back(read_all(source_folder() / "tests" / "data" / "models" / model / "config.json"));
  seeds.push_back(R"({"model_type":"llama","hidden_size":8.0,"intermediate_size":16,"num_hidden_layers":1,)"
                  R"("num_attention_heads":2,"vocab_size":10,"eos_token_id":[1,2],"torch_dtype":"float32",)"
                  R"("rope_scaling":{"type":"default"},"quantization_config":null})");
  return seeds;
}

}  // namespace sluice::test
