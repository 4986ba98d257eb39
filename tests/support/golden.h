#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/finetune/data/micro_batch.h"
#include "io/safetensors.h"
#include "tests/support/source_tree.h"

namespace sluice::test {

// A model folder with golden.safetensors and golden.json (README of the fixtures).
class Golden {
 public:
  explicit Golden(const std::filesystem::path& folder);

  struct Tensor {
    std::vector<int64_t> shape;
    std::vector<double> values;
  };
  bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  Tensor read(const std::string& name) const;
  const nlohmann::json& json() const { return json_; }

  // Rows of `prefix`input_ids, labels and attention_mask (B, T), or of one step and micro-batch of step.* (S,
  // M, B, T), as ragged rows.
  finetune::MicroBatch batch() const;
  finetune::MicroBatch path_batch(int step, int micro_batch) const;
  // The documents of the packed row.
  finetune::MicroBatch packed() const;

  // Limits of the largest error of an element and of the relative error of the tensor: `factor` times what
  // golden.json measured for the dtype ("float32", "bfloat16") in `section`, where it did.
  struct Limits {
    double element = 0;
    double relative = 0;
  };
  Limits limits(const std::string& dtype, const std::string& section, const std::string& name,
                double factor) const;
  double scalar_limit(const std::string& dtype, const std::string& name, double factor) const;

 private:
  SafetensorsFile file_;
  nlohmann::json json_;
};

// One row a document; targets are the labels one place ahead within the row, -100 becoming -1. Padded to 64
// tokens.
finetune::MicroBatch make_batch(const std::vector<std::vector<int32_t>>& ids,
                                const std::vector<std::vector<int32_t>>& labels);

}  // namespace sluice::test
