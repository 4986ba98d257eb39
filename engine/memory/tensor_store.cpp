#include "engine/memory/tensor_store.h"

#include <algorithm>
#include <xxhash.h>

#include "cpu_optim/convert.h"
#include "engine/base/error.h"
#include "engine/base/math.h"

namespace sluice {
namespace {

constexpr size_t kBlockAlignment = 4096;

template <class T>
std::span<T> typed(std::byte* begin, int64_t count) {
  return {reinterpret_cast<T*>(begin), static_cast<size_t>(count)};
}

// Elements [first, first + count) of a frozen part.
template <class T>
std::span<T> frozen_rows(const BlockState& state, const BlockLayout::Part& part, int64_t first,
                         size_t count) {
  return {reinterpret_cast<T*>(state.frozen.data() + part.frozen_offset) + first, count};
}

std::vector<BlockLayout> make_layouts(const ModelSpec& model) {
  std::vector<BlockLayout> layouts;
  for (int block = 0; block < static_cast<int>(model.blocks.size()); ++block)
    layouts.emplace_back(model, BlockId{block});
  return layouts;
}

// Where each block begins when `bytes_of` each lies one after another; the end last.
template <class BytesOf>
std::vector<size_t> offsets(const std::vector<BlockLayout>& layouts, BytesOf bytes_of) {
  std::vector<size_t> result{0};
  for (const BlockLayout& layout : layouts)
    result.push_back(result.back() + round_up(bytes_of(layout), kBlockAlignment));
  return result;
}
std::vector<size_t> weight_offsets(const std::vector<BlockLayout>& layouts) {
  return offsets(layouts, [](const BlockLayout& layout) { return layout.weight_bytes(); });
}
std::vector<size_t> moment_offsets(const std::vector<BlockLayout>& layouts) {
  return offsets(layouts, [](const BlockLayout& layout) { return layout.moment_bytes(); });
}

}  // namespace

size_t TensorStore::weight_arena_bytes(const ModelSpec& model) {
  return sluice::weight_offsets(make_layouts(model)).back();
}
size_t TensorStore::moment_arena_bytes(const ModelSpec& model) {
  return sluice::moment_offsets(make_layouts(model)).back();
}

TensorStore::TensorStore(ModelSpec model, gpu::Device& device, TierBudget& host_budget, bool with_moments)
    : model_(std::move(model)),
      layouts_(make_layouts(model_)),
      weight_offsets_(sluice::weight_offsets(layouts_)),
      moment_offsets_(sluice::moment_offsets(layouts_)),
      versions_(layouts_.size()) {
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
  return weights_->data() + weight_offsets_.at(static_cast<size_t>(block.value));
}

BlockState TensorStore::state(BlockId block) const {
  const BlockLayout& placed = layout(block);
  const int64_t count = placed.logical_elements();
  std::byte* begin = weights(block);
  BlockState state{.low = typed<int16_t>(begin, count),
                   .high = typed<BFloat16>(begin + placed.low_bytes(), count),
                   .frozen = {begin + placed.low_bytes() + placed.high_bytes(), placed.frozen_bytes()},
                   .first_moment = {},
                   .second_moment = {}};
  if (moments_) {
    std::byte* moments = moments_->data() + moment_offsets_.at(static_cast<size_t>(block.value));
    state.first_moment = typed<float>(moments, count);
    state.second_moment = typed<float>(moments + placed.moment_bytes() / 2, count);
  }
  return state;
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

void TensorStore::write_rows(TensorId tensor, int64_t row_begin, int64_t row_count, const float* rows) {
  visit_rows(
      tensor, row_begin, row_count,
      [&](BlockId block, const BlockLayout::Part& part, int64_t row, int64_t count, int64_t done) {
        const std::span<const float> source{rows + done * part.cols, static_cast<size_t>(count * part.cols)};
        const BlockState target = state(block);
        const int64_t first = row * part.cols;
        if (part.trainable) {
          const size_t begin = static_cast<size_t>(part.span_begin + first);
          cpu_optim::split_masters(source, target.high.subspan(begin, source.size()),
                                   target.low.subspan(begin, source.size()));
        } else if (part.storage_dtype == DType::bf16) {
          cpu_optim::convert(source, frozen_rows<BFloat16>(target, part, first, source.size()));
        } else {
          std::ranges::copy(source, frozen_rows<float>(target, part, first, source.size()).begin());
        }
      });
}

void TensorStore::read_rows(TensorId tensor, int64_t row_begin, int64_t row_count, float* rows) const {
  visit_rows(tensor, row_begin, row_count,
             [&](BlockId block, const BlockLayout::Part& part, int64_t row, int64_t count, int64_t done) {
               const std::span<float> target{rows + done * part.cols, static_cast<size_t>(count * part.cols)};
               const BlockState source = state(block);
               const int64_t first = row * part.cols;
               if (part.trainable) {
                 const size_t begin = static_cast<size_t>(part.span_begin + first);
                 cpu_optim::join_masters(source.high.subspan(begin, target.size()),
                                         source.low.subspan(begin, target.size()), target);
               } else if (part.storage_dtype == DType::bf16) {
                 cpu_optim::convert(
                     std::span<const BFloat16>(frozen_rows<BFloat16>(source, part, first, target.size())),
                     target);
               } else {
                 std::ranges::copy(frozen_rows<float>(source, part, first, target.size()), target.begin());
               }
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
  const auto add = [&](auto span) { XXH3_64bits_update(hasher.get(), span.data(), span.size_bytes()); };
  for (int block = 0; block < block_count(); ++block) {
    const BlockState blocks = state(BlockId{block});
    add(blocks.high);
    add(blocks.low);
    add(blocks.frozen);
    add(blocks.first_moment);
    add(blocks.second_moment);
  }
  return XXH3_64bits_digest(hasher.get());
}

}  // namespace sluice
