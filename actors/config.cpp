// SPDX-License-Identifier: Apache-2.0
// Parsing of configuration values, and the book of what was asked and what was wrong.
#include "actors/config.hpp"

#include <algorithm>
#include <charconv>
#include <optional>

namespace di {
namespace {

std::optional<std::uint64_t> parse_u64(std::string_view text) {
  std::string digits;
  for (const char c : text)
    if (c != '\'' && c != '_')
      digits += c;
  std::uint64_t value = 0;
  const char* end = digits.data() + digits.size();
  const auto [at, problem] = std::from_chars(digits.data(), end, value);
  if (digits.empty() || problem != std::errc{} || at != end)
    return std::nullopt;
  return value;
}

struct unit {
  std::string_view name;
  std::int64_t ns;
};

constexpr unit units[] = {{"ns", 1},
                          {"us", 1'000},
                          {"ms", 1'000'000},
                          {"s", 1'000'000'000},
                          {"min", 60'000'000'000},
                          {"h", 3'600'000'000'000}};

} // namespace

result<duration> parse_duration(std::string_view text) {
  const auto digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const auto number = parse_u64(text.substr(0, digits));
  const auto name = text.substr(digits);
  const auto* found = std::find_if(std::begin(units), std::end(units),
                                   [&](const unit& u) { return u.name == name; });
  if (!number || found == std::end(units))
    return fail(ec::bad_config,
                "'{}' is no time; write a whole number with ns, us, ms, s, min or h", text);
  if (*number > static_cast<std::uint64_t>(INT64_MAX / found->ns))
    return fail(ec::bad_config, "'{}' is longer than 292 years", text);
  return duration{static_cast<std::int64_t>(*number) * found->ns};
}

struct actor_config::state {
  std::vector<config_entry> entries;
  std::string owner;
  std::vector<std::string> asked;
  std::optional<error> first;

  void note(const std::string& where, std::string_view key, const std::string& what) {
    if (!first)
      first = error{ec::bad_config, fmt::format("{}{}config of {}: {}: {}", where,
                                                where.empty() ? "" : ": ", owner, key, what)};
  }

  const config_entry* find(std::string_view key) {
    if (std::find(asked.begin(), asked.end(), key) == asked.end())
      asked.emplace_back(key);
    const auto found = std::find_if(entries.begin(), entries.end(),
                                    [&](const config_entry& e) { return e.key == key; });
    return found == entries.end() ? nullptr : &*found;
  }

  const config_entry* need(std::string_view key) {
    const auto* found = find(key);
    if (!found)
      note({}, key, "is missing");
    return found;
  }
};

actor_config::actor_config(std::vector<config_entry> entries, std::string owner)
    : state_{std::make_shared<state>()} {
  state_->entries = std::move(entries);
  state_->owner = owner.empty() ? "an actor" : std::move(owner);
}

std::uint64_t actor_config::u64(std::string_view key) const {
  return state_->need(key) ? u64(key, 0) : 0;
}

std::uint64_t actor_config::u64(std::string_view key, std::uint64_t otherwise) const {
  const auto* e = state_->find(key);
  if (!e)
    return otherwise;
  const auto value = parse_u64(e->value);
  if (!value)
    state_->note(e->where, key,
                 fmt::format("'{}' is no whole number in [0, {}]", e->value, UINT64_MAX));
  return value.value_or(otherwise);
}

std::string actor_config::str(std::string_view key) const {
  const auto* e = state_->need(key);
  return e ? e->value : std::string{};
}

std::string actor_config::str(std::string_view key, std::string_view otherwise) const {
  const auto* e = state_->find(key);
  return e ? e->value : std::string{otherwise};
}

bool actor_config::flag(std::string_view key, bool otherwise) const {
  const auto* e = state_->find(key);
  if (!e)
    return otherwise;
  if (e->value != "true" && e->value != "false") {
    state_->note(e->where, key, fmt::format("'{}' is neither true nor false", e->value));
    return otherwise;
  }
  return e->value == "true";
}

di::duration actor_config::duration(std::string_view key) const {
  return state_->need(key) ? duration(key, {}) : di::duration{};
}

di::duration actor_config::duration(std::string_view key, di::duration otherwise) const {
  const auto* e = state_->find(key);
  if (!e)
    return otherwise;
  const auto value = parse_duration(e->value);
  if (!value)
    state_->note(e->where, key, value.error().what);
  return value.value_or(otherwise);
}

result<void> actor_config::finish() const {
  if (state_->first)
    return fail(*state_->first);
  for (const auto& e : state_->entries) {
    if (std::find(state_->asked.begin(), state_->asked.end(), e.key) != state_->asked.end())
      continue;
    std::string known;
    for (const auto& key : state_->asked)
      known += (known.empty() ? "" : ", ") + key;
    state_->note(e.where, e.key,
                 known.empty() ? "unknown key; this actor has none"
                               : fmt::format("unknown key; known are {}", known));
    return fail(*state_->first);
  }
  return {};
}

const std::string& actor_config::owner() const noexcept {
  return state_->owner;
}

} // namespace di
