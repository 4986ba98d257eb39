#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "apps/finetune/trainer.h"

namespace sluice::finetune {

// A plan for people: every part by tier with its bytes and their sum, moves, and what is recomputed.
std::string plan_table(const Plan& plan, const TrainerOptions& options);
// In one line.
std::string plan_summary(const Plan& plan);
// The same for programs; bytes as integers.
nlohmann::ordered_json plan_json(const Plan& plan, const TrainerOptions& options);

}  // namespace sluice::finetune
