#pragma once

#include <filesystem>

namespace sluice::finetune {

// Throws Error(usage) unless `output` can become the result of a run: it must be absent, empty, or hold
// nothing but the diary of a run of ours that did not end (events.jsonl without an "end") and staging folders
// of such a run
// (.partial-*); and it, or the nearest folder above it that exists, must be writable. Changes nothing.
void check_output_folder(const std::filesystem::path& output);

// Makes the folder, which check_output_folder has passed, and removes what an unfinished run left there.
void make_output_folder(const std::filesystem::path& output);

}  // namespace sluice::finetune
