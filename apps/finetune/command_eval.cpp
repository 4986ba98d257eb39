#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/finetune/commands.h"
#include "apps/finetune/forward_pass.h"
#include "apps/finetune/model_warnings.h"
#include "apps/finetune/run_setup.h"
#include "apps/finetune/weights.h"
#include "engine/base/error.h"
#include "engine/base/math.h"

namespace sluice::finetune {
namespace {

constexpr int64_t kWindow = 4;  // micro-batches that share a pass over the weights

BatchLimits batch_limits(const EvalOptions& options, const Dataset& data, const Batcher& batcher) {
  const int64_t rows = std::min(options.per_device_eval_batch_size, data.size());
  BatchLimits limits{.micro_batch_count = static_cast<int>(std::min(kWindow, divide_up(data.size(), rows))),
                     .tokens = batcher.most_padded_tokens(),
                     .rows = rows};
  for (int64_t row = 0; row < data.size(); ++row) {
    limits.tokens_per_row = std::max(limits.tokens_per_row, data.row_length(row));
  }
  return limits;
}

// Sums over every row once, in file order: the same sums whatever the batch size.
EvalResult evaluate_all(Evaluator& evaluator, const Dataset& data, const Batcher& batcher,
                        const BatchLimits& limits) {
  EvalResult sum;
  for (int64_t row = 0; row < data.size();) {
    std::vector<MicroBatch> window;
    for (int i = 0; i < limits.micro_batch_count && row < data.size(); ++i, row += limits.rows) {
      window.push_back(batcher.sequential(row));
    }
    const EvalResult part = evaluator.evaluate(window);
    sum.nll_sum += part.nll_sum;
    sum.weight_sum += part.weight_sum;
    sum.label_count += part.label_count;
  }
  return sum;
}

void print(const EvalResult& result, bool json) {
  const double perplexity = std::exp(result.nll_sum / result.weight_sum);
  if (json) {
    std::cout << nlohmann::ordered_json{{"nll_sum", result.nll_sum},
                                        {"tokens", result.label_count},
                                        {"perplexity", perplexity}}
                     .dump()
              << "\n";
    return;
  }
  char text[128];
  std::snprintf(text, sizeof text, "nll_sum %.6f  tokens %lld  perplexity %.4f\n", result.nll_sum,
                static_cast<long long>(result.label_count), perplexity);
  std::cout << text;
}

}  // namespace

int run_command(const EvalOptions& options) {
  const OpenModel model = open_model(options.model);
  std::unique_ptr<Dataset> data;
  {
    Tokenizer tokenizer = open_tokenizer(model);
    data = open_data(model, tokenizer, options.data);
  }
  for (const std::string& warning : data_warnings(model, *data)) std::cerr << "warning: " << warning << "\n";
  const Batcher batcher(*data, 0, {std::min(options.per_device_eval_batch_size, data->size()), 1});
  const BatchLimits limits = batch_limits(options, *data, batcher);
  const Runtime runtime = open_runtime(options.engine);
  Evaluator evaluator(*runtime.device, *runtime.pool, model.config, limits,
                      {.compute_dtype = compute_dtype(options.engine),
                       .prefetch_distance = static_cast<int>(options.engine.prefetch_distance),
                       .device_limit_bytes = device_limit(options.engine),
                       .host_parts = {process_base()}});
  load_weights(model.folder, evaluator.engine().store());
  const EvalResult result = evaluate_all(evaluator, *data, batcher, limits);
  if (!std::isfinite(result.nll_sum)) {
    throw Error(ErrorKind::diverged, "the loss of " + data->path() +
                                         " is not a finite number. Are the weights of " + options.model +
                                         " finite?");
  }
  print(result, options.json);
  return 0;
}

}  // namespace sluice::finetune
