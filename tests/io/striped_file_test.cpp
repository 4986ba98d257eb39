#include "io/striped_file.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "io/aligned_buffer.h"
#include "io/thread_queue.h"
#include "tests/support/expect_error.h"
#include "tests/support/random_bytes.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using Kind = IoRequest::Kind;
using Part = StripedFile::Part;
using test::expect_error;
using test::fill_randomly;

constexpr uint64_t kMiB = 1 << 20;

// Pages of the file that the page cache holds.
size_t cached_pages(const std::filesystem::path& path) {
  const File file = File::open(path);
  const auto size = static_cast<size_t>(file.size_bytes());
  void* mapped = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.descriptor(), 0);
  EXPECT_NE(mapped, MAP_FAILED);
  std::vector<unsigned char> resident((size + 4095) / 4096);
  EXPECT_EQ(::mincore(mapped, size, resident.data()), 0);
  ::munmap(mapped, size);
  return static_cast<size_t>(
      std::count_if(resident.begin(), resident.end(), [](unsigned char r) { return (r & 1) != 0; }));
}

class StripedFileTest : public testing::Test {
 protected:
  std::vector<Part> parts() const { return {{folder_ / "a", 3}, {folder_ / "b", 1}, {folder_ / "c", 2.5}}; }
  void transfer(const StripedFile& file, Kind kind, uint64_t offset, std::span<std::byte> data) {
    std::vector<IoRequest> requests;
    file.add_requests(kind, offset, data.size(), data.data(), 1, requests);
    run_all(queue_, requests);
  }

  const test::TemporaryFolder folder_;
  ThreadQueue queue_;
};

TEST_F(StripedFileTest, KeepsWhatIsWrittenAndOpensAgain) {
  constexpr uint64_t kSize = 21 * kMiB + 3 * kIoAlignment;
  const AlignedBuffer sent(kSize, "a test"), got(kSize, "a test");
  fill_randomly(sent.bytes(), 1);
  {
    StripedFile file = StripedFile::create(parts(), kSize);
    EXPECT_EQ(file.size_bytes(), kSize);
    EXPECT_EQ(file.parts().size(), 3U);
    EXPECT_EQ(file.descriptors().size(), 3U);
    transfer(file, Kind::read, 0, got.bytes());
    EXPECT_TRUE(std::ranges::all_of(got.bytes(), [](std::byte value) { return value == std::byte{0}; }));
    transfer(file, Kind::write, 0, sent.bytes());
    file.sync();
  }
  uint64_t sum = 0;
  for (const Part& part : parts()) {
    struct stat info {};
    ASSERT_EQ(::stat(part.path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 07777, 0600U);
    sum += static_cast<uint64_t>(info.st_size);
  }
  EXPECT_EQ(sum, kSize);
  StripedFile file = StripedFile::open(parts(), kSize);
  transfer(file, Kind::read, 0, got.bytes());
  EXPECT_EQ(std::memcmp(got.data(), sent.data(), kSize), 0);
  // Anywhere, of any size.
  std::minstd_rand random(7);
  for (int i = 0; i < 50; ++i) {
    const uint64_t offset = random() % (kSize / 4096) * 4096;
    const uint64_t size = std::min<uint64_t>(random() % 1000 * 4096, kSize - offset);
    transfer(file, Kind::read, offset, got.bytes().first(size));
    ASSERT_EQ(std::memcmp(got.data(), sent.data() + offset, size), 0) << offset << " " << size;
  }
  file.unlink();
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  transfer(file, Kind::read, kSize - 4096, got.bytes().first(4096));
  EXPECT_EQ(std::memcmp(got.data(), sent.data() + kSize - 4096, 4096), 0);
}

TEST_F(StripedFileTest, MergesNeighboursUpTo2MiB) {
  const AlignedBuffer memory(8 * kMiB, "a test");
  const StripedFile file = StripedFile::create({{folder_ / "a", 1}}, 8 * kMiB);
  const auto sizes = [&](uint64_t offset, size_t size) {
    std::vector<IoRequest> requests{{.tag = 99}};  // what is there already is left alone
    file.add_requests(Kind::write, offset, size, memory.data(), 5, requests);
    std::vector<size_t> all;
    uint64_t at = offset;
    for (const IoRequest& request : std::span(requests).subspan(1)) {
      EXPECT_EQ(request.tag, 5U);
      EXPECT_EQ(request.offset, at);
      EXPECT_EQ(request.data, memory.data() + (at - offset));
      at += request.size_bytes;
      all.push_back(request.size_bytes);
    }
    EXPECT_EQ(requests[0].tag, 99U);
    return all;
  };
  EXPECT_THAT(sizes(0, 8 * kMiB), testing::ElementsAre(2 * kMiB, 2 * kMiB, 2 * kMiB, 2 * kMiB));
  EXPECT_THAT(sizes(kMiB / 2, kMiB), testing::ElementsAre(kMiB));
  EXPECT_THAT(sizes(kMiB / 2, 3 * kMiB), testing::ElementsAre(3 * kMiB / 2, 3 * kMiB / 2));
  EXPECT_THAT(sizes(8 * kMiB - 4096, 4096), testing::ElementsAre(4096));
  EXPECT_THAT(sizes(4096, 0), testing::IsEmpty());
}

TEST_F(StripedFileTest, SpreadsOverFilesByWeight) {
  const StripedFile file = StripedFile::create(parts(), 65 * kMiB);
  const AlignedBuffer memory(65 * kMiB, "a test");
  std::vector<IoRequest> requests;
  file.add_requests(Kind::read, 0, 65 * kMiB, memory.data(), 0, requests);
  std::vector<uint64_t> bytes(3);
  const std::vector<int> descriptors = file.descriptors();
  for (const IoRequest& request : requests) {
    const auto at = std::find(descriptors.begin(), descriptors.end(), request.descriptor);
    bytes[static_cast<size_t>(at - descriptors.begin())] += request.size_bytes;
  }
  EXPECT_THAT(bytes, testing::ElementsAre(30 * kMiB, 10 * kMiB, 25 * kMiB));
  EXPECT_EQ(file.place(requests[0]), (folder_ / "a").string() + " at offset 0");
}

TEST_F(StripedFileTest, RefusesWhatIsThereAlready) {
  test::write_all(folder_ / "b", "precious");
  expect_error(ErrorKind::usage, {(folder_ / "b").string(), "already"},
               [&] { (void)StripedFile::create(parts(), kMiB); });
  EXPECT_THAT(test::list_all(folder_.path()), testing::ElementsAre("b"));
  EXPECT_EQ(test::read_all(folder_ / "b"), "precious");
  std::filesystem::create_symlink("b", folder_ / "a");
  expect_error(ErrorKind::usage, {(folder_ / "a").string()},
               [&] { (void)StripedFile::create(parts(), kMiB); });
  EXPECT_EQ(test::read_all(folder_ / "b"), "precious");
}

TEST_F(StripedFileTest, LeavesNothingWhereThereIsNoRoom) {
  expect_error(ErrorKind::resource, {"not enough disk space"},
               [&] { (void)StripedFile::create(parts(), uint64_t{1} << 58); });
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  expect_error(ErrorKind::runtime, {"/no/b"}, [&] {
    (void)StripedFile::create({{folder_ / "a", 1}, {folder_ / "no" / "b", 1}}, kMiB);
  });
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(StripedFileTest, LeavesNothingWhereAFileMayNotGrow) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{kMiB, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  expect_error(ErrorKind::resource, {"reserve", (folder_ / "a").string(), "File too large"},
               [&] { (void)StripedFile::create(parts(), 10 * kMiB); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(StripedFileTest, OpensOnlyWhatItMade) {
  constexpr uint64_t kSize = 13 * kMiB;
  const auto open = [&](uint64_t size_bytes) { (void)StripedFile::open(parts(), size_bytes); };
  expect_error(ErrorKind::data, {(folder_ / "a").string(), "No such file"}, [&] { open(kSize); });
  (void)StripedFile::create(parts(), kSize);
  open(kSize);
  expect_error(ErrorKind::data, {"bytes instead of"}, [&] { open(kSize + kMiB); });
  // As many bytes, dealt differently.
  std::vector<Part> others = parts();
  std::swap(others[0].weight, others[1].weight);
  expect_error(ErrorKind::data, {"bytes instead of"}, [&] { (void)StripedFile::open(others, kSize); });
  std::filesystem::rename(folder_ / "b", folder_ / "real b");
  std::filesystem::create_symlink("real b", folder_ / "b");
  expect_error(ErrorKind::usage, {(folder_ / "b").string(), "symbolic link"}, [&] { open(kSize); });
  std::filesystem::remove(folder_ / "b");
  std::filesystem::create_directory(folder_ / "b");
  expect_error(ErrorKind::usage, {(folder_ / "b").string()}, [&] { open(kSize); });
  std::filesystem::remove(folder_ / "b");
  ASSERT_EQ(::mkfifo((folder_ / "b").c_str(), 0600), 0);
  expect_error(ErrorKind::usage, {(folder_ / "b").string(), "not a file"}, [&] { open(kSize); });
}

TEST_F(StripedFileTest, RefusesAForeignOwner) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  (void)StripedFile::create(parts(), 13 * kMiB);
  ASSERT_EQ(::chown((folder_ / "c").c_str(), 65534, 65534), 0);
  expect_error(ErrorKind::usage, {(folder_ / "c").string(), "65534"},
               [&] { (void)StripedFile::open(parts(), 13 * kMiB); });
}

TEST_F(StripedFileTest, KeepsThePageCacheClean) {
  const AlignedBuffer memory(8 * kMiB, "a test");
  StripedFile file = StripedFile::create({{folder_ / "a", 1}}, 8 * kMiB);
  if (file.buffered()) GTEST_SKIP() << file.buffered_reason();
  EXPECT_EQ(file.buffered_reason(), "");
  transfer(file, Kind::write, 0, memory.bytes());
  transfer(file, Kind::read, 0, memory.bytes());
  EXPECT_EQ(cached_pages(folder_ / "a"), 0U);
}

TEST_F(StripedFileTest, DropsCachedPagesWhereItIsBuffered) {
  const AlignedBuffer memory(8 * kMiB, "a test");
  StripedFile file = StripedFile::create({{folder_ / "a", 1}}, 8 * kMiB);
  if (file.buffered()) GTEST_SKIP() << file.buffered_reason();
  // As if O_DIRECT had been refused.
  ASSERT_EQ(::fcntl(file.descriptors()[0], F_SETFL, O_RDWR), 0);
  transfer(file, Kind::write, 0, memory.bytes());
  transfer(file, Kind::read, 0, memory.bytes());
  EXPECT_EQ(cached_pages(folder_ / "a"), 8 * kMiB / 4096);
  file.sync();
  EXPECT_EQ(cached_pages(folder_ / "a"), 0U);
}

// It takes O_DIRECT, and caches all the same.
TEST_F(StripedFileTest, SeesThroughTmpfs) {
  constexpr auto kTmpfsMagic = 0x01021994;
  struct statfs info {};
  if (::statfs("/dev/shm", &info) != 0 || info.f_type != kTmpfsMagic || ::access("/dev/shm", W_OK) != 0)
    GTEST_SKIP() << "/dev/shm is not a tmpfs that can be written to";
  const std::filesystem::path path = "/dev/shm/sluice_test_" + std::to_string(::getpid());
  StripedFile file = StripedFile::create({{path, 1}}, kMiB);
  const AlignedBuffer memory(kMiB, "a test");
  transfer(file, Kind::write, 0, memory.bytes());
  file.sync();
  file.unlink();
  EXPECT_TRUE(file.buffered());
  EXPECT_THAT(file.buffered_reason(), testing::HasSubstr(path.string()));
}

TEST_F(StripedFileTest, MovesAndLeavesNoDescriptorOpen) {
  const auto open_count = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const auto before = open_count();
  {
    StripedFile one = StripedFile::create({{folder_ / "a", 1}}, kMiB);
    StripedFile two = std::move(one);
    one = StripedFile::open({{folder_ / "a", 1}}, kMiB);
    two = std::move(one);
    EXPECT_EQ(two.size_bytes(), kMiB);
  }
  EXPECT_EQ(open_count(), before);
}

}  // namespace
}  // namespace sluice
