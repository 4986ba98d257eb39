#include "apps/finetune/model/decoder.h"

#include <array>
#include <cmath>
#include <span>

namespace sluice::finetune {
namespace {

// dw (+)= dy^T x, where the part is trained.
void add_weight_gradient(GradientLease& gradients, int part, int shard, const gpu::View& dy,
                         const gpu::View& x, const Workbench& bench) {
  const GradientLease::Target target = gradients.contribute(part, shard);
  if (target.sum.data == nullptr) return;
  bench.submit(
      gpu::LinearBackwardWeight{.dy = dy, .x = x, .dw = target.sum, .accumulate = target.accumulate});
}

// The same for weights that are used as one: dy has their outputs side by side. One op where it can be, since
// it packs x once; the sums are the same either way.
void add_stacked_gradients(GradientLease& gradients, std::span<const int> parts,
                           std::span<const int64_t> outputs, int shard, const gpu::View& dy,
                           const gpu::View& x, const Workbench& bench) {
  if (const auto target = gradients.contribute_stacked(parts, shard)) {
    bench.submit(
        gpu::LinearBackwardWeight{.dy = dy, .x = x, .dw = target->sum, .accumulate = target->accumulate});
    return;
  }
  int64_t begin = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    add_weight_gradient(gradients, parts[i], shard, dy.col_range(begin, begin + outputs[i]), x, bench);
    begin += outputs[i];
  }
}

}  // namespace

SavedLayer Decoder::carve_saved(Scratch& memory, int64_t tokens) const {
  const int64_t heads = config_.head_count;
  const int64_t query = heads * config_.head_dim;
  const int64_t key = config_.kv_head_count * config_.head_dim;
  return {.input_rstd = memory.take(DType::f32, tokens, 1),
          .qkv = memory.take(dtype_, tokens, query + 2 * key),
          .attention = memory.take(dtype_, tokens, query),
          .lse = memory.take(DType::f32, tokens, heads),
          .middle = memory.take(dtype_, tokens, config_.hidden_size),
          .post_rstd = memory.take(DType::f32, tokens, 1),
          .gate_up = memory.take(dtype_, tokens, 2 * config_.intermediate_size)};
}

Decoder::Qkv Decoder::split_qkv(const gpu::View& qkv) const {
  const int64_t query = config_.head_count * config_.head_dim;
  const int64_t key = config_.kv_head_count * config_.head_dim;
  return {.q = qkv.col_range(0, query),
          .k = qkv.col_range(query, query + key),
          .v = qkv.col_range(query + key, query + 2 * key),
          .qk = qkv.col_range(0, query + key)};
}

gpu::AttentionShape Decoder::attention_shape() const {
  return {.head_count = config_.head_count,
          .key_value_head_count = config_.kv_head_count,
          .head_dim = config_.head_dim,
          .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim))};
}

void Decoder::attend(const RopeViews& rope, const BatchViews& batch, const SavedLayer& saved,
                     const LayerCache* cache, const Workbench& bench) const {
  const Qkv parts = split_qkv(saved.qkv);
  bench.submit(gpu::Rope{.x = parts.qk,
                         .positions = batch.positions,
                         .cos = rope.cos,
                         .sin = rope.sin,
                         .head_dim = config_.head_dim});
  gpu::AttentionForward attention{.shape = attention_shape(),
                                  .segments = batch.segments,
                                  .q = parts.q,
                                  .k = parts.k,
                                  .v = parts.v,
                                  .o = saved.attention,
                                  .lse = saved.lse};
  if (cache != nullptr) {
    const int64_t tokens = cache->rows.rows;  // padding stays out of the cache
    bench.submit(gpu::ScatterRows{parts.k.row_range(0, tokens), cache->rows, cache->keys});
    bench.submit(gpu::ScatterRows{parts.v.row_range(0, tokens), cache->rows, cache->values});
    attention.k = cache->keys;
    attention.v = cache->values;
  }
  bench.submit(attention);
}

void Decoder::forward_layer(const PreparedBlock& weights, const RopeViews& rope, const BatchViews& batch,
                            const gpu::View& x, const gpu::View& y, const SavedLayer& saved,
                            const LayerCache* cache, const Workbench& bench) const {
  const Scratch::Scope scope(*bench.scratch);
  const gpu::View normed = bench.scratch->take(dtype_, x.rows, config_.hidden_size);
  bench.submit(norm(x, weights.plain(layer_part::input_norm), normed, saved.input_rstd));
  bench.submit(gpu::LinearForward{
      .x = normed, .weight = weights.forward(layer_linear::qkv), .addend = {}, .y = saved.qkv});
  attend(rope, batch, saved, cache, bench);
  bench.submit(gpu::LinearForward{
      .x = saved.attention, .weight = weights.forward(layer_linear::o), .addend = x, .y = saved.middle});
  bench.submit(norm(saved.middle, weights.plain(layer_part::post_norm), normed, saved.post_rstd));
  bench.submit(gpu::LinearForward{
      .x = normed, .weight = weights.forward(layer_linear::gate_up), .addend = {}, .y = saved.gate_up});
  const gpu::View activated = bench.scratch->take(dtype_, x.rows, config_.intermediate_size);
  bench.submit(gpu::SwigluForward{saved.gate_up, activated});
  bench.submit(gpu::LinearForward{
      .x = activated, .weight = weights.forward(layer_linear::down), .addend = saved.middle, .y = y});
}

void Decoder::backward_layer(const PreparedBlock& weights, GradientLease& gradients, int shard,
                             const RopeViews& rope, const BatchViews& batch, const gpu::View& x,
                             const gpu::View& dx, const SavedLayer& saved, const Workbench& bench) const {
  backward_mlp(weights, gradients, shard, dx, saved, bench);
  backward_attention(weights, gradients, shard, rope, batch, x, dx, saved, bench);
}

// dx: at the layer's output in, at `middle` out.
void Decoder::backward_mlp(const PreparedBlock& weights, GradientLease& gradients, int shard,
                           const gpu::View& dx, const SavedLayer& saved, const Workbench& bench) const {
  const Scratch::Scope scope(*bench.scratch);
  const int64_t tokens = dx.rows;
  const int64_t inner = config_.intermediate_size;
  const gpu::View d_activated = bench.scratch->take(dtype_, tokens, inner);
  const gpu::View activated = bench.scratch->take(dtype_, tokens, inner);
  bench.submit(
      gpu::LinearBackwardInput{.dy = dx, .weight = weights.backward(layer_linear::down), .dx = d_activated});
  const gpu::View& d_gate_up = saved.gate_up;  // in place
  bench.submit(gpu::SwigluBackward{
      .gate_up = saved.gate_up, .dy = d_activated, .d_gate_up = d_gate_up, .y = activated});
  add_weight_gradient(gradients, layer_part::down, shard, dx, activated, bench);
  const gpu::View normed = bench.scratch->take(dtype_, tokens, config_.hidden_size);
  const gpu::View& norm_weight = weights.plain(layer_part::post_norm);
  bench.submit(norm(saved.middle, norm_weight, normed, {}));
  add_stacked_gradients(gradients, std::array{int{layer_part::gate}, int{layer_part::up}},
                        std::array{inner, inner}, shard, d_gate_up, normed, bench);
  const gpu::View& d_normed = normed;  // no longer needed
  bench.submit(gpu::LinearBackwardInput{
      .dy = d_gate_up, .weight = weights.backward(layer_linear::gate_up), .dx = d_normed});
  const GradientLease::Target target = gradients.contribute(layer_part::post_norm, shard);
  bench.submit(gpu::RmsNormBackward{.dy = d_normed,
                                    .x = saved.middle,
                                    .weight = norm_weight,
                                    .rstd = saved.post_rstd,
                                    .addend = dx,
                                    .dx = dx,
                                    .dweight = target.sum,
                                    .accumulate = target.accumulate});
}

// dx: at `middle` in, at the layer's input out.
void Decoder::backward_attention(const PreparedBlock& weights, GradientLease& gradients, int shard,
                                 const RopeViews& rope, const BatchViews& batch, const gpu::View& x,
                                 const gpu::View& dx, const SavedLayer& saved, const Workbench& bench) const {
  const Scratch::Scope scope(*bench.scratch);
  const int64_t tokens = dx.rows;
  add_weight_gradient(gradients, layer_part::o, shard, dx, saved.attention, bench);
  const gpu::View d_attention = bench.scratch->take(dtype_, tokens, saved.attention.cols);
  bench.submit(
      gpu::LinearBackwardInput{.dy = dx, .weight = weights.backward(layer_linear::o), .dx = d_attention});
  const gpu::View d_qkv = bench.scratch->take(dtype_, tokens, saved.qkv.cols);
  const Qkv forward = split_qkv(saved.qkv);
  const Qkv gradient = split_qkv(d_qkv);
  bench.submit(gpu::AttentionBackward{.shape = attention_shape(),
                                      .segments = batch.segments,
                                      .q = forward.q,
                                      .k = forward.k,
                                      .v = forward.v,
                                      .o = saved.attention,
                                      .lse = saved.lse,
                                      .d_o = d_attention,
                                      .dq = gradient.q,
                                      .dk = gradient.k,
                                      .dv = gradient.v});
  bench.submit(gpu::Rope{.x = gradient.qk,
                         .positions = batch.positions,
                         .cos = rope.cos,
                         .sin = rope.sin,
                         .head_dim = config_.head_dim,
                         .inverse = true});
  const gpu::View normed = bench.scratch->take(dtype_, tokens, config_.hidden_size);
  const gpu::View& norm_weight = weights.plain(layer_part::input_norm);
  bench.submit(norm(x, norm_weight, normed, {}));
  add_stacked_gradients(gradients, std::array{int{layer_part::q}, int{layer_part::k}, int{layer_part::v}},
                        std::array{gradient.q.cols, gradient.k.cols, gradient.v.cols}, shard, d_qkv, normed,
                        bench);
  const gpu::View& d_normed = normed;  // no longer needed
  bench.submit(
      gpu::LinearBackwardInput{.dy = d_qkv, .weight = weights.backward(layer_linear::qkv), .dx = d_normed});
  const GradientLease::Target target = gradients.contribute(layer_part::input_norm, shard);
  bench.submit(gpu::RmsNormBackward{.dy = d_normed,
                                    .x = x,
                                    .weight = norm_weight,
                                    .rstd = saved.input_rstd,
                                    .addend = dx,
                                    .dx = dx,
                                    .dweight = target.sum,
                                    .accumulate = target.accumulate});
}

void Decoder::forward_final_norm(const PreparedBlock& weights, const gpu::View& x, const gpu::View& hidden,
                                 const gpu::View& rstd, const Workbench& bench) const {
  bench.submit(norm(x, weights.plain(0), hidden, rstd));
}

void Decoder::backward_final_norm(const PreparedBlock& weights, GradientLease& gradients, int shard,
                                  const gpu::View& x, const gpu::View& rstd, const gpu::View& d_hidden,
                                  const gpu::View& dx, const Workbench& bench) const {
  bench.submit(gpu::Cast{d_hidden, dx});
  const GradientLease::Target target = gradients.contribute(0, shard);
  bench.submit(gpu::RmsNormBackward{.dy = dx,
                                    .x = x,
                                    .weight = weights.plain(0),
                                    .rstd = rstd,
                                    .addend = {},
                                    .dx = dx,
                                    .dweight = target.sum,
                                    .accumulate = target.accumulate});
}

void Decoder::forward_head_chunk(const PreparedBlock& weights, const HeadPiece& piece, HeadChunk chunk,
                                 const BatchViews& batch, const gpu::View& hidden, const HeadSums& sums,
                                 const gpu::View& logits, const Workbench& bench) const {
  bench.submit(gpu::LinearForward{.x = hidden.row_range(chunk.begin, chunk.end),
                                  .weight = weights.forward(0),
                                  .addend = {},
                                  .y = logits});
  bench.submit(gpu::LogSumExpUpdate{.logits = logits,
                                    .targets = batch.targets.row_range(chunk.begin, chunk.end),
                                    .max = sums.max.row_range(chunk.begin, chunk.end),
                                    .sum = sums.sum.row_range(chunk.begin, chunk.end),
                                    .target_logit = sums.target_logit.row_range(chunk.begin, chunk.end),
                                    .piece_begin = piece.begin,
                                    .first = piece.first});
}

void Decoder::backward_head_chunk(const PreparedBlock& weights, GradientLease& gradients, int shard,
                                  const HeadPiece& piece, HeadChunk chunk, const BatchViews& batch,
                                  const gpu::View& hidden, const HeadSums& sums, float scale,
                                  const gpu::View& logits, const gpu::View& d_hidden,
                                  const Workbench& bench) const {
  const Scratch::Scope scope(*bench.scratch);
  const gpu::View d_logits =
      dtype_ == DType::f32 ? logits : bench.scratch->take(dtype_, logits.rows, logits.cols);
  bench.submit(gpu::CrossEntropyBackward{.logits = logits,
                                         .targets = batch.targets.row_range(chunk.begin, chunk.end),
                                         .weights = batch.weights.row_range(chunk.begin, chunk.end),
                                         .max = sums.max.row_range(chunk.begin, chunk.end),
                                         .sum = sums.sum.row_range(chunk.begin, chunk.end),
                                         .d_logits = d_logits,
                                         .piece_begin = piece.begin,
                                         .scale = scale});
  add_weight_gradient(gradients, 0, shard, d_logits, hidden.row_range(chunk.begin, chunk.end), bench);
  bench.submit(gpu::LinearBackwardInput{.dy = d_logits,
                                        .weight = weights.backward(0),
                                        .dx = d_hidden.row_range(chunk.begin, chunk.end),
                                        .accumulate = !piece.first});
}

void Decoder::forward_head(const PreparedBlock& weights, const HeadPiece& piece, const BatchViews& batch,
                           const gpu::View& hidden, const HeadSums& sums, const Workbench& bench,
                           const LogitObserver& observe) const {
  const Scratch::Scope scope(*bench.scratch);
  const gpu::View all_logits = bench.scratch->take(DType::f32, std::min(kHeadRows, hidden.rows), piece.rows);
  for_each_head_chunk(hidden.rows, [&](HeadChunk chunk) {
    const gpu::View logits = all_logits.row_range(0, chunk.end - chunk.begin);
    forward_head_chunk(weights, piece, chunk, batch, hidden, sums, logits, bench);
    if (observe) observe(chunk.begin, piece, logits);
  });
}

void Decoder::backward_head(const PreparedBlock& weights, GradientLease& gradients, int shard,
                            const HeadPiece& piece, const BatchViews& batch, const gpu::View& hidden,
                            const HeadSums& sums, float scale, const gpu::View& d_hidden,
                            const Workbench& bench) const {
  const Scratch::Scope scope(*bench.scratch);
  const gpu::View all_logits = bench.scratch->take(DType::f32, std::min(kHeadRows, hidden.rows), piece.rows);
  for_each_head_chunk(hidden.rows, [&](HeadChunk chunk) {
    const gpu::View logits = all_logits.row_range(0, chunk.end - chunk.begin);
    bench.submit(gpu::LinearForward{.x = hidden.row_range(chunk.begin, chunk.end),
                                    .weight = weights.forward(0),
                                    .addend = {},
                                    .y = logits});
    backward_head_chunk(weights, gradients, shard, piece, chunk, batch, hidden, sums, scale, logits, d_hidden,
                        bench);
  });
}

void Decoder::choose(const PreparedBlock& weights, const HeadPiece& piece, const gpu::View& hidden,
                     const gpu::View& best, const gpu::View& index, const Workbench& bench) const {
  const Scratch::Scope scope(*bench.scratch);
  const gpu::View logits = bench.scratch->take(DType::f32, hidden.rows, piece.rows);
  bench.submit(gpu::LinearForward{.x = hidden, .weight = weights.forward(0), .addend = {}, .y = logits});
  bench.submit(gpu::ArgMaxUpdate{
      .logits = logits, .max = best, .index = index, .piece_begin = piece.begin, .first = piece.first});
}

}  // namespace sluice::finetune
