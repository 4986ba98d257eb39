#include "apps/finetune/walk_memory.h"

#include <algorithm>

#include "apps/finetune/dry_run.h"

namespace sluice::finetune {

HeadViews carve_head(Scratch& memory, const Decoder& decoder, int64_t tokens, bool training) {
  const int64_t hidden = decoder.config().hidden_size;
  const auto column = [&] { return memory.take(DType::f32, tokens, 1); };
  HeadViews head;
  head.hidden = memory.take(decoder.dtype(), tokens, hidden);
  head.rstd = column();
  if (training) head.d_hidden = memory.take(DType::f32, tokens, hidden);
  head.sums = {column(), column(), column()};
  head.loss = column();
  return head;
}

OpNeeds measure_ops(gpu::Device& device, const DecoderSpec& spec, const Decoder& decoder,
                    const BatchLimits& limits, bool training) {
  size_t workspace_bytes = 0;
  DryRun run(device, spec, decoder, limits, [&](const gpu::Op& op) {
    workspace_bytes = std::max(workspace_bytes, device.ops().workspace_bytes(op));
  });
  run.forward_layer(spec.layers.at(0), training);
  run.forward_final_norm();
  run.forward_head(0);
  if (limits.cache_rows > 0) run.choose(0);
  if (training) {
    GradientLease layer = run.gradients(spec.layers.at(0));
    run.backward_layer(spec.layers.at(0), layer);
    GradientLease piece = run.gradients(spec.head_pieces.at(0));
    run.backward_head(0, piece);
    GradientLease norm = run.gradients(spec.final_norm);
    run.backward_final_norm(norm);
    run.embedding_backward(limits.tokens, false);
  }
  return {.scratch_bytes = run.scratch_peak_bytes(), .workspace_bytes = workspace_bytes};
}

PlanPart device_part(const char* name, size_t size_bytes) {
  return {name, Tier::device, size_bytes, 0};
}

}  // namespace sluice::finetune
