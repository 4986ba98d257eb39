#pragma once

#include <algorithm>
#include <functional>

#include "apps/finetune/model/config.h"
#include "apps/finetune/model/decoder_spec.h"
#include "apps/finetune/model/scratch.h"
#include "engine/api/engine.h"
#include "gpu/ops/ops.h"

// The decoder's arithmetic as a list of ops: no memory of its own, no order between blocks. T tokens of one
// micro-batch (rows laid one after another, padded), C hidden, H query and G key/value heads of D channels, F
// intermediate.
namespace sluice::finetune {

// Rows of the head's logits that are in memory at a time. Fixed: it enters the sums of weight gradients.
inline constexpr int64_t kHeadRows = 512;

// Where ops go, and memory that lives as long as a call.
struct Workbench {
  std::function<void(gpu::Op)> submit;
  Scratch* scratch = nullptr;
};

// One micro-batch's inputs in device memory.
struct BatchViews {
  gpu::View index;      // (T, 1) int32: row of the fetched embedding rows
  gpu::View positions;  // (T, 1) int32
  gpu::View targets;    // (T, 1) int32, -1: none
  gpu::View weights;    // (T, 1) fp32: loss weight
  gpu::View order;      // (tokens, 1) int32, for EmbeddingBackward
  gpu::View begin;      // (U + 1, 1) int32
  gpu::AttentionSegments segments;
  int64_t tokens() const { return positions.rows; }
};

struct RopeViews {
  gpu::View cos;  // (positions, D / 2) fp32
  gpu::View sin;
};

// What a layer's backward needs besides its input.
struct SavedLayer {
  gpu::View input_rstd;  // (T, 1) fp32
  gpu::View qkv;         // (T, (H + 2G) D), rotated
  gpu::View attention;   // (T, H D)
  gpu::View lse;         // (T, H) fp32
  gpu::View middle;      // (T, C): after attention's residual
  gpu::View post_rstd;   // (T, 1) fp32
  gpu::View gate_up;     // (T, 2F)
};

// Keys and values of earlier positions, of one layer.
struct LayerCache {
  gpu::View keys;    // (rows, G D)
  gpu::View values;  // (rows, G D)
  gpu::View rows;    // (T, 1) int32: where this call's keys and values go
};

class Decoder {
 public:
  Decoder(ModelConfig config, DType compute_dtype) : config_(std::move(config)), dtype_(compute_dtype) {}

  const ModelConfig& config() const { return config_; }
  DType dtype() const { return dtype_; }

  SavedLayer carve_saved(Scratch& memory, int64_t tokens) const;

  // y = layer(x), (T, C); leaves in `saved` what backward needs. y may be x. With a cache, attention sees its
  // rows.
  void forward_layer(const PreparedBlock& weights, const RopeViews& rope, const BatchViews& batch,
                     const gpu::View& x, const gpu::View& y, const SavedLayer& saved, const LayerCache* cache,
                     const Workbench& bench) const;
  // dx: gradient at the layer's output in, at its input out, (T, C). Overwrites parts of `saved`.
  void backward_layer(const PreparedBlock& weights, GradientLease& gradients, int shard,
                      const RopeViews& rope, const BatchViews& batch, const gpu::View& x, const gpu::View& dx,
                      const SavedLayer& saved, const Workbench& bench) const;

  // hidden = final norm of x, (T, C); rstd (T, 1).
  void forward_final_norm(const PreparedBlock& weights, const gpu::View& x, const gpu::View& hidden,
                          const gpu::View& rstd, const Workbench& bench) const;
  void backward_final_norm(const PreparedBlock& weights, GradientLease& gradients, int shard,
                           const gpu::View& x, const gpu::View& rstd, const gpu::View& d_hidden,
                           const gpu::View& dx, const Workbench& bench) const;

  // Running log-sum-exp of a micro-batch's logits, (T, 1) fp32 each.
  struct HeadSums {
    gpu::View max, sum, target_logit;
  };
  struct HeadPiece {
    int64_t begin = 0;  // vocabulary id of its first row
    int64_t rows = 0;
    bool first = false;
  };
  // Rows [begin, end) of a micro-batch: at most kHeadRows, from a multiple of it on.
  struct HeadChunk {
    int64_t begin = 0;
    int64_t end = 0;
  };
  // logits (end - begin, piece) fp32 of one chunk, and their part in the running sums.
  void forward_head_chunk(const PreparedBlock& weights, const HeadPiece& piece, HeadChunk chunk,
                          const BatchViews& batch, const gpu::View& hidden, const HeadSums& sums,
                          const gpu::View& logits, const Workbench& bench) const;
  // Once the sums are whole. logits may be overwritten.
  void backward_head_chunk(const PreparedBlock& weights, GradientLease& gradients, int shard,
                           const HeadPiece& piece, HeadChunk chunk, const BatchViews& batch,
                           const gpu::View& hidden, const HeadSums& sums, float scale,
                           const gpu::View& logits, const gpu::View& d_hidden, const Workbench& bench) const;

  // Tests look at logits through this: (rows, piece) fp32 of rows from row_begin on.
  using LogitObserver =
      std::function<void(int64_t row_begin, const HeadPiece& piece, const gpu::View& logits)>;
  void forward_head(const PreparedBlock& weights, const HeadPiece& piece, const BatchViews& batch,
                    const gpu::View& hidden, const HeadSums& sums, const Workbench& bench,
                    const LogitObserver& observe = {}) const;
  // d_hidden (T, C) fp32 (+)= the piece's part; the piece's weight gradient is added. `scale`: one over the
  // window's label weight.
  void backward_head(const PreparedBlock& weights, GradientLease& gradients, int shard,
                     const HeadPiece& piece, const BatchViews& batch, const gpu::View& hidden,
                     const HeadSums& sums, float scale, const gpu::View& d_hidden,
                     const Workbench& bench) const;
  // Greedy choice over the vocabulary so far: best (T, 1) fp32, index (T, 1) int32.
  void choose(const PreparedBlock& weights, const HeadPiece& piece, const gpu::View& hidden,
              const gpu::View& best, const gpu::View& index, const Workbench& bench) const;

 private:
  struct Qkv {
    gpu::View q, k, v, qk;
  };
  Qkv split_qkv(const gpu::View& qkv) const;
  gpu::AttentionShape attention_shape() const;
  void attend(const RopeViews& rope, const BatchViews& batch, const SavedLayer& saved,
              const LayerCache* cache, const Workbench& bench) const;
  void backward_mlp(const PreparedBlock& weights, GradientLease& gradients, int shard, const gpu::View& dx,
                    const SavedLayer& saved, const Workbench& bench) const;
  void backward_attention(const PreparedBlock& weights, GradientLease& gradients, int shard,
                          const RopeViews& rope, const BatchViews& batch, const gpu::View& x,
                          const gpu::View& dx, const SavedLayer& saved, const Workbench& bench) const;
  gpu::RmsNormForward norm(const gpu::View& x, const gpu::View& weight, const gpu::View& y,
                           const gpu::View& rstd) const {
    return {.x = x, .weight = weight, .y = y, .rstd = rstd, .epsilon = config_.rms_norm_eps};
  }

  ModelConfig config_;
  DType dtype_;
};

// Calls body(chunk) for the chunks of a micro-batch's rows, in order.
template <class Body>
void for_each_head_chunk(int64_t tokens, const Body& body) {
  for (int64_t begin = 0; begin < tokens; begin += kHeadRows) {
    body(Decoder::HeadChunk{begin, std::min(begin + kHeadRows, tokens)});
  }
}

}  // namespace sluice::finetune
