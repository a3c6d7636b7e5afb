// SPDX-License-Identifier: Apache-2.0
// Each defect of a safetensors header, by its place and numbers.
#include "engine/model/safetensors.hpp"
#include "tests/support/temporary_directory.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

namespace di::engine {
namespace {

std::vector<std::byte> file_of(std::string_view header, std::size_t data_bytes) {
  std::vector<std::byte> bytes(8 + header.size() + data_bytes);
  const std::uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, 8);
  std::memcpy(bytes.data() + 8, header.data(), header.size());
  return bytes;
}

/// All defects of a file "f" with this header, padded to whole 8 bytes as writers do.
std::string defects(std::string header, std::size_t data_bytes) {
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const auto bytes = file_of(header, data_bytes);
  problem_list problems;
  (void)parse_safetensors_header(bytes, bytes.size(), "f", problems);
  return problems.empty() ? "none" : problems.to_error().render();
}

std::string raw_defects(std::span<const std::byte> bytes) {
  problem_list problems;
  (void)parse_safetensors_header(bytes, bytes.size(), "f", problems);
  return problems.empty() ? "none" : problems.to_error().render();
}

constexpr const char* good = R"({"__metadata__":{"format":"pt"},)"
                             R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[24,30]},)"
                             R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                             R"("c":{"dtype":"F8_E4M3","shape":[],"data_offsets":[30,31]}})";

TEST(safetensors_header, lists_tensors_in_data_order) {
  std::string text = good;
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const auto bytes = file_of(text, 31);
  problem_list problems;
  const auto h = parse_safetensors_header(bytes, bytes.size(), "f", problems);
  ASSERT_TRUE(problems.empty()) << problems.to_error().render();
  ASSERT_EQ(h.tensors.size(), 3U);
  EXPECT_EQ(h.data_start, 8 + text.size());
  EXPECT_EQ(h.tensors[0].name, "a");
  EXPECT_EQ(h.tensors[0].shape, (tensor_shape{2, 3}));
  EXPECT_EQ(h.tensors[1].type, dtype::bfloat16);
  EXPECT_EQ(h.tensors[2].shape.rank(), 0U);
  EXPECT_EQ(h.tensors[2].end, 31U);
}

TEST(safetensors_header, refuses_a_file_shorter_than_its_length_field) {
  const std::vector<std::byte> bytes(7);
  EXPECT_EQ(raw_defects(bytes),
            "bad_format: f: expected 8 bytes of header length, found a file of 7 bytes");
}

TEST(safetensors_header, refuses_a_truncated_header) {
  const auto bytes = file_of(good, 0);
  const auto whole = bytes.size();
  EXPECT_EQ(raw_defects(std::span{bytes}.first(whole - 10)),
            fmt::format("bad_format: f: truncated header: expected {} bytes after the length, "
                        "found {}",
                        whole - 8, whole - 18));
}

TEST(safetensors_header, refuses_absurd_header_lengths_without_allocating) {
  auto bytes = file_of(good, 31);
  std::memset(bytes.data(), 0xFF, 8);
  EXPECT_EQ(raw_defects(bytes), "bad_format: f: expected a header of at most 104857600 bytes, "
                                "found length 18446744073709551615");
  const std::uint64_t much = 90'000'000;
  std::memcpy(bytes.data(), &much, 8);
  EXPECT_EQ(raw_defects(bytes).substr(0, 75),
            "bad_format: f: truncated header: expected 90000000 bytes after the length, ");
}

TEST(safetensors_header, refuses_bad_json_by_its_byte) {
  EXPECT_EQ(defects(R"({"a": nope})", 0).substr(0, 35), "bad_format: f: bad JSON at byte 8: ");
  EXPECT_EQ(defects("[]", 0), "bad_format: f: header: expected a JSON object, found array");
  EXPECT_EQ(defects(R"({"a":[[[[1]]]]})", 0), "bad_format: f: JSON nested deeper than 4 levels");
}

TEST(safetensors_header, refuses_duplicate_names) {
  EXPECT_EQ(defects(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                    R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                    2),
            "duplicate: f: key \"a\" occurs twice in one object");
}

TEST(safetensors_header, refuses_truncated_data) {
  EXPECT_EQ(defects(good, 30),
            "bad_format: f: tensor c: data_offsets: expected a range inside the 30 bytes of data, "
            "found 30..31");
}

TEST(safetensors_header, refuses_offsets_outside_the_file_and_backwards) {
  EXPECT_EQ(defects(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[100,104]}})", 8),
            "bad_format: f: tensor a: data_offsets: expected a range inside the 8 bytes of data, "
            "found 100..104");
  EXPECT_EQ(defects(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}})", 4),
            "bad_format: f: tensor a: data_offsets: expected a range inside the 4 bytes of data, "
            "found 4..0");
  EXPECT_EQ(defects(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[-4,0]}})", 4),
            "bad_format: f: tensor a: data_offsets: expected two byte offsets, found [-4,0]");
  EXPECT_EQ(defects(R"({"a":{"dtype":"U8","shape":[4]}})", 4),
            "bad_format: f: tensor a: data_offsets: expected two byte offsets, found none");
}

TEST(safetensors_header, refuses_overlapping_tensors) {
  EXPECT_EQ(defects(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                    R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
                    6),
            "bad_format: f: tensor b: expected data from byte 4 on, after a; found 2..6, an "
            "overlap\nf: expected 4 bytes of data, found 6: 2 bytes after the last tensor");
}

TEST(safetensors_header, refuses_holes_and_a_rest) {
  EXPECT_EQ(defects(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                    R"("b":{"dtype":"U8","shape":[4],"data_offsets":[6,10]}})",
                    12),
            "bad_format: f: tensor b: expected data from byte 4 on, found 6..10: a hole of 2 "
            "bytes\nf: expected 10 bytes of data, found 12: 2 bytes after the last tensor");
}

TEST(safetensors_header, refuses_ranges_that_do_not_fit_type_and_shape) {
  EXPECT_EQ(defects(R"({"a":{"dtype":"BF16","shape":[4,2],"data_offsets":[0,8]}})", 8),
            "bad_format: f: tensor a: data_offsets: expected 16 bytes for BF16 [4, 2], found 0..8, "
            "8 bytes");
}

TEST(safetensors_header, refuses_misaligned_elements) {
  EXPECT_EQ(defects(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                    R"("b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})",
                    5),
            "bad_format: f: tensor b: data_offsets: expected alignment to 4 bytes, found byte 121 "
            "of the file");
}

TEST(safetensors_header, refuses_shapes_whose_size_overflows) {
  EXPECT_EQ(
      defects(R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0),
      "bad_format: f: tensor a: shape: expected extents whose product is below 2^62, found "
      "[4294967296,4294967296]");
  EXPECT_EQ(defects(R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,0]}})", 0),
            "bad_format: f: tensor a: shape: expected extents whose product is below 2^62, found "
            "[-1]");
  EXPECT_EQ(defects(R"({"a":{"dtype":"U8","shape":[1,1,1,1,1],"data_offsets":[0,1]}})", 1),
            "bad_format: f: tensor a: shape: expected a list of at most 4 extents, found 5 "
            "extents");
}

TEST(safetensors_header, refuses_unknown_types_and_keys) {
  EXPECT_EQ(defects(R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}})", 8),
            "bad_format: f: tensor a: dtype: expected F8_E4M3, F8_E8M0, I8, U8, BF16, F32 or I32, "
            "found F64");
  EXPECT_EQ(defects(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":0}})", 1),
            "bad_format: f: tensor a: expected dtype, shape and data_offsets, found key x");
  EXPECT_EQ(defects(R"({"a":7})", 0), "bad_format: f: tensor a: expected an object, found number");
  EXPECT_EQ(defects(R"({"__metadata__":{"n":1}})", 0),
            "bad_format: f: __metadata__: expected an object of strings, found object");
}

TEST(safetensors_header, reports_all_defects_and_bounds_their_number) {
  std::string header = "{";
  for (int i = 0; i < 100; ++i)
    header += fmt::format(R"({}"t{:03}":{{"dtype":"F16","shape":[],"data_offsets":[0,0]}})",
                          i > 0 ? "," : "", i);
  const auto text = defects(header + "}", 0);
  EXPECT_NE(text.find("tensor t000: dtype"), std::string::npos);
  EXPECT_NE(text.find("tensor t063: dtype"), std::string::npos);
  EXPECT_EQ(text.find("tensor t064"), std::string::npos);
  EXPECT_TRUE(text.ends_with("\nand 36 more defects"));
}

TEST(mapped_file, maps_whole_files_and_names_absent_ones) {
  const di::testing::temporary_directory dir{"mapped"};
  std::ofstream{dir.path() + "/x"} << "twelve bytes";
  std::ofstream{dir.path() + "/empty"};
  const auto x = mapped_file::open(dir.path() + "/x");
  ASSERT_TRUE(x.ok());
  EXPECT_EQ(x->text(), "twelve bytes");
  EXPECT_TRUE(mapped_file::open(dir.path() + "/empty")->bytes().empty());
  EXPECT_EQ(mapped_file::open(dir.path() + "/none").error().code, ec::not_found);
  EXPECT_EQ(mapped_file::open(dir.path()).error().code, ec::io_error);
}

} // namespace
} // namespace di::engine
