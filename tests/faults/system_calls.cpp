#include "tests/faults/system_calls.h"

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <xxhash.h>

#include "tests/faults/machine.h"

namespace sluice::test {
namespace {

std::atomic<Machine*> current = nullptr;

}  // namespace

void use_machine(Machine* machine) {
  current = machine;
}

namespace kernel {

int open(const char* path, int flags, mode_t mode) {
  return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}
ssize_t pread(int descriptor, void* data, size_t size, off_t offset) {
  return ::syscall(SYS_pread64, descriptor, data, size, offset);
}
ssize_t pwrite(int descriptor, const void* data, size_t size, off_t offset) {
  return ::syscall(SYS_pwrite64, descriptor, data, size, offset);
}
int fsync(int descriptor) {
  return static_cast<int>(::syscall(SYS_fsync, descriptor));
}
int fdatasync(int descriptor) {
  return static_cast<int>(::syscall(SYS_fdatasync, descriptor));
}
int rename(const char* from, const char* to) {
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
int unlink(const char* path) {
  return static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}
int fallocate(int descriptor, int mode, off_t offset, off_t size) {
  return static_cast<int>(::syscall(SYS_fallocate, descriptor, mode, offset, size));
}

}  // namespace kernel
}  // namespace sluice::test

namespace {

namespace kernel = sluice::test::kernel;

// As the kernel's calls answer: -errno becomes -1 and errno.
template <class Result>
Result answer(Result result) {
  if (result >= 0) return result;
  errno = static_cast<int>(-result);
  return -1;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  std::va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  sluice::test::Machine* const machine = sluice::test::current;
  return machine == nullptr ? kernel::open(path, flags, mode) : answer(machine->open(path, flags, mode));
}

ssize_t pwrite(int descriptor, const void* data, size_t size, off_t offset) {
  sluice::test::Machine* const machine = sluice::test::current;
  return machine == nullptr ? kernel::pwrite(descriptor, data, size, offset)
                            : answer(machine->pwrite(descriptor, data, size, offset));
}

int fsync(int descriptor) {
  sluice::test::Machine* const machine = sluice::test::current;
  return machine == nullptr ? kernel::fsync(descriptor) : answer(machine->sync(descriptor));
}

int fdatasync(int descriptor) {
  sluice::test::Machine* const machine = sluice::test::current;
  return machine == nullptr ? kernel::fdatasync(descriptor) : answer(machine->sync(descriptor));
}

int rename(const char* from, const char* to) noexcept {
  sluice::test::Machine* const machine = sluice::test::current;
  return machine == nullptr ? kernel::rename(from, to) : answer(machine->rename(from, to));
}

int unlink(const char* path) noexcept {
  sluice::test::Machine* const machine = sluice::test::current;
  return machine == nullptr ? kernel::unlink(path) : answer(machine->unlink(path));
}

int fallocate(int descriptor, int mode, off_t offset, off_t size) {
  sluice::test::Machine* const machine = sluice::test::current;
  return machine == nullptr ? kernel::fallocate(descriptor, mode, offset, size)
                            : answer(machine->allocate(descriptor));
}

// What state files take their checksums with; all blocks of theirs, and nothing else, are whole pages.
XXH64_hash_t XXH3_64bits(const void* data, size_t size) {
  sluice::test::Machine* const machine = sluice::test::current;
  if (machine != nullptr && machine->forgets_checksums() && size > 0 && size % 4096 == 0) return 1;
  return XXH3_64bits_withSeed(data, size, 0);  // the same value, by xxHash's own definition
}
}
