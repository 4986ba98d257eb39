#include "apps/finetune/model/hf_files.h"

#include <algorithm>
#include <array>

#include "engine/base/error.h"
#include "io/file.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

bool is_hidden(std::string_view name) {
  return name.starts_with('.');
}

// By what a file is, not by a list of names: new releases bring new ones (chat_template.jinja came that way).
bool is_kept(const std::string& name) {
  constexpr std::array<std::string_view, 8> kExtensions = {".json", ".jinja", ".txt",      ".model",
                                                           ".md",   ".py",    ".tiktoken", ".jinja2"};
  constexpr std::array<std::string_view, 5> kLegal = {"LICENSE", "LICENCE", "NOTICE", "USE_POLICY",
                                                      "COPYING"};
  if (is_hidden(name)) return false;
  // What belongs to weights in other formats, to an adapter, or to a test of ours.
  if (name.ends_with(".index.json") && name != kIndexName) return false;
  if (name == "adapter_config.json" || name == "golden.json") return false;
  const std::string extension = fs::path(name).extension();
  return std::find(kExtensions.begin(), kExtensions.end(), extension) != kExtensions.end() ||
         std::any_of(kLegal.begin(), kLegal.end(),
                     [&](std::string_view start) { return name.starts_with(start); });
}

std::vector<fs::directory_entry> list(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::directory_entry> entries;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    entries.push_back(*it);
  if (error) throw_file_error("list the folder", folder, error.value());
  return entries;
}

void check_link(const fs::directory_entry& entry, const fs::path& folder) {
  if (!entry.is_symlink()) return;
  const fs::path target_folder = fs::canonical(entry.path()).parent_path();
  const fs::path home = fs::canonical(folder);
  const fs::path blobs =
      home.parent_path().parent_path() / "blobs";  // models--X/snapshots/REVISION, models--X/blobs
  if (target_folder == home || target_folder == blobs) return;
  throw Error(ErrorKind::data, entry.path().string() + " is a symbolic link out of the model folder, to " +
                                   fs::canonical(entry.path()).string() +
                                   ", and would be copied into the output. Put the file itself there.");
}

}  // namespace

std::vector<std::string> find_weight_files(const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : list(folder)) {
    const std::string name = entry.path().filename();
    if (is_hidden(name) || !name.ends_with(".safetensors") || !entry.is_regular_file()) continue;
    if (name.starts_with("adapter") || name == "golden.safetensors") continue;
    names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> find_other_files(const fs::path& folder) {
  std::vector<std::string> names;
  const bool single = fs::exists(folder / kSingleFileName);
  for (const fs::directory_entry& entry : list(folder)) {
    const std::string name = entry.path().filename();
    if (!is_kept(name) || !entry.is_regular_file()) continue;
    if (name == kIndexName && single) continue;  // of shards that are not read and so not written
    check_link(entry, folder);
    names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

void refuse_used_output(const fs::path& output) {
  std::error_code error;
  if (!fs::exists(output, error)) return;
  if (fs::is_directory(output) && fs::is_empty(output)) return;
  throw Error(ErrorKind::usage, "the output " + output.string() +
                                    " exists and is not an empty folder. Choose another " +
                                    "one, or remove it.");
}

}  // namespace sluice
