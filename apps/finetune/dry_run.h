#pragma once

#include <functional>
#include <memory>

#include "apps/finetune/step_inputs.h"
#include "apps/finetune/walk_memory.h"
#include "engine/api/engine.h"

namespace sluice::finetune {

// Submits the decoder's ops of one micro-batch of the largest size to nowhere: shapes and dtypes are those of
// a run, addresses must not be used. Shows what ops need, and what they cost, before there is any memory.
// With memory the ops could run, on whatever lies there.
class DryRun {
 public:
  using Submit = std::function<void(const gpu::Op&)>;
  // Of `size_bytes` each, in device memory.
  struct Memory {
    std::byte* inputs = nullptr;
    std::byte* scratch = nullptr;
    std::byte* weights = nullptr;
    size_t size_bytes = 0;
  };
  // All of it outlives the object.
  DryRun(gpu::Device& device, const DecoderSpec& spec, const Decoder& decoder, const BatchLimits& limits,
         Submit submit)
      : DryRun(device, spec, decoder, limits, std::move(submit), Memory{}) {}
  DryRun(gpu::Device& device, const DecoderSpec& spec, const Decoder& decoder, const BatchLimits& limits,
         Submit submit, const Memory& memory);
  DryRun(const DryRun&) = delete;
  DryRun& operator=(const DryRun&) = delete;

  // `rows`: of the fetched embedding.
  void embed(int64_t rows);
  void embedding_backward(int64_t rows, bool accumulate);
  // `training`: attention sees no keys of earlier walks, and there is no cache.
  void forward_layer(BlockId block, bool training);
  void backward_layer(BlockId block, GradientLease& gradients);
  void forward_final_norm();
  void backward_final_norm(GradientLease& gradients);
  void forward_head(size_t piece);
  void backward_head(size_t piece, GradientLease& gradients);
  // Of one chunk of rows after another, both ways at once.
  void head_once(size_t piece, GradientLease& gradients);
  void token_loss();
  void choose(size_t piece);

  // What a lease copies becomes what it offers.
  void prepare(BlockId block);
  // A sum of the block's gradient, as it leaves in the compute dtype.
  void round_gradient(BlockId block);
  // Of one shard; of frozen parts too, as if they were trained.
  GradientLease gradients(BlockId block);
  size_t scratch_peak_bytes() const { return scratch_.peak_bytes(); }

 private:
  gpu::View view(DType dtype, int64_t rows, int64_t cols) { return inputs_.take(dtype, rows, cols); }
  gpu::View activation();
  PreparedBlock shape(BlockId block) const;
  Decoder::HeadPiece piece(size_t index) const;
  BatchViews batch(bool training);
  RopeViews rope();
  LayerCache cache();

  gpu::Device& device_;
  const DecoderSpec& spec_;
  const Decoder& decoder_;
  const BatchLimits& limits_;
  const Memory memory_;
  Scratch inputs_;
  Scratch scratch_;
  Workbench bench_;
};

}  // namespace sluice::finetune
