// SPDX-License-Identifier: Apache-2.0
// Joins sampler, token history and stop watch for one choice.
#include "engine/core/text_sampler.hpp"

#include "engine/sampling/sampler.hpp"
#include "engine/sampling/stop.hpp"

namespace di::engine {

sampling_params to_sampling_params(const proto::sampling_params& p) {
  sampling_params s;
  s.temperature = p.temperature;
  s.top_p = p.top_p;
  s.top_k = static_cast<std::int32_t>(p.top_k);
  s.min_p = p.min_p;
  s.presence_penalty = p.presence_penalty;
  s.frequency_penalty = p.frequency_penalty;
  s.repetition_penalty = p.repetition_penalty;
  for (const proto::token_bias& b : p.logit_bias)
    s.logit_bias.emplace_back(b.token, b.bias);
  s.seed = p.seed;
  if (p.logprobs >= 0)
    s.logprobs = p.logprobs;
  s.n = p.n;
  s.min_tokens = p.min_tokens;
  s.max_tokens = p.max_tokens;
  s.ignore_eos = p.ignore_eos;
  s.stop_token_ids = p.stop_token_ids;
  s.stop = p.stop;
  s.include_stop_str = p.include_stop;
  s.forced_ids = p.forced_ids;
  return s;
}

std::string_view shown_bytes(const tokenizer& words, token_id id) {
  return words.is_special(id) ? std::string_view{} : words.token_bytes(id);
}

namespace {

class text_sampler final : public choice_sampler {
public:
  text_sampler(sampler picks, std::shared_ptr<const stop_rules> rules, const tokenizer* words,
               std::uint32_t choice, std::span<const token_id> prompt)
      : picks_{std::move(picks)}, watch_{std::move(rules)}, words_{words}, choice_{choice} {
    if (picks_.needs_history())
      seen_.add_prompt(prompt);
  }

  result<drawn_token> draw(std::span<const float> logits, std::span<const token_id> history,
                           std::span<const token_id> pending) override {
    DI_TRY(const token_choice picked, pick(logits, history, pending, false));
    drawn_token drawn;
    drawn.token = picked.id;
    drawn.logprobs.logprob = picked.logprob.value_or(0);
    for (const token_logprob& t : picked.top) {
      drawn.logprobs.top_tokens.push_back(t.id);
      drawn.logprobs.top_logprobs.push_back(t.logprob);
    }
    return drawn;
  }

  result<token_id> draw_draft(std::span<const float> logits, std::span<const token_id> history,
                              std::span<const token_id> pending) override {
    DI_TRY(const token_choice picked, pick(logits, history, pending, true));
    return picked.id;
  }

  proto::choice_end accept(token_id token) override {
    ++output_;
    if (picks_.needs_history())
      seen_.push(token);
    const stop_delta delta =
        watch_.push(token, words_ ? shown_bytes(*words_, token) : std::string_view{});
    proto::choice_end end;
    switch (delta.finish) {
    case finish_reason::none:
      break;
    case finish_reason::stop:
      end.reason = proto::finish_reason::stop;
      break;
    case finish_reason::length:
      end.reason = proto::finish_reason::length;
      break;
    }
    if (delta.stop_string)
      end.stop_index = static_cast<std::int32_t>(*delta.stop_string);
    end.kept_tokens = watch_.tokens();
    return end;
  }

private:
  result<token_choice> pick(std::span<const float> logits, std::span<const token_id> history,
                            std::span<const token_id> pending, bool draft) const {
    sample_row row;
    row.logits = logits;
    row.position = static_cast<std::uint32_t>(history.size() + pending.size());
    row.choice = choice_;
    row.output_index = output_ + static_cast<std::uint32_t>(pending.size());
    row.history = &seen_;
    row.pending = pending;
    row.id_only = draft;
    // One set of buffers per thread serves all choices: contents mean nothing between calls.
    thread_local sample_scratch scratch;
    return picks_.pick(row, scratch);
  }

  sampler picks_;
  stop_watch watch_;
  token_history seen_;
  const tokenizer* words_;
  std::uint32_t choice_;
  std::uint32_t output_ = 0;
};

} // namespace

sampler_factory make_text_samplers(const tokenizer* words, std::size_t vocab,
                                   std::vector<token_id> eos_ids) {
  return [words, vocab, eos_ids = std::move(eos_ids)](
             const proto::request_spec& spec,
             std::uint32_t choice) -> result<std::unique_ptr<choice_sampler>> {
    const sampling_params params = to_sampling_params(spec.sampling);
    if (!words && !params.stop.empty())
      return fail(ec::bad_argument, "request {}: stop strings need a tokenizer, and there is none",
                  spec.request.v);
    auto rules = std::make_shared<const stop_rules>(params, eos_ids);
    DI_TRY(sampler picks, sampler::make(params, vocab, eos_ids));
    return std::unique_ptr<choice_sampler>{std::make_unique<text_sampler>(
        std::move(picks), std::move(rules), words, choice, spec.prompt)};
  };
}

} // namespace di::engine
