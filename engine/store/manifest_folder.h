#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/store/manifest.h"

// The folder that says which bytes are the state. It holds one store:
//   generation-N.manifest    committed; the newest whole one is the state
//   new-ID.manifest          names the slabs of a store that has not committed yet
//   old-N.manifest           superseded; to be removed, with its slabs where no generation uses them
//   *.partial                being written
// so that slabs without a manifest do not exist, whenever a process dies. Who calls what changes something
// holds the FolderLock; one thread.
namespace sluice {

struct Recovered {
  Manifest manifest;
  std::filesystem::path path;
  std::vector<std::string> warnings;  // a sentence on each newer manifest that is damaged
};

// The newest generation with a whole manifest; nullopt where none was ever committed. Throws Error(data)
// where there are manifests and all are damaged, Error(usage) where others have access to them. Reads no
// slab.
std::optional<Recovered> recover(const std::filesystem::path& manifest_folder);

// The folder of a drive as the manifest means it, and the other way round: what lies in or below the
// manifest's folder is kept relative, so that all of it can be moved together.
std::filesystem::path resolved_folder(const std::filesystem::path& manifest_folder,
                                      const std::filesystem::path& drive);
std::filesystem::path stored_folder(const std::filesystem::path& manifest_folder,
                                    const std::filesystem::path& drive);
std::string slab_name(const std::string& store_id);

// Durable and whole under its name (new-ID for number 0) when it returns; when it throws, it has either not
// appeared, or (the last sync failed) may have.
void write_manifest(const std::filesystem::path& manifest_folder, const Manifest& manifest);
// The highest number of any generation there, whole or not; 0 for none.
uint64_t newest_number(const std::filesystem::path& manifest_folder);
// Whether there may be a generation of that number: true, too, where the folder cannot be read.
bool may_have_generation(const std::filesystem::path& manifest_folder, uint64_t number);
// Renames generations but `kept_number` to old-*, and removes new-ID of `store_id`, which has committed.
void retire_others(const std::filesystem::path& manifest_folder, const std::string& store_id,
                   uint64_t kept_number);
// Gives up the store: every generation, and then all leftovers.
void remove_store(const std::filesystem::path& manifest_folder);
enum class Leftovers { superseded, all };
// Removes old-* (and, `all`: new-* and *.partial) with the slabs that they name and no generation does. Slabs
// in a folder that is not private, or not there, stay.
void remove_leftovers(const std::filesystem::path& manifest_folder, Leftovers which);

}  // namespace sluice
