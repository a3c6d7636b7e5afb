// SPDX-License-Identifier: Apache-2.0
// UTF-8 checks by lead byte and range of the second byte; all later bytes are 80..BF.
#include "messaging/base/utf8.hpp"

#include "messaging/base/check.hpp"

#include <cstring>

namespace di {
namespace {

struct lead_rule {
  std::uint8_t size = 0; // bytes of the character, 0 = not a lead byte
  std::uint8_t low = 0x80;
  std::uint8_t high = 0xBF; // range of the second byte
};

constexpr lead_rule rule_of(std::uint8_t lead) {
  if (lead < 0x80)
    return {1};
  if (lead < 0xC2 || lead > 0xF4)
    return {0};
  if (lead < 0xE0)
    return {2};
  if (lead < 0xF0)
    return {3, static_cast<std::uint8_t>(lead == 0xE0 ? 0xA0 : 0x80),
            static_cast<std::uint8_t>(lead == 0xED ? 0x9F : 0xBF)};
  return {4, static_cast<std::uint8_t>(lead == 0xF0 ? 0x90 : 0x80),
          static_cast<std::uint8_t>(lead == 0xF4 ? 0x8F : 0xBF)};
}

// Two thirds of an encoded surrogate at the end of the bytes. It can never become valid, but the
// stored streams (made with CPython's incremental decoder, which waits for all three bytes) keep it
// back, and so do we.
bool is_cut_surrogate(std::string_view bytes) {
  return bytes.size() == 2 && bytes[0] == '\xED' && static_cast<std::uint8_t>(bytes[1]) >= 0xA0
         && static_cast<std::uint8_t>(bytes[1]) <= 0xBF;
}

} // namespace

utf8_part utf8_first(std::string_view bytes) noexcept {
  const auto at = [&](std::size_t i) { return static_cast<std::uint8_t>(bytes[i]); };
  const lead_rule rule = rule_of(at(0));
  if (rule.size <= 1)
    return {rule.size == 1 ? utf8_kind::whole : utf8_kind::broken, 1};
  for (std::size_t i = 1; i < rule.size; ++i) {
    if (i == bytes.size())
      return {utf8_kind::cut_off, i};
    const std::uint8_t low = i == 1 ? rule.low : 0x80;
    const std::uint8_t high = i == 1 ? rule.high : 0xBF;
    if (at(i) < low || at(i) > high)
      return {utf8_kind::broken, i};
  }
  return {utf8_kind::whole, rule.size};
}

std::size_t utf8_valid_prefix(std::string_view bytes) noexcept {
  std::size_t at = 0;
  while (at < bytes.size()) {
    std::uint64_t word = 0;
    while (at + sizeof word <= bytes.size()) { // eight ASCII bytes at a time
      std::memcpy(&word, bytes.data() + at, sizeof word);
      if ((word & 0x8080808080808080U) != 0)
        break;
      at += sizeof word;
    }
    if (at == bytes.size())
      break;
    const utf8_part part = utf8_first(bytes.substr(at));
    if (part.kind != utf8_kind::whole)
      break;
    at += part.size_bytes;
  }
  return at;
}

std::string utf8_lossy(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  utf8_reassembler stream;
  stream.push(bytes, out);
  stream.flush(out);
  return out;
}

void utf8_reassembler::push(std::string_view bytes, std::string& out) {
  std::string joined;
  if (!tail_.empty()) {
    joined = std::move(tail_);
    joined += bytes;
    bytes = joined;
    tail_.clear();
  }
  while (!bytes.empty()) {
    const std::size_t good = utf8_valid_prefix(bytes);
    out += bytes.substr(0, good);
    bytes.remove_prefix(good);
    if (bytes.empty())
      return;
    const utf8_part part = utf8_first(bytes);
    if (part.kind == utf8_kind::cut_off || is_cut_surrogate(bytes)) {
      tail_ = bytes;
      DI_CHECK(tail_.size() <= 3);
      return;
    }
    out += utf8_replacement;
    bytes.remove_prefix(part.size_bytes);
  }
}

void utf8_reassembler::flush(std::string& out) {
  for (std::string_view rest = tail_; !rest.empty();
       rest.remove_prefix(utf8_first(rest).size_bytes))
    out += utf8_replacement;
  tail_.clear();
}

} // namespace di
