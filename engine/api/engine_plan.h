#pragma once

#include <functional>
#include <vector>

#include "engine/api/engine.h"

// From a model and a walk to the planner's request, and the layout of prepared blocks: shared by the engine,
// Engine::plan_for and whoever predicts a walk, so that a plan and a run cannot disagree.
namespace sluice {

// Of every packed weight and plain part within a prepared block.
inline constexpr size_t kPreparedAlignment = 512;

bool in_linear(const BlockSpec& block, int part);
// Rounded up to kPreparedAlignment.
size_t plain_part_bytes(const BlockLayout::Part& part, DType compute_dtype);
size_t packed_linear_bytes(gpu::Device& device, const BlockLayout& layout, const LinearUse& use,
                           DType compute_dtype, gpu::WeightLayout weight_layout);
// With exact size and without data.
gpu::PackedWeight packed_linear(gpu::Device& device, const BlockLayout& layout, const LinearUse& use,
                                DType compute_dtype, gpu::WeightLayout weight_layout);
// Where a prepared block's views lie, from `memory` on.
PreparedBlock lay_out_block(gpu::Device& device, const ModelSpec& model, BlockId block, DType compute_dtype,
                            LayoutSet layouts, std::byte* memory);
// The ops that decode what a lease copied to `landed` (BlockLayout, from fetch_offset on) into `prepared`.
void submit_preparation(const BlockLayout& layout, const BlockSpec& block, DType compute_dtype,
                        const PreparedBlock& prepared, std::byte* landed,
                        const std::function<void(gpu::Op)>& submit);
// Of each block's gradient in the host tier: `gradient_dtype`, but fp32 where rows are still added there.
std::vector<DType> waiting_dtypes(const ModelSpec& model, const WalkSpec& walk, DType gradient_dtype);
// Host staging of fetch_rows and offer_rows.
size_t fetched_row_bytes(const WalkSpec& walk, DType dtype);
PlanRequest plan_request(gpu::Device& device, const ModelSpec& model, const WalkSpec& walk,
                         const EngineOptions& options);

}  // namespace sluice
