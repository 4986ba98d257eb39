#include "engine/schedule/disk_reader.h"

namespace sluice {

std::vector<StatePiece> weight_pieces(const TensorStore& store, BlockId block, DType compute_dtype,
                                      std::byte* out) {
  const BlockLayout& layout = store.layout(block);
  const cpu_optim::StateFormat format = layout.state_format();
  const int64_t elements = layout.logical_elements();
  const int slot = store.newest_slot(block);
  std::vector<StatePiece> pieces;
  const auto add = [&](Section section, int of_slot, size_t offset, size_t size_bytes) {
    if (size_bytes == 0) return;
    pieces.push_back({.block = block,
                      .section = section,
                      .slot = of_slot,
                      .begin = 0,
                      .size_bytes = size_bytes,
                      .data = out + (offset - layout.fetch_offset(compute_dtype))});
  };
  if (compute_dtype == DType::f32)
    add(Section::low, slot, 0, state_section_bytes(format, Section::low, elements));
  // The masters of format fp32 are all that fp32 compute looks at.
  if (compute_dtype == DType::bf16 || format != cpu_optim::StateFormat::fp32)
    add(Section::high, slot, layout.low_bytes(), state_section_bytes(format, Section::high, elements));
  add(Section::frozen, 0, layout.trained_bytes(), layout.frozen_bytes());
  return pieces;
}

DiskReader::DiskReader(gpu::Device& device, const TensorStore& store, std::unique_ptr<IoQueue> queue,
                       DType compute_dtype)
    : store_(store),
      compute_dtype_(compute_dtype),
      queue_(std::move(queue)),
      lane_(device.make_stream(gpu::StreamKind::cpu, "weight reader")) {}

gpu::Event DiskReader::read_weights(BlockId block, std::byte* out, DiskBegin begin) {
  std::vector<StatePiece> pieces = weight_pieces(store_, block, compute_dtype_, out);
  lane_->run({.name = "read weights",
              .accesses = {gpu::reads(store_.disk_token(block), 1),
                           gpu::writes(out, store_.layout(block).fetch_bytes(compute_dtype_))},
              .body = [this, pieces = std::move(pieces), begin = std::move(begin)] {
                if (begin) *begin = std::chrono::steady_clock::now();
                store_.file()->read_pieces(*queue_, pieces);
              }});
  return lane_->record();
}

}  // namespace sluice
