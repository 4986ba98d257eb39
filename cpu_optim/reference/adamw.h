#pragma once

#include <cstdint>
#include <span>

#include "cpu_optim/adamw.h"

// The oracle of cpu_optim: the formulas in double, written for reading. Slow; for tests and benches.
namespace sluice::cpu_optim::reference {

// One step of AdamW or Adam over w, m, v in place. All spans have one size. `gradient` is unscaled.
// `root_factor` multiplies the root of the second moment (kNoiseOfRoot of cpu_optim/rounding.h).
void update(std::span<double> w, std::span<double> m, std::span<double> v, std::span<const double> gradient,
            const AdamOptions& options, int64_t step, double gradient_scale = 1, double root_factor = 1);

}  // namespace sluice::cpu_optim::reference
