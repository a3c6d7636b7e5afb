// SPDX-License-Identifier: Apache-2.0
// Any bytes as text and as ids: refused as UTF-8 or given back; streamed text equals the text at
// once.
#include "engine/text/tokenizer.hpp"
#include "tests/support/fuzz_driver.hpp"

namespace {

using di::engine::tokenizer;

const tokenizer& words() {
  static const tokenizer t =
      tokenizer::load(DI_SOURCE_DIR "/tests/golden/data/tokenizer/tiny/tokenizer.json").value();
  return t;
}

std::uint64_t as_text(std::string_view text) {
  const std::size_t good = di::utf8_valid_prefix(text);
  const std::string repaired = di::utf8_lossy(text);
  DI_CHECK_EQ(words().encode(text, di::engine::encode_mode::plain).ok(), good == text.size());
  std::uint64_t signature = good == text.size();
  for (const auto mode : {di::engine::encode_mode::plain, di::engine::encode_mode::full}) {
    const auto ids = words().encode(repaired, mode);
    DI_CHECK(ids.ok());
    DI_CHECK(words().bytes(*ids) == repaired);
    for (std::size_t i = 0; i < std::min<std::size_t>(ids->size(), 8);
         ++i) // the ids at the start tell inputs apart
      signature = signature * 31 + static_cast<std::uint64_t>((*ids)[i]) % 64;
  }
  return signature;
}

void as_ids(std::span<const std::byte> input) {
  std::vector<di::token_id> ids;
  for (std::size_t i = 0; i + 1 < input.size(); i += 2)
    ids.push_back(std::to_integer<int>(input[i]) * 5 + std::to_integer<int>(input[i + 1]) - 3);
  for (const auto special : {di::engine::special_tokens::keep, di::engine::special_tokens::skip}) {
    di::engine::stream_decoder stream{words(), special};
    std::string joined;
    for (const di::token_id id : ids) {
      joined += stream.push(id);
      DI_CHECK_EQ(di::utf8_valid_prefix(joined), joined.size());
    }
    joined += stream.flush();
    DI_CHECK(joined == words().decode(ids, special));
  }
}

std::uint64_t run(std::span<const std::byte> input) {
  const std::span<const std::byte> head = input.first(std::min<std::size_t>(input.size(), 2048));
  as_ids(head.first(std::min<std::size_t>(head.size(), 256)));
  return as_text({reinterpret_cast<const char*>(head.data()), head.size()});
}

} // namespace

DI_FUZZ_MAIN("tokenizer_text", run)
