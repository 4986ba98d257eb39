#include "engine/store/manifest.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <xxhash.h>

#include "engine/base/error.h"
#include "engine/base/math.h"

namespace sluice {
namespace {

static_assert(std::endian::native == std::endian::little, "the file is little-endian, and read as it is");

constexpr std::string_view kMagic = "SLUICEST";
constexpr uint64_t kVersion = 2;  // 2: the order of codes in the records of int8
constexpr int kDeepestJson = 64;

// Behind the header: JSON, slot bits, checksums, and xxh3-64 of all that comes before it.
struct Header {
  char magic[8];
  uint64_t version;
  uint64_t json_bytes;
  uint64_t block_count;
  uint64_t checksum_count;
};
constexpr size_t kHashBytes = sizeof(uint64_t);

using Json = nlohmann::json;

void append(std::string& bytes, const void* data, size_t size_bytes) {
  if (size_bytes > 0) bytes.append(static_cast<const char*>(data), size_bytes);
}

std::string hex(uint64_t number) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text(16, '0');
  for (auto digit = text.rbegin(); digit != text.rend(); ++digit, number >>= 4) *digit = kDigits[number & 15];
  return text;
}

bool is_hex16(std::string_view text) {
  return text.size() == 16 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

Json to_json(const Manifest& manifest) {
  Json drives = Json::array();
  for (const SpillFolder& drive : manifest.drives)
    drives.push_back({{"folder", drive.folder.string()}, {"weight", drive.weight}});
  return {{"generation", manifest.number},
          {"store", manifest.store_id},
          {"format", manifest.identity.format},
          {"kernel_table", manifest.identity.kernel_table},
          {"gradient_shards", manifest.identity.gradient_shards},
          {"model", hex(manifest.identity.model_fingerprint)},
          {"drives", std::move(drives)},
          {"size_bytes", manifest.size_bytes},
          {"applied_step", manifest.facts.applied_step},
          {"run", manifest.facts.run}};
}

// Reads one manifest, or throws naming its path.
class Decoder {
 public:
  Decoder(std::string_view bytes, const std::filesystem::path& path) : bytes_(bytes), path_(path) {}

  Manifest decode() {
    const Header header = checked_header();
    Manifest manifest;
    read_json(parsed(bytes_.substr(sizeof(Header), header.json_bytes)), manifest);
    const auto* slot_bits =
        reinterpret_cast<const uint8_t*>(bytes_.data()) + sizeof(Header) + header.json_bytes;
    for (uint64_t i = 0; i < header.block_count; ++i)
      manifest.slots.push_back(static_cast<uint8_t>(slot_bits[i / 8] >> (i % 8) & 1));
    manifest.checksums.resize(header.checksum_count);
    if (header.checksum_count > 0) {
      std::memcpy(manifest.checksums.data(), slot_bits + divide_up(header.block_count, uint64_t{8}),
                  header.checksum_count * sizeof(uint64_t));
    }
    return manifest;
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw Error(ErrorKind::data, path_.string() + " is not a whole manifest of a saved state: " + why + ".");
  }

  Header checked_header() const {
    Header header;
    if (bytes_.size() < sizeof(header) + kHashBytes)
      fail("it has only " + std::to_string(bytes_.size()) + " bytes");
    std::memcpy(&header, bytes_.data(), sizeof(header));
    if (std::string_view(header.magic, sizeof(header.magic)) != kMagic) fail("it begins with something else");
    if (header.version != kVersion) {
      const std::string versions = "its format has version " + std::to_string(header.version) +
                                   ", this program reads " + std::to_string(kVersion);
      if (!hash_fits()) fail(versions);
      // Not damage: an older generation must not take its place.
      throw Error(ErrorKind::usage, path_.string() + " was written by another version of this program: " +
                                        versions + ". Go on with that version, or start anew elsewhere.");
    }
    // Each count against what is there, before anything is multiplied or added.
    uint64_t left = bytes_.size() - sizeof(header) - kHashBytes;
    const uint64_t slot_bytes = header.block_count / 8 + (header.block_count % 8 != 0 ? 1 : 0);
    if (header.json_bytes > left) fail("it is cut within its facts");
    left -= header.json_bytes;
    if (slot_bytes > left) fail("it is cut within its slots");
    left -= slot_bytes;
    if (header.checksum_count != left / sizeof(uint64_t) || left % sizeof(uint64_t) != 0)
      fail("its size does not fit its checksums");
    if (!hash_fits()) fail("its own checksum differs");
    return header;
  }

  // Magic, version and this hash lie in the same places in every version.
  bool hash_fits() const {
    uint64_t hash;
    std::memcpy(&hash, bytes_.data() + bytes_.size() - kHashBytes, kHashBytes);
    return hash == XXH3_64bits(bytes_.data(), bytes_.size() - kHashBytes);
  }

  Json parsed(std::string_view text) const {
    try {
      // Trees are copied and printed recursively: a deep one would overflow the stack later.
      return Json::parse(text, [&](int depth, Json::parse_event_t, Json&) {
        if (depth > kDeepestJson) fail("its facts are nested too deep");
        return true;
      });
    } catch (const Json::exception& error) {
      fail(error.what());
    }
  }

  void read_json(const Json& json, Manifest& manifest) const {
    manifest.number = number(json, "generation");
    manifest.store_id = text(json, "store");
    if (!is_hex16(manifest.store_id)) fail("its store id is none");
    manifest.identity.format = text(json, "format");
    manifest.identity.kernel_table = text(json, "kernel_table");
    manifest.identity.gradient_shards = static_cast<int>(number(json, "gradient_shards", 1 << 20));
    if (manifest.identity.gradient_shards < 1) fail("it has no gradient shards");
    const std::string model = text(json, "model");
    if (!is_hex16(model)) fail("its model fingerprint is none");
    manifest.identity.model_fingerprint = std::stoull(model, nullptr, 16);
    manifest.size_bytes = number(json, "size_bytes", uint64_t{1} << 60);
    manifest.facts.applied_step = static_cast<int64_t>(number(json, "applied_step", uint64_t{1} << 62));
    manifest.facts.run = field(json, "run");
    read_drives(field(json, "drives"), manifest);
  }

  void read_drives(const Json& drives, Manifest& manifest) const {
    constexpr size_t kMostDrives = 256;  // StripeMap's limit
    if (!drives.is_array() || drives.empty() || drives.size() > kMostDrives) fail("it has no list of drives");
    for (const Json& drive : drives) {
      const std::string folder = text(drive, "folder");
      if (folder.empty() || folder.find('\0') != std::string::npos) fail("a drive has no folder");
      const Json& weight = field(drive, "weight");
      if (!weight.is_number() || !std::isfinite(weight.get<double>()) || weight.get<double>() <= 0)
        fail("a drive's weight is not a positive number");
      manifest.drives.push_back({folder, weight.get<double>()});
    }
  }

  const Json& field(const Json& json, const char* key) const {
    if (!json.is_object()) fail("its facts are no object");
    const auto found = json.find(key);
    if (found == json.end()) fail("it says nothing of " + std::string(key));
    return *found;
  }

  std::string text(const Json& json, const char* key) const {
    const Json& value = field(json, key);
    if (!value.is_string()) fail(std::string(key) + " is not text");
    return value.get<std::string>();
  }

  uint64_t number(const Json& json, const char* key, uint64_t most = UINT64_MAX) const {
    const Json& value = field(json, key);
    if (!value.is_number_unsigned() || value.get<uint64_t>() > most)
      fail(std::string(key) + " is not a number that it can be");
    return value.get<uint64_t>();
  }

  std::string_view bytes_;
  const std::filesystem::path& path_;
};

}  // namespace

std::string encode_manifest(const Manifest& manifest) {
  std::string json;
  try {
    json = to_json(manifest).dump();
  } catch (const Json::exception& error) {
    throw Error(ErrorKind::usage, std::string("cannot write down the run's settings: ") + error.what() +
                                      ". Use names in UTF-8.");
  }
  Header header{.version = kVersion,
                .json_bytes = json.size(),
                .block_count = manifest.slots.size(),
                .checksum_count = manifest.checksums.size()};
  std::copy(kMagic.begin(), kMagic.end(), header.magic);
  std::string slot_bits(divide_up(manifest.slots.size(), size_t{8}), '\0');
  for (size_t i = 0; i < manifest.slots.size(); ++i)
    slot_bits[i / 8] = static_cast<char>(slot_bits[i / 8] | manifest.slots[i] << (i % 8));
  std::string bytes;
  append(bytes, &header, sizeof(header));
  bytes += json;
  bytes += slot_bits;
  append(bytes, manifest.checksums.data(), manifest.checksums.size() * sizeof(uint64_t));
  const uint64_t hash = XXH3_64bits(bytes.data(), bytes.size());
  append(bytes, &hash, sizeof(hash));
  return bytes;
}

Manifest decode_manifest(std::string_view bytes, const std::filesystem::path& path) {
  return Decoder(bytes, path).decode();
}

}  // namespace sluice
