#pragma once

#include <cstdint>

#include "cpu_optim/float_view.h"
#include "cpu_optim/state_format.h"
#include "engine/base/executor.h"
#include "engine/base/float_bits.h"

// AdamW and Adam over states in host memory, in place, at the speed of memory: one pass reads gradient and
// states and writes states and weight. Owns nothing, allocates nothing, keeps no state of its own: every
// function is thread-safe over disjoint ranges. The instruction set is chosen at run time. Usable alone: of
// Sluice it needs engine/base only.
//
//   const StateSpan state{.format = StateFormat::bf16, .size = size, .weight = weight,
//                         .first_moment = m, .second_moment = v};   // zeros at first: also bytes of zero
//   const AdamStep step = make_adam_step({.learning_rate = 1e-5}, step_number, clip_coefficient, seed);
//   update(executor, state, gradient, step);                        // or update(state, gradient, step)
//
// Bits. Every element is computed by the same sequence of fp32 operations, each rounded to nearest, so the
// result is a function of the element's inputs alone: it is the same for every instruction set, chunk,
// alignment and thread count. fp32 and split, which have the same bits, compute in this order, without fused
// multiply-add or approximate reciprocals:
//
//   g  = gradient * gradient_scale                     (bf16 gradients are widened first, exactly)
//   g  = g + weight_decay * w                          (Adam only: L2)
//   m  = beta1 * m + (1 - beta1) * g
//   v  = beta2 * v + ((1 - beta2) * g) * g
//   d  = sqrt(v) * (1 / sqrt(1 - beta2^t)) + epsilon
//   w  = w * (1 - learning_rate * weight_decay)        (AdamW only)
//   w  = w - ((learning_rate / (1 - beta1^t)) * m) / d
//
// It is PyTorch's AdamW, whose w also decays by a factor; scalars are computed in double and rounded once.
// The formats that round what they store fuse sums and multiply scalars out (rounded_step.h), with no more
// error. They round as rounding.h says, by draws that are a function of seed, step and element (random.h); in
// int8 an element's result depends on its record of 256, too. Subnormals are kept: callers leave the
// processor's flush-to-zero modes off. The payload of a NaN is not promised.
//
// A gradient that is inf or NaN goes into the states like any number: of its element, in int8 all weights of
// its record become NaN. Whoever must not lose them looks at the norm first (cpu_optim/norm.h) and does not
// call update: so a skipped step changes no byte.
namespace sluice::cpu_optim {

enum class AdamVariant {
  adamw,  // decoupled decay (Loshchilov and Hutter, arXiv:1711.05101)
  adam,   // weight_decay * w is added to the gradient, L2 (Kingma and Ba, arXiv:1412.6980)
};

// Hyper-parameters of one parameter group. PyTorch's defaults.
struct AdamOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 1e-2;
  AdamVariant variant = AdamVariant::adamw;
};

// What the kernels need of one group in one optimizer step. Made by make_adam_step.
struct AdamStep {
  float gradient_scale = 1;
  float l2 = 0;  // weight_decay of Adam, 0 for AdamW
  float beta1 = 0;
  float gradient_share1 = 0;  // 1 - beta1
  float beta2 = 0;
  float gradient_share2 = 0;  // 1 - beta2
  float v_correction = 0;     // 1 / sqrt(1 - beta2^t)
  float epsilon = 0;
  float decay = 1;      // 1 - learning_rate * weight_decay of AdamW, 1 for Adam
  float step_size = 0;  // learning_rate / (1 - beta1^t)
  // Of the seed and the step's number: what stochastic rounding draws from, with the element's index.
  uint64_t random_key = 0;
};

// `step` counts optimizer steps from 1 and is the same for every chunk of the step. `gradient_scale` carries
// the clip coefficient (and any mean). `seed` is the run's: stochastic rounding depends on it. Throws
// Error(usage) for a value out of range.
AdamStep make_adam_step(const AdamOptions& options, int64_t step, float gradient_scale = 1,
                        uint64_t seed = 0);

// One step over a range, on the calling thread. Sizes of state and gradient are equal; 0 does nothing.
// Streams are aligned to their element. In int8 the range begins at a multiple of 256, and its last record is
// whole: beyond `size` it holds zeros and keeps them. Ranges of two calls that run at once must not overlap.
void update(const StateSpan& state, FloatView gradient, const AdamStep& step);

// The same, in fixed pieces over the threads of a pool; returns when all is done.
void update(Executor& executor, const StateSpan& state, FloatView gradient, const AdamStep& step);

}  // namespace sluice::cpu_optim
