#pragma once

#include <nlohmann/json.hpp>

#include "apps/finetune/data/sampler.h"
#include "apps/finetune/model/config.h"
#include "apps/finetune/train_events.h"
#include "apps/finetune/train_setup.h"

namespace sluice::finetune {

// How far a run has come: what a saved generation says besides the states.
struct RunProgress {
  RunFacts facts;
  DataCursor cursor;             // of the next step
  int64_t skipped_in_a_row = 0;  // of the last steps
};

// Settings that no option has, and those that a record is asked for. run_settings.cpp makes the settings,
// which takes the model and the data; run_record.cpp reads and writes them.
namespace setting_name {
inline constexpr const char* kModel = "model";
inline constexpr const char* kData = "data";
inline constexpr const char* kTokens = "tokens";
inline constexpr const char* kSteps = "total_steps";
inline constexpr const char* kConfig = "config";  // config.json itself: a converter has no model at hand
inline constexpr const char* kStateFormat = "state_format";
}  // namespace setting_name

// Everything that must be the same for a run to go on bit for bit, by the name of its option: values as they
// are, and hashes of the model's config and list of tensors, of the data file, and of the rows' tokens.
nlohmann::ordered_json run_settings(const TrainOptions& options, const TrainSetup& setup);

// What a manifest keeps of a run (GenerationFacts::run).
nlohmann::json run_record(const nlohmann::ordered_json& settings, const RunProgress& progress);

// Throws Error(data) where the record is not one of ours.
RunProgress recorded_progress(const nlohmann::json& record);
// The shape of the model, likewise.
ModelConfig recorded_config(const nlohmann::json& record);
// The state has been converted.
void record_state_format(nlohmann::json& record, cpu_optim::StateFormat format);
// Throws Error(usage) that names the first option that is not as `record` says.
void refuse_changes(const nlohmann::json& record, const nlohmann::ordered_json& settings,
                    const TrainOptions& options);

}  // namespace sluice::finetune
