#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "apps/finetune/forecast.h"
#include "engine/base/thread_annotations.h"
#include "engine/base/trace.h"

namespace sluice::finetune {

// Throws Error(usage) where no file of that name can be made. Leaves nothing behind.
void check_trace_path(const std::filesystem::path& path);

// The lanes of a few predicted steps alone, for `plan`. Throws what keeps it from being written.
void write_predicted_trace(const std::filesystem::path& path, const Forecast& forecast);

// The file of --trace: what a run did, and beside it what was predicted of the same steps. Thread-safe.
class RunTrace {
 public:
  // `trace` is what the run records into.
  RunTrace(std::filesystem::path path, std::shared_ptr<Trace> trace, Forecast forecast);

  // Ends the recording and writes the file, once, and says so on standard error. One that cannot be written
  // is a warning: the run is worth more.
  void write() EXCLUDES(mutex_);

 private:
  const std::filesystem::path path_;
  const std::shared_ptr<Trace> trace_;
  const Forecast forecast_;
  Mutex mutex_;
  bool written_ GUARDED_BY(mutex_) = false;
};

}  // namespace sluice::finetune
