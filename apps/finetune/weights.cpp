#include "apps/finetune/weights.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <vector>

#include "apps/finetune/model/hf_writer.h"
#include "engine/base/error.h"
#include "engine/base/float_bits.h"

namespace sluice::finetune {
namespace {

constexpr int64_t kPieceElements = int64_t{2} << 20;  // 8 MiB of fp32

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

// A vector is one row for the engine, and as many rows as elements in a file.
bool same_shape(const TensorSpec& spec, const ModelTensor& stored) {
  if (stored.shape.size() == 1) return spec.rows == 1 && spec.cols == stored.shape[0];
  return stored.shape.size() == 2 && spec.rows == stored.shape[0] && spec.cols == stored.shape[1];
}

const ModelTensor& find_checked(const HfFolder& folder, const TensorSpec& spec) {
  const ModelTensor* stored = folder.find(spec.name);
  if (stored == nullptr) {
    throw Error(ErrorKind::data, folder.path().string() + ": the weight files hold no tensor '" + spec.name +
                                     "', which config.json asks for. Is a shard missing?");
  }
  if (!same_shape(spec, *stored)) {
    const std::vector<int64_t> wanted =
        spec.rows == 1 ? std::vector{spec.cols} : std::vector{spec.rows, spec.cols};
    throw Error(ErrorKind::data, folder.files().at(stored->file).path().string() + ": tensor '" + spec.name +
                                     "' has shape " + shape_text(stored->shape) +
                                     ", but config.json makes it " + shape_text(wanted));
  }
  return *stored;
}

// To the bf16 that training computes with: the upper half of the master, whose ties go up. The writer would
// round them to even.
void round_as_split(std::span<float> values) {
  for (float& value : values) {
    if (std::isfinite(value)) value = to_float(split(value).high);
  }
}

std::optional<TensorId> find_tensor(const ModelSpec& model, std::string_view name) {
  const auto at = std::ranges::find(model.tensors, name, &TensorSpec::name);
  if (at == model.tensors.end()) return std::nullopt;
  return TensorId{static_cast<int32_t>(at - model.tensors.begin())};
}

}  // namespace

void check_weights(const HfFolder& folder, const ModelSpec& model) {
  for (const TensorSpec& spec : model.tensors) (void)find_checked(folder, spec);
}

void load_weights(const HfFolder& folder, TensorStore& store) {
  check_weights(folder, store.model());
  std::vector<float> piece;
  for (size_t tensor = 0; tensor < store.model().tensors.size(); ++tensor) {
    const TensorSpec& spec = store.model().tensors[tensor];
    const ModelTensor& stored = find_checked(folder, spec);
    const int64_t step = std::max<int64_t>(1, kPieceElements / spec.cols);
    for (int64_t row = 0; row < spec.rows; row += step) {
      const int64_t count = std::min(step, spec.rows - row);
      piece.resize(static_cast<size_t>(count * spec.cols));
      const bool vector = stored.shape.size() == 1;
      folder.read_rows(stored, vector ? 0 : row, vector ? spec.cols : row + count, piece.data());
      store.write_rows(TensorId{static_cast<int32_t>(tensor)}, row, count, piece.data());
    }
  }
}

void save_weights(const HfFolder& source, const TensorStore& store, const std::filesystem::path& output) {
  const ModelSpec& model = store.model();
  std::vector<float> whole_vector;
  write_hf_folder(source, output,
                  [&](const ModelTensor& tensor, int64_t row_begin, int64_t row_end, std::span<float> out) {
                    std::optional<TensorId> id = find_tensor(model, tensor.name);
                    if (!id && tensor.name == "lm_head.weight")
                      id = find_tensor(model, "model.embed_tokens.weight");  // tied
                    if (!id) {  // carried over untouched: the model has no use for it
                      source.read_rows(tensor, row_begin, row_end, out.data());
                      return;
                    }
                    if (model.tensor(*id).rows > 1 || tensor.shape.size() == 2) {
                      store.read_rows(*id, row_begin, row_end - row_begin, out.data());
                    } else {
                      whole_vector.resize(static_cast<size_t>(model.tensor(*id).cols));
                      store.read_rows(*id, 0, 1, whole_vector.data());
                      std::copy(whole_vector.begin() + row_begin, whole_vector.begin() + row_end,
                                out.begin());
                    }
                    if (tensor.dtype == DType::bf16) round_as_split(out);
                  });
}

}  // namespace sluice::finetune
