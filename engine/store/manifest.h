#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

// What makes slabs of bytes a generation. Format: docs/decisions/0005-state-file.md.
namespace sluice {

// What must be the same for a run to go on from a state.
struct StateIdentity {
  std::string format = "split";
  std::string kernel_table;  // id; another one gives other bits, so the caller judges
  int gradient_shards = 1;
  uint64_t model_fingerprint = 0;  // StateLayout::fingerprint()
  bool operator==(const StateIdentity&) const = default;
};

struct SpillFolder {
  std::filesystem::path folder;
  double weight = 1;  // measured bandwidth, in any unit
};

struct GenerationFacts {
  int64_t applied_step = 0;
  nlohmann::json run;  // the application's own: data cursor, schedule, options; nested at most 64 deep
};

struct Manifest {
  uint64_t number = 0;   // of the generation, from 1 on; 0: a store that never committed
  std::string store_id;  // 16 hex digits, in the slabs' names
  StateIdentity identity;
  std::vector<SpillFolder> drives;  // 1 to 256; relative folders lie below the manifest's
  uint64_t size_bytes = 0;          // of the striped file over all drives
  GenerationFacts facts;
  std::vector<uint8_t> slots;       // by block: where the committed version is, 0 or 1
  std::vector<uint64_t> checksums;  // of the committed slots: by block, section, MiB
};

// Throws Error(usage) for text that is not UTF-8 (folders, the run).
std::string encode_manifest(const Manifest& manifest);
// `bytes` are hostile input: what is not a whole manifest is an Error(data) naming `path` and what is wrong.
// One that is whole and of another version of the format is an Error(usage).
Manifest decode_manifest(std::string_view bytes, const std::filesystem::path& path);

}  // namespace sluice
