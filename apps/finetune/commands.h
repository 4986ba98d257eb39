#pragma once

#include "apps/finetune/options.h"

// The commands of `finetune`, a file each. Results go to standard output, talk and warnings to standard
// error. Faults are Errors; what is returned is the exit code (docs/exit-codes.md).
namespace sluice::finetune {

int run_command(const HelpText& help);
int run_command(const TrainOptions& options);
int run_command(const PlanOptions& options);
int run_command(const EvalOptions& options);
int run_command(const GenerateOptions& options);
int run_command(const ImportOptions& options);
int run_command(const InitOptions& options);
int run_command(const ConvertStateOptions& options);
int run_command(const TokenizeOptions& options);

}  // namespace sluice::finetune
