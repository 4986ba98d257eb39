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

std::optional<uint64_t> DiskUse::written_per_run() const {
  if (steps == 0) return std::nullopt;
  return written_at_start + static_cast<uint64_t>(steps) * written_per_step +
         static_cast<uint64_t>(saves) * written_per_save + export_bytes;
}

DiskUse disk_use(const TrainOptions& options, const TrainSetup& setup, const Plan& plan) {
  const int64_t interval = options.state.save_interval();
  DiskUse use{.export_bytes = result_bytes(options, setup),
              .state_bytes = plan.peak_bytes(Tier::disk),
              .state_needed = options.state.spills() || interval > 0,
              .read_per_step = plan.disk_read_bytes_per_walk,
              .written_per_step = plan.disk_write_bytes_per_walk,
              .steps = std::max(setup.total_steps, std::max<int64_t>(0, options.max_steps))};
  const size_t weights_here = plan.part(plan_part::kWeights).size_bytes;
  use.written_per_save = weights_here + plan.part(plan_part::kMoments).size_bytes;
  if (use.steps > 0) use.saves = interval > 0 ? (use.steps - 1) / interval : 0;
  if (use.steps > 0 && (options.state.spills() || use.saves > 0)) ++use.saves;  // at the end
  if (options.state.spills()) {
    const ModelSpec model = trained_model(setup);
    const size_t weights = TensorStore::weight_arena_bytes(model);
    use.written_at_start = use.state_bytes + weights - std::min(weights, weights_here);
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
  if (const auto written = use.written_per_run();
      written && options.state.ssd_write_limit && *written > *options.state.ssd_write_limit) {
    throw Error(
        ErrorKind::resource,
        "the run would write " + format_bytes(*written) + " (" + std::to_string(*written) +
            " bytes) to its drives, over --ssd_write_limit " + format_bytes(*options.state.ssd_write_limit) +
            ". Try more --host_memory, more rows a step and so fewer steps, a larger --save_steps, or "
            "a higher limit.");
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

std::string disk_table(const DiskUse& use) {
  std::string text = "drives\n" + row("  read a step", use.read_per_step) +
                     row("  written a step", use.written_per_step) +
                     row("  written at the start", use.written_at_start) +
                     row("  written a saved state, at most", use.written_per_save) +
                     row("  written for the result", use.export_bytes);
  if (const auto written = use.written_per_run()) {
    text += row("  written in a run of " + std::to_string(use.steps) + " step(s), " +
                    std::to_string(use.saves) + " saved",
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
          {"saves", use.saves},
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
