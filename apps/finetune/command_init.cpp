#include <cstdio>
#include <iostream>

#include "apps/common/pool.h"
#include "apps/finetune/commands.h"
#include "apps/finetune/model/hf_init.h"
#include "engine/schedule/plan.h"

namespace sluice::finetune {

int run_command(const InitOptions& options) {
  const std::unique_ptr<Executor> pool = make_pool(usable_core_count());
  const HfInitReport report = init_hf_folder(
      *pool, options.config, options.output,
      {.seed = options.seed, .dtype = options.dtype, .max_shard_size = options.max_shard_size});
  std::cout << "Made a model of " << report.parameters << " random parameters ("
            << format_bytes(report.size_bytes) << " of " << name(report.dtype) << " in " << report.file_count
            << " file(s)) as the Hugging Face folder " << options.output << "\n";
  return 0;
}

}  // namespace sluice::finetune
