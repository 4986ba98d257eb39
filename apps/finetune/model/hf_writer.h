#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "apps/finetune/model/hf_folder.h"

namespace sluice {

// Supplies rows [row_begin, row_end) of a trained weight: (row_end - row_begin) * row_length() floats. Where
// config.json says that embeddings are tied and the folder has lm_head.weight all the same, give it the
// embedding's rows.
using FillRows =
    std::function<void(const ModelTensor& tensor, int64_t row_begin, int64_t row_end, std::span<float> out)>;

struct HfWriteOptions {
  int64_t piece_bytes = int64_t{8} << 20;
  // Of every weight, in the files and in config.json (torch_dtype or dtype, where it has one). None: as in
  // the source.
  std::optional<DType> dtype;
};

// What write_hf_folder will write, and a little more.
uint64_t written_bytes(const HfFolder& source, std::optional<DType> dtype = {});
// Throws (kind resource) unless `output` has room for what write_hf_folder will write there: ask before
// training.
void check_room_for(const HfFolder& source, const std::filesystem::path& output,
                    std::optional<DType> dtype = {});

// Writes a folder like `source` with other weights: the same files, names, dtypes, shapes, metadata and
// order, headers byte for byte; everything that is no weight is copied. (Another dtype changes its names, the
// offsets, and the sum in the index; nothing else.) Pieces passed to `fill` come in the order of
// source.tensors(), rows ascending, at most `piece_bytes` of fp32 each (one row at least), and are all that
// is held in memory. Files appear under their names only when all are whole, config.json last; on an
// exception, one from `fill` included, nothing is left behind. `output` may exist, and may hold files, but
// must not be the source folder itself.
void write_hf_folder(const HfFolder& source, const std::filesystem::path& output, const FillRows& fill,
                     const HfWriteOptions& options = {});

// config.json with the dtype that it names replaced, all other bytes as they are.
std::string with_config_dtype(std::string config_json, DType dtype);

}  // namespace sluice
