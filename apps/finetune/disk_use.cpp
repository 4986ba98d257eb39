#include "apps/finetune/disk_use.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <map>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <vector>

#include "apps/finetune/checkpoint.h"
#include "apps/finetune/model/decoder_spec.h"
#include "apps/finetune/model/hf_writer.h"
#include "engine/base/error.h"
#include "engine/memory/tensor_store.h"
#include "io/file.h"

namespace sluice::finetune {
namespace {

namespace fs = std::filesystem;

struct Need {
  fs::path folder;
  uint64_t size_bytes = 0;
  std::string what;
};

// By file system: what shares one must fit together.
std::vector<RoomWanted> rooms(const std::vector<Need>& needs) {
  std::map<dev_t, RoomWanted> wanted;
  for (const Need& need : needs) {
    const fs::path existing = nearest_existing(need.folder);
    struct stat info {};
    if (::stat(existing.c_str(), &info) != 0) throw_file_error("examine", existing, errno);
    RoomWanted& room = wanted[info.st_dev];
    room.folder = existing;
    room.wanted_bytes += need.size_bytes;
    room.what += (room.what.empty() ? "" : ", ") + format_bytes(need.size_bytes) + " for " + need.what +
                 " in " + need.folder.string();
  }
  std::vector<RoomWanted> list;
  for (auto& [drive, room] : wanted) {
    struct statvfs info {};
    if (::statvfs(room.folder.c_str(), &info) != 0) throw_file_error("examine", room.folder, errno);
    room.free_bytes = uint64_t{info.f_bavail} * info.f_frsize;
    list.push_back(std::move(room));
  }
  return list;
}

// The first file system that lacks room, in words; empty where none does.
std::string find_lack(const std::vector<Need>& needs) {
  for (const RoomWanted& room : rooms(needs)) {
    if (room.wanted_bytes <= room.free_bytes) continue;
    return "not enough disk space at " + room.folder + ": " + std::to_string(room.wanted_bytes) +
           " bytes are needed (" + room.what + "), " + std::to_string(room.free_bytes) + " are free";
  }
  return "";
}

std::vector<Need> state_needs(const TrainOptions& options, uint64_t size_bytes) {
  const std::vector<SpillFolder> drives = slab_folders(options.output, options.state);
  double sum = 0;
  for (const SpillFolder& drive : drives) sum += drive.weight;
  std::vector<Need> needs;
  for (const SpillFolder& drive : drives) {
    needs.push_back({drive.folder,
                     static_cast<uint64_t>(static_cast<double>(size_bytes) * drive.weight / sum),
                     "the states"});
  }
  return needs;
}

std::vector<Need> needs_of_state(const TrainOptions& options, const DiskUse& use, bool state_is_there) {
  return state_needs(options, state_is_there ? use.scratch_bytes : use.state_bytes);
}

// Without weight files: every tensor in the dtype of a new model.
uint64_t result_bytes(const TrainOptions& options, const TrainSetup& setup) {
  if (setup.model.folder.has_weights()) return written_bytes(setup.model.folder, options.export_dtype);
  const ModelSpec model = trained_model(setup);
  uint64_t bytes = 0;
  for (const TensorSpec& tensor : model.tensors)
    bytes += static_cast<uint64_t>(tensor.rows * tensor.cols) *
             size_bytes(options.export_dtype.value_or(DType::bf16));
  return bytes;
}

std::string row(const std::string& name, uint64_t size_bytes) {
  char text[160];
  std::snprintf(text, sizeof text, "  %-36s %12s %16llu\n", name.c_str(), format_bytes(size_bytes).c_str(),
                static_cast<unsigned long long>(size_bytes));
  return text;
}

}  // namespace

int64_t DiskUse::saves_after(int64_t done) const {
  if (steps == 0 || done > steps) return 0;
  const auto on_the_way = [&](int64_t count) { return save_interval > 0 ? count / save_interval : 0; };
  const int64_t last = std::max<int64_t>(0, steps - 1);
  return on_the_way(last) - on_the_way(std::min(done, last)) + (saved_at_end && done < steps ? 1 : 0);
}

std::optional<uint64_t> DiskUse::written_per_run() const {
  if (steps == 0) return std::nullopt;
  return written_before + written_at_start + static_cast<uint64_t>(steps - steps_before) * written_per_step +
         static_cast<uint64_t>(saves()) * written_per_save + export_bytes;
}

std::optional<uint64_t> DiskUse::limit_wanted() const {
  const std::optional<uint64_t> run = written_per_run();
  return run ? std::optional(*run + written_per_save) : std::nullopt;
}

uint64_t DiskUse::written_per_day(double step_seconds) const {
  constexpr double kSecondsPerDay = 86400;
  if (!(step_seconds > 0)) return 0;
  double per_step = static_cast<double>(written_per_step);
  if (save_interval > 0)
    per_step += static_cast<double>(written_per_save) / static_cast<double>(save_interval);
  return static_cast<uint64_t>(per_step / step_seconds * kSecondsPerDay);
}

void DiskUse::go_on_after(int64_t done, uint64_t written_bytes, bool moved) {
  steps_before = done;
  written_before = written_bytes;
  saved_at_end = true;  // whatever the options: a saved state is there to be kept until the result is
  if (!moved) written_at_start = scratch_bytes;  // the states are there, gradients have a new file
}

DiskUse disk_use(const TrainOptions& options, const TrainSetup& setup, const Plan& plan) {
  const int64_t interval = options.state.save_interval();
  DiskUse use{.export_bytes = result_bytes(options, setup),
              .state_bytes = plan.peak_bytes(Tier::disk),
              .state_needed = options.state.spills() || interval > 0,
              .read_per_step = plan.disk_read_bytes_per_walk,
              .written_per_step = plan.disk_write_bytes_per_walk,
              .steps = std::max(setup.total_steps, std::max<int64_t>(0, options.max_steps)),
              .save_interval = interval};
  const size_t weights_here = plan.part(plan_part::kWeights).size_bytes;
  use.written_per_save = weights_here + plan.part(plan_part::kMoments).size_bytes;
  use.saved_at_end = options.state.spills() || (interval > 0 && use.steps > interval);
  if (options.state.spills()) {
    const ModelSpec model = trained_model(setup);
    const size_t weights = TensorStore::weight_arena_bytes(model);
    // Loading writes whole checksum blocks, and those that two pieces share once for each: at most twice.
    use.written_at_start = use.state_bytes + 2 * (weights - std::min(weights, weights_here));
    for (const PlanPart& part : plan.parts)
      if (part.tier == Tier::disk && part.name == plan_part::kWaiting) use.scratch_bytes += part.size_bytes;
  }
  return use;
}

std::vector<RoomWanted> room_wanted(const TrainOptions& options, const DiskUse& use, bool state_is_there) {
  std::vector<Need> needs;
  if (!options.output.empty()) needs.push_back({options.output, use.export_bytes, "the result"});
  if (options.state.spills() || (use.state_needed && !options.output.empty())) {
    for (Need& need : needs_of_state(options, use, state_is_there)) needs.push_back(std::move(need));
  }
  return rooms(needs);
}

std::string check_disk(const TrainOptions& options, const DiskUse& use, bool state_is_there) {
  if (const auto wanted = use.limit_wanted();
      wanted && options.state.ssd_write_limit && *wanted > *options.state.ssd_write_limit) {
    throw Error(
        ErrorKind::resource,
        "the run would write " + format_bytes(*use.written_per_run()) + " to its drives" +
            (use.written_before > 0 ? ", " + format_bytes(use.written_before) + " of it already" : "") +
            ", and " + format_bytes(use.written_per_save) +
            " more should it be interrupted once: over --ssd_write_limit " +
            format_bytes(*options.state.ssd_write_limit) + ". Try --ssd_write_limit " +
            std::to_string(*wanted) +
            ", more --host_memory, more rows a step and so fewer steps, or a larger --save_steps.");
  }
  if (options.output.empty()) return "";
  std::vector<Need> needs{{options.output, use.export_bytes, "the result"}};
  for (Need& need : needs_of_state(options, use, state_is_there)) needs.push_back(std::move(need));
  const std::string lack = find_lack(needs);
  if (lack.empty()) return "";
  if (use.state_needed) {
    throw Error(ErrorKind::resource,
                lack + ". Free some space, or name other drives with --output and --spill_dir.");
  }
  const std::string result_lack = find_lack({needs[0]});
  if (!result_lack.empty())
    throw Error(ErrorKind::resource, result_lack + ". Free some space or choose another output folder.");
  return lack + ": if the run is interrupted, its state cannot be saved.";
}

std::string disk_table(const DiskUse& use, double step_seconds) {
  std::string text =
      "drives\n" + row("  read a step", use.read_per_step) + row("  written a step", use.written_per_step);
  if (const uint64_t day = use.written_per_day(step_seconds); day > 0) text += row("  written a day", day);
  text += row("  written at the start", use.written_at_start) +
          row("  written a saved state, at most", use.written_per_save) +
          row("  written for the result", use.export_bytes);
  if (const auto written = use.written_per_run()) {
    text += row("  written in a run of " + std::to_string(use.steps) + " step(s), " +
                    std::to_string(use.saves()) + " saved",
                *written);
  }
  return text;
}

nlohmann::ordered_json disk_json(const DiskUse& use) {
  using Json = nlohmann::ordered_json;
  const auto written = use.written_per_run();
  return {{"read_bytes_per_step", use.read_per_step},
          {"written_bytes_per_step", use.written_per_step},
          {"written_bytes_at_start", use.written_at_start},
          {"written_bytes_per_save", use.written_per_save},
          {"written_bytes_for_result", use.export_bytes},
          {"steps", use.steps > 0 ? Json(use.steps) : Json()},
          {"saves", use.saves()},
          {"written_bytes_per_run", written ? Json(*written) : Json()}};
}

std::string disk_summary(const DiskUse& use) {
  if (use.read_per_step == 0 && use.written_per_step == 0) return "";
  std::string text = "Drives: " + format_bytes(use.state_bytes) + " of states, a step reads " +
                     format_bytes(use.read_per_step) + " and writes " + format_bytes(use.written_per_step);
  if (const auto written = use.written_per_run()) text += ", the run writes " + format_bytes(*written);
  return text;
}

}  // namespace sluice::finetune
