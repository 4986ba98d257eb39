#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/dtype.h"
#include "engine/memory/model_spec.h"

namespace sluice {

// What of a block lies together on disk: low and high weights and the frozen parts as BlockLayout lays out
// weights, and the moments of the state format. Frozen parts never change: both slots are one place.
// `gradient` waits for its update, `layer_input` for backward; both belong to no generation.
enum class Section : uint8_t { low, high, frozen, first_moment, second_moment, gradient, layer_input };
inline constexpr std::array kPersistedSections = {Section::low, Section::high, Section::frozen,
                                                  Section::first_moment, Section::second_moment};
// Of the trained weights, in the order in which a chunk of them lies in memory.
inline constexpr std::array kTrainedSections = {Section::low, Section::high, Section::first_moment,
                                                Section::second_moment};
inline constexpr std::array kScratchSections = {Section::gradient, Section::layer_input};
constexpr bool is_scratch(Section section) {
  return section == Section::gradient || section == Section::layer_input;
}
std::string_view name(Section section);

// Bytes under one checksum, unless StateLayout::checksum_bytes says less; sections are cut into such blocks
// from their beginning on.
inline constexpr size_t kChecksumBytes = size_t{1} << 20;
// Elements whose bytes in every section begin and end with a checksum block: what an update streams in one
// go.
inline constexpr int64_t kChunkElements = int64_t{512} << 10;
// Copies of each persisted section: one committed, one for what comes next.
inline constexpr int kSlotCount = 2;

// Of a block's first `count` elements in one of the sections of its trained state.
size_t state_section_bytes(cpu_optim::StateFormat format, Section section, int64_t count);
// Where a section begins in memory that holds kChunkElements of each; of one that is not trained: their end.
size_t chunk_offset(cpu_optim::StateFormat format, Section section);

// Where each section of a model lies in the state file and, gradients, in the scratch file beside it: a pure
// function of the model (and, gradients only, of where they wait), so that any plan can open any state.
// Sections of 1 MiB and more begin at a multiple of 1 MiB, so that no checksum block of 1 MiB spans two
// stripes; smaller ones at a multiple of 4096. Immutable.
class StateLayout {
 public:
  // `gradient_dtypes`: one a block, nullopt where the gradient waits in RAM; empty for no gradients on disk.
  // `layer_input_bytes`: of each tape layer, at most as many as there are blocks: BlockId counts them here.
  explicit StateLayout(ModelSpec model, std::span<const std::optional<DType>> gradient_dtypes = {},
                       std::span<const size_t> layer_input_bytes = {});

  const ModelSpec& model() const { return model_; }
  int block_count() const { return static_cast<int>(blocks_.size()); }
  size_t section_bytes(BlockId block, Section section) const { return entry(block, section).size_bytes; }
  // From the beginning of the state file; of a gradient (slot 0), of the scratch file.
  uint64_t offset(BlockId block, Section section, int slot) const;
  uint64_t state_bytes() const { return state_bytes_; }      // a multiple of 1 MiB, never 0
  uint64_t scratch_bytes() const { return scratch_bytes_; }  // a multiple of 1 MiB, 0 without gradients

  // Of each checksum block of a section but the last. Less than kChecksumBytes where a chunk has less.
  size_t checksum_bytes(Section section) const;
  // Checksum blocks are numbered through, within one slot of the persisted sections and within the gradients.
  size_t checksum_begin(BlockId block, Section section) const { return entry(block, section).checksum_begin; }
  size_t checksum_count(BlockId block, Section section) const;
  size_t state_checksums() const { return state_checksums_; }  // of one slot
  size_t scratch_checksums() const { return scratch_checksums_; }

  // xxh3 over the state format, tensor names, shapes, blocks and offsets of all that is persisted: equal for
  // two layouts exactly where one can open what the other wrote.
  uint64_t fingerprint() const;
  // Bytes [begin, end) of a section in words: "second moments of model.norm.weight".
  std::string describe(BlockId block, Section section, size_t begin, size_t end) const;

 private:
  struct Entry {
    size_t size_bytes = 0;
    std::array<uint64_t, kSlotCount> offsets = {};
    size_t checksum_begin = 0;
  };
  using Block = std::array<Entry, kPersistedSections.size() + kScratchSections.size()>;

  const Entry& entry(BlockId block, Section section) const {
    return blocks_.at(static_cast<size_t>(block.value)).at(static_cast<size_t>(section));
  }
  void place_state();
  void place_scratch();

  ModelSpec model_;
  std::vector<Block> blocks_;
  uint64_t state_bytes_ = 0;
  uint64_t scratch_bytes_ = 0;
  size_t state_checksums_ = 0;
  size_t scratch_checksums_ = 0;
};

}  // namespace sluice
