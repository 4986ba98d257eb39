#include <algorithm>
#include <cstring>
#include <hwy/base.h>
#include <immintrin.h>

#include "engine/base/error.h"
#include "gpu/host/panel.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,prfchw")
#include "gpu/host/panel_avx512.h"

namespace sluice::gpu::host {
namespace {

struct BFloat16Pair {
  static constexpr int64_t kGroup = 2;
  static __m512 multiply_add(__m512 left, __m512 right, __m512 sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(left), reinterpret_cast<__m512bh>(right));
  }
};

}  // namespace
}  // namespace sluice::gpu::host
HWY_POP_ATTRIBUTES

namespace sluice::gpu::host {

const PanelKernel& avx512_bf16_panel() {
  static constexpr PanelKernel kKernel{"avx512_bf16", DType::bf16, pack_panel<true>, turn<true>,
                                       multiply_panel<BFloat16Pair>};
  return kKernel;
}

}  // namespace sluice::gpu::host
