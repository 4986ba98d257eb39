#include "apps/finetune/model/json_edit.h"

#include <gtest/gtest.h>
#include <vector>

namespace sluice {
namespace {

std::string edited(std::string text, std::vector<std::string_view> path, std::string_view value) {
  return with_json_value(std::move(text), path, value);
}

TEST(WithJsonValue, ChangesOneValueAndNoOtherByte) {
  EXPECT_EQ(
      edited("{\n  \"a\": 1,\n  \"dtype\" : \"float16\" ,\n  \"b\": [1, 2]\n}\n", {"dtype"}, "\"bfloat16\""),
      "{\n  \"a\": 1,\n  \"dtype\" : \"bfloat16\" ,\n  \"b\": [1, 2]\n}\n");
  EXPECT_EQ(edited("{\"dtype\":null}", {"dtype"}, "1"), "{\"dtype\":1}");
  EXPECT_EQ(edited(" {\"x\":-1.5e3,\"dtype\":{\"y\":[{}]},\"z\":true}", {"dtype"}, "0"),
            " {\"x\":-1.5e3,\"dtype\":0,\"z\":true}");
}

TEST(WithJsonValue, LooksForTheKeyWhereThePathSays) {
  const std::string text =
      R"({"weight_map": {"total_size": "x"}, "metadata": {"n": [{"total_size": 1}], "total_size": 12}})";
  EXPECT_EQ(
      edited(text, {"metadata", "total_size"}, "3456"),
      R"({"weight_map": {"total_size": "x"}, "metadata": {"n": [{"total_size": 1}], "total_size": 3456}})");
  EXPECT_EQ(edited(text, {"total_size"}, "0"), text);
  EXPECT_EQ(edited(text, {"metadata", "absent"}, "0"), text);
  EXPECT_EQ(edited(text, {"metadata", "total_size", "deeper"}, "0"), text);
  EXPECT_EQ(edited("{}", {"a"}, "0"), "{}");
}

TEST(WithJsonValue, IsNotMisledByTexts) {
  const std::string text = R"({"a\"dtype": "\"dtype\": 1, {", "t": "}\\", "dtype": "x\"y"})";
  EXPECT_EQ(edited(text, {"dtype"}, "2"), R"({"a\"dtype": "\"dtype\": 1, {", "t": "}\\", "dtype": 2})");
}

TEST(WithJsonValue, OfTwoTheLastOneCounts) {
  EXPECT_EQ(edited(R"({"a": 1, "a": 2})", {"a"}, "3"), R"({"a": 1, "a": 3})");
}

}  // namespace
}  // namespace sluice
