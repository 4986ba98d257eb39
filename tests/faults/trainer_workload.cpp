#include <array>
#include <map>
#include <optional>
#include <tuple>

#include "apps/common/pool.h"
#include "engine/base/error.h"
#include "gpu/host/host_ops.h"
#include "tests/faults/workload.h"
#include "tests/support/trainer_trial.h"

namespace sluice::test {
namespace {

namespace fs = std::filesystem;
using cpu_optim::StateFormat;
using finetune::Trainer;

constexpr int kSteps = 3;

ModelConfig smallest_config(bool tied) {
  ModelConfig config = two_piece_config(tied);
  config.vocab_size = 203;
  config.layer_count = 2;
  return config;
}

// What an undisturbed run in RAM computes.
struct Oracle {
  std::vector<Window> windows;
  TrialResult result;
};

class TrainerWorkload final : public Workload {
 public:
  TrainerWorkload(fs::path root, Machine& machine, uint64_t seed)
      : root_(std::move(root)), machine_(machine) {
    Draws draws(counter_hash(seed, 2));
    constexpr std::array kFormats = {StateFormat::split, StateFormat::split_bf16, StateFormat::bf16,
                                     StateFormat::int8, StateFormat::fp32};
    constexpr std::array kSpills = {Spill::automatic, Spill::moments, Spill::gradients, Spill::everything};
    how_.state_format = kFormats[draws.below(kFormats.size())];
    how_.compute_dtype = draws.one_in(2) ? DType::f32 : DType::bf16;
    how_.prefetch_distance = static_cast<int>(draws.below(3));
    how_.step_seed = seed;
    tied_ = draws.one_in(2);
    drive_count_ = 1 + static_cast<int>(draws.below(3));
    capacity_ = 1 + static_cast<int>(draws.below(32));
    disk_ = draws.below(5) != 0;
    spill_ = kSpills[draws.below(kSpills.size())];
    layer_inputs_ = disk_ && draws.one_in(3) ? LayerInputs::disk : LayerInputs::automatic;
    waits_late_ = draws.one_in(2);
  }

  std::string describe() const override {
    return "trainer: " + std::string(cpu_optim::name(how_.state_format)) +
           (how_.compute_dtype == DType::f32 ? ", fp32" : ", bf16") + (tied_ ? ", tied" : "") + ", " +
           std::to_string(drive_count_) + " drives, queue of " + std::to_string(capacity_) + ", " +
           (disk_ ? "spill " + std::to_string(static_cast<int>(spill_)) : std::string("all in RAM")) +
           (layer_inputs_ == LayerInputs::disk ? ", layer inputs on disk" : "") + ", prefetch " +
           std::to_string(how_.prefetch_distance);
  }

  void live() override {
    const bool found = begin(root_ / "manifest");
    const Oracle& oracle = expected();
    const ModelConfig config = smallest_config(tied_);
    finetune::TrainerOptions options = trainer_options(limits_of(oracle.windows), how_);
    options.disk = disk_;
    options.spill = disk_ ? spill_ : Spill::automatic;
    options.layer_inputs = layer_inputs_;
    options.can_save = true;
    FolderLocks locks;
    const std::unique_ptr<StateFile> file = state_file(found, Trainer::state_layout(config, options), locks);
    options.state_file = file.get();
    options.make_queue = machine_.queues(capacity_);
    const auto pool = make_pool(1);
    const auto device = gpu::make_host_device(
        {.executor = *pool, .make_ops = gpu::make_host_ops, .step_seed = how_.step_seed});
    Trainer trainer(*device, *pool, config, options);
    size_t done = 0;
    if (found) {
      trainer.engine().restore();
      done = file->generation().facts.run["step"].get<size_t>();
    } else {
      fill_weights(trainer.engine().store(), kWeightSeed);
    }
    work(trainer, oracle, done);
  }

 private:
  std::unique_ptr<StateFile> state_file(bool found, StateLayout layout, FolderLocks& locks) {
    const std::unique_ptr<IoQueue> queue = machine_.queues(capacity_)({});
    std::unique_ptr<StateFile> file;
    if (found) {
      file = StateFile::open(root_ / "manifest", {}, std::move(layout), locks, {*queue});
      begin_work(file->generation().facts.applied_step, !file->warnings().empty());
      return file;
    }
    StateFileOptions where{
        .drives = {}, .manifest_folder = root_ / "manifest", .identity = {}, .prewrite = disk_};
    for (int i = 0; i < drive_count_; ++i)
      where.drives.push_back({root_ / ("drive" + std::to_string(i)), 1.0 + i});
    file = StateFile::create(where, std::move(layout), locks, {*queue});
    begin_work(0, false);
    return file;
  }

  void work(Trainer& trainer, const Oracle& oracle, size_t done) {
    std::optional<PendingSave> save;
    std::exception_ptr failed;
    const auto settle = [&] {
      if (!save) return;
      try {
        save->wait();
        promise(save_step_);
        failed = nullptr;
      } catch (const Error&) {
        failed = std::current_exception();
      }
      save.reset();
    };
    for (size_t step = done; step < oracle.windows.size(); ++step) {
      const finetune::StepReport report = trainer.step(oracle.windows[step], trial_learning_rate(step));
      if (report.loss != oracle.result.losses[step] ||
          report.gradient_norm != oracle.result.gradient_norms[step])
        throw Silent("step " + std::to_string(step + 1) + " has another loss or gradient norm");
      settle();
      save = trainer.engine().save({.applied_step = 0, .run = {{"step", step + 1}}});
      save_step_ = static_cast<int64_t>(step) + 1;
      if (!waits_late_) settle();
    }
    settle();
    if (trainer.engine().state_hash() != oracle.result.state_hash) throw Silent("the state has other bits");
    if (failed) std::rethrow_exception(failed);
  }

  const Oracle& expected() const {
    static std::map<std::tuple<StateFormat, DType, bool>, Oracle> known;
    const auto key = std::tuple(how_.state_format, how_.compute_dtype, tied_);
    if (const auto found = known.find(key); found != known.end()) return found->second;
    const ModelConfig config = smallest_config(tied_);
    Oracle oracle{.windows = ragged_windows(3, config.vocab_size, kSteps, 2), .result = {}};
    TrialOptions how{.compute_dtype = how_.compute_dtype, .state_format = how_.state_format};
    oracle.result = train(config, oracle.windows, how);
    return known[key] = std::move(oracle);
  }

  const fs::path root_;
  Machine& machine_;
  TrialOptions how_;
  bool tied_ = false;
  int drive_count_ = 1;
  int capacity_ = 1;
  bool disk_ = true;
  Spill spill_ = Spill::automatic;
  LayerInputs layer_inputs_ = LayerInputs::automatic;
  bool waits_late_ = false;
  int64_t save_step_ = 0;
};

}  // namespace

std::unique_ptr<Workload> make_trainer_workload(const fs::path& root, Machine& machine, uint64_t seed) {
  return std::make_unique<TrainerWorkload>(root, machine, seed);
}

}  // namespace sluice::test
