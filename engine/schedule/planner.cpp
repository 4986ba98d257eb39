#include <algorithm>
#include <map>

#include "engine/base/error.h"
#include "engine/base/math.h"
#include "engine/schedule/plan.h"
#include "engine/schedule/plan_refusal.h"

namespace sluice {
namespace {

// What a plan may still choose.
struct Choice {
  int kept_blocks = 0;
  int recomputed_layers = 0;  // the first ones
  int prefetch_distance = 0;
  bool inputs_leave = false;  // layer inputs leave the device
};

// What a plan may still choose about the host tier: how many blocks, the last ones first, have what on disk.
struct HostChoice {
  int moments_on_disk = 0;
  int gradients_on_disk = 0;
  int weights_on_disk = 0;
  int read_ahead = 0;
  int update_slots = 0;
  bool inputs_on_disk = false;  // those that leave
};
// One is used, one is made or was just used, one is leaving or coming back.
constexpr int kBoundarySlots = 3;
constexpr int kBoundaryStagingSlots = 2;
constexpr int kReadAhead = 2;
constexpr int kUpdateSlots = 8;
constexpr int kLeastUpdateSlots = 3;  // one is read, one updated, one written
constexpr int kGradientStagingSlots = 2;

// What of a block may be on disk.
size_t spillable_moments(const BlockNeeds& block) {
  return block.moment_bytes;
}
size_t spillable_gradient(const BlockNeeds& block) {
  return block.gradient_stays ? 0 : block.waiting_bytes;
}
size_t spillable_weights(const BlockNeeds& block) {
  return block.weight_bytes;
}

class Builder {
 public:
  Builder(const PlanRequest& request, Choice choice, HostChoice host_choice = {})
      : request_(request), choice_(choice), host_choice_(host_choice) {}

  Plan build() {
    plan_.prefetch_distance = choice_.prefetch_distance;
    for (int layer = 0; layer < static_cast<int>(request_.tape.size()); ++layer) {
      plan_.recomputed.push_back(layer < choice_.recomputed_layers);
    }
    place_blocks();
    place_accesses();
    add_weights();
    add_gradients();
    add_activations();
    add_states();
    add_staging();
    for (const PlanPart& part : request_.fixed_parts) add(part.name, part.tier, part.size_bytes);
    add(plan_part::kWorkspace, Tier::device, request_.workspace_bytes);
    return std::move(plan_);
  }

  // Blocks worth keeping: leased more than once a walk, or unchanged from walk to walk.
  static std::vector<BlockId> recurring_blocks(const PlanRequest& request) {
    std::vector<BlockId> found;
    if (!request.keep_weights) return found;
    std::map<BlockId, int> uses;
    for (const Access& access : request.accesses) ++uses[access.block];
    for (const Access& access : request.accesses) {
      const BlockNeeds& needs = request.blocks.at(static_cast<size_t>(access.block.value));
      if (uses[access.block] < 2 && needs.changes) continue;
      if (std::ranges::find(found, access.block) == found.end()) found.push_back(access.block);
    }
    return found;
  }

 private:
  const BlockNeeds& needs(BlockId block) const {
    return request_.blocks.at(static_cast<size_t>(block.value));
  }

  void add(std::string_view name, Tier tier, size_t size_bytes) {
    if (size_bytes == 0) return;
    const size_t rounded = round_up(size_bytes, request_.alignment_bytes);
    plan_.parts.push_back({std::string(name), tier, rounded, tier == Tier::device ? device_bytes_ : 0});
    if (tier == Tier::device) device_bytes_ += rounded;
  }

  // Of the last `count` blocks that have some, and may, `tier` becomes disk.
  template <class Bytes>
  void move_to_disk(int count, Tier BlockHome::*tier, Bytes bytes) {
    for (int block = static_cast<int>(request_.blocks.size()) - 1; block >= 0 && count > 0; --block) {
      if (bytes(request_.blocks[static_cast<size_t>(block)]) == 0) continue;
      plan_.homes[static_cast<size_t>(block)].*tier = Tier::disk;
      --count;
    }
  }

  void place_blocks() {
    plan_.homes.resize(request_.blocks.size());
    move_to_disk(host_choice_.moments_on_disk, &BlockHome::moments, spillable_moments);
    move_to_disk(host_choice_.gradients_on_disk, &BlockHome::gradient, spillable_gradient);
    move_to_disk(host_choice_.weights_on_disk, &BlockHome::weights, spillable_weights);
  }

  LayoutSet layouts_of(const Access& access) const {
    const bool recomputes = access.phase == Phase::backward && access.tape_layer >= 0 &&
                            plan_.recomputed.at(static_cast<size_t>(access.tape_layer));
    return recomputes ? LayoutSet{true, access.layouts.backward} : access.layouts;
  }

  // All the layouts that the block's accesses want: a kept block is prepared once for all of them.
  LayoutSet all_layouts_of(BlockId block) const {
    LayoutSet layouts;
    for (const Access& access : request_.accesses) {
      if (access.block == block) layouts = layouts | layouts_of(access);
    }
    return layouts;
  }

  void place_accesses() {
    std::map<BlockId, int> kept;
    std::vector<BlockId> recurring = recurring_blocks(request_);
    recurring.resize(static_cast<size_t>(choice_.kept_blocks));
    for (const BlockId block : recurring) {
      kept[block] = static_cast<int>(plan_.kept_slot_offsets.size());
      plan_.kept_slot_offsets.push_back(kept_bytes_);
      kept_bytes_ += round_up(needs(block).prepared_bytes(all_layouts_of(block)), request_.alignment_bytes);
    }
    std::map<BlockId, bool> seen;
    int next_ring_slot = 0;
    for (const Access& access : request_.accesses) {
      PlannedAccess planned{.access = access, .layouts = layouts_of(access)};
      if (const auto found = kept.find(access.block); found != kept.end()) {
        planned.kept_slot = found->second;
        planned.layouts = all_layouts_of(access.block);
        planned.fetch = !seen[access.block];
        planned.fetch_again = planned.fetch && needs(access.block).changes;
        seen[access.block] = true;
      } else {
        planned.ring_slot = next_ring_slot++ % request_.concurrent_leases;
        plan_.ring_slot_bytes =
            std::max(plan_.ring_slot_bytes,
                     round_up(needs(access.block).prepared_bytes(planned.layouts), request_.alignment_bytes));
        plan_.ring_slot_count = std::min(next_ring_slot, request_.concurrent_leases);
      }
      if (planned.fetch) largest_fetch_ = std::max(largest_fetch_, needs(access.block).fetch_bytes);
      if (planned.fetch_again) plan_.copy_in_bytes_per_walk += needs(access.block).fetch_bytes;
      if (planned.fetch && plan_.home(access.block).weights == Tier::disk) {
        largest_read_ = std::max(largest_read_, needs(access.block).fetch_bytes);
        if (planned.fetch_again) plan_.disk_read_bytes_per_walk += needs(access.block).fetch_bytes;
      }
      plan_.accesses.push_back(planned);
    }
  }

  void add_weights() {
    plan_.landing_slot_bytes = round_up(largest_fetch_, request_.alignment_bytes);
    plan_.landing_slot_count = choice_.prefetch_distance + 1;
    add(plan_part::kLanding, Tier::device,
        plan_.landing_slot_bytes * static_cast<size_t>(plan_.landing_slot_count));
    add(plan_part::kRing, Tier::device, plan_.ring_slot_bytes * static_cast<size_t>(plan_.ring_slot_count));
    add(plan_part::kKept, Tier::device, kept_bytes_);
  }

  void add_gradients() {
    if (!request_.gradients) return;
    size_t largest_copy = 0;
    for (const BlockNeeds& block : request_.blocks) {
      plan_.gradient_slot_bytes =
          std::max(plan_.gradient_slot_bytes, round_up(block.gradient_bytes, request_.alignment_bytes));
      if (block.gradient_copy_bytes < block.gradient_bytes) {
        largest_copy = std::max(largest_copy, round_up(block.gradient_copy_bytes, request_.alignment_bytes));
      }
      plan_.copy_out_bytes_per_walk += block.gradient_copy_bytes;
    }
    plan_.gradient_slot_count = request_.concurrent_gradients + 1;  // one is leaving
    const size_t slot_count = static_cast<size_t>(plan_.gradient_slot_count);
    add(plan_part::kGradients, Tier::device,
        plan_.gradient_slot_bytes * slot_count * static_cast<size_t>(request_.gradient_shards));
    add(plan_part::kGradientCopies, Tier::device, largest_copy * slot_count);
  }

  void add_activations() {
    const size_t count = static_cast<size_t>(request_.micro_batch_count);
    size_t boundary_bytes = 0;
    size_t kept_bytes = 0;
    size_t recomputed_bytes = 0;
    for (size_t layer = 0; layer < request_.tape.size(); ++layer) {
      plan_.boundary_offsets.push_back(boundary_bytes);
      plan_.saved_offsets.push_back(kept_bytes);
      const size_t input_bytes =
          round_up(request_.tape[layer].boundary_bytes, request_.alignment_bytes) * count;
      boundary_bytes += input_bytes;
      plan_.boundary_slot_bytes = std::max(plan_.boundary_slot_bytes, input_bytes);
      const size_t saved_bytes = round_up(request_.tape[layer].saved_bytes, request_.alignment_bytes);
      if (plan_.recomputed[layer]) {
        recomputed_bytes = std::max(recomputed_bytes, saved_bytes);
      } else {
        kept_bytes += saved_bytes * count;
      }
    }
    if (choice_.inputs_leave) boundary_bytes = send_inputs_away();
    add(plan_part::kBoundaries, Tier::device, boundary_bytes);
    add(plan_part::kSaved, Tier::device, kept_bytes);
    add(plan_part::kRecomputed, Tier::device, recomputed_bytes);
  }

  // Returns what is left of them on the device.
  size_t send_inputs_away() {
    const size_t layers = request_.tape.size();
    const size_t slot_bytes = plan_.boundary_slot_bytes;
    for (size_t layer = 0; layer < layers; ++layer)
      plan_.boundary_offsets[layer] = layer % kBoundarySlots * slot_bytes;
    plan_.boundary_tier = host_choice_.inputs_on_disk ? Tier::disk : Tier::host;
    plan_.boundary_slot_count = kBoundarySlots;
    const size_t leaving = layers - kBoundarySlots;
    if (plan_.boundary_tier == Tier::disk) {
      plan_.boundary_staging_count = kBoundaryStagingSlots;
      plan_.disk_read_bytes_per_walk += leaving * slot_bytes;
      plan_.disk_write_bytes_per_walk += leaving * slot_bytes;
      add(plan_part::kBoundaryStore, Tier::host, kBoundaryStagingSlots * slot_bytes);
    } else {
      add(plan_part::kBoundaryStore, Tier::host, leaving * slot_bytes);
    }
    plan_.input_copy_bytes_per_walk = leaving * slot_bytes;
    return kBoundarySlots * slot_bytes;
  }

  // What stays in the host tier of each kind, and the traffic of what does not.
  void add_states() {
    size_t weights = 0, moments = 0, waiting = 0;
    const auto count = [&](Tier tier, size_t bytes, size_t read, size_t written, size_t& in_host) {
      if (tier == Tier::host) {
        in_host += round_up(bytes, request_.alignment_bytes);
        return;
      }
      plan_.disk_read_bytes_per_walk += read;
      plan_.disk_write_bytes_per_walk += written;
    };
    for (size_t block = 0; block < request_.blocks.size(); ++block) {
      const BlockNeeds& of = request_.blocks[block];
      const BlockHome& home = plan_.homes[block];
      count(home.weights, of.weight_bytes, of.updated_weight_bytes, of.updated_weight_bytes, weights);
      count(home.moments, of.moment_bytes, of.moment_bytes, of.moment_bytes, moments);
      count(home.gradient, of.waiting_bytes, of.waiting_bytes, of.waiting_bytes, waiting);
      const bool updated = of.moment_bytes > 0;
      streams_ = streams_ || (updated && home != BlockHome{});
      if (home.gradient == Tier::disk) largest_waiting_ = std::max(largest_waiting_, of.waiting_bytes);
    }
    add(plan_part::kWeights, Tier::host, weights);
    add(plan_part::kMoments, Tier::host, moments);
    add(plan_part::kWaiting, Tier::host, waiting);
  }

  void add_staging() {
    if (largest_read_ > 0) {
      plan_.read_ahead = host_choice_.read_ahead;
      plan_.staging_slot_bytes = round_up(largest_read_, request_.alignment_bytes);
      plan_.staging_slot_count = choice_.prefetch_distance + host_choice_.read_ahead + 1;
      add(plan_part::kStaging, Tier::host,
          plan_.staging_slot_bytes * static_cast<size_t>(plan_.staging_slot_count));
    }
    if (streams_) {
      plan_.update_slot_bytes = request_.update_slot_bytes;
      plan_.update_slot_count = host_choice_.update_slots;
      add(plan_part::kUpdate, Tier::host,
          plan_.update_slot_bytes * static_cast<size_t>(plan_.update_slot_count));
    }
    if (largest_waiting_ > 0) {
      plan_.gradient_staging_slot_bytes = round_up(largest_waiting_, request_.alignment_bytes);
      plan_.gradient_staging_slot_count = kGradientStagingSlots;
      add(plan_part::kGradientStaging, Tier::host,
          plan_.gradient_staging_slot_bytes * static_cast<size_t>(plan_.gradient_staging_slot_count));
    }
  }

  const PlanRequest& request_;
  Choice choice_;
  HostChoice host_choice_;
  Plan plan_;
  size_t device_bytes_ = 0;
  size_t kept_bytes_ = 0;
  size_t largest_fetch_ = 0;
  size_t largest_read_ = 0;     // of one access, from disk
  size_t largest_waiting_ = 0;  // gradient on disk
  bool streams_ = false;        // an update has something on disk
};

bool inputs_may_leave(const PlanRequest& request) {
  return request.layer_inputs != LayerInputs::device && request.tape.size() > kBoundarySlots;
}

// What may be given up, in the order in which it is: everything kept first, the least last.
std::vector<Choice> choices(const PlanRequest& request) {
  const int layers = static_cast<int>(request.tape.size());
  const int fewest_recomputed = request.recompute == Recompute::all ? layers : 0;
  const int most_recomputed = request.recompute == Recompute::none ? 0 : layers;
  Choice choice{.kept_blocks = static_cast<int>(Builder::recurring_blocks(request).size()),
                .recomputed_layers = fewest_recomputed,
                .prefetch_distance = request.prefetch_distance,
                .inputs_leave = inputs_may_leave(request) && request.layer_inputs >= LayerInputs::host};
  std::vector<Choice> list{choice};
  while (choice.kept_blocks > 0) {
    --choice.kept_blocks;
    list.push_back(choice);
  }
  while (choice.recomputed_layers < most_recomputed) {
    ++choice.recomputed_layers;
    list.push_back(choice);
  }
  if (inputs_may_leave(request) && !choice.inputs_leave) {
    choice.inputs_leave = true;
    list.push_back(choice);
  }
  while (choice.prefetch_distance > 0) {
    --choice.prefetch_distance;
    list.push_back(choice);
  }
  return list;
}

size_t spillable_count(const PlanRequest& request, size_t (*bytes)(const BlockNeeds&)) {
  return static_cast<size_t>(
      std::ranges::count_if(request.blocks, [&](const BlockNeeds& block) { return bytes(block) > 0; }));
}

// Everything in the host tier first, the least last.
std::vector<HostChoice> host_choices(const PlanRequest& request) {
  HostChoice choice{.read_ahead = kReadAhead,
                    .update_slots = kUpdateSlots,
                    .inputs_on_disk = request.disk && request.layer_inputs == LayerInputs::disk};
  std::vector<HostChoice> list{choice};
  if (!request.disk) return list;
  const auto move = [&](int HostChoice::*count, size_t (*bytes)(const BlockNeeds&)) {
    for (size_t most = spillable_count(request, bytes); static_cast<size_t>(choice.*count) < most;) {
      ++(choice.*count);
      list.push_back(choice);
    }
  };
  const auto at_least = [&](Spill spill) {
    if (request.spill >= spill) list.erase(list.begin(), list.end() - 1);
  };
  move(&HostChoice::moments_on_disk, spillable_moments);
  at_least(Spill::moments);
  move(&HostChoice::gradients_on_disk, spillable_gradient);
  at_least(Spill::gradients);
  if (request.layer_inputs == LayerInputs::automatic) {
    choice.inputs_on_disk = true;
    list.push_back(choice);
  }
  move(&HostChoice::weights_on_disk, spillable_weights);
  at_least(Spill::everything);
  while (choice.update_slots > kLeastUpdateSlots) {
    --choice.update_slots;
    list.push_back(choice);
  }
  while (choice.read_ahead > 0) {
    --choice.read_ahead;
    list.push_back(choice);
  }
  return list;
}

bool fits(const Plan& plan, Tier tier, const std::optional<size_t>& limit) {
  return !limit || plan.peak_bytes(tier) <= *limit;
}

// All of a choice that the host tier's bytes depend on.
int host_key(const Choice& choice) {
  return 2 * choice.prefetch_distance + (choice.inputs_leave ? 1 : 0);
}

}  // namespace

size_t Plan::peak_bytes(Tier tier) const {
  size_t sum = 0;
  for (const PlanPart& part : parts) sum += part.tier == tier ? part.size_bytes : 0;
  return sum;
}

const PlanPart& Plan::part(std::string_view name) const {
  static const PlanPart kNone{};
  for (const PlanPart& part : parts) {
    if (part.name == name) return part;
  }
  return kNone;
}

int Plan::recomputed_count() const {
  return static_cast<int>(std::count(recomputed.begin(), recomputed.end(), true));
}

size_t least_device_bytes(const PlanRequest& request) {
  size_t least = SIZE_MAX;
  for (const Choice& choice : choices(request)) {
    least = std::min(least, Builder(request, choice).build().peak_bytes(Tier::device));
  }
  return least;
}

size_t least_host_bytes(const PlanRequest& request) {
  size_t least = SIZE_MAX;
  int seen = -1;
  for (const Choice& choice : choices(request)) {
    if (host_key(choice) == seen ||
        !fits(Builder(request, choice).build(), Tier::device, request.device_limit_bytes))
      continue;
    seen = host_key(choice);
    for (const HostChoice& host_choice : host_choices(request))
      least = std::min(least, Builder(request, choice, host_choice).build().peak_bytes(Tier::host));
  }
  return least;
}

namespace {

[[noreturn]] void refuse(Tier tier, size_t limit, size_t least, std::string_view what_else) {
  throw PlanRefusal(tier, least,
                    "the " + std::string(name(tier)) + " limit of " + format_bytes(limit) +
                        " is too small: the least that this run needs is " + format_bytes(least) + " (" +
                        std::to_string(least) + " bytes). Try --" + std::string(name(tier)) + "_memory " +
                        std::to_string(divide_up(least, size_t{1} << 20)) + "MiB, " + std::string(what_else) +
                        ".");
}

}  // namespace

Plan make_plan(const PlanRequest& request) {
  SLUICE_CHECK(request.concurrent_leases >= 1 && request.prefetch_distance >= 0);
  bool device_fits = false;
  int failed = -1;
  for (const Choice& choice : choices(request)) {
    if (host_key(choice) == failed) continue;
    if (!fits(Builder(request, choice).build(), Tier::device, request.device_limit_bytes)) continue;
    device_fits = true;
    failed = host_key(choice);
    for (const HostChoice& host_choice : host_choices(request)) {
      Plan plan = Builder(request, choice, host_choice).build();
      if (fits(plan, Tier::host, request.host_limit_bytes)) return plan;
    }
  }
  if (!device_fits) {
    refuse(Tier::device, *request.device_limit_bytes, least_device_bytes(request),
           "or fewer or shorter rows a micro-batch");
  }
  refuse(Tier::host, *request.host_limit_bytes, least_host_bytes(request),
         request.disk ? "or fewer or shorter rows a micro-batch"
                      : "or name a folder on a fast drive with --spill_dir");
}

}  // namespace sluice
