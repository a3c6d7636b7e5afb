// SPDX-License-Identifier: Apache-2.0
// Journals. An input that starts with 'R' is a list of records without their frames: kind (one
// byte), length (two, low first), body; each gets a right frame, so that bodies and their order are
// what is tried. Any other is a whole log.
#include "engine/core/journal_image.hpp"
#include "messaging/base/crc32c.hpp"
#include "tests/support/fuzz_driver.hpp"

#include <cstring>

namespace {

using di::engine::frame_head_bytes;
using di::testing::fuzz_bytes;

void put_le(fuzz_bytes& out, std::uint64_t v, int bytes) {
  for (int i = 0; i < bytes; ++i)
    out.push_back(static_cast<std::byte>(v >> (8 * i)));
}

fuzz_bytes framed(std::span<const std::byte> in) {
  fuzz_bytes log;
  for (std::uint64_t number = 1; in.size() >= 3; ++number) {
    const auto kind = in[0];
    const std::size_t length = std::min(
        static_cast<std::size_t>(in[1]) | static_cast<std::size_t>(in[2]) << 8, in.size() - 3);
    fuzz_bytes checked;
    put_le(checked, number, 8);
    put_le(checked, number, 8);
    checked.push_back(kind);
    checked.insert(checked.end(), in.begin() + 3,
                   in.begin() + 3 + static_cast<std::ptrdiff_t>(length));
    put_le(log, length, 4);
    put_le(log, di::crc32c(checked), 4);
    log.insert(log.end(), checked.begin(), checked.end());
    in = in.subspan(3 + length);
  }
  return log;
}

std::uint64_t run(std::span<const std::byte> input) {
  fuzz_bytes made;
  if (!input.empty() && input[0] == std::byte{'R'}) {
    made = framed(input.subspan(1));
    input = made;
  }
  const auto read = di::engine::recover_log(input, "f");
  if (!read)
    return di::testing::fuzz_signature(read.error().what.substr(0, 120));
  DI_CHECK(read->whole_bytes <= input.size());
  // What was read is the same without the torn end, and its snapshot says it again.
  const auto whole = di::engine::recover_log(input.first(read->whole_bytes), "f");
  DI_CHECK(whole.ok() && whole->ended == di::engine::log_end::clean);
  DI_CHECK(whole->image.number == read->image.number);
  std::vector<std::byte> again;
  std::uint64_t number = 0;
  for (auto& r : read->image.snapshot())
    DI_CHECK(di::engine::append_frame(again, {++number, read->image.elapsed_ms, std::move(r)}));
  const auto second = di::engine::recover_log(again, "g");
  DI_CHECK(second.ok() && second->complete);
  DI_CHECK(second->image.requests.size() == read->image.requests.size());
  DI_CHECK(second->image.forgotten == read->image.forgotten);
  return di::testing::fuzz_signature(
      fmt::format("{}{}{}", read->complete ? "whole" : "part",
                  read->ended == di::engine::log_end::torn ? read->why.substr(0, 60) : "",
                  read->image.requests.empty() ? "" : "requests"));
}

} // namespace

DI_FUZZ_MAIN("journal_log", run)
