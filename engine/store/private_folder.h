#pragma once

#include <filesystem>

#include "io/file.h"

// Folders and files that nobody else may read or swap: what a run keeps on disk is the model and may be the
// data. All of them belong to the user who runs and are open to nobody else (0700, 0600); symbolic links are
// never followed in the last part of a path. Errors are of kind `usage` and say what to do.
namespace sluice {

// Makes the folder (and its parents, as the umask says), or checks one that is there.
void make_private_folder(const std::filesystem::path& folder);
// Throws where the folder is not as said above; kind `data` where it is missing.
void check_private_folder(const std::filesystem::path& folder);

// A new file; one of that name is an error.
File create_private_file(const std::filesystem::path& path);
// An existing one, for reading; kind `data` where it is missing.
File open_private_file(const std::filesystem::path& path);
// For reading and writing; made where it is missing.
File open_or_create_private_file(const std::filesystem::path& path);

}  // namespace sluice
