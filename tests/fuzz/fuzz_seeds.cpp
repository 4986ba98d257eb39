// fuzz_seeds FOLDER: writes the seeds of every target to FOLDER/NAME/seed-N.

#include <filesystem>
#include <iostream>

#include "tests/fuzz/fuzz_target.h"
#include "tests/support/temporary_folder.h"

int main(int argument_count, char** arguments) {
  if (argument_count != 2) {
    std::cerr << "usage: fuzz_seeds FOLDER\n";
    return 2;
  }
  for (const auto& target : sluice::test::fuzz_targets()) {
    const std::filesystem::path folder = std::filesystem::path(arguments[1]) / target.name;
    std::filesystem::create_directories(folder);
    int number = 0;
    for (const std::string& seed : target.seeds())
      sluice::test::write_all(folder / ("seed-" + std::to_string(number++)), seed);
  }
}
