#include "apps/finetune/model/gguf_import.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/finetune/model/config.h"
#include "apps/finetune/model/gguf_config.h"
#include "apps/finetune/model/gguf_metadata.h"
#include "apps/finetune/model/gguf_tokenizer.h"
#include "apps/finetune/model/hf_files.h"
#include "apps/finetune/model/weight_convert.h"
#include "engine/base/error.h"
#include "io/file.h"
#include "io/safetensors_writer.h"
#include "io/staged_folder.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPieceElements = int64_t{2} << 20;  // 8 MiB of fp32

// One weight: where it comes from and what it becomes.
struct ImportedTensor {
  std::string name;
  std::string source;
  std::vector<int64_t> shape;
  // Rows of this many are one rotary head, whose halves the file interleaves; 0 for all other tensors.
  int64_t permuted_head_dim = 0;
};

// Sorted by name, as the reference implementation of safetensors lays out tensors of one dtype.
std::vector<ImportedTensor> list_tensors(const ModelConfig& config) {
  const int64_t hidden = config.hidden_size;
  const int64_t query_rows = config.head_count * config.head_dim;
  const int64_t key_rows = config.kv_head_count * config.head_dim;
  std::vector<ImportedTensor> list = {
      {"model.embed_tokens.weight", "token_embd.weight", {config.vocab_size, hidden}},
      {"model.norm.weight", "output_norm.weight", {hidden}}};
  if (!config.tied_embeddings)
    list.push_back({"lm_head.weight", "output.weight", {config.vocab_size, hidden}});
  for (int64_t layer = 0; layer < config.layer_count; ++layer) {
    const std::string to = "model.layers." + std::to_string(layer) + ".";
    const std::string from = "blk." + std::to_string(layer) + ".";
    const auto add = [&](std::string_view name, std::string_view source, std::vector<int64_t> shape,
                         int64_t permuted_head_dim = 0) {
      list.push_back({to + std::string(name) + ".weight", from + std::string(source) + ".weight",
                      std::move(shape), permuted_head_dim});
    };
    add("input_layernorm", "attn_norm", {hidden});
    add("post_attention_layernorm", "ffn_norm", {hidden});
    add("self_attn.q_proj", "attn_q", {query_rows, hidden}, config.head_dim);
    add("self_attn.k_proj", "attn_k", {key_rows, hidden}, config.head_dim);
    add("self_attn.v_proj", "attn_v", {key_rows, hidden});
    add("self_attn.o_proj", "attn_output", {hidden, query_rows});
    add("mlp.gate_proj", "ffn_gate", {config.intermediate_size, hidden});
    add("mlp.up_proj", "ffn_up", {config.intermediate_size, hidden});
    add("mlp.down_proj", "ffn_down", {hidden, config.intermediate_size});
  }
  std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return list;
}

[[noreturn]] void refuse(const GgufFile& file, const std::string& tensor, const std::string& problem) {
  throw Error(ErrorKind::data, "tensor " + tensor + " of " + file.path().string() + " " + problem + ".");
}

std::string text_of(const std::vector<int64_t>& shape) {
  return nlohmann::json(shape).dump();
}

// Everything that can be wrong with the file's tensors is found here, before the first byte is written.
void check_tensors(const GgufFile& file, const std::vector<ImportedTensor>& list) {
  std::set<std::string_view> known = {kRopeFactorsName};
  for (const ImportedTensor& tensor : list) {
    const GgufTensor* source = file.find(tensor.source);
    if (source == nullptr) refuse(file, tensor.source, "is missing");
    if (source->shape != tensor.shape) {
      refuse(
          file, tensor.source,
          "has the shape " + text_of(source->shape) + " where the metadata ask for " + text_of(tensor.shape));
    }
    if (source->type->dequantize == nullptr) file.dequantize(*source, 0, 0, nullptr);  // refuses by name
    known.insert(tensor.source);
  }
  for (const GgufTensor& tensor : file.tensors()) {
    if (!known.contains(tensor.name))
      refuse(file, tensor.name, "is of no use in a llama model, which is not supported");
  }
}

// GGUF holds the rows of q and k so that the two halves of a head alternate (convert_hf_to_gguf.py,
// `permute`): its row 2i is row i of the head, 2i + 1 is row head_dim / 2 + i.
int64_t source_row(int64_t row, int64_t head_dim) {
  const int64_t head_begin = row / head_dim * head_dim;
  const int64_t within = row - head_begin;
  const int64_t half = head_dim / 2;
  return head_begin + (within < half ? 2 * within : 2 * (within - half) + 1);
}

void write_tensor(const GgufFile& file, const ImportedTensor& tensor, SafetensorsWriter& writer) {
  const GgufTensor& source = *file.find(tensor.source);
  const int64_t length = tensor.shape.back();
  const int64_t rows = tensor.shape.size() > 1 ? tensor.shape[0] : 1;
  int64_t step = std::max<int64_t>(1, kPieceElements / length);
  const int64_t head_dim = tensor.permuted_head_dim;
  if (head_dim > 0) step = std::max<int64_t>(1, step / head_dim) * head_dim;  // whole heads
  std::vector<float> values;
  std::vector<uint16_t> stored;  // bf16
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t end = std::min(begin + step, rows);
    values.resize(static_cast<size_t>((end - begin) * length));
    stored.resize(values.size());
    file.dequantize(source, begin, end, values.data());
    for (int64_t row = begin; row < end; ++row) {
      const int64_t from = head_dim > 0 ? source_row(row, head_dim) : row;
      store_from_float(DType::bf16, values.data() + (from - begin) * length, static_cast<size_t>(length),
                       stored.data() + (row - begin) * length);
    }
    writer.write(tensor.name, stored.data(), stored.size() * sizeof(uint16_t));
  }
}

void write_weights(const GgufFile& file, const std::vector<ImportedTensor>& list, const fs::path& path) {
  std::vector<SafetensorsEntry> entries;
  for (const ImportedTensor& tensor : list) entries.push_back({tensor.name, DType::bf16, tensor.shape});
  SafetensorsWriter writer(path, entries);
  for (const ImportedTensor& tensor : list) write_tensor(file, tensor, writer);
  writer.finish();
}

uint64_t needed_bytes(const std::vector<ImportedTensor>& list, const TokenizerFiles& tokenizer) {
  uint64_t elements = 0;
  for (const ImportedTensor& tensor : list) elements += static_cast<uint64_t>(element_count(tensor.shape));
  return elements * sizeof(uint16_t) + tokenizer.tokenizer_json.size() + (uint64_t{1} << 20);
}

}  // namespace

void import_gguf(const fs::path& gguf, const fs::path& output) {
  refuse_used_output(output);
  const GgufFile file(gguf);
  const GgufMetadata metadata(file);
  const std::string config_json = make_config_json(file);
  const ModelConfig config = parse_model_config(config_json, gguf);
  const std::vector<ImportedTensor> list = list_tensors(config);
  check_tensors(file, list);
  const TokenizerFiles tokenizer = make_tokenizer_files(metadata);
  check_free_space(output, needed_bytes(list, tokenizer));
  StagedFolder staged(output);
  write_weights(file, list, staged.path_of("model.safetensors"));
  write_file_atomically(staged.path_of("tokenizer.json"), tokenizer.tokenizer_json);
  write_file_atomically(staged.path_of("tokenizer_config.json"), tokenizer.tokenizer_config_json);
  write_file_atomically(staged.path_of("special_tokens_map.json"), tokenizer.special_tokens_map_json);
  write_file_atomically(staged.path_of("generation_config.json"), make_generation_config_json(metadata));
  write_file_atomically(staged.path_of("config.json"), config_json);
  staged.publish({"model.safetensors", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                  "generation_config.json", "config.json"});
}

}  // namespace sluice
