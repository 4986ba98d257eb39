#include <algorithm>
#include <optional>

#include "engine/base/error.h"
#include "engine/store/manifest_folder.h"
#include "tests/faults/workload.h"
#include "tests/support/state_trial.h"

namespace sluice::test {

namespace fs = std::filesystem;

bool Workload::begin(const fs::path& manifest_folder) {
  at_work_ = false;
  const bool found = recover(manifest_folder).has_value();
  if (!found && promised_ > 0)
    throw Silent("the generation of step " + std::to_string(promised_) + " is gone");
  return found;
}

void Workload::begin_work(int64_t applied_step, bool complaints) {
  at_work_ = true;
  if (applied_step < promised_ && !complaints) {
    throw Silent("step " + std::to_string(promised_) + " was committed, step " +
                 std::to_string(applied_step) + " is found");
  }
  promised_ = applied_step;
}

namespace {

using cpu_optim::StateFormat;

class StoreWorkload final : public Workload {
 public:
  StoreWorkload(fs::path root, Machine& machine, uint64_t seed)
      : root_(std::move(root)), machine_(machine), seed_(seed) {
    Draws draws(counter_hash(seed, 1));
    constexpr std::array<int64_t, 5> kTrained = {0, 256, 2048, 4096, 6400};
    std::vector<BlockSize> sizes{{2048, 256}};
    for (uint64_t more = draws.below(4); more > 0; --more)
      sizes.push_back({kTrained[draws.below(kTrained.size())], draws.one_in(3) ? 256 : 0});
    if (draws.one_in(25)) sizes.push_back({(1 << 19) + 2048, 0});
    model_ = model_of_sizes(sizes);
    constexpr std::array kFormats = {StateFormat::split, StateFormat::split_bf16, StateFormat::bf16,
                                     StateFormat::int8, StateFormat::fp32};
    model_.state_format = kFormats[draws.below(kFormats.size())];
    drive_count_ = 1 + static_cast<int>(draws.below(3));
    capacity_ = 1 + static_cast<int>(draws.below(16));
    last_step_ = 2 + static_cast<int64_t>(draws.below(4));
    prewrite_ = draws.one_in(2);
    moves_ = draws.one_in(4);
  }

  std::string describe() const override {
    return "store: " + std::to_string(model_.blocks.size()) + " blocks, " +
           std::string(cpu_optim::name(model_.state_format)) + ", " + std::to_string(drive_count_) +
           " drives, queue of " + std::to_string(capacity_) + ", " + std::to_string(last_step_) + " steps" +
           (prewrite_ ? ", prewritten" : "") + (moves_ ? ", moves to other drives" : "");
  }

  void live() override {
    const bool found = begin(root_ / "manifest");
    FolderLocks locks;
    queue_ = machine_.queues(capacity_)({});
    state_ = nullptr;
    if (!found) {
      state_ = StateFile::create(where("drive"), StateLayout(model_), locks, {*queue_});
      begin_work(0, false);
    } else {
      state_ = StateFile::open(root_ / "manifest", {}, StateLayout(model_), locks, {*queue_});
      begin_work(state_->generation().facts.applied_step, !state_->warnings().empty());
      expect_step(promised_step());
      if (moves_ && state_->drives().front().folder.filename() == "drive0") move(locks);
    }
    for (int64_t step = promised_step() + 1; step <= last_step_; ++step) work(step);
    if (failed_) std::rethrow_exception(failed_);
    expect_step(last_step_);
    state_.reset();
  }

 private:
  StateFileOptions where(const std::string& folder) const {
    StateFileOptions options{.manifest_folder = root_ / "manifest", .identity = {}, .prewrite = prewrite_};
    for (int i = 0; i < drive_count_; ++i)
      options.drives.push_back({root_ / (folder + std::to_string(i)), 1.0 + i});
    return options;
  }

  // The step that last wrote a block, when `step` is done. Each step leaves some as they are.
  uint64_t version(int32_t block, int64_t step) const {
    while (step > 1 && !writes(block, step)) --step;
    return static_cast<uint64_t>(step);
  }
  bool writes(int32_t block, int64_t step) const {
    return step == 1 || counter_hash(seed_, static_cast<uint64_t>(step * 100 + block)) % 3 != 0;
  }
  int64_t promised_step() const { return state_->generation().facts.applied_step; }

  void expect_step(int64_t step) {
    if (state_->generation().number == 0) return;
    for (int32_t block = 0; block < state_->layout().block_count(); ++block) {
      const int slot = state_->generation().slots[static_cast<size_t>(block)];
      if (!block_holds(*state_, *queue_, BlockId{block}, slot, version(block, step)))
        throw Silent("block " + std::to_string(block) + " has other bits at step " + std::to_string(step));
    }
  }

  void move(FolderLocks& locks) {
    interrupt_work();
    auto fresh = StateFile::create(where("other"), StateLayout(model_), locks, {*queue_});
    SLUICE_CHECK(fresh->copy_from(*state_, {*queue_}));
    fresh->commit(state_->generation().facts, std::vector<uint8_t>(model_.blocks.size(), 0));
    state_ = std::move(fresh);
    begin_work(promised_step(), false);
  }

  // What a step writes and does not commit, the next one writes again.
  void work(int64_t step) {
    const Generation& committed = state_->generation();
    std::vector<uint8_t> slots(model_.blocks.size(), 0);
    if (committed.number != 0) slots = committed.slots;
    for (int32_t block = 0; block < state_->layout().block_count(); ++block) {
      const int64_t since = committed.number == 0 ? 0 : committed.facts.applied_step;
      if (version(block, step) <= static_cast<uint64_t>(since)) continue;
      uint8_t& slot = slots[static_cast<size_t>(block)];
      if (committed.number != 0) slot = static_cast<uint8_t>(1 - slot);
      write_block(*state_, *queue_, BlockId{block}, slot, version(block, step));
      if (writes(block, step + 1) &&
          !block_holds(*state_, *queue_, BlockId{block}, slot, version(block, step)))
        throw Silent("block " + std::to_string(block) + " is not what was written in step " +
                     std::to_string(step));
    }
    failed_ = nullptr;
    try {
      state_->commit({.applied_step = step}, slots);
      promise(step);
    } catch (const Error&) {
      if (state_->in_doubt() || machine_.was_cut()) throw;
      failed_ = std::current_exception();  // and so does the trainer: the next one may go well
    }
  }

  const fs::path root_;
  Machine& machine_;
  const uint64_t seed_;
  ModelSpec model_;
  int drive_count_ = 1;
  int capacity_ = 1;
  int64_t last_step_ = 0;
  bool prewrite_ = false;
  bool moves_ = false;
  std::unique_ptr<IoQueue> queue_;
  std::unique_ptr<StateFile> state_;
  std::exception_ptr failed_;
};

}  // namespace

std::unique_ptr<Workload> make_store_workload(const fs::path& root, Machine& machine, uint64_t seed) {
  return std::make_unique<StoreWorkload>(root, machine, seed);
}

}  // namespace sluice::test
