#include "io/staged_folder.h"

#include <system_error>
#include <unistd.h>
#include <utility>

#include "engine/base/error.h"
#include "io/file.h"

namespace sluice {

StagedFolder::StagedFolder(std::filesystem::path output)
    : output_(std::filesystem::absolute(std::move(output))) {
  if (!output_.has_filename()) output_ = output_.parent_path();  // "model/" is "model"
  staging_ = output_ / (".partial-" + std::to_string(::getpid()));
  for (auto folder = output_; !std::filesystem::exists(folder) && folder.has_relative_path();
       folder = folder.parent_path()) {
    created_ = folder;
  }
  std::error_code error;
  std::filesystem::create_directories(output_, error);
  if (error) throw_file_error("create the folder", output_, error.value());
  std::filesystem::remove_all(staging_, error);  // of a dead process that had this number
  if (!std::filesystem::create_directory(staging_, error) || error) {
    const int error_number = error.value();
    if (!created_.empty()) std::filesystem::remove_all(created_, error);
    throw_file_error("write into the folder", output_, error_number);
  }
}

StagedFolder::~StagedFolder() {
  std::error_code ignored;  // a destructor has nobody to tell
  std::filesystem::remove_all(staging_, ignored);
  if (published_ || created_.empty()) return;
  // Not remove_all: somebody else may have put files here meanwhile, and those must stay.
  for (auto folder = output_; std::filesystem::remove(folder, ignored) && folder != created_;
       folder = folder.parent_path()) {
  }
}

void StagedFolder::publish(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    std::error_code error;
    std::filesystem::rename(staging_ / name, output_ / name, error);
    if (error) throw_file_error("rename to", output_ / name, error.value());
    published_ = true;  // from here on OUTPUT holds something
  }
  sync_folder(output_);
  published_ = true;
}

}  // namespace sluice
