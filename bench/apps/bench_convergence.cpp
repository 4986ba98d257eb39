// What smaller optimizer states cost in quality: SmolLM2-135M-Instruct fine-tuned on real text (the sources
// of this engine, every sixth file held out) in every state format, in bf16.
//
//   bench_convergence [--full] [--model FILE.gguf] [--text DIR] [--only FORMAT]
//
// 100 steps of one row of 128 tokens, 3 seeds (of the rows' order and of stochastic rounding); without --full
// 20 steps and one seed. The held-out loss is that of the bf16 weights that a run would export, in fp32.
//
//   ratio convergence_FORMAT   (loss of FORMAT - loss of fp32) / the fall of fp32's loss, means of the seeds
//
// Fails (with --full) where fp32's loss falls by less than 0.3 nat, where a format is off by more than 2 % of
// that fall and the spread of fp32's seeds, or where the control is not: bf16 states rounded to nearest,
// whose small updates are lost. split's steps must have fp32's losses to the bit.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/finetune/data/batcher.h"
#include "apps/finetune/forward_pass.h"
#include "apps/finetune/model/gguf_import.h"
#include "apps/finetune/runtime.h"
#include "apps/finetune/trainer.h"
#include "apps/finetune/weights.h"
#include "bench/support/program.h"
#include "bench/support/trial_run.h"
#include "cpu_optim/convert.h"
#include "cpu_optim/state_format.h"
#include "engine/base/error.h"

namespace sluice::bench {
namespace {

namespace fs = std::filesystem;
using cpu_optim::StateFormat;
using finetune::Trainer;

struct Arguments {
  bool full = false;
  std::string gguf;
  std::string text = ".";
  std::string only;
};

struct Scale {
  int32_t row_tokens;
  int steps;
  int seeds;
  int64_t held_out_rows;
};

constexpr double kLearningRate = 1e-4;

struct Method {
  std::string name;
  StateFormat format;
  bool rounds_to_nearest = false;  // all states become bf16 after each step: the control
};

constexpr const char* kControl = "bf16_nearest";

const std::vector<Method>& methods() {
  static const std::vector<Method> all = {
      {"fp32", StateFormat::fp32}, {"split", StateFormat::split}, {"split_bf16", StateFormat::split_bf16},
      {"bf16", StateFormat::bf16}, {"int8", StateFormat::int8},   {kControl, StateFormat::fp32, true}};
  return all;
}

// Two files of text, of the sources below `root` in the order of their names.
void write_text(const fs::path& root, const fs::path& training, const fs::path& held_out) {
  std::vector<fs::path> sources;
  for (const char* folder : {"engine", "io", "gpu", "cpu_optim"}) {
    if (!fs::exists(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const std::string extension = entry.path().extension();
      if (extension == ".h" || extension == ".cpp") sources.push_back(entry.path());
    }
  }
  if (sources.size() < 50)
    throw Error(ErrorKind::usage,
                root.string() + " is not the repository. Run this in it, or say --text DIR.");
  std::ranges::sort(sources);
  std::ofstream files[2] = {std::ofstream(training), std::ofstream(held_out)};
  for (size_t i = 0; i < sources.size(); ++i) files[i % 6 == 5] << std::ifstream(sources[i]).rdbuf() << '\n';
}

// Whole rows only, so that all steps have as many tokens.
std::vector<int64_t> whole_rows(const Dataset& data, int32_t tokens) {
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < data.size(); ++row)
    if (data.row(row).ids.size() == static_cast<size_t>(tokens)) rows.push_back(row);
  return rows;
}

class Study {
 public:
  Study(const Arguments& arguments, const Scale& scale)
      : scale_(scale), folder_(fs::temp_directory_path()), runtime_(finetune::make_runtime({})) {
    import_gguf(arguments.gguf, folder_.path() / "model");
    hf_ = std::make_unique<HfFolder>(folder_.path() / "model");
    config_ = read_model_config(folder_.path() / "model");
    write_text(arguments.text, folder_.path() / "training.txt", folder_.path() / "held_out.txt");
    Tokenizer tokenizer((folder_.path() / "model" / "tokenizer.json").string());
    const DatasetOptions options{.max_seq_length = scale.row_tokens};
    training_.emplace(Dataset::read(folder_.path() / "training.txt", tokenizer, options));
    held_out_.emplace(Dataset::read(folder_.path() / "held_out.txt", tokenizer, options));
    std::printf("text: %lld rows of %d tokens to learn, %zu held out\n",
                static_cast<long long>(training_->size()), scale.row_tokens, held_out_rows().size());
  }

  double loss_of_the_model() { return held_out_loss(nullptr); }

  struct Run {
    std::vector<double> losses;  // of the steps
    double held_out_loss = 0;
    double seconds = 0;
  };
  Run train(const Method& method, uint64_t seed) {
    const auto begin = std::chrono::steady_clock::now();
    finetune::TrainerOptions options{.compute_dtype = DType::bf16,
                                     .limits = {.micro_batch_count = 1,
                                                .tokens = scale_.row_tokens,
                                                .rows = 1,
                                                .tokens_per_row = scale_.row_tokens}};
    options.state_format = method.format;
    options.seed = seed;
    Trainer trainer(*runtime_.device, *runtime_.pool, config_, options);
    finetune::load_weights(*hf_, trainer.engine().store());
    const std::vector<int64_t> rows = whole_rows(*training_, scale_.row_tokens);
    const Sampler order(static_cast<int64_t>(rows.size()), seed);
    Run run;
    for (int step = 0; step < scale_.steps; ++step) {
      const int64_t row = rows[static_cast<size_t>(order.row(0, step))];
      const std::vector<finetune::MicroBatch> batch{make_micro_batch(*training_, {row})};
      run.losses.push_back(trainer.step(batch, kLearningRate).loss);
      if (method.rounds_to_nearest) round_states(trainer.engine());
    }
    trainer.engine().wait();
    run.held_out_loss = held_out_loss(&trainer.engine().store());
    run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return run;
  }

 private:
  std::vector<int64_t> held_out_rows() const {
    std::vector<int64_t> rows = whole_rows(*held_out_, scale_.row_tokens);
    const auto count = static_cast<int64_t>(rows.size());
    // Spread over the files.
    std::vector<int64_t> chosen;
    for (int64_t i = 0; i < std::min(count, scale_.held_out_rows); ++i)
      chosen.push_back(rows[static_cast<size_t>(i * count / std::min(count, scale_.held_out_rows))]);
    return chosen;
  }

  static void round_states(Engine& engine) {
    engine.wait();
    TensorStore& store = engine.store();
    for_each_tensor(store, [&](TensorId tensor, int64_t rows, std::vector<float>& masters) {
      cpu_optim::round_to_bf16(masters, masters);
      store.write_rows(tensor, 0, rows, masters.data());
    });
    for (BlockId block{0}; block.value < store.block_count(); ++block.value) {
      const auto round = [](std::span<std::byte> bytes) {
        const std::span<float> moment{reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
        cpu_optim::round_to_bf16(moment, moment);
      };
      round(store.state(block).first_moment);
      round(store.state(block).second_moment);
    }
  }

  // Of the store's weights as an export has them; null: of the model before.
  double held_out_loss(const TensorStore* trained) {
    constexpr int kWindow = 8;
    const finetune::BatchLimits limits{.micro_batch_count = kWindow,
                                       .tokens = scale_.row_tokens,
                                       .rows = 1,
                                       .tokens_per_row = scale_.row_tokens};
    finetune::Evaluator evaluator(*runtime_.device, *runtime_.pool, config_, limits, {});
    TensorStore& store = evaluator.engine().store();
    if (trained == nullptr) {
      finetune::load_weights(*hf_, store);
    } else {
      for_each_tensor(*trained, [&](TensorId tensor, int64_t rows, std::vector<float>& masters) {
        store.write_rows(tensor, 0, rows, masters.data());  // rounded to the bf16 that they are stored in
      });
    }
    double sum = 0, weight = 0;
    const std::vector<int64_t> rows = held_out_rows();
    for (size_t row = 0; row < rows.size(); row += kWindow) {
      std::vector<finetune::MicroBatch> batches;
      for (size_t i = row; i < std::min(rows.size(), row + kWindow); ++i)
        batches.push_back(make_micro_batch(*held_out_, {rows[i]}));
      const finetune::EvalResult result = evaluator.evaluate(batches);
      sum += result.nll_sum;
      weight += result.weight_sum;
    }
    return sum / weight;
  }

  // Calls visit(tensor, rows, masters).
  template <class Visit>
  static void for_each_tensor(const TensorStore& store, const Visit& visit) {
    for (size_t i = 0; i < store.model().tensors.size(); ++i) {
      const TensorId tensor{static_cast<int32_t>(i)};
      const TensorSpec& spec = store.model().tensors[i];
      std::vector<float> masters(static_cast<size_t>(spec.rows * spec.cols));
      store.read_rows(tensor, 0, spec.rows, masters.data());
      visit(tensor, spec.rows, masters);
    }
  }

  const Scale scale_;
  BenchFolder folder_;
  finetune::Runtime runtime_;
  std::unique_ptr<HfFolder> hf_;
  ModelConfig config_;
  std::optional<Dataset> training_;
  std::optional<Dataset> held_out_;
};

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

int run(const Arguments& arguments) {
  if (!fs::exists(arguments.gguf)) {
    std::printf("skipped: %s does not exist (apps/fetch_smollm2.sh gets it)\n", arguments.gguf.c_str());
    return 0;
  }
  const Scale scale = arguments.full ? Scale{128, 100, 3, 48} : Scale{128, 20, 1, 16};
  Study study(arguments, scale);
  const double before = study.loss_of_the_model();
  std::printf("held-out loss before: %.4f\n", before);
  std::map<std::string, std::vector<double>> after;
  std::map<uint64_t, std::vector<double>> fp32_losses;
  bool good = true;
  for (int seed = 1; seed <= scale.seeds; ++seed) {
    for (const Method& method : methods()) {
      if (!arguments.only.empty() && method.name != arguments.only && method.name != "fp32") continue;
      // Has fp32's bits: once is enough.
      if (method.format == StateFormat::split && (seed > 1 || !arguments.full)) continue;
      const Study::Run run = study.train(method, static_cast<uint64_t>(seed));
      std::printf("  seed %d, %-12s: held-out loss %.5f, last step's %.5f (%.0f s)\n", seed,
                  method.name.c_str(), run.held_out_loss, run.losses.back(), run.seconds);
      std::fflush(stdout);
      after[method.name].push_back(run.held_out_loss);
      if (method.name == "fp32") fp32_losses[static_cast<uint64_t>(seed)] = run.losses;
      if (method.name == "split" && run.losses != fp32_losses[static_cast<uint64_t>(seed)]) {
        std::printf("WRONG: split's losses are not fp32's\n");
        good = false;
      }
    }
  }
  const std::vector<double>& fp32 = after["fp32"];
  const double fall = before - mean(fp32);
  const double spread = std::ranges::max(fp32) - std::ranges::min(fp32);
  const double allowed = 0.02 * fall + spread;
  std::printf("fp32: the loss falls by %.4f nat; spread of the seeds %.4f; allowed %.4f\n", fall, spread,
              allowed);
  if (arguments.full && fall < 0.3) good = false;
  for (const Method& method : methods()) {
    if (!after.contains(method.name) || method.name == "fp32") continue;
    const double off = mean(after[method.name]) - mean(fp32);
    std::printf("ratio convergence_%s %.4f\n", method.name.c_str(), off / fall);
    const bool near = std::abs(off) <= allowed;
    if (!arguments.full || near == (method.name != kControl)) continue;
    std::printf("FAILED: %s is off by %.4f nat\n", method.name.c_str(), off);
    good = false;
  }
  return good ? 0 : 1;
}

std::string default_model() {
  const char* named = std::getenv("SLUICE_SMOLLM2_GGUF");
  if (named != nullptr && *named != 0) return named;
  const char* home = std::getenv("HOME");
  return std::string(home == nullptr ? "." : home) + "/.cache/sluice/SmolLM2-135M-Instruct.Q4_1.gguf";
}

}  // namespace
}  // namespace sluice::bench

int main(int count, char** values) {
  using namespace sluice;
  bench::Arguments arguments{.gguf = bench::default_model()};
  bench::Program program("bench_convergence", "What smaller optimizer states cost in quality.");
  program.add(
      {.name = "model", .value = text_value(arguments.gguf, "FILE.gguf"), .help = "SmolLM2-135M-Instruct"});
  program.add({.name = "text", .value = text_value(arguments.text, "DIR"), .help = "this repository"});
  program.add({.name = "only", .value = text_value(arguments.only, "FORMAT"), .help = "besides fp32"});
  return program.main(count, values, [&] {
    arguments.full = program.full();
    return bench::run(arguments);
  });
}
