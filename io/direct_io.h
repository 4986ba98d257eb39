#pragma once

#include <string>

#include "io/file.h"

namespace sluice {

// Turns O_DIRECT on for an open file of at least kIoAlignment bytes, opened for reading and writing, and
// proves that transfers then bypass the page cache: tmpfs, FUSE and btrfs accept the flag and cache all the
// same. Returns why not ("tmpfs keeps all of it in RAM"), with the flag off again; empty where it is on.
// Rewrites the file's first block with what is in it. Throws Error(usage) where the drive wants an alignment
// above kIoAlignment.
std::string turn_on_direct_io(const File& file);

}  // namespace sluice
