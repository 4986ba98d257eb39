#pragma once

#include <cmath>

#include "gpu/reference/reference.h"
#include "tests/contract/ops_contract.h"

// Causal attention over segments: gpu/ops/attention.h. Elements of q, k, v and d_o are in [-1, 1].
namespace sluice::test {

class AttentionOpsContract : public OpsContract {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(AttentionOpsContract);

struct AttentionCase {
  std::string name;
  gpu::AttentionShape shape;
  std::vector<gpu::AttentionSegment> segments;
  int64_t query_rows = 0;
  int64_t key_rows = 0;
};

inline gpu::AttentionShape attention_shape(int64_t heads, int64_t key_value_heads, int64_t head_dim) {
  return {heads, key_value_heads, head_dim, static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)))};
}

// Documents one behind the other; `padding` rows at the end belong to none.
inline AttentionCase packed_documents(std::string name, const gpu::AttentionShape& shape,
                                      const std::vector<int64_t>& lengths, int64_t padding) {
  AttentionCase result{std::move(name), shape, {}, 0, 0};
  int64_t row = 0;
  for (int64_t length : lengths) {
    result.segments.push_back({row, length, row, length});
    row += length;
  }
  result.query_rows = result.key_rows = row + padding;
  return result;
}

// All ratios of heads and all head dims, documents around the query blocks of 32 and 64.
inline std::vector<AttentionCase> training_cases() {
  std::vector<AttentionCase> cases;
  for (int64_t head_dim : {2, 8, 10, 16, 17, 64, 80, 128})
    cases.push_back(packed_documents("head_dim " + std::to_string(head_dim), attention_shape(2, 1, head_dim),
                                     {1, 5, 33}, 3));
  for (int64_t heads : {1, 3, 4})
    for (int64_t groups : {1, 2})
      cases.push_back(packed_documents(std::to_string(heads) + " heads for each of " + std::to_string(groups),
                                       attention_shape(heads * groups, groups, 16), {7, 1, 20}, 1));
  for (int64_t length : {2, 31, 32, 63, 64, 65, 97, 129})
    cases.push_back(
        packed_documents("length " + std::to_string(length), attention_shape(3, 1, 8), {length}, 0));
  cases.push_back(packed_documents("no rows", attention_shape(2, 1, 8), {}, 0));
  cases.push_back(packed_documents("padding alone", attention_shape(2, 1, 8), {}, 4));
  cases.push_back(packed_documents("an empty document", attention_shape(2, 1, 8), {3, 0, 2}, 0));
  return cases;
}

// Generation: few queries against long caches that lie apart; rows between are of no segment.
inline std::vector<AttentionCase> generation_cases() {
  return {
      {"one query each", attention_shape(4, 2, 16), {{0, 1, 0, 40}, {1, 1, 64, 1}, {2, 1, 70, 65}}, 3, 140},
      {"a prompt behind a prefix", attention_shape(3, 1, 64), {{2, 33, 5, 100}}, 40, 110},
      {"queries in other order", attention_shape(2, 2, 10), {{4, 3, 0, 9}, {0, 2, 20, 2}}, 8, 30}};
}

// Errors of attention, relative to the sum of magnitudes of what is summed: the scores' (a product of D terms
// up to 1, scaled by D^-0.5) become relative errors of the probabilities, twice (numerator and denominator);
// sums over keys; and with bf16, probabilities and their gradients may be rounded to bf16 before the second
// product.
inline double attention_error(const AttentionCase& given, DType dtype) {
  const double head_dim = static_cast<double>(given.shape.head_dim);
  const double scores = sum_error(given.shape.head_dim) * head_dim * given.shape.scale;
  const double narrow = dtype == DType::bf16 ? unit_roundoff(DType::bf16) : 0;
  return 2 * scores + sum_error(given.key_rows) + 8 * kU32 + narrow;
}

inline gpu::AttentionSegments shared_segments(const AttentionCase& given) {
  return std::make_shared<const std::vector<gpu::AttentionSegment>>(given.segments);
}

// Operands 0 to 4: q, k, v, o, lse.
inline Trial attention_trial(Random& random, const AttentionCase& given, DType dtype) {
  const int64_t query_cols = given.shape.head_count * given.shape.head_dim;
  const int64_t key_cols = given.shape.key_value_head_count * given.shape.head_dim;
  Trial trial;
  trial.add("q", random_matrix(random, dtype, given.query_rows, query_cols));
  trial.add("k", random_matrix(random, dtype, given.key_rows, key_cols));
  trial.add("v", random_matrix(random, dtype, given.key_rows, key_cols));
  trial.add("o", random_matrix(random, dtype, given.query_rows, query_cols));
  trial.add("lse", random_matrix(random, DType::f32, given.query_rows, given.shape.head_count));
  return trial;
}

TEST_P(AttentionOpsContract, Forward) {
  std::vector<AttentionCase> cases = training_cases();
  for (AttentionCase& given : generation_cases()) cases.push_back(std::move(given));
  for (DType dtype : kComputeTypes) {
    for (const AttentionCase& given : cases) {
      for (bool wants_lse : {true, false}) {
        SCOPED_TRACE(testing::Message() << name(dtype) << " " << given.name);
        Trial trial = attention_trial(random, given, dtype);
        const double error = attention_error(given, dtype);
        trial.operands[3].tolerance = {neighbour(dtype), error + kSmallest};
        if (wants_lse) trial.operands[4].tolerance = {neighbour(DType::f32), error};
        trial.program = [&](auto views, PackedBuffers&) -> std::vector<gpu::Op> {
          return {gpu::AttentionForward{given.shape, shared_segments(given), views[0], views[1], views[2],
                                        views[3], wants_lse ? views[4] : gpu::View()}};
        };
        expect(trial);
      }
    }
  }
}

// With these scores (within 1 of 0, nearly always) a key j gets at most 4 / (i + 1) of the query i's
// attention, so 4 (1 + ln T) from all queries of a head. d_o v and d_o o are nearly always within sqrt(D),
// their difference within 2 sqrt(D), so ds is within 2 p at scale D^-0.5.
TEST_P(AttentionOpsContract, Backward) {
  for (DType dtype : kComputeTypes) {
    for (const AttentionCase& given : training_cases()) {
      SCOPED_TRACE(testing::Message() << name(dtype) << " " << given.name);
      Trial trial = attention_trial(random, given, dtype);
      gpu::reference::run(
          gpu::AttentionForward{given.shape, shared_segments(given), trial.operands[0].matrix.view(),
                                trial.operands[1].matrix.view(), trial.operands[2].matrix.view(),
                                trial.operands[3].matrix.view(), trial.operands[4].matrix.view()});
      const gpu::View q = trial.operands[0].matrix.view(), k = trial.operands[1].matrix.view();
      const double error = 2 * attention_error(given, dtype);
      const double ratio = static_cast<double>(given.shape.head_count / given.shape.key_value_head_count);
      const double per_key = ratio * 4 * (1 + std::log(static_cast<double>(given.key_rows + 1)));
      trial.add("d_o", random_matrix(random, dtype, q.rows, q.cols));
      trial.add("dq", random_matrix(random, dtype, q.rows, q.cols), {neighbour(dtype), error + kSmallest});
      trial.add("dk", random_matrix(random, dtype, k.rows, k.cols),
                {neighbour(dtype), per_key * error + kSmallest});
      trial.add("dv", random_matrix(random, dtype, k.rows, k.cols),
                {neighbour(dtype), per_key * error + kSmallest});
      trial.program = [&](auto views, PackedBuffers&) -> std::vector<gpu::Op> {
        return {gpu::AttentionBackward{given.shape, shared_segments(given), views[0], views[1], views[2],
                                       views[3], views[4], views[5], views[6], views[7], views[8]}};
      };
      expect(trial);
    }
  }
}

}  // namespace sluice::test
