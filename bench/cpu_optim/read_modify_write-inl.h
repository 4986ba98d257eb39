// What memory allows an optimizer, once per instruction set: the same streams, read and written in place with
// the same widths and store kinds, and next to no arithmetic.

#if defined(SLUICE_READ_MODIFY_WRITE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_READ_MODIFY_WRITE_INL_H
#undef SLUICE_READ_MODIFY_WRITE_INL_H
#else
#define SLUICE_READ_MODIFY_WRITE_INL_H
#endif

#include <cstdint>

#include "bench/cpu_optim/streams.h"
#include "cpu_optim/state_format.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu_optim {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Tag = hn::ScalableTag<uint32_t>;
inline constexpr int64_t kBlock = 32;  // elements: two cache lines of fp32, one of 16-bit numbers

// One block of each stream: kFloats fp32 streams and kWords 16-bit streams in place, one 16-bit stream read,
// and with kStreamed one 16-bit stream written past the cache.
template <int kFloats, int kWords, bool kStreamed>
HWY_INLINE hn::Vec<Tag> touch_block(const Streams& streams, int64_t i, hn::Vec<Tag> mix) {
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t lane = 0; lane < kBlock / 2; lane += lanes) {
    const int64_t word = i / 2 + lane;  // 16-bit streams as pairs of elements
    const int64_t first = i + 2 * lane;
    mix = hn::Or(mix, hn::And(hn::LoadU(d, streams.gradient + word), hn::Set(d, streams.mask)));
    hn::Vec<Tag> words[kWords + 1], floats[kFloats + 1][2];  // loaded all, then stored all, as a kernel does
    for (int k = 0; k < kWords; ++k) words[k] = hn::LoadU(d, streams.words[k] + word);
    for (int k = 0; k < kFloats; ++k) {
      floats[k][0] = hn::LoadU(d, streams.floats[k] + first);
      floats[k][1] = hn::LoadU(d, streams.floats[k] + first + lanes);
    }
    for (int k = 0; k < kWords; ++k) hn::StoreU(hn::Add(words[k], mix), d, streams.words[k] + word);
    for (int k = 0; k < kFloats; ++k) {
      hn::StoreU(hn::Add(floats[k][0], mix), d, streams.floats[k] + first);
      hn::StoreU(hn::Add(floats[k][1], mix), d, streams.floats[k] + first + lanes);
    }
    if (kStreamed) hn::Stream(mix, d, streams.streamed + word);
  }
  return mix;
}

template <int kFloats, int kWords, bool kStreamed>
void touch(const Streams& streams, int64_t begin, int64_t count, int64_t distance) {
  auto mix = hn::Zero(Tag());
  for (int64_t i = begin; i + kBlock <= begin + count; i += kBlock) {
    if (distance > 0) {
      const int64_t ahead = i + distance;
      hwy::Prefetch(streams.gradient + ahead / 2);
      for (int k = 0; k < kWords; ++k) hwy::Prefetch(streams.words[k] + ahead / 2);
      for (int k = 0; k < kFloats; ++k) {
        hwy::Prefetch(streams.floats[k] + ahead);
        hwy::Prefetch(streams.floats[k] + ahead + 16);
      }
    }
    mix = touch_block<kFloats, kWords, kStreamed>(streams, i, mix);
  }
  hwy::FlushStream();
}

void touch_split(const Streams& streams, int64_t begin, int64_t count, int64_t distance) {
  touch<2, 2, false>(streams, begin, count, distance);
}
void touch_split_bf16(const Streams& streams, int64_t begin, int64_t count, int64_t distance) {
  touch<0, 4, false>(streams, begin, count, distance);
}
void touch_bf16(const Streams& streams, int64_t begin, int64_t count, int64_t distance) {
  touch<0, 3, false>(streams, begin, count, distance);
}
void touch_fp32(const Streams& streams, int64_t begin, int64_t count, int64_t distance) {
  touch<3, 0, true>(streams, begin, count, distance);
}

// Gradient and weight in blocks, and beside each record of elements its two records of moments.
void touch_int8(const Streams& streams, int64_t begin, int64_t count, int64_t distance) {
  const Tag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr int64_t kRecordWords = kInt8RecordBytes / 4;
  auto mix = hn::Zero(d);
  for (int64_t i = begin; i + kInt8Block <= begin + count; i += kInt8Block) {
    for (int64_t block = i; block < i + kInt8Block; block += kBlock) {
      if (distance > 0) {
        hwy::Prefetch(streams.gradient + (block + distance) / 2);
        hwy::Prefetch(streams.words[0] + (block + distance) / 2);
      }
      mix = touch_block<0, 1, false>(streams, block, mix);
    }
    for (uint32_t* records : streams.records) {
      uint32_t* record = records + i / kInt8Block * kRecordWords;
      for (int64_t word = 0; word < kRecordWords && distance > 0; word += 16) {
        hwy::Prefetch(record + (distance + kInt8Block - 1) / kInt8Block * kRecordWords + word);
      }
      for (int64_t word = 0; word < kInt8Block / 4; word += lanes) {
        hn::StoreU(hn::Add(hn::LoadU(d, record + word), mix), d, record + word);
      }
      record[kRecordWords - 1] += hn::GetLane(mix);  // the unit
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice::cpu_optim
HWY_AFTER_NAMESPACE();

#endif
