#include <iostream>

#include "apps/finetune/commands.h"
#include "apps/finetune/model/gguf_import.h"

namespace sluice::finetune {

int run_command(const ImportOptions& options) {
  import_gguf(options.file, options.output);
  std::cout << "Imported " << options.file << " as the Hugging Face folder " << options.output << "\n";
  return 0;
}

}  // namespace sluice::finetune
