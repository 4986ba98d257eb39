#include "apps/finetune/output_folder.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <unistd.h>

#include "apps/finetune/checkpoint.h"
#include "apps/finetune/events.h"
#include "engine/base/error.h"
#include "engine/store/manifest_folder.h"
#include "io/file.h"

namespace sluice::finetune {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const fs::path& output, const std::string& why) {
  throw Error(ErrorKind::usage, "the output folder " + output.string() + " " + why);
}

bool is_staging(const fs::directory_entry& entry) {
  return entry.path().filename().string().starts_with(".partial-") && entry.is_directory();
}

std::string event_of(const std::string& line) {
  const nlohmann::json event = nlohmann::json::parse(line, nullptr, false);
  if (!event.is_object() || !event.contains("event") || !event["event"].is_string()) return "";
  return event["event"];
}

enum class Diary { foreign, unfinished, finished };

Diary read_diary(const fs::path& path) {
  std::ifstream in(path);
  std::string line, last;
  if (!std::getline(in, line)) return fs::file_size(path) == 0 ? Diary::unfinished : Diary::foreign;
  if (event_of(line) != "start") return Diary::foreign;
  while (std::getline(in, line)) last = line;
  return event_of(last) == "end" ? Diary::finished : Diary::unfinished;
}

// Nothing but what a process leaves that died before it saved anything. Throws where a state was saved.
bool is_empty_checkpoint(const fs::path& output, const fs::directory_entry& entry) {
  if (entry.path().filename() != checkpoint_folder(output).filename() ||
      !fs::is_directory(entry.symlink_status()))
    return false;
  if (newest_number(entry.path()) != 0) {
    refuse(output,
           "holds a run that was interrupted, with its saved state. To go on with it, add --resume; "
           "to begin another one, choose another folder.");
  }
  return std::ranges::all_of(fs::directory_iterator(entry.path()), [](const fs::directory_entry& each) {
    const std::string name = each.path().filename();
    return name == "lock" || name.ends_with(".manifest") || name.ends_with(".manifest.partial") ||
           name.ends_with(".slab");
  });
}

void check_contents(const fs::path& output, RunKind kind) {
  const fs::path events = output / kEventsName;
  if (fs::is_regular_file(fs::symlink_status(events)) && read_diary(events) == Diary::finished) {
    refuse(output, kind == RunKind::resumed ? "holds a finished run: there is nothing left to do."
                                            : "holds a finished run. Choose another one, or remove it.");
  }
  if (kind == RunKind::resumed) return;
  for (const fs::directory_entry& entry : fs::directory_iterator(output)) {
    const std::string name = entry.path().filename();
    if (is_staging(entry) || is_empty_checkpoint(output, entry)) continue;
    if (name == kEventsName && entry.is_regular_file() && read_diary(entry.path()) == Diary::unfinished)
      continue;
    refuse(output, "holds something already (" + name +
                       "), which training would mix its result with. Choose another one, or remove it.");
  }
}

}  // namespace

void check_output_folder(const fs::path& output, RunKind kind) {
  std::error_code error;
  fs::path nearest = fs::absolute(output);
  while (!fs::exists(fs::symlink_status(nearest, error)) && nearest.has_relative_path())
    nearest = nearest.parent_path();
  if (!fs::is_directory(nearest, error))
    refuse(output, "cannot be made: " + nearest.string() + " is not a folder.");
  if (::access(nearest.c_str(), W_OK | X_OK) != 0) {
    refuse(output, "cannot be written: " + nearest.string() + ": " + errno_text(errno) +
                       ". Choose another one, or change its permissions.");
  }
  if (!fs::is_directory(output, error)) return;
  try {
    check_contents(output, kind);
  } catch (const fs::filesystem_error& fault) {
    refuse(output, std::string("cannot be read: ") + fault.code().message() + ".");
  }
}

void make_output_folder(const fs::path& output) {
  std::error_code error;
  fs::create_directories(output, error);
  if (error) throw_file_error("create the folder", output, error.value());
  for (const fs::directory_entry& entry : fs::directory_iterator(output, error)) {
    std::error_code ignored;  // what stays is hidden and does no harm
    if (is_staging(entry)) fs::remove_all(entry.path(), ignored);
  }
  if (error) throw_file_error("list the folder", output, error.value());
}

}  // namespace sluice::finetune
