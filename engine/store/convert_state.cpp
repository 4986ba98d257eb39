#include "engine/store/convert_state.h"

#include <algorithm>
#include <vector>

#include "cpu_optim/state_codec.h"
#include "engine/base/error.h"
#include "io/aligned_buffer.h"

namespace sluice {
namespace {

constexpr auto kChunk = static_cast<size_t>(kChunkElements);

// A chunk of one state format in memory.
class ChunkMemory {
 public:
  explicit ChunkMemory(cpu_optim::StateFormat format)
      : format_(format), memory_(chunk_offset(format, Section::gradient), "converting the state") {}

  std::vector<StatePiece> pieces(BlockId block, int slot, int64_t begin, int64_t count) const {
    std::vector<StatePiece> found;
    for (const Section section : kTrainedSections) {
      found.push_back({.block = block,
                       .section = section,
                       .slot = slot,
                       .begin = state_section_bytes(format_, section, begin),
                       .size_bytes = state_section_bytes(format_, section, count),
                       .data = begin_of(section)});
    }
    std::erase_if(found, [](const StatePiece& piece) { return piece.size_bytes == 0; });
    return found;
  }
  cpu_optim::StateSpan span(int64_t count) const {
    const auto if_any = [&](Section section) {
      return state_section_bytes(format_, section, 1) == 0 ? nullptr : begin_of(section);
    };
    return {.format = format_,
            .size = count,
            .weight = reinterpret_cast<BFloat16*>(if_any(Section::high)),
            .low = if_any(Section::low),
            .first_moment = if_any(Section::first_moment),
            .second_moment = if_any(Section::second_moment)};
  }

 private:
  std::byte* begin_of(Section section) const { return memory_.data() + chunk_offset(format_, section); }

  cpu_optim::StateFormat format_;
  AlignedBuffer memory_;
};

class Conversion {
 public:
  Conversion(const StateFile& from, StateFile& to, const LongTransfer& transfer)
      : from_(from),
        to_(to),
        transfer_(transfer),
        source_(from.layout().model().state_format),
        target_(to.layout().model().state_format) {
    for (BlockId block{0}; block.value < from.layout().block_count(); ++block.value) {
      for (const Section section : kPersistedSections) total_ += from.layout().section_bytes(block, section);
    }
  }

  bool run() {
    for (BlockId block{0}; block.value < from_.layout().block_count(); ++block.value) {
      if (!convert_trained(block) || !copy_frozen(block)) return false;
    }
    return true;
  }

 private:
  int slot(BlockId block) const { return from_.generation().slots[static_cast<size_t>(block.value)]; }
  void count(std::span<const StatePiece> pieces) {
    for (const StatePiece& piece : pieces) done_ += piece.size_bytes;
    transfer_.report(done_, total_);
  }

  bool convert_trained(BlockId block) {
    const auto elements = static_cast<int64_t>(from_.layout().section_bytes(block, Section::high)) / 2;
    for (int64_t begin = 0; begin < elements; begin += kChunkElements) {
      if (transfer_.stopped()) return false;
      const int64_t chunk = std::min(kChunkElements, elements - begin);
      const std::vector<StatePiece> read = source_.pieces(block, slot(block), begin, chunk);
      from_.read_pieces(transfer_.queue, read);
      const auto part = [&](std::vector<float>& values) {
        return std::span(values).first(static_cast<size_t>(chunk));
      };
      const cpu_optim::StateNumbers numbers{part(weight_), part(first_moment_), part(second_moment_)};
      cpu_optim::decode(source_.span(chunk), numbers);
      cpu_optim::encode(numbers, target_.span(chunk));
      to_.write_pieces(transfer_.queue, target_.pieces(block, 0, begin, chunk));
      count(read);
    }
    return true;
  }

  bool copy_frozen(BlockId block) {
    const size_t bytes = from_.layout().section_bytes(block, Section::frozen);
    for (size_t begin = 0; begin < bytes; begin += kChecksumBytes) {
      if (transfer_.stopped()) return false;
      const StatePiece piece{.block = block,
                             .section = Section::frozen,
                             .slot = 0,
                             .begin = begin,
                             .size_bytes = std::min(kChecksumBytes, bytes - begin),
                             .data = frozen_.data()};
      from_.read_pieces(transfer_.queue, {&piece, 1});
      to_.write_pieces(transfer_.queue, {&piece, 1});
      count({&piece, 1});
    }
    return true;
  }

  const StateFile& from_;
  StateFile& to_;
  const LongTransfer& transfer_;
  ChunkMemory source_, target_;
  AlignedBuffer frozen_{kChecksumBytes, "converting the state"};
  std::vector<float> weight_ = std::vector<float>(kChunk), first_moment_ = weight_, second_moment_ = weight_;
  uint64_t total_ = 0;
  uint64_t done_ = 0;
};

}  // namespace

bool convert_state(const StateFile& from, StateFile& to, const LongTransfer& transfer) {
  SLUICE_CHECK(from.layout().block_count() == to.layout().block_count() && from.generation().number != 0);
  return Conversion(from, to, transfer).run();
}

}  // namespace sluice
