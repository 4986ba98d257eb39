#include "engine/store/state_layout.h"

#include <algorithm>
#include <utility>
#include <xxhash.h>

#include "engine/base/error.h"
#include "engine/base/math.h"
#include "engine/memory/block_layout.h"

namespace sluice {
namespace {

constexpr uint64_t kPage = 4096;

// Hands out places one after another.
class Shelf {
 public:
  uint64_t place(size_t size_bytes) {
    end_ = round_up(end_, size_bytes >= kChecksumBytes ? uint64_t{kChecksumBytes} : kPage);
    const uint64_t begin = end_;
    end_ += round_up(uint64_t{size_bytes}, kPage);
    return begin;
  }
  uint64_t size_bytes() const { return round_up(end_, uint64_t{kChecksumBytes}); }

 private:
  uint64_t end_ = 0;
};

// Names and numbers, such that different lists of them never hash the same bytes.
class Fingerprint {
 public:
  void add(uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8) bytes_.push_back(static_cast<char>(number >> shift));
  }
  void add(std::string_view text) {
    add(text.size());
    bytes_ += text;
  }
  uint64_t value() const { return XXH3_64bits(bytes_.data(), bytes_.size()); }

 private:
  std::string bytes_;
};

}  // namespace

size_t state_section_bytes(cpu_optim::StateFormat format, Section section, int64_t count) {
  if (section == Section::low) return cpu_optim::low_bytes(format, count);
  if (section == Section::high) return static_cast<size_t>(count) * 2;
  SLUICE_CHECK(section == Section::first_moment || section == Section::second_moment);
  return cpu_optim::moment_bytes(format, count);
}

size_t chunk_offset(cpu_optim::StateFormat format, Section section) {
  size_t offset = 0;
  for (const Section before : kTrainedSections) {
    if (before == section) break;
    offset += state_section_bytes(format, before, kChunkElements);
  }
  return offset;
}

std::string_view name(Section section) {
  switch (section) {
    case Section::low:
      return "low halves";
    case Section::high:
      return "weights";
    case Section::frozen:
      return "frozen weights";
    case Section::first_moment:
      return "first moments";
    case Section::second_moment:
      return "second moments";
    case Section::gradient:
      return "gradients";
    case Section::layer_input:
      return "layer inputs";
  }
  return "?";
}

StateLayout::StateLayout(ModelSpec model, std::span<const std::optional<DType>> gradient_dtypes,
                         std::span<const size_t> layer_input_bytes)
    : model_(std::move(model)), blocks_(model_.blocks.size()) {
  SLUICE_CHECK(gradient_dtypes.empty() || gradient_dtypes.size() == blocks_.size());
  SLUICE_CHECK(layer_input_bytes.size() <= blocks_.size());
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const BlockLayout layout(model_, BlockId{static_cast<int32_t>(i)});
    const auto elements = static_cast<size_t>(layout.logical_elements());
    const auto set = [&](Section section, size_t bytes) {
      blocks_[i][static_cast<size_t>(section)].size_bytes = bytes;
    };
    for (const Section section : kPersistedSections) {
      set(section, section == Section::frozen
                       ? layout.frozen_bytes()
                       : state_section_bytes(model_.state_format, section, layout.logical_elements()));
    }
    if (!gradient_dtypes.empty() && gradient_dtypes[i])
      set(Section::gradient, elements * size_bytes(*gradient_dtypes[i]));
    if (i < layer_input_bytes.size()) set(Section::layer_input, layer_input_bytes[i]);
  }
  place_state();
  place_scratch();
}

void StateLayout::place_state() {
  Shelf shelf;
  // Large sections first: a small one between them would cost the rest of its MiB.
  for (const bool large : {true, false}) {
    for (Block& block : blocks_) {
      for (const Section section : kPersistedSections) {
        Entry& entry = block[static_cast<size_t>(section)];
        if ((entry.size_bytes >= kChecksumBytes) != large) continue;
        entry.offsets[0] = shelf.place(entry.size_bytes);
        entry.offsets[1] = section == Section::frozen ? entry.offsets[0] : shelf.place(entry.size_bytes);
      }
    }
  }
  state_bytes_ = std::max(shelf.size_bytes(), uint64_t{kChecksumBytes});
  for (Block& block : blocks_) {
    for (const Section section : kPersistedSections) {
      Entry& entry = block[static_cast<size_t>(section)];
      entry.checksum_begin = state_checksums_;
      state_checksums_ += divide_up(entry.size_bytes, checksum_bytes(section));
    }
  }
}

void StateLayout::place_scratch() {
  Shelf shelf;
  for (Block& block : blocks_) {
    for (const Section section : kScratchSections) {
      Entry& entry = block[static_cast<size_t>(section)];
      entry.offsets[0] = shelf.place(entry.size_bytes);
      entry.checksum_begin = scratch_checksums_;
      scratch_checksums_ += divide_up(entry.size_bytes, kChecksumBytes);
    }
  }
  scratch_bytes_ = scratch_checksums_ == 0 ? 0 : shelf.size_bytes();
}

uint64_t StateLayout::offset(BlockId block, Section section, int slot) const {
  SLUICE_CHECK(0 <= slot && slot < (is_scratch(section) ? 1 : kSlotCount));
  return entry(block, section).offsets[static_cast<size_t>(slot)];
}

size_t StateLayout::checksum_bytes(Section section) const {
  if (section != Section::first_moment && section != Section::second_moment) return kChecksumBytes;
  return std::min(kChecksumBytes, cpu_optim::moment_bytes(model_.state_format, kChunkElements));
}

size_t StateLayout::checksum_count(BlockId block, Section section) const {
  return divide_up(section_bytes(block, section), checksum_bytes(section));
}

uint64_t StateLayout::fingerprint() const {
  Fingerprint fingerprint;
  fingerprint.add(cpu_optim::name(model_.state_format));
  for (size_t i = 0; i < blocks_.size(); ++i) {
    fingerprint.add(model_.blocks[i].parts.size());
    for (const BlockPart& part : model_.blocks[i].parts) {
      const TensorSpec& tensor = model_.tensor(part.tensor);
      fingerprint.add(tensor.name);
      for (const int64_t number : {tensor.rows, tensor.cols, part.row_begin, part.row_end})
        fingerprint.add(static_cast<uint64_t>(number));
      fingerprint.add(tensor.trainable ? "trained" : name(tensor.storage_dtype));
    }
    for (const Section section : kPersistedSections) {
      const Entry& entry = blocks_[i][static_cast<size_t>(section)];
      fingerprint.add(entry.size_bytes);
      for (const uint64_t offset : entry.offsets) fingerprint.add(offset);
    }
  }
  return fingerprint.value();
}

std::string StateLayout::describe(BlockId block, Section section, size_t begin, size_t end) const {
  if (section == Section::layer_input) return "the input of tape layer " + std::to_string(block.value);
  const BlockLayout layout(model_, block);
  const auto begin_of = [&](int64_t element) {
    if (section != Section::gradient) return state_section_bytes(model_.state_format, section, element);
    const auto elements = static_cast<size_t>(std::max<int64_t>(1, layout.logical_elements()));
    return section_bytes(block, section) / elements * static_cast<size_t>(element);
  };
  std::string first;
  int more = 0;
  for (const BlockLayout::Part& part : layout.parts()) {
    if (part.trainable == (section == Section::frozen)) continue;
    const size_t part_begin = part.trainable ? begin_of(part.span_begin) : part.frozen_offset;
    const size_t part_bytes =
        part.trainable ? begin_of(part.span_begin + part.element_count()) - part_begin
                       : static_cast<size_t>(part.element_count()) * size_bytes(part.storage_dtype);
    if (part_bytes == 0 || part_begin >= end || part_begin + part_bytes <= begin) continue;
    if (first.empty()) {
      first = model_.tensor(part.tensor).name;
    } else {
      ++more;
    }
  }
  if (first.empty()) first = "block " + model_.block(block).name;  // bytes between tensors
  const bool masters = section == Section::low && model_.state_format == cpu_optim::StateFormat::fp32;
  std::string text = (masters ? "masters" : std::string(name(section))) + " of " + first;
  if (more > 0) text += " (and of " + std::to_string(more) + " more)";
  return text;
}

}  // namespace sluice
