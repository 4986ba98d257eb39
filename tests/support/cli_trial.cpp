#include "tests/support/cli_trial.h"

#include <sstream>

#include "tests/support/source_tree.h"

namespace sluice::test {
namespace {

namespace fs = std::filesystem;

}  // namespace

CliTrial::CliTrial(std::string_view rows) {
  const fs::path data = source_folder() / "tests" / "data";
  fs::create_directory(model_);
  for (const char* name : {"config.json", "generation_config.json", "model.safetensors"})
    fs::copy(data / "models" / "llama_tied" / name, model_ / name);
  fs::copy(data / "tokenizers" / "bytes_264" / "tokenizer.json", model_ / "tokenizer.json");
  write_all(data_, rows);
}

CliTrial::Arguments CliTrial::joined(Arguments first, const Arguments& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

CliTrial::Arguments CliTrial::command(Arguments arguments) {
  arguments.insert(arguments.begin(), program_path("finetune"));
  return arguments;
}

Outcome CliTrial::run(const Arguments& arguments, const std::string& input) {
  return ChildProcess(command(arguments)).finish(input);
}

std::vector<nlohmann::json> read_events(const fs::path& output) {
  std::istringstream in(read_all(output / "events.jsonl"));
  std::vector<nlohmann::json> events;
  for (std::string line; std::getline(in, line);) events.push_back(nlohmann::json::parse(line));
  return events;
}

}  // namespace sluice::test
