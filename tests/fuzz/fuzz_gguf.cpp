#include <algorithm>
#include <cmath>

#include "apps/finetune/data/tokenizer.h"
#include "apps/finetune/model/config.h"
#include "apps/finetune/model/gguf_config.h"
#include "apps/finetune/model/gguf_tokenizer.h"
#include "io/gguf.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/support/gguf_writer.h"

namespace sluice::test {
namespace {

void check_tensors(const GgufFile& file, uint64_t file_bytes) {
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const GgufTensor& tensor : file.tensors()) {
    promise(tensor.offset <= file_bytes && tensor.size_bytes <= file_bytes - tensor.offset,
            "tensors lie inside the file");
    promise(file.find(tensor.name) == &tensor, "a tensor is found by its name");
    ranges.emplace_back(tensor.offset, tensor.offset + tensor.size_bytes);
    int64_t rows = 1;
    for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) rows *= tensor.shape[i];
    const uint64_t elements = static_cast<uint64_t>(rows) * static_cast<uint64_t>(tensor.shape.back());
    promise(elements / tensor.type->block_elements * tensor.type->block_bytes == tensor.size_bytes,
            "size and shape agree");
    std::vector<float> values(elements);
    verdict_of([&] { file.dequantize(tensor, 0, rows, values.data()); });
  }
  std::ranges::sort(ranges);
  for (size_t i = 1; i < ranges.size(); ++i)
    promise(ranges[i - 1].second <= ranges[i].first, "no two tensors overlap");
}

// What `finetune import` makes of the header.
void check_import(const GgufFile& file) {
  const GgufMetadata metadata(file);
  verdict_of([&] {
    const ModelConfig config = parse_model_config(make_config_json(file), "made from a GGUF file");
    promise(config.rms_norm_eps ==
                static_cast<float>(metadata.number("llama.attention.layer_norm_rms_epsilon").value()),
            "the model's constants are those of the file");
    promise(config.rope.theta == metadata.number("llama.rope.freq_base").value_or(10000.0),
            "the model's rotary base is that of the file");
    make_generation_config_json(metadata);
  });
  verdict_of([&] {
    const TokenizerFiles files = make_tokenizer_files(metadata);
    const InputFile json(files.tokenizer_json);
    Tokenizer tokenizer(json.path());
    const std::string text = "a <|x|>\n\xc3\xa9";
    verdict_of([&] { tokenizer.decode(tokenizer.encode_ids(text, SpecialTokens::add)); });
  });
}

GgufWriter model() {
  GgufWriter file;
  file.set("general.architecture", std::string("llama"));
  file.set("llama.embedding_length", uint32_t{8});
  file.set("llama.attention.head_count", uint32_t{2});
  file.set("llama.attention.head_count_kv", uint32_t{1});
  file.set("llama.attention.layer_norm_rms_epsilon", 1e-5F);
  file.set("llama.rope.freq_base", 10000.0F);
  file.set("llama.feed_forward_length", uint32_t{16});
  file.set("llama.context_length", uint32_t{64});
  file.set("llama.block_count", uint32_t{1});
  file.set("tokenizer.ggml.model", std::string("gpt2"));
  file.set("tokenizer.ggml.pre", std::string("smollm"));
  file.set("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b", "ab", "<|x|>"});
  file.set("tokenizer.ggml.token_type", std::vector<int32_t>{1, 1, 1, 3});
  file.set("tokenizer.ggml.merges", std::vector<std::string>{"a b"});
  file.set("tokenizer.ggml.bos_token_id", uint32_t{3});
  file.set("tokenizer.ggml.eos_token_id", uint32_t{3});
  file.add("token_embd.weight", {4, 8}, std::vector<float>(32, 0.5F));
  return file;
}

}  // namespace

Verdict check_gguf(std::string_view bytes) {
  const InputFile input(bytes);
  return verdict_of([&] {
    const GgufFile file(input.path());
    check_tensors(file, bytes.size());
    check_import(file);
  });
}

std::vector<std::string> gguf_seeds() {
  GgufWriter llama3 = model();
  llama3.set("tokenizer.ggml.pre", std::string("llama-bpe"));
  llama3.set("general.alignment", uint32_t{64});
  llama3.alignment = 64;
  llama3.version = 2;
  llama3.add_raw("q8", {2, 32}, 8, std::string(68, 'q'));
  llama3.add_raw("q4", {32}, 3, std::string(20, 'q'));
  llama3.add_raw("k", {256}, 14, std::string(210, 'k'));
  llama3.add_raw("h", {3, 1, 2}, 1, std::string(12, 'h'));
  GgufWriter values;
  values.set("u8", uint8_t{1});
  values.set("i32", int32_t{-1});
  values.set("u64", uint64_t{1} << 40);
  values.set("f64", 0.25);
  values.set("bool", true);
  values.set("floats", std::vector<float>{1, 2});
  return {model().bytes(), llama3.bytes(), values.bytes(), GgufWriter{}.bytes()};
}

}  // namespace sluice::test
