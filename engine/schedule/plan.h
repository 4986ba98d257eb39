#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/memory/block_home.h"
#include "engine/memory/tier.h"
#include "engine/schedule/access.h"

namespace sluice {

// Bytes with a name, in a tier. Device parts have an offset in the one device allocation.
struct PlanPart {
  std::string name;
  Tier tier = Tier::device;
  size_t size_bytes = 0;
  size_t offset = 0;
};

// What a block needs where; from the model and the device's ops.
struct BlockNeeds {
  std::string name;
  size_t fetch_bytes = 0;          // copied from the host tier by one lease
  size_t plain_bytes = 0;          // prepared on the device: parts that are no matmul weights
  size_t forward_bytes = 0;        // prepared: packed for y = x W^T
  size_t backward_bytes = 0;       // prepared: packed for dx = dy W
  size_t gradient_bytes = 0;       // fp32, device
  size_t gradient_copy_bytes = 0;  // what crosses to the host tier
  bool changes = false;            // updated between walks: a prepared copy is stale in the next one
  int64_t element_count = 0;       // trained ones of the logical index, padding included; training only
  // In the host tier, or on disk.
  size_t weight_bytes = 0;
  size_t updated_weight_bytes = 0;  // of these, what an update writes
  size_t moment_bytes = 0;
  size_t waiting_bytes = 0;     // the gradient until its update
  bool gradient_stays = false;  // its gradient is never on disk
  size_t prepared_bytes(LayoutSet layouts) const {
    return plain_bytes + (layouts.forward ? forward_bytes : 0) + (layouts.backward ? backward_bytes : 0);
  }
};

// Activations of a layer, each micro-batch as large as the largest.
struct TapeLayerNeeds {
  std::string name;
  size_t boundary_bytes = 0;  // its input: always kept
  size_t saved_bytes = 0;     // what backward needs besides: kept, or recomputed from the boundary
};

enum class Recompute { automatic, none, all };

// What lives on disk at least, whatever RAM there is: the moments of all blocks, their waiting gradients too,
// or weights as well.
enum class Spill { automatic, moments, gradients, everything };

// The tier that layer inputs leave the device for until backward comes to them; device: they stay.
enum class LayerInputs { automatic, device, host, disk };

struct PlanRequest {
  std::vector<BlockNeeds> blocks;
  std::vector<Access> accesses;  // one walk; walks repeat
  std::vector<TapeLayerNeeds> tape;
  int micro_batch_count = 1;
  int gradient_shards = 1;
  bool gradients = false;  // backward accesses of blocks with gradient_bytes fill a gradient buffer
  std::vector<PlanPart> fixed_parts;  // of any tier; offsets are the planner's to set
  size_t workspace_bytes = 0;
  int prefetch_distance = 1;     // accesses whose copies may run ahead
  int concurrent_leases = 1;     // of blocks that are not kept, held at a time
  int concurrent_gradients = 1;  // held at a time; one more is leaving
  bool keep_weights = false;     // keep blocks that come again on the device, as far as the limit allows
  Recompute recompute = Recompute::automatic;
  std::optional<size_t> device_limit_bytes;
  std::optional<size_t> host_limit_bytes;
  bool disk = false;  // blocks may live on disk
  Spill spill = Spill::automatic;
  LayerInputs layer_inputs = LayerInputs::automatic;
  size_t update_slot_bytes = 0;  // a chunk's states and gradient on their way through the update
  size_t alignment_bytes = 4096;
};

struct PlannedAccess {
  Access access;
  LayoutSet layouts;
  int kept_slot = -1;       // the block stays in this slot for good
  int ring_slot = -1;       // or passes through the ring
  bool fetch = true;        // copy and prepare: not where an earlier access of this walk left it
  bool fetch_again = true;  // the same in walks after the first
};

// Made once, walked by every step. Immutable.
struct Plan {
  std::vector<PlanPart> parts;
  std::vector<PlannedAccess> accesses;
  std::vector<size_t> kept_slot_offsets;  // within part "kept weights"
  std::vector<bool> recomputed;           // by tape layer
  size_t landing_slot_bytes = 0;
  int landing_slot_count = 0;
  size_t ring_slot_bytes = 0;
  int ring_slot_count = 0;
  size_t gradient_slot_bytes = 0;  // one fp32 copy of a block's gradient
  int gradient_slot_count = 0;     // each of gradient_shards copies
  int prefetch_distance = 0;
  std::vector<BlockHome> homes;   // by block
  size_t staging_slot_bytes = 0;  // host: weights on their way from disk
  int staging_slot_count = 0;
  int read_ahead = 0;            // accesses that are read from disk before prefetch_distance has come to them
  size_t update_slot_bytes = 0;  // host: see PlanRequest
  int update_slot_count = 0;
  size_t gradient_staging_slot_bytes = 0;  // host: a block's gradient on its way to disk
  int gradient_staging_slot_count = 0;
  size_t copy_in_bytes_per_walk = 0;     // weights, in the steady state
  size_t copy_out_bytes_per_walk = 0;    // gradients
  size_t input_copy_bytes_per_walk = 0;  // layer inputs, as much again each way
  size_t disk_read_bytes_per_walk = 0;
  size_t disk_write_bytes_per_walk = 0;
  std::vector<size_t> saved_offsets;  // by tape layer, within part "kept activations"; recomputed ones unused
  std::vector<size_t> boundary_offsets;  // likewise within "layer inputs"
  // Where layer inputs leave the device, they pass through this many slots there: layer l has slot l modulo
  // the count. The last ones stay. Those on disk pass through staging slots of the host tier, too.
  Tier boundary_tier = Tier::device;
  int boundary_slot_count = 0;
  size_t boundary_slot_bytes = 0;  // all micro-batches of a layer
  int boundary_staging_count = 0;

  size_t peak_bytes(Tier tier) const;
  const PlanPart& part(std::string_view name) const;
  int recomputed_count() const;
  const BlockHome& home(BlockId block) const { return homes.at(static_cast<size_t>(block.value)); }
};

// Names of the parts that the planner adds.
namespace plan_part {
inline constexpr std::string_view kLanding = "weights on their way in";
inline constexpr std::string_view kRing = "prepared weights";
inline constexpr std::string_view kKept = "kept weights";
inline constexpr std::string_view kGradients = "gradients";
inline constexpr std::string_view kGradientCopies = "gradients on their way out";
inline constexpr std::string_view kBoundaries = "layer inputs";
inline constexpr std::string_view kBoundaryStore = "layer inputs that left the device";
inline constexpr std::string_view kSaved = "kept activations";
inline constexpr std::string_view kRecomputed = "recomputed activations";
inline constexpr std::string_view kWorkspace = "workspace";
inline constexpr std::string_view kWeights = "weights";
inline constexpr std::string_view kMoments = "moments";
inline constexpr std::string_view kWaiting = "waiting gradients";
inline constexpr std::string_view kStaging = "weights on their way from disk";
inline constexpr std::string_view kUpdate = "states on their way through the update";
inline constexpr std::string_view kGradientStaging = "gradients on their way to disk";
}  // namespace plan_part

// Pure. Keeps everything where there is no limit. Under a device limit gives up kept weights first, then
// keeps the activations of fewer layers, then fetches less far ahead. Under a host limit, where there is a
// disk, moves to it the moments of one block after another (those that are updated last first), then waiting
// gradients, then weights, then reads less far ahead. Throws PlanRefusal, which knows the least limit
// that would do.
Plan make_plan(const PlanRequest& request);

// The least bytes of each tier that any plan of this request needs.
size_t least_device_bytes(const PlanRequest& request);
size_t least_host_bytes(const PlanRequest& request);

}  // namespace sluice
