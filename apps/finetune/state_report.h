#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/finetune/train_setup.h"

// What a state format takes, for people and programs.
namespace sluice::finetune {

// Bytes that are kept of a trained parameter: weight, master, both moments.
double bytes_per_parameter(cpu_optim::StateFormat format);
// From the largest to the smallest; the oracle is never one.
std::vector<cpu_optim::StateFormat> smaller_formats(cpu_optim::StateFormat format);

// The model's states, and what a smaller format would save.
std::string state_table(const TrainSetup& setup);
nlohmann::ordered_json state_format_json(const TrainSetup& setup);

// What a conversion loses, in words: "" for nothing.
std::string conversion_loss(cpu_optim::StateFormat from, cpu_optim::StateFormat to);

}  // namespace sluice::finetune
