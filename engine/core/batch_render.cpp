// SPDX-License-Identifier: Apache-2.0
// Output lines of a batch.
#include "engine/core/batch_io.hpp"
#include "engine/core/text_sampler.hpp"
#include "engine/sampling/stop.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace di::engine {

namespace {

using json = nlohmann::ordered_json;

json ms(std::uint64_t us) {
  return static_cast<double>(us) / 1000.0;
}

std::string_view name_of(proto::finish_reason reason) {
  switch (reason) {
  case proto::finish_reason::none:
    return "none";
  case proto::finish_reason::stop:
    return "stop";
  case proto::finish_reason::length:
    return "length";
  case proto::finish_reason::error:
    return "error";
  case proto::finish_reason::cancelled:
    return "cancelled";
  }
  return "none";
}

/// The first fields of every line: who it answers.
json begin_line(const batch_entry& entry) {
  json line;
  line["id"] = entry.id.empty() ? json(entry.line)
                                : json::parse(entry.id, nullptr, /*allow_exceptions=*/false);
  return line;
}

std::string dump(const json& line) {
  return line.dump(-1, ' ', false, json::error_handler_t::replace);
}

/// [tokens] of a choice that are its answer: those that its line shows.
std::size_t kept_of(const collected_choice& c) {
  return c.end.reason == proto::finish_reason::stop
             ? std::min<std::size_t>(c.end.kept_tokens, c.tokens.size())
             : c.tokens.size();
}

json logprobs_of(std::span<const token_id> ids, const collected_choice& c) {
  json all = json::array();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const proto::position_logprobs& at = c.logprobs[i];
    json top = json::array();
    for (std::size_t k = 0; k < at.top_tokens.size(); ++k)
      top.push_back({{"id", at.top_tokens[k]}, {"logprob", at.top_logprobs[k]}});
    all.push_back({{"id", ids[i]}, {"logprob", at.logprob}, {"top", std::move(top)}});
  }
  return all;
}

void add_choice(json& into, const batch_entry& entry, const collected_choice& c,
                const tokenizer* words, std::span<const token_id> eos_ids) {
  const std::size_t kept = kept_of(c);
  const auto ids = std::span{c.tokens}.first(kept);
  if (words)
    into["text"] = completion_text(entry.sampling, c.tokens, words, eos_ids);
  into["ids"] = json(std::vector<token_id>(ids.begin(), ids.end()));
  into["finish_reason"] = name_of(c.end.reason);
  if (c.end.stop_index >= 0
      && static_cast<std::size_t>(c.end.stop_index) < entry.sampling.stop.size())
    into["stop"] = entry.sampling.stop[static_cast<std::size_t>(c.end.stop_index)];
  if (entry.sampling.logprobs >= 0 && c.logprobs.size() >= kept)
    into["logprobs"] = logprobs_of(ids, c);
  if (c.end.reason == proto::finish_reason::error
      || c.end.reason == proto::finish_reason::cancelled)
    into["error"] = {{"code", to_string(c.end.code)}, {"message", c.end.what}};
}

json timings_of(const collected_choice& c) {
  json all = {{"queued_ms", ms(c.timings.queued_us)}, {"prefill_ms", ms(c.timings.prefill_us)},
              {"decode_ms", ms(c.timings.decode_us)}, {"first_token_ms", ms(c.first_token_us)},
              {"total_ms", ms(c.total_us)},           {"attempts", c.attempts}};
  if (!c.token_us.empty()) {
    all["submitted_ms"] = ms(c.submitted_us);
    json& times = all["token_ms"] = json::array();
    for (std::size_t i = 0; i < std::min(c.token_us.size(), kept_of(c)); ++i)
      times.push_back(ms(c.token_us[i]));
    json& ranks = all["ranks"] = json::array();
    for (const auto& [first, rank] : c.served_by)
      ranks.push_back({first, rank.v});
  }
  return all;
}

} // namespace

std::string completion_text(const proto::sampling_params& sampling,
                            std::span<const token_id> tokens, const tokenizer* words,
                            std::span<const token_id> eos_ids) {
  if (!words)
    return {};
  // The same watch that ended the choice on its rank, so the text is cut where the rank cut it.
  stop_watch watch{std::make_shared<const stop_rules>(to_sampling_params(sampling), eos_ids)};
  std::string out;
  for (const token_id id : tokens)
    out += watch.push(id, shown_bytes(*words, id)).text;
  if (!watch.finished())
    out += watch.finish(finish_reason::length).text;
  return out;
}

std::string render_completion(const batch_entry& entry, std::span<const collected_choice> choices,
                              const tokenizer* words, std::span<const token_id> eos_ids) {
  json line = begin_line(entry);
  std::size_t output_tokens = 0;
  for (const collected_choice& c : choices)
    output_tokens += kept_of(c);
  if (choices.size() == 1) {
    add_choice(line, entry, choices[0], words, eos_ids);
  } else {
    json all = json::array();
    for (std::size_t i = 0; i < choices.size(); ++i) {
      json one;
      one["index"] = i;
      add_choice(one, entry, choices[i], words, eos_ids);
      one["timings"] = timings_of(choices[i]);
      all.push_back(std::move(one));
    }
    line["choices"] = std::move(all);
  }
  line["seed"] = entry.sampling.seed;
  line["prompt_tokens"] = entry.prompt_tokens;
  line["output_tokens"] = output_tokens;
  if (choices.size() == 1)
    line["timings"] = timings_of(choices[0]);
  return dump(line);
}

std::string render_refusal(const batch_entry& entry) {
  json line = begin_line(entry);
  if (entry.id.empty())
    line["id"] = nullptr; // it may have one that could not be read
  line["line"] = entry.line;
  line["finish_reason"] = "error";
  line["error"] = {{"code", to_string(entry.refused ? entry.refused->code : ec::internal)},
                   {"message", entry.refused
                                   ? fmt::format("line {}: {}", entry.line, entry.refused->what)
                                   : std::string{}}};
  return dump(line);
}

} // namespace di::engine
