#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace sluice::test {

// Makes small GGUF files (version 3), sound or damaged on purpose.
class GgufWriter {
 public:
  uint32_t version = 3;
  uint32_t alignment = 32;  // used for the layout; set general.alignment besides where it is not 32

  static std::string text(std::string_view value) {
    return number(uint64_t{value.size()}) + std::string(value);
  }
  template <class T>
  static std::string number(T value) {
    return {reinterpret_cast<const char*>(&value), sizeof(value)};
  }

  void set(const std::string& key, uint8_t value) { set_raw(key, 0, number(value)); }
  void set(const std::string& key, int32_t value) { set_raw(key, 5, number(value)); }
  void set(const std::string& key, uint32_t value) { set_raw(key, 4, number(value)); }
  void set(const std::string& key, uint64_t value) { set_raw(key, 10, number(value)); }
  void set(const std::string& key, float value) { set_raw(key, 6, number(value)); }
  void set(const std::string& key, double value) { set_raw(key, 12, number(value)); }
  void set(const std::string& key, bool value) { set_raw(key, 7, number(value)); }
  void set(const std::string& key, const std::string& value) { set_raw(key, 8, text(value)); }
  void set(const std::string& key, const std::vector<int32_t>& values) { set_list(key, 5, values); }
  void set(const std::string& key, const std::vector<float>& values) { set_list(key, 6, values); }
  void set(const std::string& key, const std::vector<std::string>& values) {
    std::string bytes = number(uint32_t{8}) + number(uint64_t{values.size()});
    for (const std::string& value : values) bytes += text(value);
    set_raw(key, 9, bytes);
  }
  void set_raw(const std::string& key, uint32_t type, const std::string& bytes) {
    erase(key);
    pairs_.emplace_back(key, number(type) + bytes);
  }
  void erase(const std::string& key) {
    std::erase_if(pairs_, [&](const auto& pair) { return pair.first == key; });
  }
  // Keeps an equal key that is there already.
  void add_pair_again(const std::string& key) { pairs_.emplace_back(key, number(uint32_t{0}) + '\1'); }

  // `shape` is outermost first.
  void add(const std::string& name, std::vector<uint64_t> shape, const std::vector<float>& values) {
    add_raw(name, std::move(shape), 0,
            {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
  }
  void add_raw(const std::string& name, std::vector<uint64_t> shape, uint32_t type,
               const std::string& bytes) {
    const uint64_t offset = data_.size();
    data_ += bytes;
    data_.resize((data_.size() + alignment - 1) / alignment * alignment);
    tensors_.push_back({name, std::move(shape), type, offset});
  }
  void replace(const std::string& name, std::vector<uint64_t> shape, const std::vector<float>& values) {
    remove(name);
    add(name, std::move(shape), values);
  }
  void replace_raw(const std::string& name, std::vector<uint64_t> shape, uint32_t type,
                   const std::string& bytes) {
    remove(name);
    add_raw(name, std::move(shape), type, bytes);
  }
  void set_offset(size_t tensor, uint64_t offset) { tensors_[tensor].offset = offset; }

  std::string header() const {
    std::string bytes =
        "GGUF" + number(version) + number(uint64_t{tensors_.size()}) + number(uint64_t{pairs_.size()});
    for (const auto& [key, value] : pairs_) bytes += text(key) + value;
    for (const Tensor& tensor : tensors_) {
      bytes += text(tensor.name) + number(static_cast<uint32_t>(tensor.shape.size()));
      for (auto it = tensor.shape.rbegin(); it != tensor.shape.rend(); ++it) bytes += number(*it);
      bytes += number(tensor.type) + number(tensor.offset);
    }
    return bytes;
  }
  std::string bytes() const {
    std::string all = header();
    all.resize((all.size() + alignment - 1) / alignment * alignment);
    all += data_;
    return all;
  }
  void write(const std::filesystem::path& path) const { write_all(path, bytes()); }

 private:
  struct Tensor {
    std::string name;
    std::vector<uint64_t> shape;
    uint32_t type;
    uint64_t offset;
  };

  template <class T>
  void set_list(const std::string& key, uint32_t type, const std::vector<T>& values) {
    std::string bytes = number(type) + number(uint64_t{values.size()});
    for (const T& value : values) bytes += number(value);
    set_raw(key, 9, bytes);
  }
  void remove(const std::string& name) {
    std::erase_if(tensors_, [&](const Tensor& tensor) { return tensor.name == name; });
  }

  std::vector<std::pair<std::string, std::string>> pairs_;
  std::vector<Tensor> tensors_;
  std::string data_;
};

}  // namespace sluice::test
