#include <csignal>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <variant>
#include <vector>

#include "apps/common/interrupt.h"
#include "apps/nvme_bench/plots.h"
#include "apps/nvme_bench/report.h"
#include "engine/base/error.h"
#include "io/file.h"

namespace sluice::nvme_bench {
namespace {

void say(const std::string& message) {
  std::cerr << "nvme_bench: " << message << "\n";
}

void save_settings(Report& report) {
  const std::filesystem::path file = drive_settings_path();
  for (const DriveResult& result : report.drives) {
    if (!result.settings) continue;
    if (file.empty()) {
      say("neither XDG_CACHE_HOME nor HOME names a folder: the settings are not written");
      return;
    }
    save_drive_settings(file, result.drive, *result.settings);
    report.settings_file = file;
  }
}

void warn_of_shared_drives(const std::vector<DriveResult>& drives) {
  for (size_t i = 0; i < drives.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const Drive &one = drives[j].drive, &other = drives[i].drive;
      if (one.key == other.key || (!one.disk.empty() && one.disk == other.disk)) {
        say(drives[j].folder + " and " + drives[i].folder +
            " lie on one drive: together they are no faster than one of them");
      }
    }
  }
}

// 1 where a drive's numbers prove nothing, so that no script takes them for a drive's.
int exit_code_of(const Report& report) {
  int code = 0;
  for (const DriveResult& result : report.drives) {
    if (result.proof.reached_drive()) continue;
    say(result.folder + ": no verdict: " + result.proof.doubt +
        ". Choose a folder on a drive, where direct I/O works; the engine goes on with its defaults here.");
    code = exit_code(ErrorKind::runtime);
  }
  return code;
}

DriveResult bench_one(const Options& options, const std::string& folder, const Callbacks& callbacks) {
  std::vector<Health> before = read_health(identify_drive(folder).disk);
  DriveResult result = options.sustained ? bench_sustained(options, folder, callbacks)
                                         : bench_drive(options, folder, callbacks);
  result.health_before = std::move(before);
  result.health_after = read_health(result.drive.disk);
  return result;
}

Report measure_all(const Options& options, const Callbacks& callbacks) {
  Report report{.options = options, .drives = {}, .together = {}, .settings_file = {}};
  for (const std::string& folder : options.folders) {
    report.drives.push_back(bench_one(options, folder, callbacks));
    if (report.interrupted()) return report;
  }
  warn_of_shared_drives(report.drives);
  if (report.drives.size() > 1 && !options.sustained)
    report.together = bench_together(options, report.drives, callbacks);
  return report;
}

int run(const Options& options) {
  const InterruptWatch watch;
  Report report = measure_all(options, {.say = say, .stop = [&] { return watch.signal_number() != 0; }});
  const bool interrupted = report.interrupted();
  if (options.save && !interrupted) save_settings(report);
  if (!options.svg.empty()) write_file_atomically(options.svg, report_svg(report));
  std::cout << (options.json ? report_json(report) : report_text(report));
  if (!interrupted) return exit_code_of(report);
  say("interrupted: this is what there was until then; the test files are gone, no settings were written");
  return interrupt_exit_code(watch.signal_number());
}

int run(std::span<const std::string> arguments) {
  const std::variant<Text, Options> parsed = parse_options(arguments);
  const auto* text = std::get_if<Text>(&parsed);
  if (text != nullptr) std::cout << text->text;
  const int code = text != nullptr ? 0 : run(std::get<Options>(parsed));
  std::cout.flush();
  if (!std::cout) throw Error(ErrorKind::runtime, "cannot write to standard output. Is its disk full?");
  return code;
}

int fail(ErrorKind kind, const std::string& message) {
  std::cout.flush();
  say(message);
  return exit_code(kind);
}

}  // namespace
}  // namespace sluice::nvme_bench

int main(int argc, char** argv) {
  using namespace sluice;
  std::signal(SIGXFSZ, SIG_IGN);  // a file over `ulimit -f` is then an Error like a full disk
  try {
    return nvme_bench::run(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const Error& error) {
    return nvme_bench::fail(error.kind(), error.what());
  } catch (const std::bad_alloc&) {
    return nvme_bench::fail(ErrorKind::resource, "out of memory. Try a smaller --depth.");
  } catch (const std::exception& error) {
    return nvme_bench::fail(ErrorKind::runtime, error.what());
  }
}
