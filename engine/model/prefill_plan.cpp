// SPDX-License-Identifier: Apache-2.0
// Arithmetic of prefill and prefix modes.
#include "engine/model/prefill_plan.hpp"

#include "messaging/base/check.hpp"

#include <algorithm>

namespace di::engine {

namespace {

std::int64_t whole_pages(const prefill_rules& rules, std::int64_t tokens) {
  return std::max<std::int64_t>(tokens, 0) / rules.page_tokens * rules.page_tokens;
}

} // namespace

prefill_rules make_prefill_rules(const model_spec& spec) {
  prefill_rules rules;
  rules.layers = spec.num_hidden_layers;
  rules.encoder_layers = spec.last_kv_source() + 1;
  rules.window = spec.sliding_window;
  rules.draft_layers = spec.draft_layers();
  rules.verify_rows = 1 + spec.dspark_block_size;
  return rules;
}

std::int64_t decoder_floor(const prefill_rules& rules, const prefill_request& request) {
  if (request.prefill == proto::prefill_mode::full)
    return 0;
  const std::int64_t keep =
      request.keep_rows == 0 ? rules.default_keep() : std::max(request.keep_rows, rules.window);
  return std::max<std::int64_t>(0, request.prompt_tokens - keep);
}

std::int64_t hit_limit(const prefill_rules& rules, const prefill_request& request) {
  switch (request.prefix) {
  case proto::prefix_mode::off:
    return 0;
  case proto::prefix_mode::exact:
    return whole_pages(rules, request.prompt_tokens - 1);
  case proto::prefix_mode::bounded: {
    const std::int64_t limit = whole_pages(rules, request.prompt_tokens - rules.bounded_tail());
    return limit > rules.window ? limit : 0;
  }
  }
  return 0;
}

snapshot_kind snapshot_kind_of(const prefill_request& request) {
  return request.prefill == proto::prefill_mode::full ? snapshot_kind::full
                                                      : snapshot_kind::encoder;
}

std::int64_t snapshot_limit(const prefill_rules& rules, const prefill_request& request,
                            std::int64_t known) {
  if (request.prefix == proto::prefix_mode::off)
    return 0;
  // Above the decoder floor the windows of the layers behind the split depend on the floor.
  return whole_pages(rules, request.prefill == proto::prefill_mode::full
                                ? known - 1
                                : std::min(known - 1, decoder_floor(rules, request)));
}

std::int64_t snapshot_boundary(const prefill_rules& rules, const prefill_request& request) {
  return snapshot_limit(rules, request, request.prompt_tokens);
}

prefill_start plan_start(const prefill_rules& rules, std::int64_t decoder, std::int64_t hit,
                         std::int64_t bounded, std::int64_t snapshot) {
  DI_CHECK(bounded <= hit && snapshot <= hit && hit % rules.page_tokens == 0);
  prefill_start start;
  const std::int64_t base = std::max<std::int64_t>(0, bounded - rules.window);
  start.floors.encoder = bounded > 0 ? base : 0;
  start.floors.decoder = decoder > 0 ? std::max(decoder, start.floors.encoder) : 0;
  start.floors.write = hit;
  start.first_row = start.floors.encoder;
  if (hit == bounded) // cold, or the whole window of a bounded hit is run again
    return start;
  // Exact relative to the base: rebuild every window that later rows read.
  const std::int64_t rebuilt = decoder > 0 ? rules.encoder_layers : rules.layers;
  const std::int64_t first_needed = decoder > 0 ? std::min(hit, start.floors.decoder) : hit;
  // A draft ring holds one row more than the window behind a query, so taps reach one lower.
  const std::int64_t halo =
      first_needed - rebuilt * (rules.window - 1) - (rules.draft_layers > 0 ? 1 : 0);
  if (snapshot > 0 && snapshot >= halo && (decoder == 0 || snapshot <= start.floors.decoder)) {
    start.first_row = snapshot;
    start.use_snapshot = true;
  } else if (halo > base) {
    start.first_row = start.floors.encoder = halo;
    start.floors.ramp = true;
  }
  return start;
}

prefill_start plan_resume(const prefill_rules& rules, std::int64_t decoder, std::int64_t hit,
                          std::int64_t bounded, std::int64_t length) {
  DI_CHECK(bounded < length && length <= hit);
  prefill_start start = plan_start(rules, decoder, bounded, bounded, 0); // floors follow from H
  start.floors.write = hit;
  start.first_row = length;
  start.use_snapshot = true;
  return start;
}

} // namespace di::engine
