#include "apps/finetune/model/decoder_spec.h"

#include <algorithm>

namespace sluice::finetune {
namespace {

class SpecBuilder {
 public:
  SpecBuilder(const ModelConfig& config, const FreezeRule& freeze) : config_(config), freeze_(freeze) {}

  DecoderSpec build() {
    spec_.tied = config_.tied_embeddings;
    spec_.embedding = tensor("model.embed_tokens.weight", config_.vocab_size, config_.hidden_size);
    spec_.embedding_pieces = cut(spec_.embedding, "embedding", spec_.tied);
    for (int64_t layer = 0; layer < config_.layer_count; ++layer) spec_.layers.push_back(add_layer(layer));
    const TensorId norm = tensor("model.norm.weight", 1, config_.hidden_size);
    spec_.final_norm = block({.name = "final norm", .parts = {{norm, 0, 1}}, .linears = {}});
    if (spec_.tied) {
      spec_.head_pieces = spec_.embedding_pieces;
    } else {
      spec_.head_pieces =
          cut(tensor("lm_head.weight", config_.vocab_size, config_.hidden_size), "head", true);
    }
    return std::move(spec_);
  }

 private:
  TensorId tensor(std::string name, int64_t rows, int64_t cols) {
    const bool frozen = std::ranges::count(freeze_.tensor_names, name) > 0;
    spec_.model.tensors.push_back({.name = std::move(name),
                                   .rows = rows,
                                   .cols = cols,
                                   .storage_dtype = freeze_.frozen_dtype,
                                   .trainable = !frozen,
                                   .group = rows == 1 ? kNotDecayedGroup : kDecayedGroup});
    return TensorId{static_cast<int32_t>(spec_.model.tensors.size() - 1)};
  }

  BlockId block(BlockSpec spec) {
    spec_.model.blocks.push_back(std::move(spec));
    return BlockId{static_cast<int32_t>(spec_.model.blocks.size() - 1)};
  }

  std::vector<BlockId> cut(TensorId id, const std::string& name, bool used_by_matmul) {
    std::vector<BlockId> pieces;
    const int64_t rows = spec_.model.tensor(id).rows;
    for (int64_t begin = 0; begin < rows; begin += kVocabularyPieceRows) {
      BlockSpec piece{.name = name + " rows from " + std::to_string(begin),
                      .parts = {{id, begin, std::min(begin + kVocabularyPieceRows, rows)}},
                      .linears = {}};
      if (used_by_matmul) piece.linears = {LinearUse{{0}}};
      pieces.push_back(block(std::move(piece)));
    }
    return pieces;
  }

  BlockId add_layer(int64_t layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    const int64_t hidden = config_.hidden_size;
    const int64_t inner = config_.intermediate_size;
    const int64_t query = config_.head_count * config_.head_dim;
    const int64_t key = config_.kv_head_count * config_.head_dim;
    const std::vector<TensorId> ids{
        tensor(prefix + "input_layernorm.weight", 1, hidden),
        tensor(prefix + "self_attn.q_proj.weight", query, hidden),
        tensor(prefix + "self_attn.k_proj.weight", key, hidden),
        tensor(prefix + "self_attn.v_proj.weight", key, hidden),
        tensor(prefix + "self_attn.o_proj.weight", hidden, query),
        tensor(prefix + "post_attention_layernorm.weight", 1, hidden),
        tensor(prefix + "mlp.gate_proj.weight", inner, hidden),
        tensor(prefix + "mlp.up_proj.weight", inner, hidden),
        tensor(prefix + "mlp.down_proj.weight", hidden, inner),
    };
    BlockSpec spec{.name = "layer " + std::to_string(layer), .parts = {}, .linears = {}};
    for (const TensorId id : ids) spec.parts.push_back({id, 0, spec_.model.tensor(id).rows});
    spec.linears = {LinearUse{{layer_part::q, layer_part::k, layer_part::v}}, LinearUse{{layer_part::o}},
                    LinearUse{{layer_part::gate, layer_part::up}}, LinearUse{{layer_part::down}}};
    return block(std::move(spec));
  }

  const ModelConfig& config_;
  const FreezeRule& freeze_;
  DecoderSpec spec_;
};

constexpr LayoutSet kForward{.forward = true, .backward = false};
constexpr LayoutSet kBackward{.forward = false, .backward = true};
constexpr LayoutSet kBoth{.forward = true, .backward = true};

}  // namespace

DecoderSpec make_decoder_spec(const ModelConfig& config, const FreezeRule& freeze,
                              cpu_optim::StateFormat state_format) {
  DecoderSpec spec = SpecBuilder(config, freeze).build();
  spec.model.state_format = state_format;
  return spec;
}

std::vector<Access> training_accesses(const DecoderSpec& spec, int micro_batch_count, HeadSchedule head) {
  const MicroBatchRange all{0, micro_batch_count};
  std::vector<Access> list;
  for (int layer = 0; layer < static_cast<int>(spec.layers.size()); ++layer) {
    list.push_back({spec.layers[static_cast<size_t>(layer)], Phase::forward, kForward, all, layer});
  }
  list.push_back({spec.final_norm, Phase::turnaround, {}, all});
  if (head == HeadSchedule::twice) {
    for (const BlockId piece : spec.head_pieces) list.push_back({piece, Phase::turnaround, kForward, all});
  }
  for (const BlockId piece : spec.head_pieces) list.push_back({piece, Phase::turnaround, kBoth, all});
  list.push_back({spec.final_norm, Phase::turnaround, {}, all});
  for (int layer = static_cast<int>(spec.layers.size()) - 1; layer >= 0; --layer) {
    list.push_back({spec.layers[static_cast<size_t>(layer)], Phase::backward, kBackward, all, layer});
  }
  return list;
}

std::vector<Access> forward_accesses(const DecoderSpec& spec, int micro_batch_count) {
  const MicroBatchRange all{0, micro_batch_count};
  std::vector<Access> list;
  for (const BlockId layer : spec.layers) list.push_back({layer, Phase::forward, kForward, all});
  list.push_back({spec.final_norm, Phase::turnaround, {}, all});
  for (const BlockId piece : spec.head_pieces) list.push_back({piece, Phase::turnaround, kForward, all});
  return list;
}

std::vector<BlockId> update_order(const DecoderSpec& spec) {
  std::vector<BlockId> order = spec.embedding_pieces;
  order.insert(order.end(), spec.layers.begin(), spec.layers.end());
  order.push_back(spec.final_norm);
  if (!spec.tied) order.insert(order.end(), spec.head_pieces.begin(), spec.head_pieces.end());
  return order;
}

}  // namespace sluice::finetune
