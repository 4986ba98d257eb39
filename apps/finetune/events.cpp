#include "apps/finetune/events.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <fstream>
#include <iostream>
#include <string>
#include <unistd.h>

#include "engine/base/error.h"

namespace sluice::finetune {
namespace {

struct KeptLines {
  uint64_t size_bytes = 0;
  int64_t dropped_steps = 0;
  uint64_t written_bytes = 0;  // what steps wrote that come again was written all the same
};

// Up to the first step behind `step`; what follows it belongs to steps that come again.
KeptLines find_kept(const std::filesystem::path& path, int64_t step) {
  KeptLines kept;
  bool keeping = true;
  std::ifstream in(path, std::ios::binary);
  for (std::string line; std::getline(in, line) && !in.eof();) {
    const nlohmann::json event = nlohmann::json::parse(line, nullptr, false);
    if (!event.is_object()) break;
    if (const auto written = event.find("written_bytes");
        written != event.end() && written->is_number_unsigned())
      kept.written_bytes = std::max(kept.written_bytes, written->get<uint64_t>());
    if (event.value("event", "") == "step" && event.value("step", int64_t{0}) > step) {
      keeping = false;
      ++kept.dropped_steps;
    }
    if (keeping) kept.size_bytes += line.size() + 1;
  }
  return kept;
}

}  // namespace

EventLog::EventLog(const std::filesystem::path& path, int64_t step) {
  const KeptLines kept = find_kept(path, step);
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor < 0) throw_file_error("open", path, errno);
  file_ = File::adopt(path, descriptor);
  if (::ftruncate(descriptor, static_cast<off_t>(kept.size_bytes)) != 0) throw_file_error("cut", path, errno);
  offset_ = kept.size_bytes;
  dropped_steps_ = kept.dropped_steps;
  written_bytes_ = kept.written_bytes;
}

void EventLog::write(const nlohmann::ordered_json& event) {
  // Paths and texts of the outside need not be UTF-8; the line must be.
  const std::string line = event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  MutexLock lock(mutex_);
  if (!file_) return;
  try {
    file_->write_at(line.data(), line.size(), offset_);
    offset_ += line.size();
  } catch (const Error& error) {
    std::cerr << "warning: " << error.what() << " The run goes on without its event log.\n";
    file_.reset();
  }
}

}  // namespace sluice::finetune
