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

constexpr int64_t kPieceElements = int64_t{2} << 20;      // 8 MiB of fp32
constexpr int64_t kComparedElements = int64_t{64} << 10;  // of the source, read again at export

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

// As a file of this dtype gives it back.
float stored(DType dtype, float value) {
  if (dtype == DType::bf16) return to_float(to_bfloat16(value));
  return dtype == DType::f16 ? to_float(to_float16(value)) : value;
}

// The weights of an export, and how much of what training did they show.
class Export {
 public:
  Export(const HfFolder& source, const TensorStore& store, std::optional<DType> dtype)
      : source_(source), store_(store), dtype_(dtype) {}

  const ExportReport& report() const { return report_; }

  void fill(const ModelTensor& tensor, int64_t row_begin, int64_t row_end, std::span<float> out) {
    const std::optional<TensorId> id = find(tensor.name);
    if (!id) {  // carried over untouched: the model has no use for it
      source_.read_rows(tensor, row_begin, row_end, out.data());
      return;
    }
    const DType dtype = dtype_.value_or(tensor.dtype);
    read(*id, tensor, row_begin, row_end, out);
    // A tied head that is stored as well repeats the embedding, which has been counted.
    const bool counted =
        store_.model().tensor(*id).trainable && store_.model().tensor(*id).name == tensor.name;
    if (counted && dtype != DType::f32) compare(tensor, row_begin, out, dtype);
    if (dtype == DType::bf16) round_as_split(out);
  }

 private:
  std::optional<TensorId> find(const std::string& name) const {
    if (const std::optional<TensorId> id = find_tensor(store_.model(), name)) return id;
    if (name != "lm_head.weight") return std::nullopt;
    return find_tensor(store_.model(), "model.embed_tokens.weight");  // tied
  }

  void read(TensorId id, const ModelTensor& tensor, int64_t row_begin, int64_t row_end,
            std::span<float> out) {
    if (store_.model().tensor(id).rows > 1 || tensor.shape.size() == 2) {
      store_.read_rows(id, row_begin, row_end - row_begin, out.data());
      return;
    }
    vector_.resize(static_cast<size_t>(store_.model().tensor(id).cols));
    store_.read_rows(id, 0, 1, vector_.data());
    std::copy(vector_.begin() + row_begin, vector_.begin() + row_end, out.begin());
  }

  // In small pieces: the memory of what is read again comes on top of the export's own.
  void compare(const ModelTensor& tensor, int64_t row_begin, std::span<const float> masters, DType dtype) {
    const int64_t length = tensor.row_length();
    const int64_t step = std::max<int64_t>(1, kComparedElements / length);
    const int64_t row_end = row_begin + static_cast<int64_t>(masters.size()) / length;
    for (int64_t row = row_begin; row < row_end; row += step) {
      const int64_t end = std::min(row + step, row_end);
      before_.resize(static_cast<size_t>((end - row) * length));
      source_.read_rows(tensor, row, end, before_.data());
      count(masters.subspan(static_cast<size_t>((row - row_begin) * length), before_.size()), dtype);
    }
  }

  void count(std::span<const float> masters, DType dtype) {
    for (size_t i = 0; i < masters.size(); ++i) {
      if (masters[i] == before_[i]) continue;
      ++report_.moved;
      const float shown = dtype == DType::bf16 && std::isfinite(masters[i]) ? to_float(split(masters[i]).high)
                                                                            : stored(dtype, masters[i]);
      if (shown == stored(dtype, before_[i])) ++report_.unshown;
    }
  }

  const HfFolder& source_;
  const TensorStore& store_;
  const std::optional<DType> dtype_;
  ExportReport report_;
  std::vector<float> vector_;
  std::vector<float> before_;
};

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

ExportReport save_weights(const HfFolder& source, const TensorStore& store,
                          const std::filesystem::path& output, std::optional<DType> dtype) {
  Export run(source, store, dtype);
  write_hf_folder(source, output,
                  [&](const ModelTensor& tensor, int64_t row_begin, int64_t row_end, std::span<float> out) {
                    run.fill(tensor, row_begin, row_end, out);
                  },
                  {.dtype = dtype});
  return run.report();
}

}  // namespace sluice::finetune
