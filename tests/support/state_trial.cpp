#include "tests/support/state_trial.h"

#include <algorithm>
#include <cstring>

#include "engine/base/math.h"

namespace sluice::test {

ModelSpec model_of_sizes(std::span<const BlockSize> sizes) {
  ModelSpec model;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const std::string number = std::to_string(i);
    BlockSpec block{.name = number};
    const auto add = [&](TensorSpec tensor) {
      const int64_t rows = tensor.rows;
      block.parts.push_back({TensorId{static_cast<int32_t>(model.tensors.size())}, 0, rows});
      model.tensors.push_back(std::move(tensor));
    };
    if (sizes[i].trained > 0) add({.name = "trained." + number, .rows = sizes[i].trained / 256, .cols = 256});
    if (sizes[i].frozen > 0)
      add({.name = "frozen." + number, .rows = 1, .cols = sizes[i].frozen, .trainable = false});
    model.blocks.push_back(std::move(block));
  }
  return model;
}

ModelSpec model_of_edges() {
  constexpr int64_t kPage = 2048;  // elements of 2 bytes in a page
  constexpr int64_t kMega = 256 * kPage;
  constexpr std::array<BlockSize, 7> kSizes = {{{0, 0},
                                                {0, 256},
                                                {kPage, 0},
                                                {kMega - kPage, 0},
                                                {kMega, 0},
                                                {kMega + kPage, 300},
                                                {5 * kMega / 2 + 3 * kPage, 256}}};
  return model_of_sizes(kSizes);
}

std::vector<std::byte> contents(const StateLayout& layout, BlockId block, Section section, uint64_t step) {
  std::vector<std::byte> bytes(layout.section_bytes(block, section));
  if (section == Section::frozen) step = 0;
  uint64_t state = step * 1000003 + static_cast<uint64_t>(block.value) * 101 + static_cast<uint64_t>(section);
  for (size_t begin = 0; begin < bytes.size(); begin += sizeof(state)) {
    state = state * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX generator
    std::memcpy(bytes.data() + begin, &state, std::min(sizeof(state), bytes.size() - begin));
  }
  return bytes;
}

OwnPiece::OwnPiece(const StateLayout& layout, BlockId block, Section section, int slot)
    : memory(round_up(layout.section_bytes(block, section), kIoAlignment), "a piece"),
      piece{block, section, slot, 0, layout.section_bytes(block, section), memory.data()} {}

void write_block(StateFile& state, IoQueue& queue, BlockId block, int slot, uint64_t step) {
  for (const Section section : kPersistedSections) {
    const OwnPiece own(state.layout(), block, section, slot);
    const std::vector<std::byte> bytes = contents(state.layout(), block, section, step);
    // Whatever lies behind the section's end must not matter.
    std::ranges::fill(own.memory.bytes(), std::byte{0xAB});
    if (!bytes.empty()) std::memcpy(own.memory.data(), bytes.data(), bytes.size());
    state.write_pieces(queue, {&own.piece, 1});
  }
}

bool block_holds(const StateFile& state, IoQueue& queue, BlockId block, int slot, uint64_t step) {
  for (const Section section : kPersistedSections) {
    const OwnPiece own(state.layout(), block, section, slot);
    const std::vector<std::byte> bytes = contents(state.layout(), block, section, step);
    state.read_pieces(queue, {&own.piece, 1});
    if (!bytes.empty() && std::memcmp(own.memory.data(), bytes.data(), bytes.size()) != 0) return false;
  }
  return true;
}

StateFileOptions options_in(const TemporaryFolder& folder, int drive_count) {
  StateFileOptions options{.manifest_folder = folder / "state"};
  options.identity.kernel_table = "test";
  for (int i = 0; i < drive_count; ++i)
    options.drives.push_back({folder / ("drive" + std::to_string(i)), 1.0 + i});
  return options;
}

}  // namespace sluice::test
