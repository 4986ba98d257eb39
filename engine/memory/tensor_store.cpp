#include "engine/memory/tensor_store.h"

#include <algorithm>
#include <xxhash.h>

#include "cpu_optim/convert.h"
#include "engine/base/error.h"
#include "engine/base/math.h"
#include "engine/memory/master_codec.h"

namespace sluice {
namespace {

constexpr size_t kBlockAlignment = 4096;
constexpr size_t kHashPiece = size_t{4} << 20;

// Masters that become sections in the host tier at a time.
constexpr size_t kMasterPiece = size_t{64} << 10;

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}
template <class T>
std::span<std::byte> bytes_of(std::vector<T>& values) {
  return std::as_writable_bytes(std::span(values));
}

std::vector<BlockLayout> make_layouts(const ModelSpec& model) {
  std::vector<BlockLayout> layouts;
  for (int block = 0; block < static_cast<int>(model.blocks.size()); ++block)
    layouts.emplace_back(model, BlockId{block});
  return layouts;
}

// Where each block begins when those in the host tier lie one after another; the end last.
std::vector<size_t> offsets(const std::vector<BlockLayout>& layouts, const std::vector<BlockHome>& homes,
                            Tier BlockHome::*tier, size_t (BlockLayout::*bytes)() const) {
  std::vector<size_t> result{0};
  for (size_t block = 0; block < layouts.size(); ++block) {
    const bool here = homes[block].*tier == Tier::host;
    result.push_back(result.back() + (here ? round_up((layouts[block].*bytes)(), kBlockAlignment) : 0));
  }
  return result;
}
std::vector<size_t> weight_offsets(const std::vector<BlockLayout>& layouts,
                                   const std::vector<BlockHome>& homes) {
  return offsets(layouts, homes, &BlockHome::weights, &BlockLayout::weight_bytes);
}
std::vector<size_t> moment_offsets(const std::vector<BlockLayout>& layouts,
                                   const std::vector<BlockHome>& homes) {
  return offsets(layouts, homes, &BlockHome::moments, &BlockLayout::moment_bytes);
}

}  // namespace

size_t TensorStore::weight_arena_bytes(const ModelSpec& model) {
  return sluice::weight_offsets(make_layouts(model), std::vector<BlockHome>(model.blocks.size())).back();
}
size_t TensorStore::moment_arena_bytes(const ModelSpec& model) {
  return sluice::moment_offsets(make_layouts(model), std::vector<BlockHome>(model.blocks.size())).back();
}

TensorStore::TensorStore(ModelSpec model, gpu::Device& device, TierBudget& host_budget, bool with_moments,
                         std::vector<BlockHome> homes, DiskTier disk)
    : model_(std::move(model)),
      layouts_(make_layouts(model_)),
      homes_(homes.empty() ? std::vector<BlockHome>(layouts_.size()) : std::move(homes)),
      disk_(disk),
      newest_slots_(layouts_.size()),
      disk_tokens_(layouts_.size()),
      weight_offsets_(sluice::weight_offsets(layouts_, homes_)),
      moment_offsets_(sluice::moment_offsets(layouts_, homes_)),
      versions_(layouts_.size()) {
  SLUICE_CHECK(homes_.size() == layouts_.size());
  uint64_t element_count = 0;
  for (const BlockLayout& layout : layouts_) {
    first_elements_.push_back(element_count);
    element_count += static_cast<uint64_t>(layout.logical_elements());
  }
  index_tensors();
  weights_ = std::make_unique<HostArena>(host_budget, device, weight_offsets_.back(), "weights");
  if (with_moments)
    moments_ = std::make_unique<HostArena>(host_budget, device, moment_offsets_.back(), "moments");
}

void TensorStore::index_tensors() {
  rows_of_tensor_.resize(model_.tensors.size());
  for (int block = 0; block < block_count(); ++block) {
    const std::vector<BlockLayout::Part>& parts = layout(BlockId{block}).parts();
    for (int part = 0; part < static_cast<int>(parts.size()); ++part) {
      const BlockLayout::Part& placed = parts[static_cast<size_t>(part)];
      rows_of_tensor_[static_cast<size_t>(placed.tensor.value)].push_back(
          {placed.row_begin, BlockId{block}, part});
    }
  }
  for (size_t tensor = 0; tensor < rows_of_tensor_.size(); ++tensor) {
    std::vector<TensorRows>& pieces = rows_of_tensor_[tensor];
    std::sort(pieces.begin(), pieces.end(),
              [](const TensorRows& a, const TensorRows& b) { return a.row_begin < b.row_begin; });
    int64_t next_row = 0;
    for (const TensorRows& piece : pieces) {
      SLUICE_CHECK(piece.row_begin == next_row, model_.tensors[tensor].name);
      next_row += layout(piece.block).part(piece.part).rows;
    }
    SLUICE_CHECK(next_row == model_.tensors[tensor].rows, model_.tensors[tensor].name);
  }
}

std::byte* TensorStore::weights(BlockId block) const {
  SLUICE_CHECK(home(block).weights == Tier::host, model_.block(block).name);
  return weights_->data() + weight_offsets_.at(static_cast<size_t>(block.value));
}

void TensorStore::attach(StateFile& file) {
  SLUICE_CHECK(disk_.file == nullptr);
  disk_.file = &file;
}

int TensorStore::next_slot(BlockId block) const {
  if (!committed_slots_) return newest_slot(block);
  return 1 - committed_slots_->at(static_cast<size_t>(block.value));
}

void TensorStore::restore(std::vector<uint8_t> slots) {
  SLUICE_CHECK(slots.size() == newest_slots_.size());
  newest_slots_ = std::move(slots);
  committed_slots_ = newest_slots_;
  for (BlockId block{0}; block.value < block_count(); ++block.value) {
    const BlockState resident = state(block);
    for (const Section section : kPersistedSections) {
      if (resident.bytes(section).empty()) continue;
      disk_.file->read_bytes(*disk_.queue, block, section,
                             section == Section::frozen ? 0 : newest_slot(block), 0, resident.bytes(section));
    }
  }
}

std::span<std::byte> BlockState::bytes(Section section) const {
  switch (section) {
    case Section::low:
      return low;
    case Section::high:
      return std::as_writable_bytes(high);
    case Section::frozen:
      return frozen;
    case Section::first_moment:
      return first_moment;
    case Section::second_moment:
      return second_moment;
    case Section::gradient:
    case Section::layer_input:
      break;
  }
  SLUICE_CHECK(false, "scratch is no state");
  return {};
}

BlockState TensorStore::state(BlockId block) const {
  const BlockLayout& placed = layout(block);
  const int64_t count = placed.logical_elements();
  BlockState state;
  if (home(block).weights == Tier::host) {
    std::byte* const begin = weights(block);
    state.low = {begin, cpu_optim::low_bytes(model_.state_format, count)};
    state.high = {reinterpret_cast<BFloat16*>(begin + placed.low_bytes()), static_cast<size_t>(count)};
    state.frozen = {begin + placed.trained_bytes(), placed.frozen_bytes()};
  }
  if (moments_ && home(block).moments == Tier::host) {
    std::byte* const moments = moments_->data() + moment_offsets_.at(static_cast<size_t>(block.value));
    const size_t bytes = cpu_optim::moment_bytes(model_.state_format, count);
    state.first_moment = {moments, bytes};
    state.second_moment = {moments + placed.moment_bytes() / 2, bytes};
  }
  return state;
}

cpu_optim::StateSpan TensorStore::states(BlockId block) const {
  const BlockState resident = state(block);
  const auto begin_of = [](auto span) { return span.empty() ? nullptr : span.data(); };
  return {.format = model_.state_format,
          .size = layout(block).logical_elements(),
          .weight = begin_of(resident.high),
          .low = begin_of(resident.low),
          .first_moment = begin_of(resident.first_moment),
          .second_moment = begin_of(resident.second_moment),
          .first_element = first_elements_.at(static_cast<size_t>(block.value))};
}

const TensorStore::TensorRows& TensorStore::locate(TensorId tensor, int64_t row) const {
  const std::vector<TensorRows>& pieces = rows_of_tensor_.at(static_cast<size_t>(tensor.value));
  auto after =
      std::upper_bound(pieces.begin(), pieces.end(), row,
                       [](int64_t wanted, const TensorRows& piece) { return wanted < piece.row_begin; });
  SLUICE_CHECK(after != pieces.begin() && row >= 0 && row < model_.tensor(tensor).rows);
  return *std::prev(after);
}

TensorStore::Place TensorStore::find(TensorId tensor, int64_t row) const {
  const TensorRows& piece = locate(tensor, row);
  return {piece.block, piece.part, row - piece.row_begin};
}

// Calls visit(block, part, first row within the part, rows, rows before) for each run of rows within one
// block.
template <class Visit>
void TensorStore::visit_rows(TensorId tensor, int64_t row_begin, int64_t row_count, Visit visit) const {
  for (int64_t done = 0; done < row_count;) {
    const Place place = find(tensor, row_begin + done);
    const BlockLayout::Part& part = layout(place.block).part(place.part);
    const int64_t rows = std::min(row_count - done, part.rows - place.row);
    visit(place.block, part, place.row, rows, done);
    done += rows;
  }
}

// Elements [first, first + masters.size()) of the block's logical index.
void TensorStore::write_trainable(BlockId block, int64_t first, std::span<const float> masters) {
  if (home(block).weights == Tier::disk) {
    return write_masters(model_.state_format, first, masters,
                         [&](Section section, size_t begin, std::span<const std::byte> in) {
                           disk_.file->write_bytes(*disk_.queue, block, section, newest_slot(block), begin,
                                                   in);
                         });
  }
  const BlockState target = state(block);
  const auto write = [&](Section section, size_t begin, std::span<const std::byte> in) {
    std::ranges::copy(in, target.bytes(section).subspan(begin, in.size()).begin());
  };
  for (size_t done = 0; done < masters.size(); done += kMasterPiece) {
    write_masters(model_.state_format, first + static_cast<int64_t>(done),
                  masters.subspan(done, std::min(kMasterPiece, masters.size() - done)), write);
  }
}

void TensorStore::read_trainable(BlockId block, int64_t first, std::span<float> masters) const {
  if (home(block).weights == Tier::disk) {
    return read_masters(
        model_.state_format, first, masters, [&](Section section, size_t begin, std::span<std::byte> out) {
          disk_.file->read_bytes(*disk_.queue, block, section, newest_slot(block), begin, out);
        });
  }
  const BlockState source = state(block);
  const auto read = [&](Section section, size_t begin, std::span<std::byte> out) {
    std::ranges::copy(source.bytes(section).subspan(begin, out.size()), out.begin());
  };
  for (size_t done = 0; done < masters.size(); done += kMasterPiece) {
    read_masters(model_.state_format, first + static_cast<int64_t>(done),
                 masters.subspan(done, std::min(kMasterPiece, masters.size() - done)), read);
  }
}

void TensorStore::write_frozen(BlockId block, size_t begin, std::span<const std::byte> bytes) {
  if (home(block).weights == Tier::host) {
    std::ranges::copy(bytes, state(block).frozen.begin() + static_cast<ptrdiff_t>(begin));
  } else {
    disk_.file->write_bytes(*disk_.queue, block, Section::frozen, 0, begin, bytes);
  }
}

void TensorStore::read_frozen(BlockId block, size_t begin, std::span<std::byte> bytes) const {
  if (home(block).weights == Tier::host) {
    std::ranges::copy(state(block).frozen.subspan(begin, bytes.size()), bytes.begin());
  } else {
    disk_.file->read_bytes(*disk_.queue, block, Section::frozen, 0, begin, bytes);
  }
}

void TensorStore::write_rows(TensorId tensor, int64_t row_begin, int64_t row_count, const float* rows) {
  visit_rows(
      tensor, row_begin, row_count,
      [&](BlockId block, const BlockLayout::Part& part, int64_t row, int64_t count, int64_t done) {
        const std::span<const float> source{rows + done * part.cols, static_cast<size_t>(count * part.cols)};
        const int64_t first = row * part.cols;
        if (part.trainable) return write_trainable(block, part.span_begin + first, source);
        const size_t begin = part.frozen_offset + static_cast<size_t>(first) * size_bytes(part.storage_dtype);
        if (part.storage_dtype == DType::f32) return write_frozen(block, begin, std::as_bytes(source));
        std::vector<BFloat16> rounded(source.size());
        cpu_optim::convert(source, std::span(rounded));
        write_frozen(block, begin, bytes_of(rounded));
      });
}

void TensorStore::read_rows(TensorId tensor, int64_t row_begin, int64_t row_count, float* rows) const {
  visit_rows(tensor, row_begin, row_count,
             [&](BlockId block, const BlockLayout::Part& part, int64_t row, int64_t count, int64_t done) {
               const std::span<float> target{rows + done * part.cols, static_cast<size_t>(count * part.cols)};
               const int64_t first = row * part.cols;
               if (part.trainable) return read_trainable(block, part.span_begin + first, target);
               const size_t begin =
                   part.frozen_offset + static_cast<size_t>(first) * size_bytes(part.storage_dtype);
               if (part.storage_dtype == DType::f32)
                 return read_frozen(block, begin, std::as_writable_bytes(target));
               std::vector<BFloat16> stored(target.size());
               read_frozen(block, begin, bytes_of(stored));
               cpu_optim::convert(std::span<const BFloat16>(stored), target);
             });
}

void TensorStore::set_version(BlockId block, gpu::Event ready) {
  Version& version = versions_.at(static_cast<size_t>(block.value));
  ++version.number;
  version.ready = std::move(ready);
}

const std::optional<gpu::Event>& TensorStore::version_ready(BlockId block) const {
  return versions_.at(static_cast<size_t>(block.value)).ready;
}

uint64_t TensorStore::hash() const {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> hasher(XXH3_createState(), XXH3_freeState);
  SLUICE_CHECK(hasher != nullptr && XXH3_64bits_reset(hasher.get()) == XXH_OK);
  const auto add = [&](std::span<const std::byte> bytes) {
    XXH3_64bits_update(hasher.get(), bytes.data(), bytes.size());
  };
  std::vector<std::byte> piece;
  const auto add_from_disk = [&](BlockId block, Section section) {
    const size_t size = disk_.file->layout().section_bytes(block, section);
    const int slot = section == Section::frozen ? 0 : newest_slot(block);
    for (size_t begin = 0; begin < size; begin += piece.size()) {
      piece.resize(std::min(kHashPiece, size - begin));
      disk_.file->read_bytes(*disk_.queue, block, section, slot, begin, piece);
      add(piece);
    }
  };
  for (BlockId block{0}; block.value < block_count(); ++block.value) {
    const BlockState resident = state(block);
    for (const Section section :
         {Section::high, Section::low, Section::frozen, Section::first_moment, Section::second_moment}) {
      if (home_of(home(block), section) == Tier::host) {
        add(resident.bytes(section));
      } else {
        add_from_disk(block, section);
      }
    }
  }
  return XXH3_64bits_digest(hasher.get());
}

}  // namespace sluice
