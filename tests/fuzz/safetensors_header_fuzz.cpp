// SPDX-License-Identifier: Apache-2.0
// Safetensors headers. An input that starts with '{' is a header text and gets a right length and a
// mebibyte of data; any other is a whole file.
#include "engine/model/safetensors.hpp"
#include "tests/support/fuzz_driver.hpp"

#include <cstring>

namespace {

std::uint64_t run(std::span<const std::byte> input) {
  di::testing::fuzz_bytes file;
  std::uint64_t file_bytes = input.size();
  if (!input.empty() && input[0] == std::byte{'{'}) {
    const std::uint64_t length = input.size();
    file.resize(8);
    std::memcpy(file.data(), &length, 8);
    file.insert(file.end(), input.begin(), input.end());
    file_bytes = file.size() + (std::uint64_t{1} << 20);
    input = file;
  }
  di::engine::problem_list problems;
  const auto header = di::engine::parse_safetensors_header(input, file_bytes, "f", problems);
  // What is kept must be usable: inside the file, of the right size, in order.
  std::uint64_t end = 0;
  for (const auto& t : header.tensors) {
    DI_CHECK(t.begin >= end && t.begin <= t.end);
    DI_CHECK(header.data_start + t.end <= file_bytes);
    DI_CHECK_EQ(t.end - t.begin, static_cast<std::uint64_t>(t.shape.count())
                                     * static_cast<std::uint64_t>(element_bytes(t.type)));
    end = t.end;
  }
  return di::testing::fuzz_signature(problems.empty() ? fmt::format("{}", header.tensors.size() < 4)
                                                      : problems.to_error().what.substr(0, 80));
}

} // namespace

DI_FUZZ_MAIN("safetensors_header", run)
