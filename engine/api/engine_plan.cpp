#include "engine/api/engine_plan.h"

#include <algorithm>
#include <set>

#include "engine/api/engine.h"
#include "engine/base/math.h"

namespace sluice {
namespace {

// One loads, exports and hashes, one gathers rows.
constexpr size_t kStateWindows = 2;

size_t aligned(size_t bytes) {
  return round_up(bytes, kPreparedAlignment);
}

struct LinearShape {
  int64_t rows = 0;
  int64_t cols = 0;
};

LinearShape linear_shape(const BlockLayout& layout, const LinearUse& use) {
  LinearShape shape{.rows = 0, .cols = layout.part(use.parts.at(0)).cols};
  for (const int part : use.parts) {
    SLUICE_CHECK(layout.part(part).cols == shape.cols,
                 "stacked weights must have the same number of columns");
    shape.rows += layout.part(part).rows;
  }
  return shape;
}

BlockNeeds block_needs(gpu::Device& device, const ModelSpec& model, BlockId id,
                       const EngineOptions& options) {
  const BlockLayout layout(model, id);
  const BlockSpec& block = model.block(id);
  BlockNeeds needs{.name = block.name,
                   .fetch_bytes = layout.fetch_bytes(options.compute_dtype),
                   .changes = options.training && layout.logical_elements() > 0};
  for (int part = 0; part < static_cast<int>(block.parts.size()); ++part) {
    if (!in_linear(block, part))
      needs.plain_bytes += plain_part_bytes(layout.part(part), options.compute_dtype);
  }
  for (const LinearUse& use : block.linears) {
    needs.forward_bytes +=
        packed_linear_bytes(device, layout, use, options.compute_dtype, gpu::WeightLayout::forward);
    needs.backward_bytes +=
        packed_linear_bytes(device, layout, use, options.compute_dtype, gpu::WeightLayout::backward);
  }
  return needs;
}

// Rows are added to its gradient in the host tier.
bool gets_rows(const ModelSpec& model, const WalkSpec& walk, BlockId block) {
  return std::ranges::any_of(model.block(block).parts, [&](const BlockPart& part) {
    return std::ranges::count(walk.row_gradient_tensors, part.tensor) > 0;
  });
}

// A part as it landed: rows of high weights, of fp32 masters, or of a frozen tensor; `low` are the low halves
// that make masters of high weights, where a lease does that.
gpu::View raw_view(const BlockLayout& layout, int part, DType compute_dtype, std::byte* landed, bool low) {
  using cpu_optim::StateFormat;
  const BlockLayout::Part& placed = layout.part(part);
  const auto rows_at = [&](size_t offset, DType dtype) {  // from the beginning of the block's weights
    return gpu::View(landed + (offset - layout.fetch_offset(compute_dtype)), dtype, placed.rows, placed.cols);
  };
  if (!placed.trainable) {
    if (low) return {};
    return rows_at(layout.trained_bytes() + placed.frozen_offset, placed.storage_dtype);
  }
  const auto first = static_cast<size_t>(placed.span_begin);
  const bool whole_masters = compute_dtype == DType::f32 && layout.state_format() == StateFormat::fp32;
  if (low) {
    if (compute_dtype == DType::bf16 || layout.low_bytes() == 0 || whole_masters) return {};
    return rows_at(first * 2, DType::i16);
  }
  if (whole_masters) return rows_at(first * 4, DType::f32);
  return rows_at(layout.low_bytes() + first * 2, DType::bf16);
}

}  // namespace

bool in_linear(const BlockSpec& block, int part) {
  return std::ranges::any_of(block.linears,
                             [&](const LinearUse& use) { return std::ranges::count(use.parts, part) > 0; });
}

size_t plain_part_bytes(const BlockLayout::Part& part, DType compute_dtype) {
  return aligned(static_cast<size_t>(part.element_count()) * size_bytes(compute_dtype));
}

gpu::PackedWeight packed_linear(gpu::Device& device, const BlockLayout& layout, const LinearUse& use,
                                DType compute_dtype, gpu::WeightLayout weight_layout) {
  const LinearShape shape = linear_shape(layout, use);
  return {.data = nullptr,
          .size_bytes = device.ops().packed_bytes(shape.rows, shape.cols, compute_dtype, weight_layout),
          .dtype = compute_dtype,
          .rows = shape.rows,
          .cols = shape.cols,
          .layout = weight_layout};
}

size_t packed_linear_bytes(gpu::Device& device, const BlockLayout& layout, const LinearUse& use,
                           DType compute_dtype, gpu::WeightLayout weight_layout) {
  return aligned(packed_linear(device, layout, use, compute_dtype, weight_layout).size_bytes);
}

PreparedBlock lay_out_block(gpu::Device& device, const ModelSpec& model, BlockId block, DType compute_dtype,
                            LayoutSet layouts, std::byte* memory) {
  const BlockLayout layout(model, block);
  const BlockSpec& spec = model.block(block);
  PreparedBlock prepared;
  for (int part = 0; part < static_cast<int>(spec.parts.size()); ++part) {
    const BlockLayout::Part& placed = layout.part(part);
    if (in_linear(spec, part)) {
      prepared.plain_parts.emplace_back();
      continue;
    }
    prepared.plain_parts.emplace_back(memory, compute_dtype, placed.rows, placed.cols);
    memory += plain_part_bytes(placed, compute_dtype);
  }
  const auto place = [&](const LinearUse& use, gpu::WeightLayout weight_layout) {
    gpu::PackedWeight weight = packed_linear(device, layout, use, compute_dtype, weight_layout);
    weight.data = memory;
    memory += aligned(weight.size_bytes);
    return weight;
  };
  for (const LinearUse& use : spec.linears) {
    PreparedBlock::Linear& linear = prepared.linears.emplace_back();
    if (layouts.forward) linear.forward = place(use, gpu::WeightLayout::forward);
    if (layouts.backward) linear.backward = place(use, gpu::WeightLayout::backward);
  }
  return prepared;
}

void submit_preparation(const BlockLayout& layout, const BlockSpec& block, DType compute_dtype,
                        const PreparedBlock& prepared, std::byte* landed,
                        const std::function<void(gpu::Op)>& submit) {
  const auto raw = [&](int part, bool low) { return raw_view(layout, part, compute_dtype, landed, low); };
  for (int part = 0; part < static_cast<int>(prepared.plain_parts.size()); ++part) {
    const gpu::View& plain = prepared.plain_parts[static_cast<size_t>(part)];
    if (plain.data == nullptr) continue;
    if (const gpu::View low = raw(part, true); low.data != nullptr) {
      submit(gpu::JoinSplit{raw(part, false), low, plain});
    } else {
      submit(gpu::Cast{raw(part, false), plain});
    }
  }
  for (size_t linear = 0; linear < block.linears.size(); ++linear) {
    gpu::LinearPack pack;
    for (const int part : block.linears[linear].parts)
      pack.sources.push_back({raw(part, false), raw(part, true)});
    for (const gpu::PackedWeight& weight :
         {prepared.linears[linear].forward, prepared.linears[linear].backward}) {
      if (weight.data == nullptr) continue;
      pack.packed = weight;
      submit(pack);
    }
  }
}

PreparedBlock Engine::shape_of(gpu::Device& device, const ModelSpec& model, BlockId block,
                               DType compute_dtype) {
  return lay_out_block(device, model, block, compute_dtype, {true, true},
                       reinterpret_cast<std::byte*>(kPreparedAlignment));
}

std::vector<DType> waiting_dtypes(const ModelSpec& model, const WalkSpec& walk, DType gradient_dtype) {
  std::vector<DType> dtypes(model.blocks.size(), gradient_dtype);
  for (int block = 0; block < static_cast<int>(model.blocks.size()); ++block) {
    if (gets_rows(model, walk, BlockId{block})) dtypes[static_cast<size_t>(block)] = DType::f32;
  }
  return dtypes;
}

size_t fetched_row_bytes(const WalkSpec& walk, DType dtype) {
  return static_cast<size_t>(walk.max_fetched_rows * walk.max_row_cols) * size_bytes(dtype);
}

PlanRequest plan_request(gpu::Device& device, const ModelSpec& model, const WalkSpec& walk,
                         const EngineOptions& options) {
  PlanRequest request{
      .blocks = {},
      .accesses = walk.accesses,
      .tape = walk.tape,
      .micro_batch_count = walk.micro_batch_count,
      .gradient_shards = options.gradient_shards,
      .gradients = options.training && walk.device_gradients,
      .fixed_parts = walk.fixed_parts,
      .workspace_bytes = walk.workspace_bytes,
      .prefetch_distance = options.prefetch_distance,
      .concurrent_leases = walk.concurrent_leases,
      .concurrent_gradients = walk.concurrent_gradients,
      // Where the device's memory is RAM too, a second copy of what must be packed again for the other
      // direction only costs memory; without training, what is packed once stays right.
      .keep_weights = !options.training || !device.traits().shares_host_memory,
      .recompute = options.recompute,
      .device_limit_bytes = options.device_limit_bytes,
      .host_limit_bytes = options.host_limit_bytes,
      .disk = options.disk,
      .spill = options.spill,
      .layer_inputs = options.layer_inputs,
      .update_slot_bytes = StateStream::slot_bytes(model.state_format)};
  std::set<BlockId> visited;
  for (const Access& access : walk.accesses) visited.insert(access.block);
  const std::vector<DType> waiting = waiting_dtypes(model, walk, options.gradient_dtype_or_default());
  for (int index = 0; index < static_cast<int>(model.blocks.size()); ++index) {
    BlockNeeds needs = block_needs(device, model, BlockId{index}, options);
    const BlockLayout layout(model, BlockId{index});
    const size_t elements = static_cast<size_t>(layout.logical_elements());
    const size_t copy_bytes = elements * size_bytes(waiting[static_cast<size_t>(index)]);
    needs.weight_bytes = layout.weight_bytes();
    if (options.training) {
      needs.element_count = layout.logical_elements();
      needs.updated_weight_bytes = layout.trained_bytes();
      needs.moment_bytes = layout.moment_bytes();
      needs.waiting_bytes = copy_bytes;
      needs.gradient_stays = gets_rows(model, walk, BlockId{index});
    }
    if (request.gradients && visited.contains(BlockId{index})) {
      needs.gradient_bytes = elements * 4;
      needs.gradient_copy_bytes = copy_bytes;
    }
    request.blocks.push_back(needs);
  }
  const auto add_host = [&](const char* name, size_t bytes) {
    if (bytes > 0) request.fixed_parts.push_back({name, Tier::host, bytes, 0});
  };
  if (options.training) {
    if (!walk.row_gradient_tensors.empty())
      add_host("embedding gradient rows", fetched_row_bytes(walk, DType::f32));
  }
  add_host("embedding rows", fetched_row_bytes(walk, options.compute_dtype));
  if (options.disk || options.can_save || options.state_file != nullptr) {
    add_host("windows into the state file", kStateWindows * (StateWindow::kWindowBytes + kChecksumBytes));
    const StateLayout layout = Engine::state_layout(model, walk, options);
    request.fixed_parts.push_back({"states, two generations", Tier::disk, layout.state_bytes(), 0});
    if (options.disk)
      request.fixed_parts.push_back({"waiting gradients", Tier::disk, layout.scratch_bytes(), 0});
  }
  return request;
}

StateLayout Engine::state_layout(const ModelSpec& model, const WalkSpec& walk, const EngineOptions& options) {
  if (!options.disk) return StateLayout(model);
  std::vector<std::optional<DType>> gradients(model.blocks.size(), options.gradient_dtype_or_default());
  for (int block = 0; block < static_cast<int>(gradients.size()); ++block) {
    if (gets_rows(model, walk, BlockId{block})) gradients[static_cast<size_t>(block)].reset();
  }
  std::vector<size_t> inputs;
  for (const TapeLayerNeeds& layer : walk.tape) {
    inputs.push_back(round_up(layer.boundary_bytes, PlanRequest{}.alignment_bytes) *
                     static_cast<size_t>(walk.micro_batch_count));
  }
  return StateLayout(model, gradients, inputs);
}

Plan Engine::plan_for(gpu::Device& device, const ModelSpec& model, const WalkSpec& walk,
                      const EngineOptions& options) {
  return make_plan(plan_request(device, model, walk, options));
}

}  // namespace sluice
