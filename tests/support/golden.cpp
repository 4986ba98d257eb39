#include "tests/support/golden.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "engine/base/error.h"
#include "engine/base/float_bits.h"
#include "engine/base/math.h"

namespace sluice::test {

using finetune::MicroBatch;

MicroBatch make_batch(const std::vector<std::vector<int32_t>>& ids,
                      const std::vector<std::vector<int32_t>>& labels) {
  MicroBatch batch;
  batch.document_offsets.push_back(0);
  for (size_t row = 0; row < ids.size(); ++row) {
    for (size_t t = 0; t < ids[row].size(); ++t) {
      batch.tokens.push_back(ids[row][t]);
      batch.positions.push_back(static_cast<int32_t>(t));
      const int32_t label = t + 1 < ids[row].size() ? labels[row][t + 1] : -100;
      batch.targets.push_back(label < 0 ? -1 : label);
      batch.weights.push_back(label < 0 ? 0.0f : 1.0f);
    }
    batch.document_offsets.push_back(static_cast<int32_t>(batch.tokens.size()));
    batch.row_sources.push_back("row " + std::to_string(row));
  }
  const size_t padded = round_up(batch.tokens.size(), static_cast<size_t>(finetune::kTokenPadding));
  batch.tokens.resize(padded, 0);
  batch.positions.resize(padded, 0);
  batch.targets.resize(padded, -1);
  batch.weights.resize(padded, 0);
  return batch;
}

Golden::Golden(const std::filesystem::path& folder) : file_(folder / "golden.safetensors") {
  std::ifstream json(folder / "golden.json");
  json_ = nlohmann::json::parse(json);
}

Golden::Tensor Golden::read(const std::string& name) const {
  const TensorInfo* info = file_.find(name);
  SLUICE_CHECK(info != nullptr, name);
  std::vector<std::byte> bytes(info->size_bytes);
  file_.read(*info, 0, bytes.data(), bytes.size());
  Tensor tensor{.shape = info->shape,
                .values = std::vector<double>(static_cast<size_t>(element_count(info->shape)))};
  for (size_t i = 0; i < tensor.values.size(); ++i) {
    if (info->dtype == DType::i64) {
      int64_t value;
      std::memcpy(&value, bytes.data() + i * 8, 8);
      tensor.values[i] = static_cast<double>(value);
    } else {
      float value;
      std::memcpy(&value, bytes.data() + i * 4, 4);
      tensor.values[i] = static_cast<double>(value);
    }
  }
  return tensor;
}

namespace {

// Rows [begin, begin + rows) of (.., T) tensors, without what the mask hides.
MicroBatch masked_rows(const Golden::Tensor& ids, const Golden::Tensor& labels, const Golden::Tensor& mask,
                       size_t begin, size_t rows) {
  const size_t length = static_cast<size_t>(ids.shape.back());
  std::vector<std::vector<int32_t>> row_ids(rows);
  std::vector<std::vector<int32_t>> row_labels(rows);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t t = 0; t < length; ++t) {
      const size_t at = (begin + row) * length + t;
      if (mask.values[at] == 0) continue;
      row_ids[row].push_back(static_cast<int32_t>(ids.values[at]));
      row_labels[row].push_back(static_cast<int32_t>(labels.values[at]));
    }
  }
  return make_batch(row_ids, row_labels);
}

}  // namespace

MicroBatch Golden::batch() const {
  const Tensor ids = read("input_ids");
  return masked_rows(ids, read("labels"), read("attention_mask"), 0, static_cast<size_t>(ids.shape[0]));
}

MicroBatch Golden::path_batch(int step, int micro_batch) const {
  const Tensor ids = read("step.input_ids");
  const size_t rows = static_cast<size_t>(ids.shape[2]);
  const size_t begin =
      (static_cast<size_t>(step) * static_cast<size_t>(ids.shape[1]) + static_cast<size_t>(micro_batch)) *
      rows;
  return masked_rows(ids, read("step.labels"), read("step.attention_mask"), begin, rows);
}

MicroBatch Golden::packed() const {
  const Tensor ids = read("packed.input_ids");
  const Tensor labels = read("packed.labels");
  std::vector<std::vector<int32_t>> row_ids;
  std::vector<std::vector<int32_t>> row_labels;
  size_t at = 0;
  for (const auto& length : json_.at("packed").at("document_lengths")) {
    std::vector<int32_t>& document = row_ids.emplace_back();
    std::vector<int32_t>& document_labels = row_labels.emplace_back();
    for (const size_t end = at + length.get<size_t>(); at < end; ++at) {
      document.push_back(static_cast<int32_t>(ids.values[at]));
      document_labels.push_back(static_cast<int32_t>(labels.values[at]));
    }
  }
  return make_batch(row_ids, row_labels);
}

Golden::Limits Golden::limits(const std::string& dtype, const std::string& section, const std::string& name,
                              double factor) const {
  // Where nothing was measured: the worst of all families in the fixtures' README.
  Limits limits = dtype == "float32" ? Limits{1e-6, 2e-6} : Limits{3e-2, 4e-2};
  const auto& errors = json_.at("error").at(dtype);
  if (errors.contains(section) && errors.at(section).contains(name)) {
    limits = {errors.at(section).at(name).at(0).get<double>(),
              errors.at(section).at(name).at(1).get<double>()};
  }
  return {limits.element * factor, limits.relative * factor};
}

double Golden::scalar_limit(const std::string& dtype, const std::string& name, double factor) const {
  const double floor = dtype == "float32" ? 7e-7 : 1.3e-3;  // the README's worst loss
  const double measured = json_.at("error").at(dtype).value(name, floor);
  return std::max(measured, floor) * factor;
}

}  // namespace sluice::test
