#include "engine/store/manifest_folder.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <functional>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "engine/base/error.h"
#include "engine/store/private_folder.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kGeneration = "generation-";
constexpr std::string_view kNew = "new-";
constexpr std::string_view kOld = "old-";
constexpr std::string_view kManifest = ".manifest";
constexpr std::string_view kPartial = ".partial";
constexpr uint64_t kLargestManifest = uint64_t{1} << 30;  // of a state of 128 TiB

std::string numbered(uint64_t number) {
  std::array<char, 24> digits{};
  std::snprintf(digits.data(), digits.size(), "%020llu", static_cast<unsigned long long>(number));
  return digits.data();
}

fs::path generation_path(const fs::path& folder, uint64_t number) {
  return folder / (std::string(kGeneration) + numbered(number) + std::string(kManifest));
}

fs::path new_path(const fs::path& folder, const std::string& store_id) {
  return folder / (std::string(kNew) + store_id + std::string(kManifest));
}

std::optional<uint64_t> generation_number(const std::string& name) {
  std::string_view digits = name;
  if (!digits.starts_with(kGeneration) || !digits.ends_with(kManifest)) return std::nullopt;
  digits.remove_prefix(kGeneration.size());
  digits.remove_suffix(kManifest.size());
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size() || numbered(number) != digits)
    return std::nullopt;
  return number;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename());
  if (error) throw_file_error("list", folder, error.value());
  return names;
}

// Newest first.
std::vector<uint64_t> generations_in(const fs::path& folder) {
  std::vector<uint64_t> numbers;
  for (const std::string& name : names_in(folder))
    if (const auto number = generation_number(name)) numbers.push_back(*number);
  std::sort(numbers.begin(), numbers.end(), std::greater<>());
  return numbers;
}

Manifest read_manifest(const fs::path& path) {
  const File file = open_private_file(path);
  const uint64_t size = file.size_bytes();
  if (size > kLargestManifest)
    throw Error(ErrorKind::data,
                path.string() + " is no manifest: it has " + std::to_string(size) + " bytes.");
  std::string bytes(size, '\0');
  file.read_at(bytes.data(), bytes.size(), 0);
  return decode_manifest(bytes, path);
}

std::optional<Manifest> whole_manifest(const fs::path& path) {
  try {
    return read_manifest(path);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::data) throw;
    return std::nullopt;
  }
}

void rename_file(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) throw_file_error("rename to", to, errno);
}

void remove_file(const fs::path& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) throw_file_error("remove", path, errno);
}

// What a manifest names is removed only where it can be nothing but a slab of ours.
void remove_slabs(const fs::path& manifest_folder, const Manifest& manifest) {
  for (const SpillFolder& drive : manifest.drives) {
    const fs::path folder = resolved_folder(manifest_folder, drive.folder);
    try {
      check_private_folder(folder);
    } catch (const Error&) {
      continue;
    }
    remove_file(folder / slab_name(manifest.store_id));
  }
}

void retire(const fs::path& manifest_folder, uint64_t number) {
  const std::string name = std::string(kOld) + numbered(number) + std::string(kManifest);
  rename_file(generation_path(manifest_folder, number), manifest_folder / name);
}

}  // namespace

std::optional<Recovered> recover(const fs::path& manifest_folder) {
  std::error_code ignored;
  if (!fs::exists(fs::symlink_status(manifest_folder, ignored))) return std::nullopt;
  check_private_folder(manifest_folder);
  std::vector<std::string> warnings;
  for (const uint64_t number : generations_in(manifest_folder)) {
    const fs::path path = generation_path(manifest_folder, number);
    try {
      Manifest manifest = read_manifest(path);
      if (manifest.number != number)
        throw Error(ErrorKind::data, path.string() + " is the manifest of generation " +
                                         std::to_string(manifest.number) + ": somebody renamed it.");
      return Recovered{std::move(manifest), path, std::move(warnings)};
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::data) throw;
      warnings.emplace_back(error.what());
    }
  }
  if (warnings.empty()) return std::nullopt;
  throw Error(ErrorKind::data, "no saved state in " + manifest_folder.string() + " can be used: " +
                                   warnings.front() + " Start anew, or put back a copy of the folder.");
}

fs::path resolved_folder(const fs::path& manifest_folder, const fs::path& drive) {
  if (drive.is_absolute()) return drive;
  return drive == "." ? manifest_folder : manifest_folder / drive;
}

fs::path stored_folder(const fs::path& manifest_folder, const fs::path& drive) {
  const auto plain = [](const fs::path& path) {
    const fs::path normal = fs::absolute(path).lexically_normal();
    return normal.has_filename() ? normal : normal.parent_path();
  };
  const fs::path below = plain(drive).lexically_relative(plain(manifest_folder));
  return below.empty() || *below.begin() == ".." ? plain(drive) : below;
}

std::string slab_name(const std::string& store_id) {
  return "state-" + store_id + ".slab";
}

void write_manifest(const fs::path& manifest_folder, const Manifest& manifest) {
  const fs::path path = manifest.number == 0 ? new_path(manifest_folder, manifest.store_id)
                                             : generation_path(manifest_folder, manifest.number);
  const fs::path partial = path.string() + std::string(kPartial);
  const std::string bytes = encode_manifest(manifest);
  remove_file(partial);  // of a process that died
  try {
    File file = create_private_file(partial);
    file.write_at(bytes.data(), bytes.size(), 0);
    file.sync();
    rename_file(partial, path);
  } catch (const Error&) {
    ::unlink(partial.c_str());  // best effort; its name says that it is nothing
    throw;
  }
  sync_folder(manifest_folder);
}

uint64_t newest_number(const fs::path& manifest_folder) {
  const std::vector<uint64_t> numbers = generations_in(manifest_folder);
  return numbers.empty() ? 0 : numbers.front();
}

bool may_have_generation(const fs::path& manifest_folder, uint64_t number) {
  std::error_code error;
  return fs::symlink_status(generation_path(manifest_folder, number), error).type() !=
         fs::file_type::not_found;
}

void retire_others(const fs::path& manifest_folder, const std::string& store_id, uint64_t kept_number) {
  for (const uint64_t number : generations_in(manifest_folder))
    if (number != kept_number) retire(manifest_folder, number);
  remove_file(new_path(manifest_folder, store_id));
}

void remove_store(const fs::path& manifest_folder) {
  for (const uint64_t number : generations_in(manifest_folder)) retire(manifest_folder, number);
  remove_leftovers(manifest_folder, Leftovers::all);
}

void remove_leftovers(const fs::path& manifest_folder, Leftovers which) {
  std::vector<std::string> used;  // stores
  for (const uint64_t number : generations_in(manifest_folder))
    if (const auto manifest = whole_manifest(generation_path(manifest_folder, number)))
      used.push_back(manifest->store_id);
  for (const std::string& name : names_in(manifest_folder)) {
    const fs::path path = manifest_folder / name;
    const bool left_over = name.starts_with(kOld) || (which == Leftovers::all && name.starts_with(kNew));
    if (left_over && name.ends_with(kManifest)) {
      const auto manifest = whole_manifest(path);  // where it is damaged, nobody knows its slabs any more
      if (manifest && std::find(used.begin(), used.end(), manifest->store_id) == used.end())
        remove_slabs(manifest_folder, *manifest);
      remove_file(path);
    } else if (which == Leftovers::all && name.ends_with(std::string(kManifest) + std::string(kPartial))) {
      remove_file(path);
    }
  }
}

}  // namespace sluice
