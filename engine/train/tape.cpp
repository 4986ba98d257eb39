#include "engine/train/tape.h"

#include "engine/base/error.h"
#include "engine/base/math.h"

namespace sluice {

Tape::Tape(const Plan& plan, const PlanRequest& request, std::byte* device_memory)
    : plan_(plan),
      layers_(request.tape),
      alignment_bytes_(request.alignment_bytes),
      boundaries_(device_memory + plan.part(plan_part::kBoundaries).offset),
      saved_(device_memory + plan.part(plan_part::kSaved).offset),
      recomputed_(device_memory + plan.part(plan_part::kRecomputed).offset) {}

Tape::Range Tape::range(std::byte* begin, size_t offset, size_t size_bytes, int micro_batch) const {
  const size_t stride = round_up(size_bytes, alignment_bytes_);
  return {begin + offset + stride * static_cast<size_t>(micro_batch), size_bytes};
}

Tape::Range Tape::boundary(int layer, int micro_batch) const {
  const size_t at = static_cast<size_t>(layer);
  return range(boundaries_, plan_.boundary_offsets.at(at), layers_.at(at).boundary_bytes, micro_batch);
}

Tape::Range Tape::saved(int layer, int micro_batch) const {
  const size_t at = static_cast<size_t>(layer);
  if (recomputes(layer)) return {recomputed_, layers_.at(at).saved_bytes};
  return range(saved_, plan_.saved_offsets.at(at), layers_.at(at).saved_bytes, micro_batch);
}

}  // namespace sluice
