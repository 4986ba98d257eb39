#include "apps/finetune/state_options.h"

#include "engine/base/error.h"

namespace sluice::finetune {
namespace {

// "DIR[,DIR...]"; given twice, the last one counts, as for every option.
OptionValue folders_value(std::vector<std::string>& folders) {
  return {.argument = "DIR[,DIR...]",
          .default_text = "",
          .implicit = "",
          .words = {},
          .assign = [&folders](std::string_view text) {
            folders.clear();
            while (true) {
              const size_t comma = text.find(',');
              folders.emplace_back(text.substr(0, comma));
              if (folders.back().empty())
                throw Error(ErrorKind::usage,
                            "a folder's name is empty. Write them as DIR or DIR,DIR2 without blanks.");
              if (comma == std::string_view::npos) return;
              text.remove_prefix(comma + 1);
            }
          }};
}

OptionValue save_steps_value(std::optional<int64_t>& steps) {
  return {.argument = "N",
          .default_text = std::to_string(StateOptions::kSpillSaveSteps) + " with --spill_dir, else 0",
          .implicit = "",
          .words = {},
          .assign = [&steps](std::string_view text) {
            const int64_t value = parse_integer(text);
            if (value < 0) throw Error(ErrorKind::usage, "'" + std::string(text) + "' is below 0.");
            steps = value;
          }};
}

OptionValue spill_value(Spill& spill) {
  return choice_value<Spill>(spill,
                             {{"auto", Spill::automatic},
                              {"moments", Spill::moments},
                              {"gradients", Spill::gradients},
                              {"all", Spill::everything}},
                             4);
}

OptionValue layer_inputs_value(LayerInputs& layer_inputs) {
  return choice_value<LayerInputs>(layer_inputs,
                                   {{"auto", LayerInputs::automatic},
                                    {"device", LayerInputs::device},
                                    {"host", LayerInputs::host},
                                    {"disk", LayerInputs::disk}},
                                   4);
}

OptionValue io_value(IoChoice::Engine& io) {
  using Engine = IoChoice::Engine;
  return choice_value<Engine>(
      io, {{"auto", Engine::automatic}, {"io_uring", Engine::io_uring}, {"threads", Engine::threads}}, 3);
}

void add_tiers(OptionTable& table, StateOptions& options) {
  const std::string group = "Tiers";
  table.add(group, {.name = "host_memory",
                    .value = size_value(options.host_memory, "as much as it takes"),
                    .help = "limit of the host tier, data included; what is more goes to --spill_dir",
                    .aliases = {}});
  table.add(group, {.name = "spill_dir",
                    .value = folders_value(options.spill_dirs),
                    .help = "where states, gradients and weights go that RAM is too small for; one a drive",
                    .aliases = {"spill_dirs", "offload_dir", "nvme_path"}});
  table.add(group, {.name = "spill",
                    .value = spill_value(options.spill),
                    .help = "what lives on disk at least; each includes those before it",
                    .aliases = {}});
  table.add(group, {.name = "layer_inputs",
                    .value = layer_inputs_value(options.layer_inputs),
                    .help = "where activations wait for backward; auto: on the device where they fit",
                    .aliases = {}});
  table.add(group, {.name = "io",
                    .value = io_value(options.io),
                    .help = "how to read and write the drives",
                    .aliases = {}});
  table.add(group, {.name = "io_timeout",
                    .value = real_value(options.io_timeout, {.minimum = 0}),
                    .help = "seconds after which a transfer that has not returned is told; after four times "
                            "as many the run ends; 0: never",
                    .aliases = {}});
  table.add(
      group,
      {.name = "ssd_write_limit",
       .value = size_value(options.ssd_write_limit, "none"),
       .help =
           "of the whole run, all its parts together: what would write more is refused, or stopped in time "
           "with its state saved",
       .aliases = {}});
}

OptionValue stop_after_value(std::optional<int64_t>& step) {
  return {.argument = "N", .default_text = "", .implicit = "", .words = {}, .assign = [&step](auto text) {
            step = parse_integer(text);
          }};
}

void add_saving(OptionTable& table, StateOptions& options) {
  const std::string group = "Saving";
  table.add(group, {.name = "save_steps",
                    .value = save_steps_value(options.save_steps),
                    .help = "steps from one saved state to the next; 0: when interrupted and at the end",
                    .aliases = {"steps_per_save"}});
  table.add(group, {.name = "resume",
                    .value = flag_value(options.resume),
                    .help = "go on with the run in --output, bit for bit",
                    .aliases = {"resume_from_checkpoint"}});
  table.add(group, {.name = "allow_different_kernels",
                    .value = flag_value(options.allow_different_kernels),
                    .help = "go on although this processor's kernels give other bits",
                    .aliases = {}});
  table.add(group, {.name = "stop_after",
                    .value = stop_after_value(options.stop_after),
                    .help = "behave as if SIGTERM had come during this step",
                    .aliases = {},
                    .presence = Presence::hidden});
}

std::string_view name(Spill spill) {
  return spill == Spill::automatic   ? "auto"
         : spill == Spill::moments   ? "moments"
         : spill == Spill::gradients ? "gradients"
                                     : "all";
}

std::string_view name(LayerInputs layer_inputs) {
  return layer_inputs == LayerInputs::automatic ? "auto"
         : layer_inputs == LayerInputs::device  ? "device"
         : layer_inputs == LayerInputs::host    ? "host"
                                                : "disk";
}

std::string_view name(IoChoice::Engine io) {
  return io == IoChoice::Engine::automatic  ? "auto"
         : io == IoChoice::Engine::io_uring ? "io_uring"
                                            : "threads";
}

}  // namespace

void add_state(OptionTable& table, StateOptions& options) {
  add_tiers(table, options);
  add_saving(table, options);
}

void check_state(const StateOptions& options) {
  if (options.spill != Spill::automatic && !options.spills())
    throw Error(ErrorKind::usage, "--spill: there is no drive for it. Name a folder with --spill_dir.");
  if (options.layer_inputs == LayerInputs::disk && !options.spills())
    throw Error(ErrorKind::usage,
                "--layer_inputs: there is no drive for them. Name a folder with --spill_dir.");
}

nlohmann::ordered_json state_json(const StateOptions& options) {
  using Json = nlohmann::ordered_json;
  return {{"host_memory", options.host_memory ? Json(*options.host_memory) : Json()},
          {"spill_dir", options.spill_dirs},
          {"spill", name(options.spill)},
          {"layer_inputs", name(options.layer_inputs)},
          {"io", name(options.io)},
          {"io_timeout", options.io_timeout},
          {"ssd_write_limit", options.ssd_write_limit ? Json(*options.ssd_write_limit) : Json()},
          {"save_steps", options.save_interval()},
          {"resume", options.resume}};
}

}  // namespace sluice::finetune
