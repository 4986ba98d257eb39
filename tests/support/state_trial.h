#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/store/state_file.h"
#include "io/aligned_buffer.h"
#include "tests/support/temporary_folder.h"

// Stores of small models with contents out of a counter.
namespace sluice::test {

// A block for each entry: so many trained bf16 elements (a multiple of 2048), and so many frozen ones.
struct BlockSize {
  int64_t trained = 0;
  int64_t frozen = 0;
};
ModelSpec model_of_sizes(std::span<const BlockSize> sizes);
// Sections of 0 and 512 bytes, a page, 1 MiB less and more a page, exactly 1 MiB, and several MiB with a
// tail.
ModelSpec model_of_edges();

// What the state of `step` has in a section; frozen ones always the same.
std::vector<std::byte> contents(const StateLayout& layout, BlockId block, Section section, uint64_t step);
// All of a section as one piece of memory of its own.
struct OwnPiece {
  OwnPiece(const StateLayout& layout, BlockId block, Section section, int slot);
  AlignedBuffer memory;
  StatePiece piece;
};

// Writes the contents of `step` of all persisted sections of a block.
void write_block(StateFile& state, IoQueue& queue, BlockId block, int slot, uint64_t step);
bool block_holds(const StateFile& state, IoQueue& queue, BlockId block, int slot, uint64_t step);

// Spill folders below a temporary one, and options that use them.
StateFileOptions options_in(const TemporaryFolder& folder, int drive_count = 1);

}  // namespace sluice::test
