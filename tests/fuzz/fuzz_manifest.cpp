#include <cstring>
#include <xxhash.h>

#include "engine/base/error.h"
#include "engine/store/manifest.h"
#include "tests/fuzz/fuzz_target.h"

namespace sluice::test {
namespace {

void check_promises(std::string_view bytes) {
  const Manifest manifest = decode_manifest(bytes, "a manifest");
  promise(!manifest.drives.empty() && manifest.drives.size() <= 256, "there are 1 to 256 drives");
  promise(manifest.store_id.size() == 16, "a store's id has 16 digits");
  promise(manifest.slots.size() <= 8 * bytes.size() && manifest.checksums.size() <= bytes.size() / 8,
          "no more is read than is there");
  for (const uint8_t slot : manifest.slots) promise(slot <= 1, "slots are 0 or 1");
  promise(manifest.facts.applied_step >= 0, "steps are counted from 0");
  const std::string again = encode_manifest(manifest);
  const Manifest same = decode_manifest(again, "a manifest");
  promise(same.number == manifest.number && same.store_id == manifest.store_id &&
              same.identity == manifest.identity && same.size_bytes == manifest.size_bytes &&
              same.facts.applied_step == manifest.facts.applied_step &&
              same.facts.run == manifest.facts.run && same.slots == manifest.slots &&
              same.checksums == manifest.checksums,
          "a manifest is read as it was written");
  promise(same.drives.size() == manifest.drives.size(), "no drive is lost");
  for (size_t i = 0; i < same.drives.size(); ++i) {
    promise(same.drives[i].folder == manifest.drives[i].folder &&
                same.drives[i].weight == manifest.drives[i].weight,
            "drives are read as they were written");
  }
  promise(encode_manifest(same) == again, "there is one way to write a manifest");
}

// No change of the rest gets past the hash at the end; a fuzzer that has it made right gets to what is
// behind.
std::string with_right_hash(std::string bytes) {
  if (bytes.size() < sizeof(uint64_t)) return bytes;
  const size_t size = bytes.size() - sizeof(uint64_t);
  const uint64_t hash = XXH3_64bits(bytes.data(), size);
  std::memcpy(bytes.data() + size, &hash, sizeof(hash));
  return bytes;
}

Verdict verdict(std::string_view bytes) {
  try {
    return verdict_of([&] { check_promises(bytes); });
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage) throw;
    return Verdict::refused;  // sound, and of another version
  }
}

}  // namespace

Verdict check_manifest(std::string_view bytes) {
  verdict(with_right_hash(std::string(bytes)));
  return verdict(bytes);
}

std::vector<std::string> manifest_seeds() {
  Manifest manifest;
  manifest.number = 3;
  manifest.store_id = "0123456789abcdef";
  manifest.identity = {"split", "avx2", 2, 0x123456789abcdef0};
  manifest.drives = {{".", 1}, {"/mnt/nvme1", 2.5}};
  manifest.size_bytes = uint64_t{1} << 30;
  manifest.facts = {7, {{"progress", {{"steps", 7}}}, {"settings", {{"seed", 1}}}}};
  manifest.slots = {0, 1, 1, 0, 1, 0, 0, 1, 1};
  manifest.checksums = {1, 2, 3};
  Manifest first;
  first.store_id = "fedcba9876543210";
  first.drives = {{"spill", 1e-3}};
  return {encode_manifest(manifest), encode_manifest(first)};
}

}  // namespace sluice::test
