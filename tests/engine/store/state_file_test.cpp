#include "engine/store/state_file.h"

#include <algorithm>
#include <fcntl.h>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/store/manifest_folder.h"
#include "io/memory_queue.h"
#include "io/thread_queue.h"
#include "tests/support/expect_error.h"
#include "tests/support/state_trial.h"

namespace sluice {
namespace {

using test::expect_error;
using test::OwnPiece;
using test::TemporaryFolder;
using ::testing::IsEmpty;
using ::testing::SizeIs;

namespace fs = std::filesystem;

std::vector<std::optional<DType>> gradients_of(const ModelSpec& model) {
  return std::vector<std::optional<DType>>(model.blocks.size(), DType::bf16);
}

ModelSpec small_model() {
  constexpr std::array<test::BlockSize, 3> kSizes = {{{2048, 256}, {256, 0}, {4096 + 256, 0}}};
  return test::model_of_sizes(kSizes);
}

std::vector<std::string> files_ending(const fs::path& folder, std::string_view end) {
  std::vector<std::string> names = test::list_all(folder);
  std::erase_if(names, [&](const std::string& name) { return !name.ends_with(end); });
  return names;
}

// A folder, a disk in memory behind its files, and what uses it.
struct Bench {
  explicit Bench(ModelSpec spec = small_model()) : model(std::move(spec)) {}

  std::unique_ptr<StateFile> create(int drive_count = 1) {
    return StateFile::create(test::options_in(folder, drive_count), StateLayout(model), locks, {queue});
  }
  std::unique_ptr<StateFile> open(StateIdentity identity = {}) {
    return StateFile::open(folder / "state", std::move(identity), StateLayout(model), locks, {queue});
  }
  std::vector<uint8_t> slots(uint8_t slot) const { return std::vector<uint8_t>(model.blocks.size(), slot); }
  void write_all(StateFile& state, uint8_t slot, uint64_t step) {
    for (int32_t i = 0; i < state.layout().block_count(); ++i)
      test::write_block(state, queue, BlockId{i}, slot, step);
  }
  bool holds(const StateFile& state, uint64_t step) {
    bool all = true;
    for (int32_t i = 0; i < state.layout().block_count(); ++i) {
      const uint8_t slot = state.generation().slots.at(static_cast<size_t>(i));
      all = test::block_holds(state, queue, BlockId{i}, slot, step) && all;
    }
    return all;
  }

  TemporaryFolder folder;
  ModelSpec model;
  std::shared_ptr<MemoryDisk> disk = std::make_shared<MemoryDisk>();
  MemoryQueue queue{disk};
  FolderLocks locks;
};

void expect_round_trips(StateFile& state, IoQueue& queue) {
  const StateLayout& layout = state.layout();
  for (int32_t i = 0; i < layout.block_count(); ++i) {
    for (const Section section : kPersistedSections) {
      for (int slot = 0; slot < kSlotCount; ++slot) {
        const OwnPiece own(layout, BlockId{i}, section, slot);
        state.read_pieces(queue, {&own.piece, 1});
        EXPECT_EQ(std::count(own.piece.data, own.piece.data + own.piece.size_bytes, std::byte{0}),
                  static_cast<int64_t>(own.piece.size_bytes))
            << "never written";
      }
    }
  }
  for (int slot = 0; slot < kSlotCount; ++slot) {
    for (int32_t i = 0; i < layout.block_count(); ++i) test::write_block(state, queue, BlockId{i}, slot, 7);
  }
  for (int32_t i = 0; i < layout.block_count(); ++i) {
    const OwnPiece own(layout, BlockId{i}, Section::second_moment, 1);
    const std::vector<std::byte> bytes = test::contents(layout, BlockId{i}, Section::second_moment, 8);
    std::copy(bytes.begin(), bytes.end(), own.piece.data);
    state.write_pieces(queue, {&own.piece, 1});
    EXPECT_TRUE(test::block_holds(state, queue, BlockId{i}, 0, 7)) << "block " << i;
    std::ranges::fill(own.memory.bytes(), std::byte{1});
    state.read_pieces(queue, {&own.piece, 1});
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), own.piece.data)) << "block " << i;
  }
  for (int32_t i = 0; i < layout.block_count(); ++i) {
    const OwnPiece own(layout, BlockId{i}, Section::gradient, 0);
    const std::vector<std::byte> bytes = test::contents(layout, BlockId{i}, Section::gradient, 9);
    std::copy(bytes.begin(), bytes.end(), own.piece.data);
    state.write_pieces(queue, {&own.piece, 1});
    std::ranges::fill(own.memory.bytes(), std::byte{1});
    state.read_pieces(queue, {&own.piece, 1});
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), own.piece.data)) << "block " << i;
  }
}

TEST(StateFile, RoundTripsAtAllEdges) {
  for (const int drive_count : {1, 2}) {
    SCOPED_TRACE(drive_count);
    Bench bench(test::model_of_edges());
    const auto state =
        StateFile::create(test::options_in(bench.folder, drive_count),
                          StateLayout(bench.model, gradients_of(bench.model)), bench.locks, {bench.queue});
    expect_round_trips(*state, bench.queue);
  }
}

TEST(StateFile, RoundTripsOnRealFiles) {
  Bench bench(test::model_of_edges());
  ThreadQueue queue;
  const auto state =
      StateFile::create(test::options_in(bench.folder, 2),
                        StateLayout(bench.model, gradients_of(bench.model)), bench.locks, {queue});
  expect_round_trips(*state, queue);
}

TEST(StateFile, PiecesOfASectionAreIndependent) {
  Bench bench(test::model_of_edges());
  const auto state = bench.create();
  const BlockId block{6};
  const OwnPiece whole(state->layout(), block, Section::first_moment, 0);
  ASSERT_GT(whole.piece.size_bytes, 5 * kChecksumBytes);
  const std::vector<std::byte> bytes = test::contents(state->layout(), block, Section::first_moment, 1);
  std::copy(bytes.begin(), bytes.end(), whole.piece.data);
  std::vector<StatePiece> pieces;  // the last, then one in the middle; the others stay zero
  for (const size_t begin : {5 * kChecksumBytes, 2 * kChecksumBytes}) {
    StatePiece piece = whole.piece;
    piece.begin = begin;
    piece.data += begin;
    piece.size_bytes = std::min(kChecksumBytes, bytes.size() - begin);
    pieces.push_back(piece);
  }
  state->write_pieces(bench.queue, pieces);
  const OwnPiece read(state->layout(), block, Section::first_moment, 0);
  state->read_pieces(bench.queue, {&read.piece, 1});
  for (size_t i = 0; i < bytes.size(); ++i) {
    const size_t mib = i / kChecksumBytes;
    ASSERT_EQ(read.piece.data[i], mib == 2 || mib == 5 ? bytes[i] : std::byte{0}) << i;
  }
}

TEST(StateFile, WhatLiesBehindASectionIsZeroOnDisk) {
  Bench bench;
  const auto state = bench.create();
  test::write_block(*state, bench.queue, BlockId{1}, 0, 1);  // from memory with rubbish behind the end
  const size_t bytes = state->layout().section_bytes(BlockId{1}, Section::low);
  ASSERT_EQ(bytes, 512u);
  const AlignedBuffer page(4096, "a page");
  const IoRequest request{.descriptor = state->descriptors().front(),
                          .data = page.data(),
                          .size_bytes = 4096,
                          .offset = state->layout().offset(BlockId{1}, Section::low, 0)};
  run_all(bench.queue, {&request, 1});
  EXPECT_EQ(std::count(page.data() + bytes, page.data() + 4096, std::byte{0}), 4096 - 512);
}

// Flips a bit of a byte of the slab, and expects reading the piece to find it.
void expect_flip_is_found(Bench& bench, StateFile& state, const StatePiece& piece, uint64_t at, int bit) {
  const int slab = state.descriptors().front();
  std::byte byte;
  ASSERT_EQ(bench.disk->read(slab, &byte, 1, at), 1);
  const std::byte flipped = byte ^ std::byte{1} << bit;
  ASSERT_EQ(bench.disk->write(slab, &flipped, 1, at), 1);
  EXPECT_THROW(state.read_pieces(bench.queue, {&piece, 1}), Error) << name(piece.section) << " " << at;
  ASSERT_EQ(bench.disk->write(slab, &byte, 1, at), 1);
}

TEST(StateFile, EveryFlippedByteIsFound) {
  constexpr std::array<test::BlockSize, 2> kSizes = {{{256, 256}, {5 << 17, 0}}};
  Bench bench(test::model_of_sizes(kSizes));
  const auto state = bench.create();
  bench.write_all(*state, 0, 1);
  std::mt19937 random(1);
  const BlockId small{0}, large{1};
  for (const Section section : kPersistedSections) {
    const OwnPiece own(state->layout(), small, section, 0);
    const uint64_t begin = state->layout().offset(small, section, 0);
    for (uint64_t at = begin; at < begin + own.memory.size_bytes(); ++at)
      expect_flip_is_found(bench, *state, own.piece, at, static_cast<int>(random() % 8));
  }
  const OwnPiece own(state->layout(), large, Section::low, 0);
  ASSERT_GT(own.piece.size_bytes, kChecksumBytes);
  for (int flip = 0; flip < 100; ++flip) {
    const uint64_t at = state->layout().offset(large, Section::low, 0) + random() % own.piece.size_bytes;
    expect_flip_is_found(bench, *state, own.piece, at, static_cast<int>(random() % 8));
  }
  for (const BlockId block : {small, large}) EXPECT_TRUE(test::block_holds(*state, bench.queue, block, 0, 1));
}

TEST(StateFile, DamageIsNamedByTensorFileOffsetAndDrive) {
  Bench bench(test::model_of_edges());
  const auto state = bench.create();
  bench.write_all(*state, 0, 1);
  const uint64_t begin = state->layout().offset(BlockId{6}, Section::first_moment, 0);
  const std::byte rubbish{0x5a};
  ASSERT_EQ(bench.disk->write(state->descriptors().front(), &rubbish, 1, begin + 3 * kChecksumBytes + 77), 1);
  const OwnPiece own(state->layout(), BlockId{6}, Section::first_moment, 0);
  expect_error(ErrorKind::data,
               {"first moments of trained.6", "drive0/state-",
                " at offset " + std::to_string(begin + 3 * kChecksumBytes), "(drive ", "smartctl"},
               [&] {
                 state->read_pieces(bench.queue, {&own.piece, 1});
               });
}

TEST(StateFile, ASecondReadMayRescueABlock) {
  Bench bench;
  const auto state = bench.create();
  bench.write_all(*state, 0, 1);
  MemoryQueue queue(bench.disk, {.faults = {{.kind = IoFault::Kind::bit_flip, .times = 1}}});
  EXPECT_TRUE(test::block_holds(*state, queue, BlockId{0}, 0, 1));
  EXPECT_EQ(queue.fault_count(IoFault::Kind::bit_flip), 1);
  EXPECT_EQ(state->reread_count(), 1);
}

TEST(StateFile, RefusedTransfersAreTriedAgainThenNamed) {
  Bench bench;
  const auto state = bench.create();
  MemoryQueue passing(bench.disk,
                      {.faults = {{.times = 2}, {.kind = IoFault::Kind::torn_write, .times = 1}}});
  test::write_block(*state, passing, BlockId{0}, 0, 1);
  EXPECT_TRUE(test::block_holds(*state, bench.queue, BlockId{0}, 0, 1));
  EXPECT_EQ(passing.fault_count(IoFault::Kind::error), 2);
  for (const auto kind : {IoRequest::Kind::read, IoRequest::Kind::write}) {
    MemoryQueue broken(bench.disk, {.faults = {{.only = kind}}});
    const OwnPiece own(state->layout(), BlockId{2}, Section::second_moment, 0);
    expect_error(ErrorKind::runtime,
                 {"second moments of trained.2", "drive0/state-", "offset", "(5)", "3 times"}, [&] {
                   if (kind == IoRequest::Kind::read) state->read_pieces(broken, {&own.piece, 1});
                   if (kind == IoRequest::Kind::write) state->write_pieces(broken, {&own.piece, 1});
                 });
  }
}

TEST(StateFile, ByteRangesAreReadAndWrittenAnywhere) {
  Bench bench(test::model_of_edges());
  const auto state = bench.create();
  const BlockId block{6};
  std::vector<std::byte> expected(state->layout().section_bytes(block, Section::first_moment));
  std::mt19937_64 random(3);
  const std::vector<std::byte> source = test::contents(state->layout(), block, Section::first_moment, 4);
  for (int round = 0; round < 40; ++round) {
    const size_t begin = random() % expected.size();
    const size_t size =
        std::min(expected.size() - begin, static_cast<size_t>(random() % (3 * kChecksumBytes)));
    std::copy_n(source.begin() + static_cast<ptrdiff_t>(random() % (source.size() - size)), size,
                expected.begin() + static_cast<ptrdiff_t>(begin));
    state->write_bytes(bench.queue, block, Section::first_moment, 1, begin,
                       std::span(expected).subspan(begin, size));
  }
  std::vector<std::byte> read(expected.size() - 5);
  state->read_bytes(bench.queue, block, Section::first_moment, 1, 3, std::span(read).first(read.size() - 2));
  EXPECT_TRUE(std::equal(read.begin(), read.end() - 2, expected.begin() + 3));
}

TEST(StateFile, AGenerationIsFoundAgain) {
  Bench bench;
  nlohmann::json run = {{"cursor", 12}, {"options", {{"seed", 5}}}};
  {
    const auto state = bench.create();
    EXPECT_EQ(state->generation().number, 0u);
    bench.write_all(*state, 0, 1);
    state->commit({.applied_step = 10, .run = run}, bench.slots(0));
    EXPECT_EQ(state->generation().number, 1u);
  }
  EXPECT_THAT(files_ending(bench.folder / "state", ".manifest"), SizeIs(1));
  {
    const auto state = bench.open();
    EXPECT_EQ(state->generation().number, 1u);
    EXPECT_EQ(state->generation().facts.applied_step, 10);
    EXPECT_EQ(state->generation().facts.run, run);
    EXPECT_EQ(state->manifest_identity().kernel_table, "test");
    EXPECT_THAT(state->warnings(), IsEmpty());
    EXPECT_TRUE(bench.holds(*state, 1));
    // Blocks go to the other slot one by one; what is not committed is not found.
    test::write_block(*state, bench.queue, BlockId{1}, 1, 2);
    state->commit({.applied_step = 11}, std::vector<uint8_t>{0, 1, 0});
    test::write_block(*state, bench.queue, BlockId{0}, 1, 3);
  }
  const auto state = bench.open();
  EXPECT_EQ(state->generation().number, 2u);
  EXPECT_EQ(state->generation().facts.applied_step, 11);
  EXPECT_EQ(state->generation().slots, (std::vector<uint8_t>{0, 1, 0}));
  EXPECT_TRUE(test::block_holds(*state, bench.queue, BlockId{0}, 0, 1));
  EXPECT_TRUE(test::block_holds(*state, bench.queue, BlockId{1}, 1, 2));
  EXPECT_TRUE(test::block_holds(*state, bench.queue, BlockId{2}, 0, 1));
}

TEST(StateFile, OnlyTheSameRunMayGoOn) {
  Bench bench;
  {
    StateFileOptions options = test::options_in(bench.folder);
    options.identity.gradient_shards = 2;
    const auto state = StateFile::create(options, StateLayout(bench.model), bench.locks, {bench.queue});
    state->commit({}, bench.slots(0));
  }
  bench.model.state_format = cpu_optim::StateFormat::fp32;
  expect_error(ErrorKind::usage, {"format split", "fp32"}, [&] { bench.open({.gradient_shards = 2}); });
  bench.model.state_format = cpu_optim::StateFormat::split;
  expect_error(ErrorKind::usage, {"2 gradient shards"}, [&] { bench.open({.gradient_shards = 1}); });
  EXPECT_EQ(bench.open({.kernel_table = "other", .gradient_shards = 2})->manifest_identity().kernel_table,
            "test");
  bench.model.tensors[0].name = "renamed";
  expect_error(ErrorKind::data, {"another model"}, [&] { bench.open({.gradient_shards = 2}); });
  expect_error(ErrorKind::data, {"no folder"}, [&] {
    StateFile::open(bench.folder / "none", {}, StateLayout(bench.model), bench.locks, {bench.queue});
  });
  EXPECT_FALSE(fs::exists(bench.folder / "none"));
}

// A newer manifest, cut at any length, hides neither the older one nor what is wrong.
TEST(StateFile, ATornManifestIsPassedOverOrRefused) {
  Bench bench;
  {
    const auto state = bench.create();
    bench.write_all(*state, 0, 1);
    state->commit({.applied_step = 1}, bench.slots(0));
  }
  const fs::path first = bench.folder / "state" / files_ending(bench.folder / "state", ".manifest").front();
  const std::string old = test::read_all(first);
  {
    const auto state = bench.open();
    state->commit({.applied_step = 2}, bench.slots(0));
  }
  const fs::path second = bench.folder / "state" / files_ending(bench.folder / "state", ".manifest").front();
  ASSERT_NE(first, second);
  const std::string whole = test::read_all(second);
  const mode_t old_mask = ::umask(077);
  for (size_t size = 0; size <= whole.size(); ++size) {
    test::write_all(second, whole.substr(0, size));
    if (size < whole.size()) {
      expect_error(ErrorKind::data, {"no saved state", second.string()},
                   [&] { recover(bench.folder / "state"); });
    }
    test::write_all(first, old);
    const auto recovered = recover(bench.folder / "state");
    ASSERT_TRUE(recovered);
    EXPECT_EQ(recovered->manifest.facts.applied_step, size < whole.size() ? 1 : 2);
    EXPECT_THAT(recovered->warnings, SizeIs(size < whole.size() ? 1 : 0));
    fs::remove(first);
  }
  test::write_all(second, whole.substr(0, 100));
  test::write_all(first, old);
  ::umask(old_mask);
  const auto state = bench.open();
  EXPECT_TRUE(bench.holds(*state, 1));
  EXPECT_THAT(state->warnings(), SizeIs(1));
  state->commit({.applied_step = 3}, bench.slots(0));
  EXPECT_EQ(state->generation().number, 3u) << "above the damaged one";
  EXPECT_THAT(files_ending(bench.folder / "state", ".manifest"), SizeIs(1));
}

TEST(StateFile, AManifestUnderAnotherNumberIsNoGeneration) {
  Bench bench;
  { bench.create()->commit({}, bench.slots(0)); }
  const fs::path path = bench.folder / "state" / files_ending(bench.folder / "state", ".manifest").front();
  fs::rename(path, bench.folder / "state" / "generation-00000000000000000009.manifest");
  expect_error(ErrorKind::data, {"renamed"}, [&] { bench.open(); });
}

TEST(StateFile, WhatCannotBeTheSlabIsRefused) {
  Bench bench;
  { bench.create()->commit({}, bench.slots(0)); }
  const fs::path folder = bench.folder / "drive0";
  const fs::path slab = folder / files_ending(folder, ".slab").front();
  const auto size = fs::file_size(slab);
  ASSERT_EQ(::chmod(slab.c_str(), 0604), 0);
  expect_error(ErrorKind::usage, {slab.string(), "chmod 600"}, [&] { bench.open(); });
  ASSERT_EQ(::chmod(slab.c_str(), 0600), 0);
  ASSERT_EQ(::chmod(folder.c_str(), 0711), 0);
  expect_error(ErrorKind::usage, {folder.string(), "chmod 700"}, [&] { bench.open(); });
  ASSERT_EQ(::chmod(folder.c_str(), 0700), 0);
  fs::resize_file(slab, size - 4096);
  expect_error(ErrorKind::data, {slab.string()}, [&] { bench.open(); });
  fs::rename(slab, folder / "elsewhere");
  expect_error(ErrorKind::data, {slab.string()}, [&] { bench.open(); });
  fs::create_symlink(folder / "elsewhere", slab);
  expect_error(ErrorKind::usage, {slab.string(), "symbolic link"}, [&] { bench.open(); });
  fs::rename(folder, bench.folder / "unmounted");
  expect_error(ErrorKind::data, {folder.string(), "mounted"}, [&] { bench.open(); });
  EXPECT_FALSE(fs::exists(folder)) << "nothing was made in its place";
}

TEST(StateFile, AStoppedOrUnusedStoreLeavesNothing) {
  Bench bench(test::model_of_edges());
  const std::atomic<bool> stop = true;
  EXPECT_EQ(StateFile::create(test::options_in(bench.folder, 2), StateLayout(bench.model), bench.locks,
                              {bench.queue, {}, &stop}),
            nullptr);
  uint64_t done = 0, total = 0;
  {
    const auto state = StateFile::create(test::options_in(bench.folder, 2),
                                         StateLayout(bench.model, gradients_of(bench.model)), bench.locks,
                                         {bench.queue, [&](uint64_t done_bytes, uint64_t total_bytes) {
                                            EXPECT_GT(done_bytes, done);
                                            done = done_bytes;
                                            total = total_bytes;
                                          }});
    EXPECT_EQ(total, state->layout().state_bytes() + state->layout().scratch_bytes());
    EXPECT_EQ(done, total);
    EXPECT_THAT(files_ending(bench.folder / "drive0", ".slab"), SizeIs(1)) << "gradients have no name";
  }
  for (const char* name : {"state", "drive0", "drive1"})
    EXPECT_EQ(test::list_all(bench.folder / name), std::vector<std::string>{"lock"});
  expect_error(ErrorKind::data, {"no saved state"}, [&] { bench.open(); });
}

TEST(StateFile, AFullDriveLeavesNothing) {
  Bench bench;
  auto options = test::options_in(bench.folder);
  MemoryQueue full(std::make_shared<MemoryDisk>(4096));
  expect_error(ErrorKind::resource, {"No space left"},
               [&] { StateFile::create(options, StateLayout(bench.model), bench.locks, {full}); });
  EXPECT_EQ(test::list_all(bench.folder / "drive0"), std::vector<std::string>{"lock"});
  EXPECT_EQ(test::list_all(bench.folder / "state"), std::vector<std::string>{"lock"});
}

TEST(StateFile, LeftoversOfADeadProcessAreRemoved) {
  Bench bench;
  std::string slab, manifest;
  {
    const auto state = bench.create();
    slab = files_ending(bench.folder / "drive0", ".slab").front();
    const std::string manifest_name = files_ending(bench.folder / "state", ".manifest").front();
    manifest = test::read_all(bench.folder / "state" / manifest_name);
    // As if this process died now: its files come back after the destructor.
    fs::create_directory(bench.folder / "kept");
    fs::rename(bench.folder / "drive0" / slab, bench.folder / "kept" / slab);
    fs::rename(bench.folder / "state" / manifest_name, bench.folder / "kept" / manifest_name);
  }
  for (const std::string& name : test::list_all(bench.folder / "kept"))
    fs::rename(bench.folder / "kept" / name, bench.folder / (name == slab ? "drive0" : "state") / name);
  std::ofstream(bench.folder / "state" / "generation-00000000000000000007.manifest.partial") << "torn";
  const auto state = bench.create();
  EXPECT_THAT(files_ending(bench.folder / "drive0", ".slab"), SizeIs(1));
  EXPECT_NE(files_ending(bench.folder / "drive0", ".slab").front(), slab);
  EXPECT_THAT(files_ending(bench.folder / "state", ".manifest"), SizeIs(1));
  EXPECT_THAT(files_ending(bench.folder / "state", ".partial"), IsEmpty());
}

TEST(StateFile, AFolderIsOneDrive) {
  Bench bench;
  StateFileOptions options = test::options_in(bench.folder);
  options.drives.push_back({bench.folder / "state/../drive0/", 1});
  expect_error(ErrorKind::usage, {"named twice"},
               [&] { StateFile::create(options, StateLayout(bench.model), bench.locks, {bench.queue}); });
}

TEST(StateFile, WeightsShareOutTheBytes) {
  Bench bench(test::model_of_edges());
  const auto state = bench.create(3);  // 1 : 2 : 3
  const auto slab_bytes = [&](int drive) {
    const fs::path folder = bench.folder / ("drive" + std::to_string(drive));
    return static_cast<double>(fs::file_size(folder / files_ending(folder, ".slab").front()));
  };
  const auto total = static_cast<double>(state->layout().state_bytes());
  constexpr double kStripe = 1 << 20;
  for (int drive = 0; drive < 3; ++drive)
    EXPECT_NEAR(slab_bytes(drive), total * (drive + 1) / 6, 2 * kStripe);
}

TEST(StateFile, MigratesToOtherDrives) {
  // Elsewhere; into the same folder; from one drive to two that include the old one.
  const std::vector<std::vector<std::string>> kTargets = {{"other"}, {"drive0"}, {"drive0", "new"}};
  constexpr std::array<test::BlockSize, 3> kSizes = {{{2048, 256}, {256, 0}, {(1 << 19) + 2048, 0}}};
  for (const auto& target : kTargets) {
    SCOPED_TRACE(target.back());
    Bench bench(test::model_of_sizes(kSizes));
    auto old = bench.create();
    bench.write_all(*old, 0, 1);
    old->commit({.applied_step = 5}, bench.slots(0));
    for (int32_t i = 0; i < 3; i += 2) test::write_block(*old, bench.queue, BlockId{i}, 1, 1);
    old->commit({.applied_step = 6}, std::vector<uint8_t>{1, 0, 1});
    const std::string old_slab = files_ending(bench.folder / "drive0", ".slab").front();

    StateFileOptions options{.manifest_folder = bench.folder / "state"};
    for (const std::string& name : target) options.drives.push_back({bench.folder / name, 1});
    auto fresh = StateFile::create(options, StateLayout(bench.model), bench.locks, {bench.queue});
    EXPECT_EQ(recover(bench.folder / "state")->manifest.facts.applied_step, 6)
        << "the old one, until the commit";
    EXPECT_TRUE(fresh->copy_from(*old, {bench.queue}));
    EXPECT_TRUE(bench.holds(*old, 1));
    fresh->commit(old->generation().facts, bench.slots(0));
    EXPECT_FALSE(fs::exists(bench.folder / "drive0" / old_slab)) << "superseded";
    old.reset();
    fresh.reset();
    fresh = bench.open();
    EXPECT_EQ(fresh->generation().number, 3u);
    EXPECT_EQ(fresh->generation().facts.applied_step, 6);
    EXPECT_TRUE(bench.holds(*fresh, 1));
    EXPECT_THAT(files_ending(bench.folder / "state", ".manifest"), SizeIs(1));
    for (const std::string& name : target)
      EXPECT_THAT(files_ending(bench.folder / name, ".slab"), SizeIs(1)) << name;
  }
}

TEST(StateFile, AStoppedMigrationLeavesTheOldStore) {
  Bench bench;
  const auto old = bench.create();
  bench.write_all(*old, 0, 1);
  old->commit({.applied_step = 5}, bench.slots(0));
  StateFileOptions options{.drives = {{bench.folder / "drive0", 1}},
                           .manifest_folder = bench.folder / "state"};
  {
    const auto fresh = StateFile::create(options, StateLayout(bench.model), bench.locks, {bench.queue});
    const std::atomic<bool> stop = true;
    EXPECT_FALSE(fresh->copy_from(*old, {bench.queue, {}, &stop}));
  }
  EXPECT_THAT(files_ending(bench.folder / "drive0", ".slab"), SizeIs(1));
  EXPECT_TRUE(bench.holds(*old, 1));
  EXPECT_EQ(recover(bench.folder / "state")->manifest.facts.applied_step, 5);
}

TEST(StateFile, AFolderThatHoldsAllOfItCanBeMoved) {
  Bench bench;
  StateFileOptions options{.manifest_folder = bench.folder / "state"};
  options.drives = {{bench.folder / "state", 1}, {bench.folder / "state/more", 1}};
  {
    const auto state = StateFile::create(options, StateLayout(bench.model), bench.locks, {bench.queue});
    bench.write_all(*state, 0, 1);
    state->commit({}, bench.slots(0));
  }
  fs::rename(bench.folder / "state", bench.folder / "moved");
  const auto state =
      StateFile::open(bench.folder / "moved", {}, StateLayout(bench.model), bench.locks, {bench.queue});
  EXPECT_TRUE(bench.holds(*state, 1));
}

}  // namespace
}  // namespace sluice
