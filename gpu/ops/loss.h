#pragma once

#include "gpu/view.h"

// The head goes over the vocabulary in pieces, so that logits are never whole: R rows, P vocabulary entries a
// piece. A target is the id to predict at a row, or -1: no label.
namespace sluice::gpu {

// Running log-sum-exp over pieces: max = max(max, row max); sum = sum * exp(old max - max) + sum exp(logit -
// max). target_logit takes the logit of the target where this piece holds it; the first piece makes it 0
// where it does not. A logit of NaN or plus infinity makes the row's sum NaN.
struct LogSumExpUpdate {
  static constexpr const char* kName = "log_sum_exp_update";
  View logits;              // (R, P) fp32
  View targets;             // (R, 1) int32, or empty with target_logit
  View max;                 // (R, 1) fp32
  View sum;                 // (R, 1) fp32
  View target_logit;        // (R, 1) fp32
  int64_t piece_begin = 0;  // vocabulary id of the piece's first entry
  bool first = false;       // start anew
};

// loss = weight * (max + log(sum) - target_logit); 0 where there is no target.
struct TokenLoss {
  static constexpr const char* kName = "token_loss";
  View max, sum, target_logit;  // (R, 1) fp32
  View targets;                 // (R, 1) int32
  View weights;                 // (R, 1) fp32
  View loss;                    // (R, 1) fp32
};

// d_logits = weight * scale * (exp(logit - max) / sum - [entry is target]); 0 where there is no target.
struct CrossEntropyBackward {
  static constexpr const char* kName = "cross_entropy_backward";
  View logits;    // (R, P) fp32
  View targets;   // (R, 1) int32
  View weights;   // (R, 1) fp32
  View max, sum;  // (R, 1) fp32
  View d_logits;  // (R, P) fp32 or bf16; may be logits where both are fp32
  int64_t piece_begin = 0;
  float scale = 1;  // one over the label weight of the whole window
};

// The largest logit so far and its id; of equals the lowest id. NaN is not promised to be seen.
struct ArgMaxUpdate {
  static constexpr const char* kName = "arg_max_update";
  View logits;  // (R, P) fp32
  View max;     // (R, 1) fp32
  View index;   // (R, 1) int32
  int64_t piece_begin = 0;
  bool first = false;
};

}  // namespace sluice::gpu
