#include <algorithm>

#include "apps/finetune/forward_pass.h"
#include "engine/base/math.h"

namespace sluice::finetune {
namespace {

constexpr size_t kListAlignment = 64;  // words

int64_t longest(const std::vector<std::vector<int32_t>>& prompts) {
  size_t length = 0;
  for (const auto& prompt : prompts) length = std::max(length, prompt.size());
  return static_cast<int64_t>(length);
}

// The first walk passes all prompts whole; later ones a token each.
BatchLimits generator_limits(const std::vector<std::vector<int32_t>>& prompts, int64_t max_new_tokens) {
  int64_t tokens = 0;
  for (const auto& prompt : prompts) tokens += static_cast<int64_t>(prompt.size());
  const int64_t rows = static_cast<int64_t>(prompts.size());
  const int64_t capacity = longest(prompts) + max_new_tokens;
  return {.micro_batch_count = 1,
          .tokens = round_up(tokens, kTokenPadding),
          .rows = rows,
          .tokens_per_row = capacity,
          .cache_rows = rows * capacity};
}

int64_t cache_bytes_per_layer(const ModelConfig& config, size_t prompts, int64_t capacity, DType dtype) {
  return round_up(static_cast<int64_t>(prompts) * capacity * config.kv_head_count * config.head_dim *
                      static_cast<int64_t>(size_bytes(dtype)),
                  static_cast<int64_t>(Scratch::kAlignment)) *
         2;
}

std::vector<PlanPart> generator_parts(const ModelConfig& config,
                                      const std::vector<std::vector<int32_t>>& prompts,
                                      int64_t max_new_tokens, const ForwardOptions& options) {
  const BatchLimits limits = generator_limits(prompts, max_new_tokens);
  const size_t cache = static_cast<size_t>(
      cache_bytes_per_layer(config, prompts.size(), limits.tokens_per_row, options.compute_dtype) *
      config.layer_count);
  const size_t rows = prompts.size();
  const size_t hidden = static_cast<size_t>(limits.tokens + limits.rows) *
                        static_cast<size_t>(config.hidden_size) * size_bytes(options.compute_dtype);
  return {
      device_part(walk_part::kInputs, 4 * 4 * round_up(static_cast<size_t>(limits.tokens), kListAlignment)),
      device_part(walk_part::kCache, cache),
      // Normed states of all tokens and of the last ones, choice and its logit.
      device_part(walk_part::kHead,
                  hidden + rows * 8 + 4 * Scratch::kAlignment + static_cast<size_t>(limits.tokens) * 4)};
}

}  // namespace

// One walk's tokens: of each active prompt either all of it or the newest token.
struct Generator::Pass {
  std::vector<int32_t> tokens;
  std::vector<int32_t> positions;
  std::vector<int32_t> cache_rows;
  std::vector<int32_t> last;  // index of each active prompt's last token
  gpu::AttentionSegments segments;
};

Plan Generator::plan(gpu::Device& device, const ModelConfig& config,
                     const std::vector<std::vector<int32_t>>& prompts, int64_t max_new_tokens,
                     const ForwardOptions& options) {
  return ForwardWalk::plan(device, config, generator_limits(prompts, max_new_tokens), options,
                           generator_parts(config, prompts, max_new_tokens, options));
}

Generator::Generator(gpu::Device& device, Executor& executor, const ModelConfig& config,
                     std::vector<std::vector<int32_t>> prompts, int64_t max_new_tokens,
                     const ForwardOptions& options)
    : prompts_(std::move(prompts)),
      max_new_tokens_(max_new_tokens),
      capacity_(longest(prompts_) + max_new_tokens),
      walk_(device, executor, config, generator_limits(prompts_, max_new_tokens), options,
            generator_parts(config, prompts_, max_new_tokens, options)) {}

LayerCache Generator::cache(int layer, const gpu::View& rows) const {
  const ModelConfig& config = walk_.decoder().config();
  const DType dtype = walk_.decoder().dtype();
  const int64_t bytes = cache_bytes_per_layer(config, prompts_.size(), capacity_, dtype);
  std::byte* const begin = walk_.engine().device_part(walk_part::kCache) + bytes * layer;
  const int64_t row_count = static_cast<int64_t>(prompts_.size()) * capacity_;
  const int64_t cols = config.kv_head_count * config.head_dim;
  return {.keys = gpu::View(begin, dtype, row_count, cols),
          .values = gpu::View(begin + bytes / 2, dtype, row_count, cols),
          .rows = rows};
}

// The most likely next token of each active prompt.
std::vector<int32_t> Generator::run(const Pass& pass) {
  std::vector<int32_t> rows = pass.tokens;
  std::ranges::sort(rows);
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  std::vector<int32_t> words;
  const auto append = [&](auto value_of, size_t count) {
    const size_t begin = words.size();
    for (size_t i = 0; i < count; ++i) words.push_back(value_of(i));
    words.resize(round_up(words.size(), kListAlignment));
    return gpu::View(walk_.inputs() + begin * 4, DType::i32, static_cast<int64_t>(count), 1);
  };
  const gpu::View index = append(
      [&](size_t i) {
        return static_cast<int32_t>(std::ranges::lower_bound(rows, pass.tokens[i]) - rows.begin());
      },
      pass.tokens.size());
  const gpu::View positions = append([&](size_t i) { return pass.positions[i]; }, pass.positions.size());
  const gpu::View cache_rows = append([&](size_t i) { return pass.cache_rows[i]; }, pass.cache_rows.size());
  const gpu::View last = append([&](size_t i) { return pass.last[i]; }, pass.last.size());
  const BatchViews batch{.index = index,
                         .positions = positions,
                         .targets = {},
                         .weights = {},
                         .order = {},
                         .begin = {},
                         .segments = pass.segments};
  const int64_t tokens = batch.tokens();

  walk_.begin(words, rows);
  engine().submit(gpu::GatherRows{walk_.embedding_rows(rows.size()), index, walk_.hidden(0, tokens)});
  for (int layer = 0; layer < static_cast<int>(walk_.spec().layers.size()); ++layer) {
    const Lease weights = engine().acquire(walk_.spec().layers[static_cast<size_t>(layer)]);
    const LayerCache layer_cache = cache(layer, cache_rows);
    walk_.run_layer(weights, batch, 0, &layer_cache);
  }
  Scratch head(engine().device_part(walk_part::kHead), engine().plan().part(walk_part::kHead).size_bytes);
  const int64_t hidden = walk_.decoder().config().hidden_size;
  const gpu::View normed = head.take(walk_.decoder().dtype(), tokens, hidden);
  const gpu::View chosen = head.take(walk_.decoder().dtype(), last.rows, hidden);
  const gpu::View best = head.take(DType::f32, last.rows, 1);
  const gpu::View choice = head.take(DType::i32, last.rows, 1);
  {
    const Lease norm = engine().acquire(walk_.spec().final_norm);
    walk_.decoder().forward_final_norm(*norm, walk_.hidden(0, tokens), normed, {}, walk_.bench());
    engine().submit(gpu::GatherRows{normed, last, chosen});
  }
  for (size_t piece = 0; piece < walk_.spec().head_pieces.size(); ++piece) {
    const Lease weights = engine().acquire(walk_.spec().head_pieces[piece]);
    walk_.decoder().choose(*weights, walk_.head_piece(piece), chosen, best, choice, walk_.bench());
  }
  std::vector<int32_t> next(pass.last.size());
  engine().download(next.data(), choice.data, choice.span_bytes()).wait();
  return next;
}

std::vector<std::vector<int32_t>> Generator::generate(std::span<const int64_t> end_tokens) {
  std::vector<std::vector<int32_t>> made(prompts_.size());
  std::vector<size_t> active(prompts_.size());
  for (size_t prompt = 0; prompt < active.size(); ++prompt) active[prompt] = prompt;
  for (int64_t step = 0; step < max_new_tokens_ && !active.empty(); ++step) {
    Pass pass;
    auto segments = std::make_shared<std::vector<gpu::AttentionSegment>>();
    for (const size_t prompt : active) {
      const std::vector<int32_t> newest = step == 0 ? prompts_[prompt] : std::vector{made[prompt].back()};
      const int64_t begin = step == 0 ? 0 : static_cast<int64_t>(prompts_[prompt].size()) + step - 1;
      const int64_t first_row = static_cast<int64_t>(prompt) * capacity_;
      const int64_t count = static_cast<int64_t>(newest.size());
      segments->push_back({static_cast<int64_t>(pass.tokens.size()), count, first_row, begin + count});
      for (int64_t i = 0; i < count; ++i) {
        pass.tokens.push_back(newest[static_cast<size_t>(i)]);
        pass.positions.push_back(static_cast<int32_t>(begin + i));
        pass.cache_rows.push_back(static_cast<int32_t>(first_row + begin + i));
      }
      pass.last.push_back(static_cast<int32_t>(pass.tokens.size()) - 1);
    }
    pass.segments = std::move(segments);
    const std::vector<int32_t> next = run(pass);
    std::vector<size_t> still_active;
    for (size_t i = 0; i < active.size(); ++i) {
      made[active[i]].push_back(next[i]);
      if (std::ranges::count(end_tokens, int64_t{next[i]}) == 0) still_active.push_back(active[i]);
    }
    active = std::move(still_active);
  }
  return made;
}

}  // namespace sluice::finetune
