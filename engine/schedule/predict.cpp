#include "engine/schedule/predict.h"

#include <algorithm>
#include <map>
#include <string>

#include "engine/base/error.h"
#include "engine/base/math.h"

namespace sluice {
namespace {

// Who submits to a lane of the disk.
enum Queue : int { kPrefetcher, kOptimizer, kInputs };

// The update of more chunks than this is simulated in larger ones.
constexpr size_t kMostChunks = 4096;
constexpr int kSteps = 8;

double seconds(double amount, double rate) {
  return rate > 0 ? amount / rate : 0;
}

double bytes_of(size_t bytes) {
  return static_cast<double>(bytes);
}

double element_count(const BlockNeeds& block) {
  return static_cast<double>(block.element_count);
}

// What an update changes.
double state_bytes(const BlockNeeds& block) {
  return bytes_of(block.updated_weight_bytes) + bytes_of(block.moment_bytes);
}

// Bytes a parameter that an update reads from the disk; states are written there, too.
struct Streamed {
  double states = 0;
  double gradient = 0;
};

Streamed streamed(const BlockNeeds& block, const BlockHome& home) {
  const double states = (home.weights == Tier::disk ? bytes_of(block.updated_weight_bytes) : 0) +
                        (home.moments == Tier::disk ? bytes_of(block.moment_bytes) : 0);
  const double gradient = home.gradient == Tier::disk ? bytes_of(block.waiting_bytes) : 0;
  const double elements = std::max(1.0, element_count(block));
  return {states / elements, gradient / elements};
}

// Submits one walk and its update as engine/api, prefetcher, input offload and optimizer do; each of these
// has its part below.
class StepBuilder {
 public:
  StepBuilder(const Plan& plan, std::span<const BlockNeeds> blocks, const WalkCosts& costs,
              const LaneRates& rates)
      : plan_(plan),
        blocks_(blocks),
        costs_(costs),
        rates_(rates),
        disk_slowness_(disk_slowness()),
        read_(plan.accesses.size(), kNone),
        copied_(read_),
        prepared_(read_),
        version_(blocks.size(), kNone) {
    SLUICE_CHECK(costs.access_seconds.size() == plan.accesses.size() &&
                 costs.prepare_seconds.size() == plan.accesses.size());
    const int access_count = static_cast<int>(plan.accesses.size());
    for (int access = 0; access < access_count; ++access) last_access_[block_of(access)] = access;
  }

  std::vector<SimTask> build() {
    begin_walk();
    for (int access = 0; access < static_cast<int>(plan_.accesses.size()); ++access) visit(access);
    end_walk();
    for (const BlockId block : costs_.update_order) update(block);
    for (const auto& [task, block] : versions_wanted_) {
      if (const int version = version_[index(block)]; version != kNone)
        tasks_[static_cast<size_t>(task)].after_last_step.push_back(version);
    }
    tasks_[static_cast<size_t>(trainer_)].after_last_step.push_back(decided_);
    for (const int task : reads_ahead_) {
      if (task != kNone) tasks_[static_cast<size_t>(task)].after_last_step = update_ends_;
    }
    return std::move(tasks_);
  }

  PerLane<double> bytes() const { return bytes_; }

 private:
  static constexpr int kNone = -1;
  using After = std::vector<int>;

  static size_t index(BlockId block) { return static_cast<size_t>(block.value); }
  const PlannedAccess& access(int at) const { return plan_.accesses[static_cast<size_t>(at)]; }
  BlockId block_of(int at) const { return access(at).access.block; }
  const BlockNeeds& needs(BlockId block) const { return blocks_[index(block)]; }

  int add(Lane lane, double task_seconds, double moved, const After& after, std::string label,
          int queue = 0) {
    SimTask task{
        .lane = lane, .seconds = task_seconds, .label = std::move(label), .queue = queue, .bytes = moved};
    for (const int before : after)
      if (before != kNone) task.after.push_back(before);
    bytes_[lane] += moved;
    tasks_.push_back(std::move(task));
    return static_cast<int>(tasks_.size()) - 1;
  }

  // Reads and writes that take turns are slower than each alone by what was measured for half and half; less
  // where one of both is rare.
  double disk_slowness() const {
    const double read = bytes_of(plan_.disk_read_bytes_per_walk);
    const double written = bytes_of(plan_.disk_write_bytes_per_walk);
    const double mixed = rates_.disk_mixed_bytes_per_second;
    if (read + written == 0 || mixed == 0) return 1;
    const double turns = 0.5 / rates_.disk_read_bytes_per_second + 0.5 / rates_.disk_write_bytes_per_second;
    return 1 + 2 * std::min(read, written) / (read + written) * (1 / (mixed * turns) - 1);
  }
  int read(double moved, const After& after, std::string label, Queue queue) {
    charge_processor(moved, after);
    return add(Lane::disk_read, seconds(moved, rates_.disk_read_bytes_per_second) * disk_slowness_, moved,
               after, std::move(label), queue);
  }
  int write(double moved, const After& after, std::string label, Queue queue) {
    charge_processor(moved, after);
    return add(Lane::disk_write, seconds(moved, rates_.disk_write_bytes_per_second) * disk_slowness_, moved,
               after, std::move(label), queue);
  }
  // Transfers take from the host's processor what the optimizer (and compute, where it is there) then lacks.
  void charge_processor(double moved, const After& after) {
    const double taken = moved * rates_.disk_cpu_seconds_per_byte / rates_.thread_count;
    if (taken > 0) add(Lane::optimizer, taken, 0, after, "transfer", kTransfers);
  }
  int copy_in(size_t size, const After& after, std::string label) {
    return add(Lane::copy_in, seconds(bytes_of(size), rates_.copy_in_bytes_per_second), bytes_of(size), after,
               std::move(label));
  }
  int copy_out(size_t size, const After& after, std::string label) {
    return add(Lane::copy_out, seconds(bytes_of(size), rates_.copy_out_bytes_per_second), bytes_of(size),
               after, std::move(label));
  }
  int compute(double compute_seconds, const After& after, std::string label) {
    return add(Lane::compute, compute_seconds, 0, after, std::move(label));
  }
  // On the optimizer's lane, which goes on only after what its thread waits for.
  int on_optimizer(double task_seconds, double moved, After after, std::string label) {
    after.push_back(optimizer_waits_for_);
    optimizer_waits_for_ = kNone;
    return add(Lane::optimizer, task_seconds, moved, after, std::move(label));
  }

  // The trainer packs a step's inputs once the norm of the last is known; nothing is computed meanwhile.
  void begin_walk() {
    read_ahead();
    trainer_ = compute(seconds(costs_.input_tokens, rates_.input_tokens_per_second), {}, "step inputs");
    issue_up_to(plan_.prefetch_distance - 1);
    const int inputs = copy_in(costs_.input_bytes, {trainer_}, "inputs");
    compute(costs_.begin_seconds, {inputs, embedding_rows()}, "embed");
  }
  // The mover's lane reads and gathers them, before what is fetched after them.
  int embedding_rows() {
    int on_disk = kNone;
    if (costs_.row_disk_bytes > 0)
      on_disk = read(bytes_of(costs_.row_disk_bytes), {trainer_}, "read embedding rows", kPrefetcher);
    const int gathered = add(Lane::copy_in, of_one_thread(2 * bytes_of(costs_.row_bytes)), 0,
                             {trainer_, on_disk}, "gather embedding rows");
    for (const BlockId block : costs_.row_blocks) {
      versions_wanted_.emplace_back(gathered, block);
      if (on_disk != kNone) versions_wanted_.emplace_back(on_disk, block);
    }
    return copy_in(costs_.row_bytes, {gathered}, "embedding rows");
  }
  double of_one_thread(double touched) const { return seconds(touched, rates_.thread_bytes_per_second); }

  // Prefetcher::issue_up_to.
  void issue_up_to(int until) {
    const int end = static_cast<int>(plan_.accesses.size());
    for (; next_read_ < std::min(until + plan_.read_ahead + 1, end); ++next_read_) {
      const BlockId block = block_of(next_read_);
      if (!access(next_read_).fetch_again || plan_.home(block).weights != Tier::disk) continue;
      const size_t at = static_cast<size_t>(next_read_);
      read_[at] = read(bytes_of(needs(block).fetch_bytes),
                       {trainer_, user_before(readers_, plan_.staging_slot_count)},
                       "read weights of " + needs(block).name, kPrefetcher);
      readers_.push_back(next_read_);
      versions_wanted_.emplace_back(read_[at], block);
    }
    for (; next_access_ < std::min(until + 1, end); ++next_access_) {
      if (access(next_access_).fetch_again) issue(next_access_);
    }
  }
  // The copy out of the staging slot that comes next.
  int user_before(const std::vector<int>& users, int slot_count) const {
    if (static_cast<int>(users.size()) < slot_count) return kNone;
    return copied_[static_cast<size_t>(users[users.size() - static_cast<size_t>(slot_count)])];
  }
  void issue(int at) {
    const BlockId block = block_of(at);
    int slot_left = kNone;
    if (static_cast<int>(fetchers_.size()) >= plan_.landing_slot_count) {
      const size_t before = fetchers_.size() - static_cast<size_t>(plan_.landing_slot_count);
      slot_left = prepared_[static_cast<size_t>(fetchers_[before])];
    }
    const int from_disk = read_[static_cast<size_t>(at)];
    const int copied =
        copy_in(needs(block).fetch_bytes, {trainer_, from_disk, slot_left}, "in " + needs(block).name);
    copied_[static_cast<size_t>(at)] = copied;
    fetchers_.push_back(at);
    if (from_disk == kNone) versions_wanted_.emplace_back(copied, block);
  }

  // A lease, what is computed under it, and what leaves the device after it.
  void visit(int at) {
    const PlannedAccess& planned = access(at);
    const BlockNeeds& block = needs(planned.access.block);
    const size_t position = static_cast<size_t>(at);
    if (planned.fetch_again) {
      issue_up_to(at + plan_.prefetch_distance);
      prepared_[position] =
          compute(costs_.prepare_seconds[position], {copied_[position]}, "prepare " + block.name);
    }
    const int layer = planned.access.tape_layer;
    const bool offloads = plan_.boundary_tier != Tier::device && layer >= 0;
    const bool offers = last_access_[planned.access.block] == at && block.gradient_copy_bytes > 0;
    After after;
    if (offloads && planned.access.phase == Phase::forward) after.push_back(input_slot_left(layer + 1));
    if (offloads && planned.access.phase == Phase::backward) after.push_back(input_arrives(layer));
    if (offers) after.push_back(gradient_slot_left());
    const int computed = compute(costs_.access_seconds[position], after,
                                 std::string(name(planned.access.phase)) + " " + block.name);
    last_computed_ = computed;
    if (offloads && planned.access.phase == Phase::forward) input_leaves(layer, computed);
    if (offers) offer(planned.access.block, computed);
  }

  // InputOffload.
  bool leaves(int layer) const { return layer < layer_count() - plan_.boundary_slot_count; }
  int layer_count() const { return static_cast<int>(plan_.boundary_offsets.size()); }
  int input_slot_left(int layer) const {
    const auto found = inputs_out_.find(layer - plan_.boundary_slot_count);
    return found == inputs_out_.end() ? kNone : found->second;
  }
  int staging_left() const {
    const size_t slots = static_cast<size_t>(plan_.boundary_staging_count);
    return staging_uses_.size() < slots ? kNone : staging_uses_[staging_uses_.size() - slots];
  }
  void input_leaves(int layer, int computed) {
    if (!leaves(layer)) return;
    const bool disk = plan_.boundary_tier == Tier::disk;
    const std::string label = "input of layer " + std::to_string(layer);
    const int out = copy_out(plan_.boundary_slot_bytes, {computed, disk ? staging_left() : kNone}, label);
    inputs_out_[layer] = inputs_away_[layer] = out;
    if (!disk) return;
    inputs_away_[layer] = write(bytes_of(plan_.boundary_slot_bytes), {out}, label, kInputs);
    staging_uses_.push_back(inputs_away_[layer]);
  }
  // Returns what brings this layer's input, and sends for the next one's.
  int input_arrives(int layer) {
    const auto here = inputs_in_.find(layer);
    const int arrived = here == inputs_in_.end() ? kNone : here->second;
    if (layer == 0 || !leaves(layer - 1)) return arrived;
    const std::string label = "input of layer " + std::to_string(layer - 1);
    int from = inputs_away_[layer - 1];
    const bool disk = plan_.boundary_tier == Tier::disk;
    if (disk) from = read(bytes_of(plan_.boundary_slot_bytes), {from, staging_left()}, label, kInputs);
    inputs_in_[layer - 1] = copy_in(plan_.boundary_slot_bytes, {from, last_computed_}, label);
    if (disk) staging_uses_.push_back(inputs_in_[layer - 1]);
    return arrived;
  }

  // Engine::offer: the block's gradient leaves for the host tier, is counted in the norm, and may go to disk.
  int gradient_slot_left() const {
    const size_t slots = static_cast<size_t>(plan_.gradient_slot_count);
    return gradients_out_.size() < slots ? kNone : gradients_out_[gradients_out_.size() - slots];
  }
  void offer(BlockId block, int computed) {
    const BlockNeeds& of = needs(block);
    const bool disk = plan_.home(block).gradient == Tier::disk;
    const size_t slots = static_cast<size_t>(plan_.gradient_staging_slot_count);
    const bool waits = disk && gradients_written_.size() >= slots;
    const int out =
        copy_out(of.gradient_copy_bytes,
                 {computed, waits ? gradients_written_[gradients_written_.size() - slots] : kNone},
                 "gradient " + of.name);
    gradients_out_.push_back(out);
    if (!disk) versions_wanted_.emplace_back(out, block);  // the update before has read what is overwritten
    if (std::ranges::count(costs_.row_blocks, block) > 0) return;  // rows are still to come
    const double size = bytes_of(of.waiting_bytes);
    const int counted = on_optimizer(seconds(size, rates_.norm_bytes_per_second) +
                                         (disk ? seconds(size, rates_.checksum_bytes_per_second) : 0),
                                     size, {out}, "norm " + of.name);
    if (!disk) return;
    optimizer_waits_for_ = write(size, {counted}, "gradient " + of.name, kOptimizer);
    gradients_written_.push_back(optimizer_waits_for_);
  }

  // Engine::offer_rows and the first part of begin_update.
  void end_walk() {
    const int computed = compute(costs_.end_seconds, {}, "embedding backward");
    const int out = copy_out(costs_.row_gradient_bytes, {computed}, "embedding gradient");
    for (const BlockId block : costs_.row_blocks) {
      const BlockNeeds& of = needs(block);
      if (of.waiting_bytes == 0) continue;
      versions_wanted_.emplace_back(out, block);
      // Rows are read and added; then all of it is rounded where gradients are bf16, and squared.
      const double added =
          3 * bytes_of(costs_.row_gradient_bytes) / static_cast<double>(costs_.row_blocks.size());
      const double passed = costs_.row_block_passes * bytes_of(of.waiting_bytes);
      on_optimizer(of_one_thread(added + passed), added + passed, {out}, "add embedding rows");
      const double squared = bytes_of(of.waiting_bytes);
      on_optimizer(seconds(squared, rates_.norm_bytes_per_second), squared, {}, "norm " + of.name);
    }
    decided_ = on_optimizer(0, 0, {computed}, "norm");
  }

  // Optimizer::update_block, and StateStream for what is on disk.
  void update(BlockId block) {
    const BlockNeeds& of = needs(block);
    if (of.element_count == 0) return;
    const double count = element_count(of);
    const double touched = 2 * state_bytes(of) + bytes_of(of.waiting_bytes);
    const BlockHome& home = plan_.home(block);
    if (home == BlockHome{}) {
      version_[index(block)] = on_optimizer(seconds(count, rates_.optimizer_parameters_per_second), touched,
                                            {}, "update " + of.name);
      update_ends_.push_back(version_[index(block)]);
      return;
    }
    const Streamed stream = streamed(of, home);
    const double chunk = chunk_elements();
    for (double begin = 0; begin < count; begin += chunk) {
      const double elements = std::min(chunk, count - begin);
      const double gradient_bytes = elements * stream.gradient, state_bytes = elements * stream.states;
      const int ahead = slots_.size() < reads_ahead_.size() ? reads_ahead_[slots_.size()] : kNone;
      const double still = gradient_bytes + (ahead == kNone ? state_bytes : 0);
      int here = kNone;
      if (still > 0) here = read(still, {free_slot(), decided_}, "read states of " + of.name, kOptimizer);
      const double work = seconds(elements, rates_.optimizer_parameters_per_second) +
                          seconds(gradient_bytes + 2 * state_bytes, rates_.checksum_bytes_per_second);
      int done = on_optimizer(work, touched * elements / count, {ahead, here}, "update " + of.name);
      if (state_bytes > 0) done = write(state_bytes, {done}, "write states of " + of.name, kOptimizer);
      slots_.push_back(done);
      version_[index(block)] = done;
    }
    update_ends_.push_back(version_[index(block)]);
    optimizer_waits_for_ = version_[index(block)];
  }
  // StateStream::read_ahead: states of the first chunks lie in the slots since the last update's end.
  void read_ahead() {
    for (const BlockId block : costs_.update_order) {
      const BlockNeeds& of = needs(block);
      if (of.element_count == 0 || plan_.home(block) == BlockHome{}) continue;
      const Streamed stream = streamed(of, plan_.home(block));
      const double count = element_count(of), chunk = chunk_elements();
      for (double begin = 0; begin < count; begin += chunk) {
        if (reads_ahead_.size() >= static_cast<size_t>(std::max(plan_.update_slot_count, 1))) return;
        const double size = std::min(chunk, count - begin) * stream.states;
        reads_ahead_.push_back(size > 0 ? read(size, {}, "read states of " + of.name, kOptimizer) : kNone);
      }
    }
  }
  double chunk_elements() const {
    double total = 0, states = 0;
    for (const BlockNeeds& block : blocks_) {
      total += element_count(block);
      states += state_bytes(block);
    }
    // Its update slot holds the states and a gradient of up to fp32.
    const double chunk = bytes_of(plan_.update_slot_bytes) / (states / std::max(1.0, total) + 4);
    return std::max({1.0, chunk, total / static_cast<double>(kMostChunks)});
  }
  int free_slot() const {
    const size_t slots = static_cast<size_t>(std::max(plan_.update_slot_count, 1));
    return slots_.size() < slots ? kNone : slots_[slots_.size() - slots];
  }

  static constexpr int kTransfers = 1;  // queue of the optimizer's lane: only takes time of the processor

  const Plan& plan_;
  const std::span<const BlockNeeds> blocks_;
  const WalkCosts& costs_;
  const LaneRates& rates_;
  const double disk_slowness_;
  std::vector<SimTask> tasks_;
  PerLane<double> bytes_;
  std::map<BlockId, int> last_access_;

  // By access.
  std::vector<int> read_, copied_, prepared_;
  int next_read_ = 0;
  int next_access_ = 0;
  std::vector<int> readers_, fetchers_;  // accesses, in the order of their slots
  int last_computed_ = kNone;

  std::map<int, int> inputs_out_, inputs_away_, inputs_in_;  // by layer
  std::vector<int> staging_uses_;
  std::vector<int> gradients_out_, gradients_written_;
  std::vector<int> slots_;        // of the update: last uses, in order
  std::vector<int> reads_ahead_;  // by chunk of the update
  std::vector<int> update_ends_;  // by block
  int trainer_ = kNone;
  int optimizer_waits_for_ = kNone;
  int decided_ = kNone;
  std::vector<int> version_;                              // by block: its update's end
  std::vector<std::pair<int, BlockId>> versions_wanted_;  // tasks after the last step's update of a block
};

}  // namespace

std::vector<SimTask> step_tasks(const Plan& plan, std::span<const BlockNeeds> blocks, const WalkCosts& costs,
                                const LaneRates& rates) {
  return StepBuilder(plan, blocks, costs, rates).build();
}

namespace {

std::string_view bottleneck(const Timeline& timeline) {
  const PerLane<double>& seconds = timeline.critical_seconds;
  const double disk = seconds[Lane::disk_read] + seconds[Lane::disk_write];
  const Lane longest = timeline.bottleneck();
  return disk > 0 && disk >= seconds[longest] ? "disk" : name(longest);
}

}  // namespace

Prediction predict(const Plan& plan, std::span<const BlockNeeds> blocks, const WalkCosts& costs,
                   const LaneRates& rates) {
  StepBuilder builder(plan, blocks, costs, rates);
  std::vector<SimTask> tasks = builder.build();
  const Timeline timeline = simulate(tasks, {.step_count = kSteps, .processors = rates.processors});
  return {.step_seconds = timeline.step_seconds,
          .busy_seconds = timeline.busy_seconds,
          .critical_seconds = timeline.critical_seconds,
          .bytes = builder.bytes(),
          .bottleneck = bottleneck(timeline),
          .tasks = std::move(tasks),
          .processors = rates.processors};
}

}  // namespace sluice
