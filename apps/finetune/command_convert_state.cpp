#include <algorithm>
#include <filesystem>
#include <iostream>

#include "apps/common/interrupt.h"
#include "apps/finetune/checkpoint.h"
#include "apps/finetune/commands.h"
#include "apps/finetune/events.h"
#include "apps/finetune/output_folder.h"
#include "apps/finetune/run_record.h"
#include "apps/finetune/state_report.h"
#include "apps/finetune/transfer_progress.h"
#include "engine/base/error.h"
#include "engine/store/convert_state.h"
#include "io/make_io_queue.h"

namespace sluice::finetune {
namespace {

namespace fs = std::filesystem;
using cpu_optim::StateFormat;

Manifest find_state(const fs::path& input) {
  std::optional<Recovered> found = recover(checkpoint_folder(input));
  if (!found) {
    throw Error(ErrorKind::usage, "--input: there is no saved state in " + input.string() +
                                      ". Name the output folder of a run that was interrupted.");
  }
  for (const std::string& warning : found->warnings)
    std::cerr << "warning: " << warning << " Taking the one before.\n";
  return std::move(found->manifest);
}

StateFormat format_of(const Manifest& manifest) {
  if (const auto format = cpu_optim::state_format(manifest.identity.format)) return *format;
  throw Error(ErrorKind::data, "the saved state has the unknown format " + manifest.identity.format +
                                   ". Was it made by another version of finetune?");
}

StateLayout layout_of(const ModelConfig& config, StateFormat format) {
  return StateLayout(make_decoder_spec(config, {}, format).model);
}

// The new store lies where the old one does, or below --output.
StateFileOptions target_options(const ConvertStateOptions& options, const Manifest& manifest,
                                const StateFile& old) {
  const fs::path folder = checkpoint_folder(options.output.empty() ? options.input : options.output);
  StateFileOptions target{.drives = {{folder}}, .manifest_folder = folder, .identity = manifest.identity};
  if (options.output.empty()) target.drives = old.drives();
  // A run that spills goes on in these very files.
  target.prewrite =
      std::ranges::any_of(target.drives, [&](const SpillFolder& drive) { return drive.folder != folder; });
  return target;
}

// What --resume continues besides the state.
void copy_diary(const ConvertStateOptions& options) {
  const fs::path diary = fs::path(options.input) / kEventsName;
  std::error_code error;
  if (!fs::is_regular_file(diary, error)) return;
  fs::copy_file(diary, fs::path(options.output) / kEventsName, fs::copy_options::overwrite_existing, error);
  if (error) throw_file_error("copy", diary, error.value());
}

void tell(const ConvertStateOptions& options, StateFormat from, const StateFile& old, const StateFile& made) {
  const std::string folder = options.output.empty() ? options.input : options.output;
  const std::string format(cpu_optim::name(options.state_format));
  const std::string lost = conversion_loss(from, options.state_format);
  std::cout << "Converted the state after step " << recorded_progress(made.generation().facts.run).facts.steps
            << " from " << cpu_optim::name(from) << " (" << format_bytes(old.layout().state_bytes())
            << ") to " << format << " (" << format_bytes(made.layout().state_bytes()) << ") in " << folder
            << "\n"
            << (lost.empty() ? "Nothing is lost: every number is as it was." : "Lost: " + lost + ".")
            << "\nTo go on: the run's command with --output " << folder << " --state_format " << format
            << " --resume\n";
}

}  // namespace

int run_command(const ConvertStateOptions& options) {
  if (!options.output.empty()) check_output_folder(options.output);
  const Manifest manifest = find_state(options.input);
  const StateFormat from = format_of(manifest);
  if (from == options.state_format && options.output.empty()) {
    std::cout << "The state in " << options.input << " is in " << cpu_optim::name(from) << " already\n";
    return 0;
  }
  const ModelConfig config = recorded_config(manifest.facts.run);
  const InterruptWatch watch;
  FolderLocks locks;
  const std::unique_ptr<IoQueue> queue = make_io_queue({}, nullptr);
  const std::unique_ptr<StateFile> old = StateFile::open(checkpoint_folder(options.input), manifest.identity,
                                                         layout_of(config, from), locks, {.queue = *queue});
  if (!options.output.empty()) make_output_folder(options.output);
  WatchedTransfers transfers(*queue, watch);
  const std::string format(cpu_optim::name(options.state_format));
  const std::unique_ptr<StateFile> made =
      StateFile::create(target_options(options, manifest, *old), layout_of(config, options.state_format),
                        locks, transfers.transfer("Making the state files of " + format));
  const LongTransfer converting = transfers.transfer("Converting the state to " + format);
  const auto fill = [&] {
    return from == options.state_format ? made->copy_from(*old, converting)
                                        : convert_state(*old, *made, converting);
  };
  if (!made || !fill()) {
    std::cerr << "Interrupted. The saved state is as it was.\n";
    return interrupt_exit_code(watch.signal_number());
  }
  if (!options.output.empty()) copy_diary(options);
  GenerationFacts facts = old->generation().facts;
  record_state_format(facts.run, options.state_format);
  made->commit(facts, std::vector<uint8_t>(static_cast<size_t>(made->layout().block_count())));
  tell(options, from, *old, *made);
  return 0;
}

}  // namespace sluice::finetune
