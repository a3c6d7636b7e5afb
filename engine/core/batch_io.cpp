// SPDX-License-Identifier: Apache-2.0
// Reading prompt lines field by field, and making requests of them.
#include "engine/core/batch_io.hpp"

#include "engine/core/admission.hpp"
#include "engine/core/deadline.hpp"
#include "engine/core/text_sampler.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <set>

namespace di::engine {

namespace {

using json = nlohmann::json;

constexpr int depth_max = 4; ///< a line is an object of scalars, lists and one map

result<double> number(const json& v, std::string_view field) {
  if (!v.is_number())
    return fail(ec::bad_argument, "{}: expected a number, found {}", field, v.type_name());
  return v.get<double>();
}

result<std::int64_t> integer(const json& v, std::string_view field, std::int64_t low,
                             std::int64_t high) {
  if (!v.is_number_integer() && !(v.is_number_float() && v.get<double>() == 0))
    return fail(ec::bad_argument, "{}: expected a whole number, found {}", field,
                v.is_number() ? v.dump() : std::string{v.type_name()});
  const bool huge = v.is_number_unsigned()
                    && v.get<std::uint64_t>()
                           > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const std::int64_t n = huge ? std::numeric_limits<std::int64_t>::max() : v.get<std::int64_t>();
  if (n < low || n > high || huge)
    return fail(ec::bad_argument, "{}: {} lies outside [{}, {}]", field, v.dump(), low, high);
  return n;
}

result<std::uint32_t> count(const json& v, std::string_view field) {
  DI_TRY(const std::int64_t n, integer(v, field, 0, std::numeric_limits<std::int32_t>::max()));
  return static_cast<std::uint32_t>(n);
}

result<bool> flag(const json& v, std::string_view field) {
  if (!v.is_boolean())
    return fail(ec::bad_argument, "{}: expected true or false, found {}", field, v.type_name());
  return v.get<bool>();
}

result<std::string> text(const json& v, std::string_view field) {
  if (!v.is_string())
    return fail(ec::bad_argument, "{}: expected a string, found {}", field, v.type_name());
  return v.get<std::string>();
}

result<std::vector<token_id>> ids(const json& v, std::string_view field) {
  if (!v.is_array())
    return fail(ec::bad_argument, "{}: expected a list of token ids, found {}", field,
                v.type_name());
  std::vector<token_id> out;
  out.reserve(v.size());
  for (const json& item : v) {
    DI_TRY(const std::int64_t id, integer(item, fmt::format("{}[{}]", field, out.size()), 0,
                                          std::numeric_limits<token_id>::max()));
    out.push_back(static_cast<token_id>(id));
  }
  return out;
}

result<std::vector<std::string>> strings(const json& v, std::string_view field) {
  if (v.is_string())
    return std::vector<std::string>{v.get<std::string>()};
  if (!v.is_array())
    return fail(ec::bad_argument, "{}: expected a string or a list of strings, found {}", field,
                v.type_name());
  std::vector<std::string> out;
  for (const json& item : v) {
    DI_TRY(std::string one, text(item, fmt::format("{}[{}]", field, out.size())));
    out.push_back(std::move(one));
  }
  return out;
}

result<std::vector<proto::token_bias>> biases(const json& v, std::string_view field) {
  if (!v.is_object())
    return fail(ec::bad_argument, "{}: expected an object of token id: bias, found {}", field,
                v.type_name());
  std::vector<proto::token_bias> out;
  for (const auto& [key, bias] : v.items()) {
    const bool digits =
        !key.empty() && key.size() <= 9
        && std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!digits)
      return fail(ec::bad_argument, "{}: \"{}\" is no token id", field, key);
    DI_TRY(const double value, number(bias, fmt::format("{}[{}]", field, key)));
    out.push_back({static_cast<token_id>(std::stol(key)), value});
  }
  return out;
}

/// Takes one field into a line. @return false if the key is unknown
result<bool> take_field(const std::string& key, const json& v, batch_line& line);

template <class T, class Into>
result<bool> put(result<T> value, Into& into) {
  if (!value)
    return fail(value.error());
  into = std::move(value).value();
  return true;
}

result<bool> take_sampling(const std::string& key, const json& v, batch_line& line) {
  proto::sampling_params& s = line.sampling;
  if (key == "temperature")
    return put(number(v, key), s.temperature);
  if (key == "top_p")
    return put(number(v, key), s.top_p);
  if (key == "min_p")
    return put(number(v, key), s.min_p);
  if (key == "presence_penalty")
    return put(number(v, key), s.presence_penalty);
  if (key == "frequency_penalty")
    return put(number(v, key), s.frequency_penalty);
  if (key == "repetition_penalty")
    return put(number(v, key), s.repetition_penalty);
  if (key == "logit_bias")
    return put(biases(v, key), s.logit_bias);
  if (key == "n")
    return put(count(v, key), s.n);
  if (key == "min_tokens")
    return put(count(v, key), s.min_tokens);
  if (key == "stop")
    return put(strings(v, key), s.stop);
  if (key == "stop_token_ids")
    return put(ids(v, key), s.stop_token_ids);
  if (key == "include_stop_str_in_output")
    return put(flag(v, key), s.include_stop);
  if (key == "ignore_eos")
    return put(flag(v, key), s.ignore_eos);
  if (key == "forced_ids")
    return put(ids(v, key), s.forced_ids);
  if (key == "max_tokens") {
    line.has_max_tokens = true;
    return put(count(v, key), s.max_tokens);
  }
  if (key == "top_k") { // -1 and 0 are both "off"
    DI_TRY(const std::int64_t k, integer(v, key, -1, std::numeric_limits<std::int32_t>::max()));
    s.top_k = k < 0 ? 0 : static_cast<std::uint32_t>(k);
    return true;
  }
  if (key == "logprobs") { // true: the chosen token alone
    if (v.is_boolean()) {
      s.logprobs = v.get<bool>() ? 0 : -1;
      return true;
    }
    DI_TRY(const std::int64_t n, integer(v, key, 0, 20));
    s.logprobs = static_cast<std::int32_t>(n);
    return true;
  }
  if (key == "seed") {
    line.has_seed = true;
    if (v.is_number_unsigned()) {
      s.seed = v.get<std::uint64_t>();
      return true;
    }
    DI_TRY(const std::int64_t n, integer(v, key, std::numeric_limits<std::int64_t>::min(),
                                         std::numeric_limits<std::int64_t>::max()));
    s.seed = static_cast<std::uint64_t>(n);
    return true;
  }
  return false;
}

result<proto::prefix_mode> prefix_of(const json& v, std::string_view field) {
  DI_TRY(const std::string word, text(v, field));
  if (word == "off")
    return proto::prefix_mode::off;
  if (word == "exact")
    return proto::prefix_mode::exact;
  if (word == "bounded")
    return proto::prefix_mode::bounded;
  return fail(ec::bad_argument, "{}: {} is not known; choose off, exact or bounded", field,
              v.dump());
}

result<std::string> prefix_salt_of(const json& v, std::string_view field) {
  DI_TRY(std::string salt, text(v, field));
  if (salt.size() > prefix_salt_bytes_max)
    return fail(ec::bad_argument, "{}: {} bytes; at most {}", field, salt.size(),
                prefix_salt_bytes_max);
  return salt;
}

result<proto::prefill_mode> prefill_of(const json& v, std::string_view field) {
  DI_TRY(const std::string word, text(v, field));
  if (word == "full")
    return proto::prefill_mode::full;
  if (word == "compact")
    return proto::prefill_mode::compact;
  return fail(ec::bad_argument, "{}: {} is not known; choose full or compact", field, v.dump());
}

result<speculation_choice> speculation_of(const json& v, std::string_view field) {
  DI_TRY(const std::string word, text(v, field));
  auto choice = parse_speculation(word);
  if (!choice)
    return fail(ec::bad_argument, "{}: {}", field, choice.error().what);
  return choice;
}

/// How a request is computed; none of it is what it asks for.
result<bool> take_computing(const std::string& key, const json& v, batch_line& line) {
  if (key == "speculation")
    return put(speculation_of(v, key), line.speculation);
  if (key == "prefix")
    return put(prefix_of(v, key), line.prefix);
  if (key == "prefix_salt")
    return put(prefix_salt_of(v, key), line.prefix_salt);
  if (key == "prefill")
    return put(prefill_of(v, key), line.prefill);
  return false;
}

result<std::string> tenant_of(const json& v, std::string_view field) {
  DI_TRY(std::string name, text(v, field));
  if (name.empty() || name.size() > tenant_bytes_max)
    return fail(ec::bad_argument, "{}: {} bytes; 1 to {}", field, name.size(), tenant_bytes_max);
  return name;
}

/// How a request competes with others.
result<bool> take_serving(const std::string& key, const json& v, batch_line& line) {
  if (key == "tenant")
    return put(tenant_of(v, key), line.tenant);
  if (key == "priority") {
    DI_TRY(const std::int64_t p, integer(v, key, -priority_max, priority_max));
    line.priority = static_cast<std::int32_t>(p);
    return true;
  }
  if (key == "phase")
    return put(count(v, key), line.submit.phase);
  if (key == "token_times")
    return put(flag(v, key), line.submit.token_times);
  if (key == "deadline_ms") {
    DI_TRY(const std::int64_t ms, integer(v, key, 1, static_cast<std::int64_t>(deadline_ms_max)));
    line.deadline_ms = static_cast<std::uint64_t>(ms);
    return true;
  }
  return false;
}

result<bool> take_field(const std::string& key, const json& v, batch_line& line) {
  if (key == "id") {
    if (!v.is_string() && !v.is_number())
      return fail(ec::bad_argument, "id: expected a string or a number, found {}", v.type_name());
    return true; // taken before, so that errors can name it
  }
  if (key == "prompt")
    return put(text(v, key), line.prompt);
  if (key == "prompt_ids")
    return put(ids(v, key), line.prompt_ids);
  if (key == "special_tokens")
    return put(flag(v, key), line.special_tokens);
  DI_TRY(const bool serving, take_serving(key, v, line));
  if (serving)
    return true;
  DI_TRY(const bool known, take_computing(key, v, line));
  return known ? result<bool>{true} : take_sampling(key, v, line);
}

/// Parses without exceptions; refuses repeated keys and deep nesting.
result<json> parse_object(std::string_view line) {
  std::vector<std::set<std::string>> keys;
  std::string complaint;
  const json::parser_callback_t watch = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > depth_max && complaint.empty())
      complaint = fmt::format("nested deeper than {} levels", depth_max);
    if (event == json::parse_event_t::object_start)
      keys.emplace_back();
    else if (event == json::parse_event_t::object_end && !keys.empty())
      keys.pop_back();
    else if (event == json::parse_event_t::key && !keys.empty()
             && !keys.back().insert(value.get<std::string>()).second && complaint.empty())
      complaint = fmt::format("the key \"{}\" stands twice", value.get<std::string>());
    return depth <= depth_max;
  };
  try {
    json parsed = json::parse(line, watch);
    if (!complaint.empty())
      return fail(ec::bad_format, "{}", complaint);
    if (!parsed.is_object())
      return fail(ec::bad_format, "expected an object, found {}", parsed.type_name());
    return parsed;
  } catch (const json::parse_error& e) {
    return fail(ec::bad_format, "no JSON at column {}", e.byte);
  } catch (const json::exception& e) { // a number that fits no type
    return fail(ec::bad_format, "no JSON: {}", e.what());
  }
}

} // namespace

result<batch_line> parse_batch_line(std::string_view line, std::string& id) {
  if (line.size() > batch_line_bytes_max)
    return fail(ec::limit_exceeded, "{} bytes, at most {}", line.size(), batch_line_bytes_max);
  DI_TRY(const json parsed, parse_object(line));
  batch_line out;
  if (const auto at = parsed.find("id"); at != parsed.end() && (at->is_string() || at->is_number()))
    out.id = id = at->dump(-1, ' ', false, json::error_handler_t::replace);
  out.sampling.max_tokens = batch_max_tokens_default;
  for (const auto& [key, value] : parsed.items()) {
    DI_TRY(const bool known, take_field(key, value, out));
    if (!known)
      return fail(
          ec::bad_argument,
          "{}: unknown key; known are id, prompt, prompt_ids, special_tokens, max_tokens, "
          "temperature, top_p, top_k, min_p, presence_penalty, frequency_penalty, "
          "repetition_penalty, logit_bias, logprobs, seed, n, stop, stop_token_ids, "
          "include_stop_str_in_output, ignore_eos, min_tokens, forced_ids, speculation, prefix, "
          "prefix_salt, prefill, priority, deadline_ms, tenant, phase, "
          "token_times",
          key);
  }
  if (out.prompt.has_value() == out.prompt_ids.has_value())
    return fail(ec::bad_argument, "{}",
                out.prompt ? "prompt and prompt_ids: give one of them"
                           : "prompt: there is neither prompt nor prompt_ids");
  return out;
}

/// Speculation, prefix and prefill: the line's word, else the defaults.
result<void> settle_computing(const batch_line& line, const batch_limits& limits,
                              proto::request_spec& spec) {
  spec.prefix = line.prefix.value_or(limits.defaults.prefix);
  spec.prefix_salt = line.prefix_salt;
  spec.prefill = line.prefill.value_or(limits.defaults.prefill);
  if (spec.prefill == proto::prefill_mode::compact)
    spec.keep_rows = limits.defaults.keep_rows;
  if (!line.speculation)
    return {};
  const speculation_choice& wanted = *line.speculation;
  spec.speculate = wanted.mode != speculation_mode::off;
  spec.drafts = speculation_code(wanted);
  if (spec.speculate && limits.drafts == 0)
    return fail(ec::bad_argument, "speculation: {}, but the model has no draft layers; write off",
                to_string(wanted));
  if (wanted.drafts > limits.drafts)
    return fail(ec::bad_argument, "speculation: {}, but the model makes {} drafts",
                to_string(wanted), limits.drafts);
  return {};
}

result<proto::request_spec> prepare_request(batch_line line, request_id number_,
                                            const batch_limits& limits,
                                            const std::function<std::uint64_t()>& draw_seed) {
  proto::request_spec spec;
  spec.request = number_;
  spec.priority = line.priority;
  spec.deadline_ms = line.deadline_ms;
  spec.tenant = std::move(line.tenant);
  DI_TRY_VOID(settle_computing(line, limits, spec));
  spec.sampling = std::move(line.sampling);
  if (line.prompt_ids) {
    spec.prompt = std::move(*line.prompt_ids);
  } else {
    if (!limits.words)
      return fail(ec::bad_argument, "prompt: the model has no tokenizer; give prompt_ids");
    DI_TRY(spec.prompt,
           limits.words->encode(*line.prompt,
                                line.special_tokens ? encode_mode::full : encode_mode::plain));
  }
  if (spec.prompt.empty())
    return fail(ec::bad_argument, "prompt: has no tokens, at least 1");
  for (std::size_t i = 0; i < spec.prompt.size(); ++i)
    if (spec.prompt[i] < 0 || static_cast<std::size_t>(spec.prompt[i]) >= limits.vocab)
      return fail(ec::bad_argument, "prompt_ids[{}]: token id {} lies outside [0, {})", i,
                  spec.prompt[i], limits.vocab);
  const std::uint64_t length = spec.prompt.size();
  if (length >= limits.context_tokens)
    return fail(ec::context_exceeded, "prompt: {} tokens leave no room in the context of {}",
                length, limits.context_tokens);
  const auto room = static_cast<std::uint32_t>(limits.context_tokens - length);
  if (!line.has_max_tokens) { // teacher forcing means these tokens, unless it says otherwise
    if (!spec.sampling.forced_ids.empty())
      spec.sampling.max_tokens = static_cast<std::uint32_t>(spec.sampling.forced_ids.size());
    else
      spec.sampling.max_tokens = std::min(room, spec.sampling.max_tokens);
  }
  if (spec.sampling.max_tokens > room)
    return fail(ec::context_exceeded,
                "max_tokens: {} prompt tokens and max_tokens={} exceed the context of {} tokens",
                length, spec.sampling.max_tokens, limits.context_tokens);
  if (!limits.words && !spec.sampling.stop.empty())
    return fail(ec::bad_argument, "stop: the model has no tokenizer");
  if (!line.has_seed)
    spec.sampling.seed = draw_seed();
  DI_TRY_VOID(to_sampling_params(spec.sampling).validate(limits.vocab));
  return spec;
}

batch read_batch(std::string_view text_, const batch_limits& limits, address gateway,
                 const std::function<std::uint64_t()>& draw_seed) {
  batch all;
  std::size_t line_number = 0;
  while (!text_.empty()) {
    const std::size_t end = std::min(text_.find('\n'), text_.size());
    std::string_view line = text_.substr(0, end);
    text_.remove_prefix(std::min(end + 1, text_.size()));
    ++line_number;
    if (!line.empty() && line.back() == '\r')
      line.remove_suffix(1);
    if (line.find_first_not_of(" \t") == std::string_view::npos)
      continue;
    batch_entry& entry = all.entries.emplace_back();
    entry.line = line_number;
    auto parsed = parse_batch_line(line, entry.id);
    if (!parsed) {
      entry.refused = parsed.error();
      continue;
    }
    const submit_options submit = parsed->submit;
    auto spec = prepare_request(std::move(parsed).value(), request_id{all.requests.size() + 1},
                                limits, draw_seed);
    if (!spec) {
      entry.refused = spec.error();
      continue;
    }
    entry.request = all.requests.size();
    entry.prompt_tokens = spec->prompt.size();
    entry.sampling = spec->sampling;
    spec->gateway = gateway;
    all.requests.push_back(std::move(spec).value());
    all.submit.push_back(submit);
  }
  return all;
}

} // namespace di::engine
