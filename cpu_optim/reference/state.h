#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpu_optim/adamw.h"

// The state formats in double: what their bytes mean, and a step whose numbers are rounded only once, by the
// draws that the kernels make.
namespace sluice::cpu_optim::reference {

struct Numbers {
  std::vector<double> w, m, v;
};

Numbers decode(const StateSpan& state);

// `value` or, of the two numbers of the format that enclose it, one: the larger in magnitude if draw, which
// is uniform in [0, 1), and the remainder reach 1.
double round_to_bf16(double value, double draw);
// The code of value / unit, and back. `offset` is 1 for the first moment and 0 for the second.
int encode(double value, double unit, double offset, double draw);
double decode(int code, double unit, double offset);
// The scale of a record whose numbers have this bound; NaN of one that is not finite or too large.
double unit_of(double bound, int octaves);

// One step over every element of `state`, in place. The bytes may differ from a kernel's in the last place of
// fp32 numbers, and, where a draw is that close to a number's remainder, by one in a rounded one. Numbers of
// int8 are finite.
void update(const StateSpan& state, std::span<const double> gradient, const AdamOptions& options,
            int64_t step, double gradient_scale, uint64_t seed);

}  // namespace sluice::cpu_optim::reference
