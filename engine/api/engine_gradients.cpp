#include <cstring>

#include "cpu_optim/convert.h"
#include "engine/api/engine.h"
#include "engine/base/math.h"
#include "engine/base/work_label.h"

namespace sluice {

GradientLease::Target GradientLease::contribute(int part, int shard) {
  std::vector<bool>& written = written_.at(static_cast<size_t>(shard));
  const size_t at = static_cast<size_t>(part);
  const gpu::View& sum = views_[static_cast<size_t>(shard)].at(at);
  if (sum.data == nullptr) return {};
  const bool accumulate = written[at];
  written[at] = true;
  return {sum, accumulate};
}

std::optional<GradientLease::Target> GradientLease::contribute_stacked(std::span<const int> parts,
                                                                       int shard) {
  const std::vector<gpu::View>& views = views_.at(static_cast<size_t>(shard));
  std::vector<bool>& written = written_[static_cast<size_t>(shard)];
  gpu::View all = views.at(static_cast<size_t>(parts[0]));
  const bool accumulate = written[static_cast<size_t>(parts[0])];
  for (const int part : parts.subspan(1)) {
    const gpu::View& next = views.at(static_cast<size_t>(part));
    const bool follows =
        all.data != nullptr && next.data == all.data + all.span_bytes() && next.cols == all.cols;
    if (!follows || written[static_cast<size_t>(part)] != accumulate) return std::nullopt;
    all.rows += next.rows;
  }
  for (const int part : parts) written[static_cast<size_t>(part)] = true;
  return Target{all, accumulate};
}

GradientLease Engine::gradients(BlockId block) {
  SLUICE_CHECK(gradient_ring_.slot_count() > 0, "gradients need a training engine with device gradients");
  const int slot = next_gradient_slot_;
  next_gradient_slot_ = (next_gradient_slot_ + 1) % gradient_ring_.slot_count();
  gradient_ring_.wait_free(slot, *compute_);
  const BlockLayout& layout = store_->layout(block);
  std::vector<std::vector<gpu::View>> views(static_cast<size_t>(options_.gradient_shards));
  for (size_t shard = 0; shard < views.size(); ++shard) {
    std::byte* const begin = gradient_ring_.slot(slot) + shard * plan_.gradient_slot_bytes;
    for (const BlockLayout::Part& part : layout.parts()) {
      if (!part.trainable) {
        views[shard].emplace_back();
        continue;
      }
      std::byte* const span = begin + part.span_begin * 4;
      views[shard].emplace_back(span, DType::f32, part.rows, part.cols);
      const int64_t padding = round_up(part.element_count(), kSpanPadding) - part.element_count();
      if (padding > 0)
        submit(gpu::Fill{gpu::View(span + part.element_count() * 4, DType::f32, 1, padding), 0});
    }
  }
  return GradientLease(block, slot, std::move(views));
}

// A block's gradient in the host tier is overwritten only after the update that read it.
void Engine::wait_until_writable(BlockId block) {
  if (const auto& updated = store_->version_ready(block)) mover_->send_after(*updated);
}

void Engine::offer(GradientLease gradients, bool rows_follow) {
  const BlockLayout& layout = store_->layout(gradients.block());
  if (layout.logical_elements() == 0) return;
  std::byte* const sums = gradient_ring_.slot(gradients.slot_);
  for (size_t shard = 0; shard < gradients.views_.size(); ++shard) {
    for (size_t part = 0; part < gradients.views_[shard].size(); ++part) {
      const gpu::View& view = gradients.views_[shard][part];
      if (view.data != nullptr && !gradients.written_[shard][part]) submit(gpu::Fill{view, 0});
    }
  }
  const auto shard_view = [&](int shard) {
    return gpu::View(sums + static_cast<size_t>(shard) * plan_.gradient_slot_bytes, DType::f32, 1,
                     layout.logical_elements());
  };
  for_each_tree_step(options_.gradient_shards, [&](int into, int from) {
    submit(gpu::Add{shard_view(into), shard_view(from), shard_view(into)});
  });
  std::byte* leaving = sums;
  const size_t leaving_bytes = optimizer_->waiting_bytes(gradients.block());
  if (optimizer_->waiting_dtype(gradients.block()) == DType::bf16) {
    gradient_copy_ring_.wait_free(gradients.slot_, *compute_);
    leaving = gradient_copy_ring_.slot(gradients.slot_);
    submit(gpu::Cast{shard_view(0), gpu::View(leaving, DType::bf16, 1, layout.logical_elements())});
  }
  const WorkScope work("gradient", model_.block(gradients.block()).name);
  const Optimizer::GradientTarget target = optimizer_->gradient_target(gradients.block());
  if (target.free) mover_->send_after(*target.free);
  const gpu::Event sent = mover_->send(compute_->record(), target.data, leaving, leaving_bytes);
  copied_out_bytes_ += leaving_bytes;
  // What leaves is read by the copy: the sums themselves, or the slot that they were cast into.
  (leaving == sums ? gradient_ring_ : gradient_copy_ring_).release(gradients.slot_, sent);
  if (rows_follow) {
    optimizer_->offer_before_rows(gradients.block(), sent);
  } else {
    optimizer_->offer(gradients.block(), sent);
  }
}

void Engine::offer_rows(TensorId tensor, std::vector<int32_t> rows, const std::byte* gradients) {
  const TensorSpec& spec = model_.tensor(tensor);
  if (!spec.trainable) return;
  const size_t bytes = rows.size() * static_cast<size_t>(spec.cols) * 4;
  SLUICE_CHECK(row_gradients_ != nullptr && bytes <= row_gradients_->size_bytes(),
               "WalkSpec::row_gradient_tensors, max_fetched_rows");
  const WorkScope work("embedding gradient");
  for (int64_t row = 0; row < spec.rows;) {
    const TensorStore::Place place = store_->find(tensor, row);
    wait_until_writable(place.block);
    row += store_->layout(place.block).part(place.part).rows;
  }
  const gpu::Event sent = mover_->send(compute_->record(), row_gradients_->data(), gradients, bytes);
  copied_out_bytes_ += bytes;
  optimizer_->offer_rows(tensor, std::move(rows), reinterpret_cast<const float*>(row_gradients_->data()),
                         sent, options_.gradient_dtype_or_default());
}

void Engine::offer_from_host(BlockId block, cpu_optim::FloatView gradient) {
  optimizer_->offer_copy(block, gradient);
}

void Engine::read_gradient(TensorId tensor, int64_t row_begin, int64_t row_count, float* rows) const {
  const size_t cols = static_cast<size_t>(model_.tensor(tensor).cols);
  for (int64_t row = 0; row < row_count; ++row, rows += cols) {
    const TensorStore::Place place = store_->find(tensor, row_begin + row);
    const BlockLayout::Part& part = store_->layout(place.block).part(place.part);
    const DType dtype = optimizer_->waiting_dtype(place.block);
    const size_t begin = static_cast<size_t>(part.span_begin + place.row * part.cols) * size_bytes(dtype);
    std::vector<std::byte> values(cols * size_bytes(dtype));
    if (store_->home(place.block).gradient == Tier::host) {
      std::memcpy(values.data(), optimizer_->waiting_gradient(place.block) + begin, values.size());
    } else {
      store_->file()->read_bytes(*queue_, place.block, Section::gradient, 0, begin, values);
    }
    if (dtype == DType::f32) {
      std::memcpy(rows, values.data(), values.size());
    } else {
      cpu_optim::convert(std::span(reinterpret_cast<const BFloat16*>(values.data()), cols),
                         std::span(rows, cols));
    }
  }
}

void Engine::begin_update(double learning_rate, std::span<const BlockId> order) {
  SLUICE_CHECK(optimizer_ != nullptr, "begin_update needs a training engine");
  SLUICE_CHECK(next_access_ == static_cast<int>(plan_.accesses.size()),
               "begin_update within a walk: its later leases would see new weights");
  // A gradient from outside may come before the copies of the weights have been made.
  optimizer_->update_after(compute_->record());
  ++begun_updates_;
  optimizer_->begin_update(learning_rate, order);
}

}  // namespace sluice
