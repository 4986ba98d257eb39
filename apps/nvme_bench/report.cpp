#include "apps/nvme_bench/report.h"

#include <array>
#include <cstdarg>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/common/option_values.h"
#include "apps/common/version.h"

namespace sluice::nvme_bench {
namespace {

using nlohmann::json;

constexpr double kGb = 1e9;
struct Percent {
  const char* name;
  double percent;
};
constexpr std::array kPercents = {Percent{"p50", 50}, Percent{"p95", 95}, Percent{"p99", 99}};

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
    for (const auto& [key, percent] : kPercents)
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

std::string drive_text(const DriveResult& result) {
  std::string text = result.folder + ": " + describe(result.drive) + "\n  file of " +
                     size_text(result.file_bytes) + ", first written at " +
                     line("%.2f GB/s; ", result.first_write.bytes_per_second() / kGb) + result.queue;
  for (const QueueRate& rate : result.queues) {
    text += line("; %s read %.2f, wrote %.2f GB/s", rate.queue.c_str(), rate.read_bytes_per_second / kGb,
                 rate.write_bytes_per_second / kGb);
  }
  text += "\n";
  text += sweep_text(result.sweep) + measurements_text(result.measurements) + proof_text(result);
  if (!result.settings) return text;
  return text + "  settings: " + result.queue + ", blocks of " + size_text(result.chosen.block_bytes) + ", " +
         size_text(result.chosen.bytes_in_flight) + " in flight\n";
}

json to_json(const Measurement& measurement) {
  json latency{{"max", measurement.latency.largest_seconds() * 1e3}};
  for (const auto& [key, percent] : kPercents)
    latency[key] = measurement.latency.percentile_seconds(percent) * 1e3;
  json tenths = json::array();
  for (const uint64_t bytes : measurement.tenth_bytes) {
    if (measurement.tenth_seconds > 0)
      tenths.push_back(static_cast<double>(bytes) / measurement.tenth_seconds / kGb);
  }
  return {{"gb_per_second", measurement.bytes_per_second() / kGb},
          {"read_bytes", measurement.read_bytes},
          {"written_bytes", measurement.written_bytes},
          {"seconds", measurement.seconds},
          {"transfers", measurement.latency.count()},
          {"latency_ms", std::move(latency)},
          {"cpu_seconds_per_gb", measurement.cpu_seconds_per_gb()},
          {"sync_seconds", measurement.sync_seconds},
          {"gb_per_second_by_tenth", std::move(tenths)}};
}

json to_json(const std::map<Traffic, Measurement>& measurements) {
  json all = json::object();
  for (const auto& [traffic, measurement] : measurements)
    all[std::string(name(traffic))] = to_json(measurement);
  return all;
}

json to_json(const std::optional<ByteCount>& count) {
  if (!count) return nullptr;
  return {{"read_bytes", count->read_bytes}, {"written_bytes", count->written_bytes}};
}

json to_json(const Proof& proof) {
  return {{"reached_drive", proof.reached_drive()},
          {"doubt", proof.doubt},
          {"asked", to_json(std::optional(proof.asked))},
          {"process", to_json(proof.process)},
          {"device", to_json(proof.device)},
          {"pages", proof.residency.page_count},
          {"resident_pages", proof.residency.resident_count}};
}

json settings_json(const DriveResult& result) {
  if (!result.settings) return nullptr;
  const DriveSettings& settings = *result.settings;
  return {{"queue", settings.queue},
          {"block_bytes", settings.block_bytes},
          {"bytes_in_flight", settings.bytes_in_flight},
          {"read_gb_per_second", settings.read_bytes_per_second / kGb},
          {"write_gb_per_second", settings.write_bytes_per_second / kGb},
          {"mixed_gb_per_second", settings.mixed_bytes_per_second / kGb}};
}

json to_json(const DriveResult& result) {
  json sweep = json::array();
  for (const SweepPoint& point : result.sweep) {
    sweep.push_back({{"block_bytes", point.block_bytes},
                     {"bytes_in_flight", point.bytes_in_flight},
                     {"read_gb_per_second", point.read_bytes_per_second / kGb},
                     {"write_gb_per_second", point.write_bytes_per_second / kGb}});
  }
  json queues = json::object();
  for (const QueueRate& rate : result.queues) {
    queues[rate.queue] = {{"read_gb_per_second", rate.read_bytes_per_second / kGb},
                          {"write_gb_per_second", rate.write_bytes_per_second / kGb}};
  }
  return {{"folder", result.folder},
          {"key", result.drive.key},
          {"file_system", result.drive.file_system},
          {"mount_point", result.drive.mount_point},
          {"source", result.drive.source},
          {"disk", result.drive.disk},
          {"model", result.drive.model},
          {"file_bytes", result.file_bytes},
          {"first_write", to_json(result.first_write)},
          {"queue", result.queue},
          {"queues", std::move(queues)},
          {"sweep", std::move(sweep)},
          {"block_bytes", result.chosen.block_bytes},
          {"bytes_in_flight", result.chosen.bytes_in_flight},
          {"measurements", to_json(result.measurements)},
          {"proof", to_json(result.proof)},
          {"settings", settings_json(result)}};
}

}  // namespace

std::string report_text(const Report& report) {
  std::string text;
  for (const DriveResult& result : report.drives) text += drive_text(result);
  if (report.together)
    text.append("all drives together\n").append(measurements_text(report.together->measurements));
  if (!report.settings_file.empty())
    text += "The engine will read the settings in " + report.settings_file.string() + "\n";
  return text;
}

std::string report_json(const Report& report) {
  json drives = json::array();
  for (const DriveResult& result : report.drives) drives.push_back(to_json(result));
  json all{{"program", "nvme_bench"}, {"version", kVersion}, {"drives", std::move(drives)}};
  if (report.together) all["together"] = to_json(report.together->measurements);
  all["settings_file"] = report.settings_file.empty() ? json(nullptr) : json(report.settings_file.string());
  return all.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace sluice::nvme_bench
