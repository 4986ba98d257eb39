#pragma once

#include <cstdint>
#include <span>
#include <string_view>

// Random numbers for new weights: each a function of seed, tensor and place in it, and of nothing else, so
// that they do not depend on files, pieces or threads.
namespace sluice {

// What a tensor's numbers grow from.
uint64_t weight_key(uint64_t seed, std::string_view tensor);

// out[i] = number `first + i` of the tensor, normal with mean 0 and the given standard deviation.
void fill_normal(uint64_t key, uint64_t first, double deviation, std::span<float> out);

// The x of which a standard normal number is below with probability `p`, 0 < p < 1; to about 1 part in 10^7.
double normal_quantile(double p);

}  // namespace sluice
