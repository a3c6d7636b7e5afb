// SPDX-License-Identifier: Apache-2.0
// What the writers of all protocols share.
#include "engine/chat/answer_writer.hpp"

#include "messaging/base/utf8.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace di::engine {
namespace {

// SplitMix64: spreads a counter over 64 bits.
std::uint64_t mixed(std::uint64_t x) noexcept {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

json byte_list(std::string_view bytes) {
  json out = json::array();
  for (const char c : bytes)
    out.push_back(static_cast<unsigned>(static_cast<unsigned char>(c)));
  return out;
}

json token_object(std::string_view bytes, double logprob) {
  return json{{"token", token_label(bytes)},
              {"logprob", shown_logprob(logprob)},
              {"bytes", byte_list(bytes)}};
}

} // namespace

std::string answer_writer::call_id(std::size_t index) const {
  static constexpr std::string_view letters =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::uint64_t state = mixed(recipe_->seed ^ (std::uint64_t{choice_} << 32) ^ index);
  for (const char c : recipe_->id)
    state = mixed(state ^ static_cast<unsigned char>(c));
  std::string out = fmt::format("call_{:02}_", index);
  for (int i = 0; i < 24; ++i) {
    state = mixed(state);
    out += letters[state % letters.size()];
  }
  return out;
}

json answer_writer::logprob_list(std::span<const token_entry> tokens) const {
  const auto bytes = [this](token_id id) {
    return words_ ? words_->token_bytes(id) : std::string_view{};
  };
  json out = json::array();
  for (const token_entry& t : tokens) {
    json entry = token_object(bytes(t.id), t.logprobs.logprob);
    json top = json::array();
    const std::size_t count =
        std::min(t.logprobs.top_tokens.size(), t.logprobs.top_logprobs.size());
    for (std::size_t i = 0; i < count; ++i)
      top.push_back(token_object(bytes(t.logprobs.top_tokens[i]), t.logprobs.top_logprobs[i]));
    entry["top_logprobs"] = std::move(top);
    out.push_back(std::move(entry));
  }
  return out;
}

std::string token_label(std::string_view bytes) {
  if (utf8_valid_prefix(bytes) == bytes.size())
    return std::string{bytes};
  std::string out;
  for (const char c : bytes)
    out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return out;
}

double shown_logprob(double value) noexcept {
  return value >= -9999.0 ? value : -9999.0;
}

json envelope(const answer_recipe& recipe, std::string_view object) {
  json out{{"id", recipe.id},
           {"object", object},
           {"created", recipe.created},
           {"model", recipe.model},
           {"system_fingerprint", nullptr}};
  if (!recipe.fingerprint.empty())
    out["system_fingerprint"] = recipe.fingerprint;
  return out;
}

std::string_view finish_word(answer_end why) noexcept {
  switch (why) {
  case answer_end::length:
    return "length";
  case answer_end::content_filter:
    return "content_filter";
  case answer_end::stop:
  case answer_end::cancelled:
    break;
  }
  return "stop";
}

json error_object(const answer_failure& failure) {
  return json{{"error",
               {{"message", failure.message},
                {"type", failure.type},
                {"param", nullptr},
                {"code", failure.code}}}};
}

} // namespace di::engine
