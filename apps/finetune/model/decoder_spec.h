#pragma once

#include <vector>

#include "apps/finetune/model/config.h"
#include "engine/api/engine.h"

namespace sluice::finetune {

// Parameter groups of the optimizer: norms and biases are not decayed.
inline constexpr int kDecayedGroup = 0;
inline constexpr int kNotDecayedGroup = 1;

// A decoder as the engine sees it: tensors by their Hugging Face names, and blocks. The embedding and the
// head are cut into pieces of 8192 rows; tied, they are the same blocks.
struct DecoderSpec {
  ModelSpec model;
  TensorId embedding;
  std::vector<BlockId> embedding_pieces;
  std::vector<BlockId> layers;
  BlockId final_norm;
  std::vector<BlockId> head_pieces;
  bool tied = false;
};

// Parts and matmul weights of a layer's block.
namespace layer_part {
enum : int { input_norm, q, k, v, o, post_norm, gate, up, down };
}
namespace layer_linear {
enum : int { qkv, o, gate_up, down };
}

// `is_frozen` by tensor name: such a tensor has no state and no gradient, and is stored as `frozen_dtype`.
struct FreezeRule {
  std::vector<std::string> tensor_names;
  DType frozen_dtype = DType::bf16;
};
DecoderSpec make_decoder_spec(const ModelConfig& config, const FreezeRule& freeze = {},
                              cpu_optim::StateFormat state_format = cpu_optim::StateFormat::split);

// How a training step goes through the head. Both give the same bits.
enum class HeadSchedule {
  // Piece by piece for the log-sum-exp, and again for the gradients: one piece's weights and logits at a
  // time.
  twice,
  // All pieces at a time, the logits of one chunk of rows kept between loss and gradients: a quarter less
  // work.
  once,
};

// One lease after another of a layer-major training step: layers forward, final norm, head pieces (twice or
// once), final norm, layers backward.
std::vector<Access> training_accesses(const DecoderSpec& spec, int micro_batch_count, HeadSchedule head);
// Layers, final norm, head pieces: eval and generation.
std::vector<Access> forward_accesses(const DecoderSpec& spec, int micro_batch_count);
// Update order: what the next forward needs first comes first.
std::vector<BlockId> update_order(const DecoderSpec& spec);

}  // namespace sluice::finetune
