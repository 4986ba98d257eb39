#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <omp.h>
#include <oneapi/dnnl/dnnl.hpp>
#include <tuple>

#include "engine/base/math.h"
#include "engine/base/thread_annotations.h"
#include "gpu/host/matmul_library.h"
#include "gpu/host/panel_scalar.h"

// oneDNN 2.6 (docs: https://oneapi-src.github.io/oneDNN/v2.6/). Weights are reordered once, into the layout
// that the library asks for; scratchpads are ours; each call runs on the calling thread.
namespace sluice::gpu::host {
namespace {

using dnnl::memory;

// Rows of one call. All rows go through one of these two: a primitive a shape, and the last few rows of an
// odd count are padded. Whether both give the same bits is tested (tests/gpu/linear_test.cpp).
constexpr int64_t kRows = 64;
constexpr int64_t kFewRows = 8;
// Columns of one packed block.
constexpr int64_t kCols = 384;
// A primitive holds generated code, some 10 to 100 kB: at most this many are kept.
constexpr size_t kMaxPrimitives = 256;

struct Key {
  DType operand;
  int64_t rows, depth, cols;
  auto operator<=>(const Key&) const = default;
};

struct Primitive {
  dnnl::matmul::primitive_desc desc;
  dnnl::matmul primitive;
};

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

memory::data_type library_type(DType dtype) {
  return dtype == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
}

// The library's threads are OpenMP's: the number is the calling thread's own setting.
class OpenMpThreads {
 public:
  explicit OpenMpThreads(int count) : before_(omp_get_max_threads()) { omp_set_num_threads(count); }
  ~OpenMpThreads() { omp_set_num_threads(before_); }
  OpenMpThreads(const OpenMpThreads&) = delete;
  OpenMpThreads& operator=(const OpenMpThreads&) = delete;

 private:
  int before_;
};

dnnl::matmul::primitive_desc make_desc(const Key& key, const memory::desc& weights) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const memory::desc left({key.rows, key.depth}, library_type(key.operand), memory::format_tag::ab);
  const memory::desc out({key.rows, key.cols}, memory::data_type::f32, memory::format_tag::ab);
  return {dnnl::matmul::desc(left, weights, out), attributes, cpu_engine()};
}

// Made on first use, shared by all threads, bounded.
class PrimitiveCache {
 public:
  std::shared_ptr<const Primitive> get(const Key& key) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const auto found = primitives_.find(key);
    if (found != primitives_.end()) return found->second;
    if (primitives_.size() >= kMaxPrimitives) primitives_.clear();
    const dnnl::matmul::primitive_desc desc = make_desc(key, packed_desc(key.operand, key.depth, key.cols));
    auto made = std::make_shared<const Primitive>(Primitive{desc, dnnl::matmul(desc)});
    primitives_.emplace(key, made);
    return made;
  }
  memory::desc packed(DType operand, int64_t depth, int64_t cols) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return packed_desc(operand, depth, cols);
  }

 private:
  // The layout that the library wants for kRows rows; the same for every number of rows.
  const memory::desc& packed_desc(DType operand, int64_t depth, int64_t cols) REQUIRES(mutex_) {
    const auto key = std::tuple(operand, depth, cols);
    const auto found = layouts_.find(key);
    if (found != layouts_.end()) return found->second;
    if (layouts_.size() >= kMaxPrimitives) layouts_.clear();
    const memory::desc any({depth, cols}, library_type(operand), memory::format_tag::any);
    const Key shape{operand, kRows, depth, cols};
    return layouts_.emplace(key, make_desc(shape, any).weights_desc()).first->second;
  }

  Mutex mutex_;
  std::map<Key, std::shared_ptr<const Primitive>> primitives_ GUARDED_BY(mutex_);
  std::map<std::tuple<DType, int64_t, int64_t>, memory::desc> layouts_ GUARDED_BY(mutex_);
};

PrimitiveCache& cache() {
  static PrimitiveCache instance;
  return instance;
}

size_t aligned(size_t bytes) {
  return round_up(bytes, kScratchAlignment);
}

class OneDnnMatmul final : public MatmulKernel {
 public:
  explicit OneDnnMatmul(DType operand) : operand_(operand) {}
  const char* name() const override { return operand_ == DType::bf16 ? "onednn_bf16" : "onednn_fp32"; }
  DType operand() const override { return operand_; }
  int64_t block_cols() const override { return kCols; }
  size_t block_bytes(int64_t depth) const override {
    const OpenMpThreads one(1);
    return depth == 0 ? 0 : aligned(cache().packed(operand_, depth, kCols).get_size());
  }
  size_t pack_scratch_bytes(int64_t depth) const override {
    return static_cast<size_t>(depth * kCols) * size_bytes(operand_);
  }
  void pack(const PackJob& job) const override;
  size_t product_scratch_bytes(int64_t depth, int64_t max_rows) const override;
  void multiply(const BlockProduct& product) const override;
  size_t left_bytes(int64_t depth) const override {
    return static_cast<size_t>(depth * kLeftRows) * size_bytes(operand_);
  }
  LeftOperand pack_left(const View& source, std::byte* out) const override;

 private:
  void multiply_rows(const BlockProduct& product, int64_t row, int64_t rows) const;
  DType operand_;
};

// The block of b in plain rows, in the operand's dtype: [depth][cols] or [cols][depth].
PanelPack plain(const PackJob& job) {
  const bool transposed = job.order == PackOrder::depth_is_col;
  PanelPack plain{.sources = job.sources, .round_to_bf16 = job.round_to_bf16, .panel = job.scratch};
  plain.depth_begin = transposed ? job.col_begin : 0;
  plain.depth = transposed ? job.col_count : job.depth;
  plain.col_begin = transposed ? 0 : job.col_begin;
  plain.col_count = plain.width = transposed ? job.depth : job.col_count;
  return plain;
}

void OneDnnMatmul::pack(const PackJob& job) const {
  if (job.depth == 0 || job.col_count == 0) return;
  const OpenMpThreads one(1);
  copy_rows(plain(job), operand_);
  const memory::dims strides =
      job.order == PackOrder::depth_is_col ? memory::dims{1, job.depth} : memory::dims{job.col_count, 1};
  const memory::desc from({job.depth, job.col_count}, library_type(operand_), strides);
  const memory::desc to = cache().packed(operand_, job.depth, job.col_count);
  SLUICE_CHECK(to.get_size() <= block_bytes(job.depth));
  dnnl::stream stream(cpu_engine());
  const memory source(from, cpu_engine(), job.scratch);
  memory target(to, cpu_engine(), job.block);
  dnnl::reorder(source, target).execute(stream, {{DNNL_ARG_FROM, source}, {DNNL_ARG_TO, target}});
}

// Left rows made dense, sums of one call, and the library's scratchpad.
struct Scratch {
  size_t left = 0, sums = 0, library = 0;
  size_t total() const { return left + sums + library; }
};
// The library asks for a scratchpad by shape; brgemm's is a few rows of the operands. Checked in multiply.
Scratch scratch_layout(DType operand, int64_t depth) {
  return {.left = aligned(static_cast<size_t>(kRows * depth) * size_bytes(operand)),
          .sums = aligned(static_cast<size_t>(kRows * kCols) * sizeof(float)),
          .library = aligned(static_cast<size_t>((kRows + kCols) * (depth + 256)) * sizeof(float))};
}

size_t OneDnnMatmul::product_scratch_bytes(int64_t depth, int64_t) const {
  return scratch_layout(operand_, depth).total();
}

void OneDnnMatmul::multiply(const BlockProduct& product) const {
  if (product.depth == 0) return finish_rows(nullptr, 0, product.addend, product.out);
  const OpenMpThreads one(1);
  int64_t row = 0;
  for (; row + kRows <= product.row_count; row += kRows) multiply_rows(product, row, kRows);
  for (; row < product.row_count; row += kFewRows)
    multiply_rows(product, row, std::min(kFewRows, product.row_count - row));
}

void OneDnnMatmul::multiply_rows(const BlockProduct& product, int64_t row, int64_t rows) const {
  const int64_t size = static_cast<int64_t>(size_bytes(operand_));
  const Scratch layout = scratch_layout(operand_, product.depth);
  const int64_t call_rows = rows == kRows ? kRows : kFewRows;
  SLUICE_CHECK(product.left.depth_stride_bytes == 4);
  // The library's fast kernels take dense rows only.
  const std::byte* left = product.left.data + row * product.left.row_stride_bytes;
  if (rows < call_rows || product.left.row_stride_bytes != product.depth * size) {
    for (int64_t r = 0; r < call_rows; ++r)
      std::memcpy(product.scratch + r * product.depth * size,
                  left + std::min(r, rows - 1) * product.left.row_stride_bytes,
                  static_cast<size_t>(product.depth * size));
    left = product.scratch;
  }
  float* sums = reinterpret_cast<float*>(product.scratch + layout.left);
  const auto primitive = cache().get({operand_, call_rows, product.depth, product.out.cols});
  SLUICE_CHECK(primitive->desc.scratchpad_desc().get_size() <= layout.library);
  dnnl::stream stream(cpu_engine());
  const auto at = [&](const memory::desc& desc, const void* data) {
    return memory(desc, cpu_engine(), const_cast<void*>(data));
  };
  primitive->primitive.execute(
      stream, {{DNNL_ARG_SRC, at(primitive->desc.src_desc(), left)},
               {DNNL_ARG_WEIGHTS, at(primitive->desc.weights_desc(), product.block)},
               {DNNL_ARG_DST, at(primitive->desc.dst_desc(), sums)},
               {DNNL_ARG_SCRATCHPAD,
                at(primitive->desc.scratchpad_desc(), product.scratch + layout.left + layout.sums)}});
  const View addend = product.addend.empty() ? View() : product.addend.row_range(row, row + rows);
  finish_rows(sums, product.out.cols, addend, product.out.row_range(row, row + rows));
}

LeftOperand OneDnnMatmul::pack_left(const View& source, std::byte* out) const {
  const int64_t stride = source.rows * static_cast<int64_t>(size_bytes(operand_));
  copy_transposed(source, operand_, out, stride);
  return {out, stride, 4};
}

}  // namespace

const char* library_name() {
  return "onednn";
}

const MatmulKernel* library_matmul(DType operand) {
  static const OneDnnMatmul f32(DType::f32);
  static const OneDnnMatmul bf16(DType::bf16);
  // bf16 needs AVX-512 at least (oneDNN, data types): elsewhere making a primitive fails.
  static const bool has_bf16 = dnnl::get_effective_cpu_isa() >= dnnl::cpu_isa::avx512_core &&
                               dnnl::get_effective_cpu_isa() != dnnl::cpu_isa::avx2_vnni;
  if (operand == DType::bf16) return has_bf16 ? &bf16 : nullptr;
  return &f32;
}

LibraryProduct make_library_product(const LibraryShape& shape, const void* right, int thread_count) {
  if (library_matmul(shape.operand) == nullptr) return nullptr;
  const OpenMpThreads threads(thread_count);
  const auto strides = [](int64_t rows, int64_t cols, bool turned) {
    return turned ? memory::dims{1, rows} : memory::dims{cols, 1};
  };
  const memory::data_type type = library_type(shape.operand);
  const memory::desc left({shape.rows, shape.depth}, type,
                          strides(shape.rows, shape.depth, shape.left_turned));
  const memory::desc plain({shape.depth, shape.cols}, type,
                           strides(shape.depth, shape.cols, shape.right == PackOrder::depth_is_col));
  const memory::desc any({shape.depth, shape.cols}, type, memory::format_tag::any);
  const memory::desc out({shape.rows, shape.cols}, library_type(shape.out), memory::format_tag::ab);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const dnnl::matmul::primitive_desc desc({left, shape.pack_right ? any : plain, out}, attributes,
                                          cpu_engine());
  memory weights(plain, cpu_engine(), const_cast<void*>(right));
  if (shape.pack_right) {
    dnnl::stream stream(cpu_engine());
    memory packed(desc.weights_desc(), cpu_engine());
    dnnl::reorder(weights, packed).execute(stream, weights, packed);
    weights = packed;
  }
  const memory scratch(desc.scratchpad_desc(), cpu_engine());
  return [desc, primitive = dnnl::matmul(desc), weights, scratch, thread_count](const void* a, void* c) {
    const OpenMpThreads own(thread_count);
    dnnl::stream stream(cpu_engine());
    primitive.execute(stream, {{DNNL_ARG_SRC, memory(desc.src_desc(), cpu_engine(), const_cast<void*>(a))},
                               {DNNL_ARG_WEIGHTS, weights},
                               {DNNL_ARG_DST, memory(desc.dst_desc(), cpu_engine(), c)},
                               {DNNL_ARG_SCRATCHPAD, scratch}});
  };
}

}  // namespace sluice::gpu::host
