#pragma once

#include <filesystem>

namespace sluice::finetune {

enum class RunKind { new_run, resumed };

// Throws Error(usage) unless `output` can become the result of a run; it, or the nearest folder above it that
// exists, must be writable. Changes nothing.
//
// For a new run it must be absent, empty, or hold nothing but what a run of ours left that did not end and
// saved no state: its diary (events.jsonl without an "end"), staging folders (.partial-*) and a checkpoint
// folder without a generation. To be resumed, a run must not have ended; whether it has a generation is for
// Checkpoint to say.
void check_output_folder(const std::filesystem::path& output, RunKind kind = RunKind::new_run);

// Makes the folder, which check_output_folder has passed, and removes what an unfinished run left there.
void make_output_folder(const std::filesystem::path& output);

}  // namespace sluice::finetune
