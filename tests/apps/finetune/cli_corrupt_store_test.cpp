// `finetune train --resume` on a saved state that is damaged: what it is gets named, and whoever mends it
// loses nothing (docs/resume.md).
#include <fstream>
#include <gmock/gmock.h>

#include "apps/finetune/model/decoder_spec.h"
#include "engine/store/manifest_folder.h"
#include "engine/store/state_layout.h"
#include "tests/support/resealed.h"
#include "tests/support/resume_trial.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using test::Outcome;
using ::testing::HasSubstr;
using ::testing::Not;

class CliCorruptStore : public test::ResumeTrial {
 protected:
  StateLayout layout() const {
    return StateLayout(
        finetune::make_decoder_spec(read_model_config(model_), {}, cpu_optim::StateFormat::split).model);
  }
  static fs::path slab_in(const fs::path& folder) {
    for (const auto& entry : fs::directory_iterator(folder))
      if (entry.path().extension() == ".slab") return entry.path();
    ADD_FAILURE() << "no slab in " << folder;
    return {};
  }
  static void flip_bit(const fs::path& file, uint64_t offset) {
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekg(static_cast<std::streamoff>(offset));
    const int byte = bytes.get();
    bytes.seekp(static_cast<std::streamoff>(offset));
    bytes.put(static_cast<char>(byte ^ 4));
    ASSERT_TRUE(bytes.good());
  }
  fs::path manifest_of(uint64_t generation) const {
    const std::string digits = std::to_string(generation);
    return checkpoint() / ("generation-" + std::string(20 - digits.size(), '0') + digits + ".manifest");
  }
  // Beside the newest one, as its successor.
  fs::path add_manifest(const std::string& bytes) const {
    const fs::path path = manifest_of(newest_number(checkpoint()) + 1);
    test::write_all(path, bytes);
    fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
    return path;
  }
  Outcome expect_refused(int code, const std::vector<std::string>& words, const Arguments& where) const {
    Outcome outcome = resume(output_, where);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    for (const std::string& word : words) EXPECT_THAT(outcome.err, HasSubstr(word));
    return outcome;
  }
  // The fault is mended: then nothing was lost by the attempts before.
  void expect_same_end(const Arguments& where) {
    const Outcome outcome = resume(output_, where);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("Going on after step 3 of 6"));
    if (six_.is_null()) six_ = expected("6");
    EXPECT_EQ(test::run_results(output_), six_);
  }

 private:
  nlohmann::json six_;  // what six steps make
};

TEST_F(CliCorruptStore, AFlippedBitOfEachSectionIsNamed) {
  const StateLayout layout = this->layout();
  for (const Arguments& where : {spill("a"), Arguments{}}) {
    SCOPED_TRACE(where.empty() ? "in RAM" : "on a drive");
    fs::remove_all(output_);
    interrupt(output_, where);
    const fs::path slab = slab_in(where.empty() ? checkpoint() : folder_ / "a/sluice");
    const Manifest manifest = recover(checkpoint())->manifest;
    int sections = 0;
    for (const Section section : kPersistedSections) {
      const BlockId block{static_cast<int32_t>(1 + sections % (layout.block_count() - 1))};
      const size_t bytes = layout.section_bytes(block, section);
      if (bytes == 0) continue;
      ++sections;
      SCOPED_TRACE(name(section));
      const size_t at = bytes * 2 / 3;
      const size_t begin = at / kChecksumBytes * kChecksumBytes;
      const uint64_t offset = layout.offset(block, section, manifest.slots[static_cast<size_t>(block.value)]);
      flip_bit(slab, offset + at);
      expect_refused(
          3,
          {"damaged on disk", slab.string() + " at offset " + std::to_string(offset + begin), "(drive ",
           layout.describe(block, section, begin, std::min(bytes, begin + kChecksumBytes))},
          where);
      flip_bit(slab, offset + at);
    }
    EXPECT_EQ(sections, 4);
    expect_same_end(where);
  }
}

TEST_F(CliCorruptStore, AFlippedBitOfTheManifestIsNamed) {
  interrupt(output_, spill("a"));
  const fs::path path = recover(checkpoint())->path;
  const std::string whole = test::read_all(path);
  // Magic, version, the three counts, facts, slots and checksums, and its own checksum.
  for (const size_t at : {size_t{3}, size_t{8}, size_t{17}, size_t{24}, size_t{33}, size_t{60},
                          whole.size() - 100, whole.size() - 1}) {
    SCOPED_TRACE(at);
    flip_bit(path, at);
    const std::string damaged = test::read_all(path);
    const std::string slab = test::read_all(slab_in(folder_ / "a/sluice"));
    expect_refused(3, {path.string(), "is not a whole manifest", "Start anew, or put back a copy"},
                   spill("a"));
    EXPECT_EQ(test::read_all(path), damaged) << "and is left as it was found";
    EXPECT_EQ(test::read_all(slab_in(folder_ / "a/sluice")), slab);
    flip_bit(path, at);
  }
  EXPECT_EQ(test::read_all(path), whole);
  expect_same_end(spill("a"));
}

TEST_F(CliCorruptStore, TheOlderGenerationIsTakenWhereItIsWhole) {
  interrupt(output_, spill("a"));
  std::string bytes = test::read_all(recover(checkpoint())->path);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  const fs::path damaged = add_manifest(bytes);
  const Outcome outcome = resume(output_, spill("a"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("warning: " + damaged.string() + " is not a whole manifest"));
  EXPECT_THAT(outcome.err, HasSubstr("Going on from the one before"));
  EXPECT_EQ(test::run_results(output_), expected("6"));
}

TEST_F(CliCorruptStore, AnotherVersionIsNeitherReadNorPassedOver) {
  interrupt(output_, spill("a"));
  const fs::path newest = recover(checkpoint())->path;
  const std::string whole = test::read_all(newest);
  for (const char version : {'\0', '\1', '\3'}) {
    std::string other = whole;
    other[8] = version;
    const fs::path path = add_manifest(test::resealed(other));
    const std::vector<std::string> words = {path.string(), "another version",
                                            "version " + std::to_string(version)};
    const std::string slab = test::read_all(slab_in(folder_ / "a/sluice"));
    const Outcome outcome = expect_refused(2, words, spill("a"));
    EXPECT_THAT(outcome.err, Not(HasSubstr("Going on")));
    EXPECT_TRUE(fs::exists(newest) && fs::exists(path)) << "nothing was removed";
    EXPECT_EQ(test::read_all(slab_in(folder_ / "a/sluice")), slab);
    fs::remove(path);
  }
  expect_same_end(spill("a"));
}

TEST_F(CliCorruptStore, ATruncatedSlabIsNamed) {
  for (const Arguments& where : {spill("a,b"), Arguments{}}) {
    fs::remove_all(output_);
    interrupt(output_, where);
    const fs::path slab = slab_in(where.empty() ? checkpoint() : folder_ / "b/sluice");
    const std::string whole = test::read_all(slab);
    for (const size_t cut : {size_t{0}, size_t{1}, whole.size() / 2, whole.size() - 4096}) {
      fs::resize_file(slab, cut);
      expect_refused(
          3, {slab.string(), std::to_string(cut) + " bytes instead of " + std::to_string(whole.size())},
          where);
      EXPECT_EQ(fs::file_size(slab), cut) << "nothing was added";
    }
    test::write_all(slab, whole);
    expect_same_end(where);
  }
}

TEST_F(CliCorruptStore, AMissingDriveIsNamed) {
  const Arguments where = spill("a,b");
  interrupt(output_, where);
  const fs::path drive = folder_ / "b";
  fs::rename(drive, folder_ / "unmounted");
  expect_refused(3, {(drive / "sluice").string(), "mounted"}, where);
  EXPECT_FALSE(fs::exists(drive)) << "nothing was made in its place";
  // Its mount point is there, empty.
  fs::create_directory(drive);
  expect_refused(3, {(drive / "sluice").string(), "mounted"}, where);
  EXPECT_TRUE(fs::is_empty(drive));
  fs::remove(drive);
  // Nor does a run on other drives, to which the state would be copied, begin anew.
  expect_refused(3, {(drive / "sluice").string(), "mounted"}, spill("c"));
  fs::rename(folder_ / "unmounted", drive);
  expect_same_end(where);
}

TEST_F(CliCorruptStore, SwappedDrivesAreNamed) {
  const Arguments where = spill("a,b");
  interrupt(output_, where);
  const auto swap = [&] {
    const fs::path a = folder_ / "a", b = folder_ / "b", between = folder_ / "between";
    fs::rename(a, between);
    fs::rename(b, a);
    fs::rename(between, b);
  };
  const fs::path slab = slab_in(folder_ / "a/sluice");
  ASSERT_EQ(fs::file_size(slab), fs::file_size(slab_in(folder_ / "b/sluice"))) << "else their sizes tell";
  swap();
  expect_refused(3, {slab.filename().string(), "damaged on disk", "at offset", "(drive "}, where);
  swap();
  expect_same_end(where);
}

}  // namespace
}  // namespace sluice
