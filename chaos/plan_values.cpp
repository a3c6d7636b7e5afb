// SPDX-License-Identifier: Apache-2.0
#include "chaos/plan_values.hpp"

#include <array>
#include <charconv>
#include <utility>

namespace di::chaos {
namespace {

constexpr std::array<std::pair<fault_kind, std::string_view>, 19> kinds{{
    {fault_kind::kill, "kill"},
    {fault_kind::stop, "stop"},
    {fault_kind::cont, "cont"},
    {fault_kind::slow, "slow"},
    {fault_kind::crash, "crash"},
    {fault_kind::hang, "hang"},
    {fault_kind::point, "point"},
    {fault_kind::cut, "cut"},
    {fault_kind::delay, "delay"},
    {fault_kind::drop, "drop"},
    {fault_kind::duplicate, "duplicate"},
    {fault_kind::corrupt, "corrupt"},
    {fault_kind::disk_full, "disk_full"},
    {fault_kind::disk_error, "disk_error"},
    {fault_kind::ballast, "ballast"},
    {fault_kind::memory, "memory"},
    {fault_kind::hog, "hog"},
    {fault_kind::clock_jump, "clock_jump"},
    {fault_kind::command, "command"},
}};

template <class T>
bool whole(std::string_view text, T& into) {
  const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), into);
  return wrong == std::errc{} && end == text.data() + text.size() && !text.empty();
}

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && s.front() == ' ')
    s.remove_prefix(1);
  while (!s.empty() && s.back() == ' ')
    s.remove_suffix(1);
  return s;
}

} // namespace

std::string_view to_string(fault_kind kind) noexcept {
  for (const auto& [k, name] : kinds)
    if (k == kind)
      return name;
  return "?";
}

std::string to_string(const fault_target& target) {
  switch (target.kind) {
  case target_kind::none:
    return "everyone";
  case target_kind::rank:
    return fmt::format("rank {}", target.index);
  case target_kind::random_rank:
    return "random rank";
  case target_kind::all_ranks:
    return "all ranks";
  case target_kind::control:
    return "control";
  case target_kind::node:
    return fmt::format("node {}", target.index);
  }
  return "?";
}

result<std::uint32_t> parse_count(const std::string& text) {
  std::uint32_t n = 0;
  if (!whole(text, n))
    return fail(ec::bad_config, "a whole number is wanted, not {}", text);
  return n;
}

result<std::uint64_t> parse_number(const std::string& text) {
  std::uint64_t n = 0;
  if (!whole(text, n))
    return fail(ec::bad_config, "a whole number is wanted, not {}", text);
  return n;
}

result<range> parse_range(const std::string& text) {
  const std::size_t dots = text.find("..");
  range r;
  DI_TRY(r.low, parse_count(text.substr(0, dots)));
  r.high = r.low;
  if (dots != std::string::npos) {
    DI_TRY(r.high, parse_count(text.substr(dots + 2)));
  }
  if (r.high < r.low)
    return fail(ec::bad_config, "{} ends before it begins", text);
  return r;
}

result<bool> parse_flag(const std::string& text) {
  if (text != "true" && text != "false")
    return fail(ec::bad_config, "true or false, not {}", text);
  return text == "true";
}

result<double> parse_factor(const std::string& text) {
  double f = 0;
  if (!whole(std::string_view{text}.substr(text.starts_with('x') ? 1 : 0), f) || !(f > 1)
      || f > 1000)
    return fail(ec::bad_config, "x2 to x1000 is wanted, not {}", text);
  return f;
}

result<double> parse_rate(const std::string& text) {
  const bool percent = text.ends_with('%');
  double r = 0;
  if (!whole(std::string_view{text}.substr(0, text.size() - (percent ? 1 : 0)), r) || !(r >= 0)
      || r > (percent ? 100 : 1))
    return fail(ec::bad_config, "0 to 1, or 0% to 100%, not {}", text);
  return percent ? r / 100 : r;
}

result<std::string> parse_word(const std::string& text) {
  for (const char c : text)
    if (c <= ' ' || c == '=' || c == '/')
      return fail(ec::bad_config, "one word is wanted, not {}", text);
  if (text.empty())
    return fail(ec::bad_config, "a word is wanted");
  return text;
}

result<fault_kind> parse_kind(const std::string& text) {
  std::vector<std::string> names;
  std::string all;
  for (const auto& [kind, name] : kinds) {
    if (name == text)
      return kind;
    names.emplace_back(name);
    all += (all.empty() ? "" : ", ") + names.back();
  }
  const auto near = launch::nearest(text, names);
  return fail(ec::bad_config, "unknown fault {}{}", text,
              near.empty() ? "; known: " + all : "; did you mean " + near + "?");
}

result<fault_target> parse_target(const std::string& text) {
  if (text == "random rank")
    return fault_target{target_kind::random_rank, 0};
  if (text == "all ranks")
    return fault_target{target_kind::all_ranks, 0};
  if (text == "control")
    return fault_target{target_kind::control, 0};
  for (const auto& [word, kind] : {std::pair{std::string_view{"rank "}, target_kind::rank},
                                   {std::string_view{"node "}, target_kind::node}})
    if (std::uint32_t n = 0; text.starts_with(word) && whole(text.substr(word.size()), n))
      return fault_target{kind, n};
  return fail(ec::bad_config, "rank N, random rank, all ranks, control or node N, not {}", text);
}

result<fault_trigger> parse_trigger(const std::string& text) {
  fault_trigger t;
  const auto number = [&](std::string_view word, trigger_kind kind) {
    std::string_view rest = text;
    if (!rest.starts_with(word) || !whole(trimmed(rest.substr(word.size())), t.count))
      return false;
    t.kind = kind;
    return true;
  };
  if (number("tokens >", trigger_kind::tokens) || number("finished >", trigger_kind::finished)
      || number("view ==", trigger_kind::view))
    return t;
  if (text == "group whole") {
    t.kind = trigger_kind::whole;
    return t;
  }
  if (text == "in step") {
    t.kind = trigger_kind::in_step;
    return t;
  }
  if (text.starts_with("event ")) {
    t.kind = trigger_kind::event;
    DI_TRY(t.event, parse_word(text.substr(6)));
    return t;
  }
  return fail(
      ec::bad_config,
      "`tokens > N`, `finished > N`, `view == N`, `event NAME`, `group whole` or `in step`, not {}",
      text);
}

bool is_coverage(std::string_view text) {
  unsigned n = 0;
  if (text.size() < 2 || !whole(text.substr(1), n) || n == 0)
    return false;
  return (text[0] == 'F' && n <= 28) || (text[0] == 'C' && n <= 47) || (text[0] == 'I' && n <= 20);
}

std::vector<std::string> check_fault(const fault& f) {
  std::vector<std::string> wrong;
  const auto need = [&](bool there, std::string_view what) {
    if (!there)
      wrong.push_back(fmt::format("{} needs {}", to_string(f.kind), what));
  };
  const bool has_target = f.target.kind != target_kind::none;
  switch (f.kind) {
  case fault_kind::kill:
  case fault_kind::stop:
  case fault_kind::cont:
  case fault_kind::cut:
  case fault_kind::drop:
  case fault_kind::duplicate:
  case fault_kind::corrupt:
    need(has_target, "target");
    break;
  case fault_kind::slow:
    need(has_target, "target");
    need(f.lasts > nanoseconds{}, "for");
    break;
  case fault_kind::crash:
  case fault_kind::hang:
  case fault_kind::point:
    need(has_target, "target");
    need(!f.point.empty(), "point");
    break;
  case fault_kind::delay:
    need(has_target, "target");
    need(f.delay > nanoseconds{} || f.jitter > nanoseconds{}, "delay or jitter");
    break;
  case fault_kind::ballast:
    need(has_target, "target");
    need(f.size_bytes > 0, "size");
    break;
  case fault_kind::memory:
    need(f.size_bytes > 0, "size");
    break;
  case fault_kind::hog:
    need(f.threads > 0, "threads");
    break;
  case fault_kind::clock_jump:
    need(f.jump > nanoseconds{}, "jump");
    break;
  case fault_kind::command:
    need(!f.command.empty(), "command");
    break;
  case fault_kind::disk_full:
  case fault_kind::disk_error:
    break;
  }
  if (f.trigger.kind == trigger_kind::in_step && f.kind != fault_kind::kill
      && f.kind != fault_kind::stop)
    wrong.emplace_back("`when: in step` is for kill and stop");
  if (f.times == 0)
    wrong.emplace_back("times must be at least 1");
  if (f.times > 1 && f.every == nanoseconds{})
    wrong.emplace_back("times needs every");
  return wrong;
}

} // namespace di::chaos
