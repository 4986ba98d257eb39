#include "apps/finetune/run_record.h"

#include <cstdint>

#include "engine/base/error.h"

namespace sluice::finetune {
namespace {

using Json = nlohmann::ordered_json;

std::string text_of(const nlohmann::json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

[[noreturn]] void refuse(const std::string& key, const std::string& before, const std::string& now,
                         const TrainOptions& options) {
  const std::string run = "the run in " + options.output;
  std::string what = "--" + key + ": " + run + " was begun with " + before + ", this command says " + now;
  if (key == setting_name::kModel)
    what = "--model: " + options.model + " is another model than that of " + run;
  if (key == setting_name::kData) {
    what = "--data: " + options.data.data + " has other contents (" + now + ") than the file that " + run +
           " was begun with (" + before + ")";
  }
  if (key == setting_name::kTokens) {
    what = "--model: its tokenizer makes other tokens of the data (" + now + ") than when " + run +
           " was begun (" + before + ")";
  }
  if (key == setting_name::kSteps) {
    what = "--max_steps or --num_train_epochs: " + run + " was begun with " + before +
           " steps in all, this command makes it " + now;
  }
  if (key == setting_name::kStateFormat) {
    throw Error(ErrorKind::usage, what +
                                      ". Its saved state is in that format. To go on in the other one: "
                                      "finetune convert-state --input " +
                                      options.output + " --state_format " + now);
  }
  throw Error(ErrorKind::usage, what +
                                    ". It could not go on bit for bit. Give the same as then, or begin "
                                    "another run in another --output.");
}

[[noreturn]] void fail_record(const std::string& why) {
  throw Error(ErrorKind::data, "the saved state does not say how far its run had come (" + why +
                                   "). Was it made by another version of finetune?");
}

}  // namespace

nlohmann::json run_record(const Json& settings, const RunProgress& progress) {
  const RunFacts& facts = progress.facts;
  return {{"settings", nlohmann::json(settings)},
          {"progress",
           {{"steps", facts.steps},
            {"skipped_steps", facts.skipped_steps},
            {"skipped_in_a_row", progress.skipped_in_a_row},
            {"loss", facts.loss},
            {"train_loss", facts.train_loss},
            {"tokens", facts.tokens},
            {"label_tokens", facts.label_tokens},
            {"seconds", facts.seconds},
            {"written_bytes", facts.written_bytes},
            {"epoch", progress.cursor.epoch},
            {"position", progress.cursor.position}}}};
}

namespace {

// JSON's own conversion would take 1.5 and true for counts as well.
int64_t count_at(const nlohmann::json& saved, const char* key) {
  const nlohmann::json& value = saved.at(key);
  if (!value.is_number_integer() || value < 0 || value > INT64_MAX)
    fail_record(std::string(key) + " is not a count");
  return value.get<int64_t>();
}

}  // namespace

RunProgress recorded_progress(const nlohmann::json& record) {
  try {
    const nlohmann::json& saved = record.at("progress");
    RunProgress progress;
    progress.facts.steps = count_at(saved, "steps");
    progress.facts.skipped_steps = count_at(saved, "skipped_steps");
    progress.skipped_in_a_row = count_at(saved, "skipped_in_a_row");
    progress.facts.loss = saved.at("loss");
    progress.facts.train_loss = saved.at("train_loss");
    progress.facts.tokens = count_at(saved, "tokens");
    progress.facts.label_tokens = count_at(saved, "label_tokens");
    progress.facts.seconds = saved.at("seconds");
    if (saved.contains("written_bytes"))  // not in older records
      progress.facts.written_bytes = static_cast<uint64_t>(count_at(saved, "written_bytes"));
    progress.cursor = {count_at(saved, "epoch"), count_at(saved, "position")};
    return progress;
  } catch (const nlohmann::json::exception& error) {
    fail_record(error.what());
  }
}

ModelConfig recorded_config(const nlohmann::json& record) {
  try {
    return parse_model_config(record.at("settings").at(setting_name::kConfig).get<std::string>(),
                              "the saved config.json");
  } catch (const nlohmann::json::exception& error) {
    fail_record(error.what());
  }
}

void record_state_format(nlohmann::json& record, cpu_optim::StateFormat format) {
  record["settings"][setting_name::kStateFormat] = cpu_optim::name(format);
}

void refuse_changes(const nlohmann::json& record, const Json& settings, const TrainOptions& options) {
  const auto saved = record.is_object() ? record.find("settings") : record.end();
  if (saved == record.end() || !saved->is_object()) fail_record("it has no settings");
  for (const auto& [key, value] : settings.items()) {
    const auto before = saved->find(key);
    if (before == saved->end()) fail_record("it says nothing of " + key);
    if (*before != nlohmann::json(value)) refuse(key, text_of(*before), text_of(value), options);
  }
}

}  // namespace sluice::finetune
