#include "apps/nvme_bench/report.h"

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>

#include "apps/common/option_values.h"
#include "apps/nvme_bench/fio_lines.h"

namespace sluice::nvme_bench {
namespace {

constexpr double kGb = 1e9;
// A line of a table: shorter than 200 characters.
[[gnu::format(printf, 1, 2)]] std::string line(const char* format, ...) {
  std::array<char, 200> buffer;
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer.data(), buffer.size(), format, arguments);
  va_end(arguments);
  return buffer.data();
}

std::string measurements_text(const std::map<Traffic, Measurement>& measurements) {
  std::string text =
      "          GB/s   p50 ms   p95 ms   p99 ms   max ms   CPU s/GB   slowest/fastest tenth\n";
  for (const auto& [traffic, measurement] : measurements) {
    const LatencyHistogram& latency = measurement.latency;
    text += line("  %-5s %6.2f", std::string(name(traffic)).c_str(), measurement.bytes_per_second() / kGb);
    for (const double percent : {50, 95, 99})
      text += line(" %8.2f", latency.percentile_seconds(percent) * 1e3);
    text += line(" %8.2f   %8.3f   %.2f\n", latency.largest_seconds() * 1e3, measurement.cpu_seconds_per_gb(),
                 measurement.steadiness());
  }
  return text;
}

std::string sweep_text(const std::vector<SweepPoint>& sweep) {
  if (sweep.size() < 2) return "";
  std::string text = "  block     in flight   read GB/s   write GB/s\n";
  for (const SweepPoint& point : sweep) {
    text += line("  %-9s %-9s %11.2f %12.2f\n", size_text(point.block_bytes).c_str(),
                 size_text(point.bytes_in_flight).c_str(), point.read_bytes_per_second / kGb,
                 point.write_bytes_per_second / kGb);
  }
  return text;
}

std::string count_text(const char* who, const std::optional<ByteCount>& count) {
  if (!count) return "";
  return std::string("; ") + who + " " + size_text(count->read_bytes) + " and " +
         size_text(count->written_bytes);
}

std::string proof_text(const DriveResult& result) {
  const Proof& proof = result.proof;
  if (!proof.reached_drive()) {
    return "  NOT PROVEN to have reached a drive: " + proof.doubt +
           ". These are no numbers of a drive, and make no settings.\n";
  }
  return "  reached the drive: asked for " + size_text(proof.asked.read_bytes) + " read and " +
         size_text(proof.asked.written_bytes) + " written" + count_text("the kernel counted", proof.process) +
         count_text((result.drive.disk + " counted").c_str(), proof.device) + "; " +
         std::to_string(proof.residency.resident_count) + " of " +
         std::to_string(proof.residency.page_count) + " pages in the page cache\n";
}

std::string loaded_text(const std::vector<LoadedLatency>& loaded) {
  if (loaded.empty()) return "";
  std::string text = "  4 KiB reads, beside   p50 ms   p99 ms p99.9 ms   max ms   that moves GB/s\n";
  for (const LoadedLatency& each : loaded) {
    const LatencyHistogram& latency = each.measurement.probe_latency;
    text += line("    %-17s", (each.load == kNoLoad ? "nothing" : each.load).c_str());
    for (const double percent : {50.0, 99.0, 99.9})
      text += line(" %8.3f", latency.percentile_seconds(percent) * 1e3);
    text +=
        line(" %8.3f   %8.2f\n", latency.largest_seconds() * 1e3, each.measurement.bytes_per_second() / kGb);
  }
  return text;
}

std::string mixes_text(const std::vector<MixedRate>& mixes) {
  std::string text;
  for (const MixedRate& mix : mixes) {
    const Measurement& measurement = mix.measurement;
    const double seconds = std::max(measurement.seconds, 1e-9);
    text +=
        line("  %2.0f %% reads: %.2f GB/s (read %.2f, wrote %.2f), p50 %.2f, p99 %.2f, max %.2f ms\n",
             mix.read_share * 100, measurement.bytes_per_second() / kGb,
             static_cast<double>(measurement.read_bytes) / seconds / kGb,
             static_cast<double>(measurement.written_bytes) / seconds / kGb,
             measurement.latency.percentile_seconds(50) * 1e3,
             measurement.latency.percentile_seconds(99) * 1e3, measurement.latency.largest_seconds() * 1e3);
  }
  return text;
}

std::string sustained_text(const SustainedWrite& sustained) {
  const Measurement& measurement = sustained.measurement;
  std::string text = "  wrote on and on: " + size_text(measurement.written_bytes) +
                     line(" in %.1f s, %.2f times over a file of ", measurement.seconds, sustained.passes()) +
                     size_text(sustained.file_bytes) + "; " + size_text(sustained.reserve_bytes) +
                     " of the drive were to stay free\n";
  if (sustained.found.fell) {
    text += line("  fell after %.1f s from %.2f to %.2f GB/s, when ", sustained.seconds_before_fall(),
                 sustained.found.before / kGb, sustained.found.after / kGb) +
            size_text(sustained.bytes_before_fall()) + " were written\n";
  } else {
    text += "  the rate did not fall for good in that time\n";
  }
  return text + line("  steady rate %.2f GB/s\n", sustained.found.steady / kGb);
}

std::string health_lines(const DriveResult& result) {
  std::string text;
  for (size_t i = 0; i < std::min(result.health_before.size(), result.health_after.size()); ++i)
    text += "  " + health_text(result.health_before[i], result.health_after[i]) + "\n";
  return text;
}

std::string fio_text(const DriveResult& result, const Options& options) {
  const auto lines = fio_lines(result, options);
  std::string text = lines.empty() ? "" : "  the same by fio:\n";
  for (const auto& [what, command] : lines) text.append("    ").append(command).append("\n");
  return text;
}

// What was measured in the file that is used again and again.
std::string file_text(const DriveResult& result) {
  if (result.sustained) return "";
  std::string text = "  file of " + size_text(result.file_bytes) + ", first written at " +
                     line("%.2f GB/s; ", result.first_write.bytes_per_second() / kGb) + result.queue;
  for (const QueueRate& rate : result.queues) {
    text += line("; %s read %.2f, wrote %.2f GB/s", rate.queue.c_str(), rate.read_bytes_per_second / kGb,
                 rate.write_bytes_per_second / kGb);
  }
  return text + "\n";
}

std::string drive_text(const DriveResult& result, const Options& options) {
  std::string text = result.folder + ": " + describe(result.drive) + "\n" + file_text(result);
  if (result.interrupted) text += "  INTERRUPTED: what is missing was not measured\n";
  text += sweep_text(result.sweep);
  if (!result.measurements.empty()) text += measurements_text(result.measurements);
  text += mixes_text(result.mixes) + loaded_text(result.loaded);
  if (result.sustained) text += sustained_text(*result.sustained);
  text += proof_text(result) + health_lines(result);
  if (result.settings) {
    text += "  settings: " + result.queue + ", blocks of " + size_text(result.chosen.block_bytes) + ", " +
            size_text(result.chosen.bytes_in_flight) + " in flight\n";
  }
  return text + fio_text(result, options);
}

double rate_of(const std::map<Traffic, Measurement>& measurements, Traffic traffic) {
  const auto found = measurements.find(traffic);
  return found == measurements.end() ? 0 : found->second.bytes_per_second() / kGb;
}

// GB/s by traffic: what drives give alone, beside one another, and as one.
std::string together_text(const Report& report) {
  const TogetherResult& together = *report.together;
  std::string text = "all drives together, striped\n" + measurements_text(together.striped) +
                     "  GB/s    each alone, summed   all at once, summed   striped\n";
  for (const auto& [traffic, measurement] : together.striped) {
    double alone = 0, beside = 0;
    for (const DriveResult& drive : report.drives) alone += rate_of(drive.measurements, traffic);
    for (const auto& drive : together.beside) beside += rate_of(drive, traffic);
    text += line("  %-5s   %18.2f   %19.2f   %7.2f\n", std::string(name(traffic)).c_str(), alone, beside,
                 measurement.bytes_per_second() / kGb);
  }
  if (together.interrupted) text += "  INTERRUPTED: what is missing was not measured\n";
  return text;
}

}  // namespace

std::string report_text(const Report& report) {
  std::string text;
  for (const DriveResult& result : report.drives) text += drive_text(result, report.options);
  if (report.together) text += together_text(report);
  if (!report.settings_file.empty())
    text += "The engine will read the settings in " + report.settings_file.string() + "\n";
  if (!report.options.svg.empty()) text += "The picture is in " + report.options.svg + "\n";
  return text;
}

}  // namespace sluice::nvme_bench
