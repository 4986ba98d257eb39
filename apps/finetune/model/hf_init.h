#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "engine/base/dtype.h"
#include "engine/base/executor.h"

namespace sluice::finetune {

struct HfInitOptions {
  uint64_t seed = 42;
  std::optional<DType> dtype;               // empty: config.json's, else bf16
  uint64_t max_shard_size = 5'000'000'000;  // bytes of tensors in a file; one tensor may be more
};

struct HfInitReport {
  int64_t parameters = 0;
  uint64_t size_bytes = 0;  // of the tensors
  DType dtype = DType::bf16;
  size_t file_count = 0;
};

// Makes a Hugging Face folder with random weights: `config` (a config.json, or a folder that holds one) with
// the dtype adjusted, generation and tokenizer files beside it, and the weights, cut into files by the rule
// of transformers' save_pretrained, in the model's order: normal(0, initializer_range, default 0.02),
// norms 1. A weight is a function of seed, tensor name and place in the tensor. Holds one piece of at most 8
// MiB. Throws kind `data` for a config that is damaged or not supported (named), `usage` where `output`
// exists and is not an empty folder, `resource` where the disk is too small; then nothing is left behind.
HfInitReport init_hf_folder(Executor& executor, const std::filesystem::path& config,
                            const std::filesystem::path& output, const HfInitOptions& options);

}  // namespace sluice::finetune
