#pragma once

#include <string>
#include <vector>

#include "apps/finetune/run_setup.h"

namespace sluice::finetune {

// What is allowed and likely to be a mistake, a sentence each.

// Tokens of the data whose embedding is about zero: special tokens that a base model never saw, and that
// fine-tuning at usual learning rates hardly moves. Reads those rows of the weight files.
std::vector<std::string> untrained_token_warnings(const OpenModel& model, const Tokenizer& tokenizer,
                                                  const Dataset& data);

// End tokens that config.json, generation_config.json and the tokenizer do not agree on: generation would run
// past what training taught.
std::vector<std::string> end_token_warnings(const OpenModel& model, const Tokenizer& tokenizer);

// Rows that were cut, dropped or taken with a doubt, and rows beyond the model's positions.
std::vector<std::string> data_warnings(const OpenModel& model, const Dataset& data);

}  // namespace sluice::finetune
