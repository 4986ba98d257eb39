#include "apps/nvme_bench/measure.h"

#include <cerrno>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <vector>

#include "apps/nvme_bench/drive_bench.h"
#include "apps/nvme_bench/scratch.h"
#include "io/aligned_buffer.h"
#include "io/file.h"
#include "io/striped_file.h"
#include "io/thread_queue.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace sluice::nvme_bench {
namespace {

constexpr size_t kBlock = 8192;
constexpr uint64_t kBlocks = 8;

class MeasureTest : public ::testing::Test {
 protected:
  MeasureTest() : file_(File::create(folder_ / "file")), memory_(4 * kBlock, "a test") {
    fill_random(memory_.bytes(), 1);
  }
  Walk walk(IoRequest::Kind kind) const {
    return walk_blocks(kind, file_.descriptor(), 0, kBlocks * kBlock, kBlock);
  }
  Load load(bool reads, bool writes) const {
    Load load;
    if (reads) load.reads = walk(IoRequest::Kind::read);
    if (writes) load.writes = walk(IoRequest::Kind::write);
    load.block_bytes = kBlock;
    load.bytes_in_flight = 3 * kBlock;
    return load;
  }
  Measurement write_once() {
    return measure(queue_, load(false, true), memory_.bytes(), {.transfers = kBlocks});
  }

  const test::TemporaryFolder folder_;
  File file_;
  AlignedBuffer memory_;
  ThreadQueue queue_{{.capacity = 16, .thread_count = 2}};
};

TEST_F(MeasureTest, CountsWhatWasTransferred) {
  const Measurement written = write_once();
  EXPECT_EQ(written.written_bytes, kBlocks * kBlock);
  EXPECT_EQ(written.read_bytes, 0u);
  EXPECT_EQ(written.latency.count(), kBlocks);
  EXPECT_GT(written.bytes_per_second(), 0);
  EXPECT_EQ(file_.size_bytes(), kBlocks * kBlock);
  // Round and round.
  const Measurement read =
      measure(queue_, load(true, false), memory_.bytes(), {.transfers = 3 * kBlocks + 1});
  EXPECT_EQ(read.read_bytes, (3 * kBlocks + 1) * kBlock);
  const Measurement mixed = measure(queue_, load(true, true), memory_.bytes(), {.transfers = 10});
  EXPECT_EQ(mixed.read_bytes, 5 * kBlock);
  EXPECT_EQ(mixed.written_bytes, 5 * kBlock);
  EXPECT_EQ(queue_.in_flight(), 0);
}

TEST_F(MeasureTest, KeepsTheShareOfReads) {
  write_once();
  for (const double share : {0.1, 0.25, 0.7, 0.99}) {
    Load mix = load(true, true);
    mix.read_share = share;
    const Measurement mixed = measure(queue_, mix, memory_.bytes(), {.transfers = 200});
    EXPECT_EQ(mixed.bytes(), 200 * kBlock);
    EXPECT_NEAR(static_cast<double>(mixed.read_bytes) / kBlock, share * 200, 1) << share;
  }
}

TEST_F(MeasureTest, ProbesBesideALoadAndAlone) {
  write_once();
  Load loaded = load(true, true);
  loaded.probes = walk_scattered(file_.descriptor(), kBlocks * kBlock, kProbeBytes);
  const Measurement busy = measure(queue_, loaded, memory_.bytes(), {.transfers = 400});
  EXPECT_EQ(busy.bytes(), 400 * kBlock);  // without the probes
  EXPECT_EQ(busy.latency.count(), 400u);
  EXPECT_GT(busy.probe_latency.count(), 0u);
  EXPECT_EQ(busy.probe_bytes(), busy.probe_latency.count() * 4096);
  Load alone;
  alone.block_bytes = kProbeBytes;
  alone.probes = loaded.probes;
  int asked = 0;
  const Measurement idle = measure(queue_, alone, memory_.bytes(), {.stop = [&] { return ++asked > 50; }});
  EXPECT_EQ(idle.bytes(), 0u);
  EXPECT_EQ(idle.probe_latency.count(), 50u);  // one at a time
  EXPECT_EQ(queue_.in_flight(), 0);
}

TEST_F(MeasureTest, ScatteredBlocksStayInTheFile) {
  const Walk walk = walk_scattered(3, 10 * kBlock + 100, kBlock);
  EXPECT_EQ(walk.count, 10u);
  std::vector<int> hits(10);
  for (uint64_t i = 0; i < 1000; ++i) {
    const IoRequest request = walk.request(i);
    ASSERT_EQ(request.offset % kBlock, 0u);
    ++hits.at(request.offset / kBlock);
  }
  for (const int count : hits) EXPECT_GT(count, 50);
}

TEST_F(MeasureTest, StopsWhenTold) {
  write_once();
  int asked = 0;
  const Measurement read =
      measure(queue_, load(true, false), memory_.bytes(), {.stop = [&] { return ++asked > 5; }});
  EXPECT_GT(read.read_bytes, 0u);
  EXPECT_EQ(queue_.in_flight(), 0);
  EXPECT_EQ(measure(queue_, load(true, false), memory_.bytes(), {.seconds = 0}).bytes(), 0u);
}

TEST_F(MeasureTest, FindsBytesThatChanged) {
  write_once();
  check_stamps(queue_, walk(IoRequest::Kind::read), memory_.bytes());
  const char wrong = 'x';
  file_.write_at(&wrong, 1, 3 * kBlock);
  test::expect_error(ErrorKind::runtime, {"other bytes", std::to_string(3 * kBlock)},
                     [&] { check_stamps(queue_, walk(IoRequest::Kind::read), memory_.bytes()); });
}

TEST_F(MeasureTest, FailsWithTheTransfer) {
  write_once();
  Load load = this->load(true, false);
  load.reads = walk_blocks(IoRequest::Kind::read, file_.descriptor(), kBlocks * kBlock, kBlock, kBlock);
  test::expect_error(ErrorKind::data, {"file", std::to_string(kBlocks * kBlock)},
                     [&] { measure(queue_, load, memory_.bytes(), {.transfers = 1}); });
}

TEST(Points, AreTheUsualOneUnlessAnotherIsFaster) {
  constexpr size_t kMiB = 1 << 20;
  std::vector<SweepPoint> sweep{{kMiB / 2, 4 * kMiB, 1.02e9, 1.02e9},
                                {kMiB, 8 * kMiB, 1e9, 1e9},
                                {kMiB, 16 * kMiB, 1.04e9, 1.04e9},
                                {2 * kMiB, 16 * kMiB, 1.04e9, 1.04e9}};
  EXPECT_EQ(choose_point(sweep).bytes_in_flight, 8 * kMiB);
  sweep[1].write_bytes_per_second = 0.5e9;  // then the fewest bytes in flight
  EXPECT_EQ(choose_point(sweep).bytes_in_flight, 4 * kMiB);
  sweep[0].read_bytes_per_second = 0.1e9;  // then the block nearest to 1 MiB
  EXPECT_EQ(choose_point(sweep).block_bytes, kMiB);
  EXPECT_EQ(choose_point(sweep).bytes_in_flight, 16 * kMiB);
  EXPECT_EQ(choose_point({{kMiB, 4 * kMiB, 0, 0}}).bytes_in_flight, 4 * kMiB);  // nothing to choose from
}

TEST(Scratch, NeverTouchesAForeignFile) {
  const test::TemporaryFolder folder;
  const std::filesystem::path path = scratch_path(folder.path());
  test::write_all(path, "precious");
  std::vector<std::string> words{"--size=16MiB", "--depth=2MiB", "--block_size=1MiB", "--seconds=0.01"};
  const Options options = std::get<Options>(parse_options(words));
  test::expect_error(ErrorKind::usage, {path.string(), "there already"},
                     [&] { bench_drive(options, folder.path(), {}); });
  EXPECT_EQ(test::read_all(path), "precious");

  const test::TemporaryFolder elsewhere;
  test::write_all(elsewhere / "target", "precious");
  std::filesystem::remove(path);
  std::filesystem::create_symlink(elsewhere / "target", path);
  test::expect_error(ErrorKind::usage, {"there already"}, [&] { bench_drive(options, folder.path(), {}); });
  EXPECT_EQ(test::read_all(elsewhere / "target"), "precious");
}

}  // namespace
}  // namespace sluice::nvme_bench
