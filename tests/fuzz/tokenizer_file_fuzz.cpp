// SPDX-License-Identifier: Apache-2.0
// tokenizer.json: a clear error, or a tokenizer that gives back every byte it was given.
#include "engine/text/tokenizer.hpp"
#include "tests/support/fuzz_driver.hpp"

namespace {

using namespace std::string_view_literals;

std::uint64_t run(std::span<const std::byte> input) {
  const std::string_view text{reinterpret_cast<const char*>(input.data()), input.size()};
  const auto words = di::engine::tokenizer::parse(text, "f");
  if (!words.ok())
    return di::testing::fuzz_signature(words.error().what.substr(0, 160));
  std::uint64_t signature = words->size();
  for (const std::string_view sample :
       {"The <｜User｜>12345  x\r\n!?"sv, "漢字かなé😀\x01</think>｜DSML｜"sv})
    for (const auto mode : {di::engine::encode_mode::plain, di::engine::encode_mode::full}) {
      const auto ids = words->encode(sample, mode);
      DI_CHECK(ids.ok());
      DI_CHECK(words->bytes(*ids) == sample);
      signature = signature * 31 + ids->size();
    }
  return signature;
}

} // namespace

DI_FUZZ_MAIN("tokenizer_file", run)
