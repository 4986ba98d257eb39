#include "gpu/host/kernel_table.h"

#include <cpuid.h>

#include "gpu/host/matmul_library.h"
#include "gpu/host/matmul_panel.h"

namespace sluice::gpu::host {
namespace {

const PanelMatmul& panel_matmul(const PanelKernel& (*kernel)()) {
  static const PanelMatmul generic(generic_panel());
  static const PanelMatmul avx512(avx512_panel());
  static const PanelMatmul avx512_bf16(avx512_bf16_panel());
  return kernel == generic_panel ? generic : kernel == avx512_panel ? avx512 : avx512_bf16;
}

bool has_amx_bf16() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  if ((edx & kAmxBf16) == 0 || (edx & kAmxTile) == 0) return false;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & (1u << 27)) == 0) return false;  // OSXSAVE
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr unsigned kTileState = 3u << 17;  // XCR0: the system saves tile registers
  return (low & kTileState) == kTileState;
}

}  // namespace

CpuFeatures cpu_features() {
  __builtin_cpu_init();
  CpuFeatures features;
  features.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kAvx512Bf16 = 1u << 5;
  features.avx512_bf16 =
      features.avx512 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & kAvx512Bf16) != 0;
  features.amx_bf16 = features.avx512 && has_amx_bf16();
  features.amd = __builtin_cpu_is("amd") != 0;
  return features;
}

// bf16 against fp32, measured (shared facts, build): AMX 3 to 4 times, AMD with AVX512_BF16 2.0 times, Intel
// with AVX512_BF16 and no AMX 0.5 to 0.6 times.
KernelTable kernel_table(const CpuFeatures& features) {
  const MatmulKernel* library_f32 = library_matmul(DType::f32);
  const MatmulKernel* library_bf16 = library_matmul(DType::bf16);
  KernelTable table;
  table.f32 = features.avx512 ? &panel_matmul(avx512_panel)
              : library_f32   ? library_f32
                              : &panel_matmul(generic_panel);
  table.attention_f32 = features.avx512 ? &avx512_panel() : &generic_panel();
  table.bf16 = table.f32;
  table.attention_bf16 = table.attention_f32;
  if (features.amx_bf16 && library_bf16 != nullptr) {
    table.id = std::string("amx_bf16_") + library_name() + "-1";
    table.bf16 = library_bf16;
    table.attention_bf16 = features.avx512_bf16 ? &avx512_bf16_panel() : table.attention_f32;
    table.preferred_compute_dtype = DType::bf16;
  } else if (features.avx512_bf16 && features.amd) {
    table.id = "avx512_bf16-1";
    table.bf16 = &panel_matmul(avx512_bf16_panel);
    table.attention_bf16 = &avx512_bf16_panel();
    table.preferred_compute_dtype = DType::bf16;
  } else {
    table.id = features.avx512 ? "avx512-1"
               : library_f32   ? std::string("generic_") + library_name() + "-1"
                               : "generic-1";
  }
  return table;
}

const KernelTable& kernel_table() {
  static const KernelTable table = kernel_table(cpu_features());
  return table;
}

std::vector<const PanelKernel*> usable_panel_kernels() {
  const CpuFeatures features = cpu_features();
  std::vector<const PanelKernel*> kernels{&generic_panel()};
  if (features.avx512) kernels.push_back(&avx512_panel());
  if (features.avx512_bf16) kernels.push_back(&avx512_bf16_panel());
  return kernels;
}

std::vector<const MatmulKernel*> usable_matmul_kernels() {
  const CpuFeatures features = cpu_features();
  std::vector<const MatmulKernel*> kernels{&panel_matmul(generic_panel)};
  if (features.avx512) kernels.push_back(&panel_matmul(avx512_panel));
  if (features.avx512_bf16) kernels.push_back(&panel_matmul(avx512_bf16_panel));
  for (DType operand : {DType::f32, DType::bf16})
    if (const MatmulKernel* kernel = library_matmul(operand)) kernels.push_back(kernel);
  return kernels;
}

std::string kernel_table_id() {
  return kernel_table().id;
}

DType preferred_compute_dtype() {
  return kernel_table().preferred_compute_dtype;
}

}  // namespace sluice::gpu::host
