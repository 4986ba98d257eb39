#include "gpu/timed/gpu_models.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

namespace sluice::gpu {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// A kernel that does next to nothing takes 2.9 us, and 3.8 us where launches are queued ahead ("Getting
// Started with CUDA Graphs", NVIDIA technical blog, 2019, V100); newer cards are a little quicker.
constexpr double kLaunchSeconds = 3e-6;

// What nvbandwidth and bandwidthTest report for page-locked memory: about 80 to 88 % of the link's 31.5 GB/s
// (4.0 x16) and 63 GB/s (5.0 x16).
constexpr double kPcie4x8 = 12.5e9;
constexpr double kPcie4x16 = 25e9;
constexpr double kPcie5x16 = 55e9;

GpuModel make(const char* name, double bf16, double f32, double memory, size_t mebibytes, double pcie) {
  return {.name = name,
          .bf16_flops_per_second = bf16,
          .f32_flops_per_second = f32,
          .memory_bytes_per_second = memory,
          .memory_bytes = mebibytes * kMiB,
          .copy_in_bytes_per_second = pcie,
          .copy_out_bytes_per_second = pcie,
          .launch_seconds = kLaunchSeconds};
}

// GeForce: appendix tables of NVIDIA's architecture whitepapers (GA102, Ada, Blackwell RTX): dense tensor
// bf16 with fp32 sums is twice the fp32 of the shaders; where a card is not in them, shaders x 2 x boost
// clock (3060: 3584 at 1.777 GHz; laptop 4060: 3072 at 2.37 GHz, its highest). Data centre: the SXM data
// sheets. Memory sizes are nvidia-smi's.
const std::vector<GpuModel>& table() {
  static const std::vector<GpuModel> kTable = {
      make("RTX 4090", 165.2e12, 82.6e12, 1008e9, 24564, kPcie4x16),
      make("RTX 3060", 25.5e12, 12.74e12, 360e9, 12288, kPcie4x16),
      make("RTX 5090", 209.5e12, 104.8e12, 1792e9, 32607, kPcie5x16),
      make("A100 80GB", 312e12, 19.5e12, 2039e9, 81920, kPcie4x16),
      make("H100", 989.4e12, 66.9e12, 3350e9, 81559, kPcie5x16),
      make("H200", 989.4e12, 66.9e12, 4800e9, 143771, kPcie5x16),
      make("laptop RTX 4060", 29.1e12, 14.56e12, 256e9, 8188, kPcie4x8)};
  return kTable;
}

// Letters and digits, small, without the maker's words.
std::string key_of(std::string_view name) {
  std::string key;
  for (const char letter : name) {
    const auto value = static_cast<unsigned char>(letter);
    if (std::isalnum(value)) key += static_cast<char>(std::tolower(value));
  }
  for (const std::string_view word : {"nvidia", "geforce"}) {
    if (const size_t at = key.find(word); at != std::string::npos) key.erase(at, word.size());
  }
  return key;
}

// Letters that stand in both in the same order (longest common subsequence): their share of the shorter, so
// that a part of a name is as good as the name, then of both.
std::pair<double, double> similarity(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (const char letter : a) {
    size_t diagonal = 0;
    for (size_t i = 0; i < b.size(); ++i) {
      const size_t above = row[i + 1];
      row[i + 1] = letter == b[i] ? diagonal + 1 : std::max(above, row[i]);
      diagonal = above;
    }
  }
  const auto common = static_cast<double>(row[b.size()]);
  const auto share = [&](size_t letters) {
    return common / static_cast<double>(std::max(letters, size_t{1}));
  };
  return {share(std::min(a.size(), b.size())), share(a.size() + b.size())};
}

std::string quoted(std::string_view text) {
  return std::string("'").append(text).append("'");
}

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorKind::usage, message);
}

[[noreturn]] void fail_unknown(std::string_view text) {
  const std::string key = key_of(text);
  const GpuModel& nearest = *std::ranges::max_element(
      table(), {}, [&](const GpuModel& model) { return similarity(key, key_of(model.name)); });
  std::string message =
      "no GPU " + quoted(text) + " is known. Did you mean " + quoted(nearest.name) + "? Known:";
  for (const GpuModel& model : table()) message.append(" ").append(quoted(model.name));
  fail(message + ". Or give numbers: flops=80e12,memory=1e12,pcie=25e9.");
}

double number_of(std::string_view key, std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value) || value <= 0)
    fail(quoted(std::string(key).append("=").append(text)) + " is no number above 0, as in flops=80e12.");
  return value;
}

GpuModel from_numbers(std::string_view text) {
  struct Key {
    std::string_view name;
    double value = 0;
  };
  std::vector<Key> keys = {{"flops"},   {"f32_flops"}, {"memory"}, {"pcie"},
                           {"pcie_in"}, {"pcie_out"},  {"launch"}, {"capacity"}};
  const auto find = [&](std::string_view name) { return std::ranges::find(keys, name, &Key::name); };
  const auto value = [&](std::string_view name, double otherwise) {
    const double given = find(name)->value;
    return given > 0 ? given : otherwise;
  };
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(item.size() + 1, rest.size()));
    const size_t equals = std::min(item.find('='), item.size());
    const auto key = find(item.substr(0, equals));
    if (key == keys.end() || equals == item.size()) {
      std::string message = quoted(item) + " describes no GPU. Known:";
      for (const Key& known : keys) message.append(" ").append(known.name).append("=NUMBER");
      fail(message + ".");
    }
    key->value = number_of(key->name, item.substr(equals + 1));
  }
  const double pcie = value("pcie", 0);
  GpuModel model{.name = std::string(text),
                 .bf16_flops_per_second = value("flops", 0),
                 .f32_flops_per_second = value("f32_flops", value("flops", 0) / 2),
                 .memory_bytes_per_second = value("memory", 0),
                 .memory_bytes = static_cast<size_t>(std::min(value("capacity", 0), 1e18)),
                 .copy_in_bytes_per_second = value("pcie_in", pcie),
                 .copy_out_bytes_per_second = value("pcie_out", pcie),
                 .launch_seconds = value("launch", kLaunchSeconds)};
  if (model.bf16_flops_per_second == 0 || model.memory_bytes_per_second == 0 ||
      model.copy_in_bytes_per_second == 0 || model.copy_out_bytes_per_second == 0) {
    fail(quoted(text) +
         " lacks a rate that a GPU needs: give flops, memory and pcie, as in "
         "flops=80e12,memory=1e12,pcie=25e9.");
  }
  return model;
}

}  // namespace

std::vector<std::string> gpu_model_names() {
  std::vector<std::string> names;
  for (const GpuModel& model : table()) names.push_back(model.name);
  return names;
}

GpuModel gpu_model(std::string_view text) {
  if (text.find('=') != std::string_view::npos) return from_numbers(text);
  const auto found = std::ranges::find(table(), key_of(text), [](const auto& m) { return key_of(m.name); });
  if (found == table().end()) fail_unknown(text);
  return *found;
}

DeviceTraits traits_of(const GpuModel& model) {
  return {.name = model.name,
          .preferred_compute_dtype = DType::bf16,
          .shares_host_memory = false,
          .f32_flops_per_second = model.f32_flops_per_second,
          .bf16_flops_per_second = model.bf16_flops_per_second,
          .copy_in_bytes_per_second = model.copy_in_bytes_per_second,
          .copy_out_bytes_per_second = model.copy_out_bytes_per_second};
}

double op_seconds(const GpuModel& model, const OpCost& cost) {
  const double rate = cost.rate == DType::bf16 ? model.bf16_flops_per_second : model.f32_flops_per_second;
  return std::max(cost.flops / rate, cost.bytes / model.memory_bytes_per_second) + model.launch_seconds;
}

}  // namespace sluice::gpu
