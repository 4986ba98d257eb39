#include "engine/store/manifest.h"

#include <cstring>
#include <gtest/gtest.h>
#include <random>

#include "tests/support/expect_error.h"
#include "tests/support/resealed.h"

namespace sluice {
namespace {

using test::expect_error;
using test::resealed;

Manifest sample() {
  Manifest manifest{.number = 42,
                    .store_id = "0123456789abcdef",
                    .identity = {"split", "avx2-1", 8, 0xfedcba9876543210},
                    .drives = {{".", 1.0 / 3}, {"/mnt/\xc3\xa4", 2.5e9}},
                    .size_bytes = uint64_t{3} << 40,
                    .facts = {.applied_step = 7, .run = {{"cursor", {1, 2, 3}}, {"text", "a\nb"}}}};
  for (int i = 0; i < 19; ++i) manifest.slots.push_back(static_cast<uint8_t>(i % 3 == 0));
  for (uint64_t i = 0; i < 50; ++i) manifest.checksums.push_back(i * 0x9e3779b97f4a7c15);
  return manifest;
}

void expect_same(const Manifest& a, const Manifest& b) {
  EXPECT_EQ(a.number, b.number);
  EXPECT_EQ(a.store_id, b.store_id);
  EXPECT_TRUE(a.identity == b.identity);
  EXPECT_EQ(a.size_bytes, b.size_bytes);
  EXPECT_EQ(a.facts.applied_step, b.facts.applied_step);
  EXPECT_EQ(a.facts.run, b.facts.run);
  EXPECT_EQ(a.slots, b.slots);
  EXPECT_EQ(a.checksums, b.checksums);
  ASSERT_EQ(a.drives.size(), b.drives.size());
  for (size_t i = 0; i < a.drives.size(); ++i) {
    EXPECT_EQ(a.drives[i].folder, b.drives[i].folder);
    EXPECT_EQ(a.drives[i].weight, b.drives[i].weight);
  }
}

std::string with_json(const std::string& json) {
  std::string bytes = encode_manifest({.store_id = "0123456789abcdef", .drives = {{".", 1}}});
  uint64_t json_bytes;
  std::memcpy(&json_bytes, bytes.data() + 16, 8);
  bytes.replace(40, json_bytes, json);
  json_bytes = json.size();
  std::memcpy(bytes.data() + 16, &json_bytes, 8);
  return resealed(bytes);
}

TEST(Manifest, ComesBackAsItWas) {
  expect_same(decode_manifest(encode_manifest(sample()), "m"), sample());
  Manifest empty{.store_id = "0000000000000000", .drives = {{".", 1}}};
  expect_same(decode_manifest(encode_manifest(empty), "m"), empty);
}

TEST(Manifest, IsRefusedAtEveryLength) {
  const std::string whole = encode_manifest(sample());
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::string torn = whole.substr(0, size);
    expect_error(ErrorKind::data, {"/x/m is not a whole manifest"}, [&] { decode_manifest(torn, "/x/m"); });
    // Of the right size, but the rest never arrived.
    std::string zeros = torn;
    zeros.resize(whole.size());
    if (zeros != whole) expect_error(ErrorKind::data, {"/x/m"}, [&] { decode_manifest(zeros, "/x/m"); });
  }
  expect_error(ErrorKind::data, {"size does not fit"}, [&] { decode_manifest(whole + "x", "m"); });
}

TEST(Manifest, EveryFlippedBitIsFound) {
  std::string bytes = encode_manifest(sample());
  for (size_t i = 0; i < bytes.size() * 8; ++i) {
    bytes[i / 8] = static_cast<char>(bytes[i / 8] ^ 1 << i % 8);
    expect_error(ErrorKind::data, {"m is not a whole manifest"}, [&] { decode_manifest(bytes, "m"); });
    bytes[i / 8] = static_cast<char>(bytes[i / 8] ^ 1 << i % 8);
  }
}

// Whoever made it also made its checksum fit: then it may be taken or refused, but nothing else happens.
TEST(Manifest, HostileBytesAreRefusedOrHarmless) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const std::string whole = encode_manifest(sample());
  int refused = 0;
  for (int round = 0; round < 5000; ++round) {
    std::string bytes = whole;
    if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 1));
    for (uint64_t flips = 1 + random() % 4; flips > 0 && !bytes.empty(); --flips) {
      // Half of them in the header's numbers.
      const size_t place = random() % (random() % 2 == 0 ? std::min<size_t>(bytes.size(), 40) : bytes.size());
      bytes[place] = static_cast<char>(random() % 2 == 0 ? random() : bytes[place] ^ 1 << random() % 8);
    }
    try {
      decode_manifest(resealed(bytes), "m");
    } catch (const Error& error) {
      const bool other_version = std::string(error.what()).find("another version") != std::string::npos;
      const ErrorKind kind = other_version ? ErrorKind::usage : ErrorKind::data;
      EXPECT_EQ(exit_code(error.kind()), exit_code(kind)) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

// Whole, and of another version: no damage, for which an older one could be taken.
TEST(Manifest, AnotherVersionIsNotTakenForDamage) {
  for (const char version : {'\0', '\1', '\3'}) {
    std::string bytes = encode_manifest(sample());
    bytes[8] = version;
    expect_error(ErrorKind::data, {"m is not a whole manifest", "version"},
                 [&] { decode_manifest(bytes, "m"); });
    expect_error(ErrorKind::usage, {"m was written by another version", "version " + std::to_string(version)},
                 [&] { decode_manifest(resealed(bytes), "m"); });
  }
}

TEST(Manifest, SaysWhichFactIsWrong) {
  nlohmann::json good = {{"generation", 1},      {"store", "0123456789abcdef"},
                         {"format", "split"},    {"kernel_table", ""},
                         {"gradient_shards", 1}, {"model", "0123456789abcdef"},
                         {"size_bytes", 5},      {"applied_step", 3},
                         {"run", nullptr},       {"drives", {{{"folder", "."}, {"weight", 1}}}}};
  EXPECT_EQ(decode_manifest(with_json(good.dump()), "m").facts.applied_step, 3);
  const auto expect_refused = [&](const char* key, const nlohmann::json& value, const std::string& text) {
    nlohmann::json bad = good;
    bad[key] = value;
    expect_error(ErrorKind::data, {"m is not", text}, [&] { decode_manifest(with_json(bad.dump()), "m"); });
  };
  for (const auto& [key, value] : good.items()) {
    nlohmann::json bad = good;
    bad.erase(key);
    expect_error(ErrorKind::data, {"says nothing of " + key},
                 [&] { decode_manifest(with_json(bad.dump()), "m"); });
    if (key != "run") expect_refused(key.c_str(), true, "");
  }
  expect_refused("applied_step", -1, "applied_step");
  expect_refused("applied_step", uint64_t{1} << 63, "applied_step");
  expect_refused("store", "../../../../etc/x", "store id");
  expect_refused("store", "0123456789ABCDEF", "store id");
  expect_refused("model", "zz", "fingerprint");
  expect_refused("gradient_shards", 0, "shards");
  expect_refused("gradient_shards", uint64_t{1} << 40, "gradient_shards");
  expect_refused("drives", nlohmann::json::array(), "drives");
  expect_refused("drives", std::vector<nlohmann::json>(257, good["drives"][0]), "drives");
  expect_refused("drives", {{{"folder", ""}, {"weight", 1}}}, "folder");
  expect_refused("drives", {{{"folder", std::string("a\0b", 3)}, {"weight", 1}}}, "folder");
  expect_refused("drives", {{{"folder", "a"}, {"weight", 0}}}, "weight");
  expect_refused("drives", {{{"folder", "a"}, {"weight", "1"}}}, "weight");
  expect_error(ErrorKind::data, {"no object"}, [] { decode_manifest(with_json("[]"), "m"); });
  expect_error(ErrorKind::data, {"m is not"}, [] { decode_manifest(with_json("{"), "m"); });
  expect_error(ErrorKind::data, {"m is not"},
               [] { decode_manifest(with_json("{\"size_bytes\":1e999}"), "m"); });
}

TEST(Manifest, DeepNestingDoesNotOverflowTheStack) {
  for (const size_t depth : {size_t{100}, size_t{1000000}}) {
    const std::string json = "{\"run\":" + std::string(depth, '[') + std::string(depth, ']') + "}";
    expect_error(ErrorKind::data, {"nested too deep"}, [&] { decode_manifest(with_json(json), "m"); });
  }
}

TEST(Manifest, TextMustBeUtf8) {
  Manifest manifest = sample();
  manifest.drives[0].folder = "\xff";
  expect_error(ErrorKind::usage, {"UTF-8"}, [&] { encode_manifest(manifest); });
}

}  // namespace
}  // namespace sluice
