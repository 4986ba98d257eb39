#include <algorithm>
#include <cmath>
#include <limits>

#include "gpu/reference/element.h"
#include "gpu/reference/kernels.h"

namespace sluice::gpu::reference::kernels {

void run(const LogSumExpUpdate& op) {
  const int64_t cols = op.logits.cols;
  for (int64_t r = 0; r < op.logits.rows; ++r) {
    const double old_max = op.first ? -std::numeric_limits<double>::infinity() : load(op.max, r, 0);
    double max = old_max;
    for (int64_t p = 0; p < cols; ++p) max = std::max(max, load(op.logits, r, p));
    double sum = 0;
    for (int64_t p = 0; p < cols; ++p) sum += std::exp(load(op.logits, r, p) - max);
    if (!op.first) sum += cols == 0 ? load(op.sum, r, 0) : load(op.sum, r, 0) * std::exp(old_max - max);
    store(op.max, r, 0, max);
    store(op.sum, r, 0, sum);
    if (op.targets.empty()) continue;
    const int64_t entry = load_index(op.targets, r) - op.piece_begin;
    if (load_index(op.targets, r) >= 0 && 0 <= entry && entry < cols)
      store(op.target_logit, r, 0, load(op.logits, r, entry));
    else if (op.first)
      store(op.target_logit, r, 0, 0);
  }
}

void run(const TokenLoss& op) {
  for (int64_t r = 0; r < op.loss.rows; ++r) {
    const double nll = load(op.max, r, 0) + std::log(load(op.sum, r, 0)) - load(op.target_logit, r, 0);
    store(op.loss, r, 0, load_index(op.targets, r) < 0 ? 0 : load(op.weights, r, 0) * nll);
  }
}

void run(const CrossEntropyBackward& op) {
  for (int64_t r = 0; r < op.logits.rows; ++r) {
    const int64_t target = load_index(op.targets, r);
    const double factor = load(op.weights, r, 0) * op.scale;
    const double max = load(op.max, r, 0);
    for (int64_t p = 0; p < op.logits.cols; ++p) {
      const double probability = std::exp(load(op.logits, r, p) - max) / load(op.sum, r, 0);
      const double hit = target == op.piece_begin + p ? 1 : 0;
      store(op.d_logits, r, p, target < 0 ? 0 : factor * (probability - hit));
    }
  }
}

void run(const ArgMaxUpdate& op) {
  for (int64_t r = 0; r < op.logits.rows; ++r) {
    double max = op.first ? -std::numeric_limits<double>::infinity() : load(op.max, r, 0);
    int64_t index = op.first ? -1 : load_index(op.index, r);
    for (int64_t p = 0; p < op.logits.cols; ++p) {
      const double logit = load(op.logits, r, p);
      const int64_t id = op.piece_begin + p;
      if (logit > max || index < 0 || (logit == max && id < index)) {
        max = logit;
        index = id;
      }
    }
    store(op.max, r, 0, max);
    store(op.index, r, 0, static_cast<double>(index));
  }
}

}  // namespace sluice::gpu::reference::kernels
