#include <iostream>

#include "apps/finetune/commands.h"

namespace sluice::finetune {

int run_command(const HelpText& help) {
  std::cout << help.text;
  return 0;
}

}  // namespace sluice::finetune
