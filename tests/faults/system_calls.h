#pragma once

#include <cstddef>
#include <sys/types.h>

namespace sluice::test {

class Machine;

// The machine that this program's system calls on files go to from now on; null: the real one alone. The
// calls are the program's own: open, pwrite, fsync, fdatasync, rename, unlink and fallocate stand before
// libc's in the linker's eyes. So is XXH3_64bits, for the mutant whose checksums are never compared.
void use_machine(Machine* machine);

// The kernel's, with errno.
namespace kernel {
int open(const char* path, int flags, mode_t mode = 0600);
ssize_t pread(int descriptor, void* data, size_t size, off_t offset);
ssize_t pwrite(int descriptor, const void* data, size_t size, off_t offset);
int fsync(int descriptor);
int fdatasync(int descriptor);
int rename(const char* from, const char* to);
int unlink(const char* path);
int fallocate(int descriptor, int mode, off_t offset, off_t size);
}  // namespace kernel

}  // namespace sluice::test
