// SPDX-License-Identifier: Apache-2.0
// Names, buckets and text of a gateway's metrics.
#include "launch/serve/serving_metrics.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace di::serve {
namespace {

constexpr std::array<std::string_view, served_routes> route_names{
    "chat",     "completions", "responses", "messages", "count_tokens", "models",
    "tokenize", "health",      "metrics",   "admin",    "other"};
constexpr std::array<std::string_view, served_ends> end_names{"stop", "tool_calls", "length",
                                                              "abort", "error"};
constexpr std::array<std::string_view, rejections> rejection_names{
    "queue_full", "key_limit", "draining", "too_large", "deadline"};

constexpr double us = 1e6; ///< units of a second

/// @source serving specification 5c: the buckets that dashboards know, and finer ones below them
std::vector<double> whole_bounds() {
  return {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
          30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
}
std::vector<double> first_token_bounds() {
  return {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
          1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
}
std::vector<double> token_bounds() {
  return {.001, .002, .003, .004, .005, .006, .008, .01, .025, .05, .075, .1, .15,
          .2,   .3,   .4,   .5,   .75,  1,    2.5,  5,   7.5,  10,  20,   40, 80};
}
std::vector<double> http_bounds() {
  return {.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800};
}
std::vector<double> length_bounds() {
  return {1,    2,    5,     10,    20,    50,     100,    200,    500,    1000,
          2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000};
}

std::uint64_t us_between(std::chrono::steady_clock::time_point a,
                         std::chrono::steady_clock::time_point b) {
  const auto d = std::chrono::duration_cast<std::chrono::microseconds>(b - a).count();
  return d > 0 ? static_cast<std::uint64_t>(d) : 0;
}

void add(std::atomic<std::uint64_t>& counter, std::uint64_t n = 1) {
  counter.fetch_add(n, std::memory_order_relaxed);
}

double value_of(const std::atomic<std::uint64_t>& counter) {
  return static_cast<double>(counter.load(std::memory_order_relaxed));
}

double value_of(const std::atomic<std::int64_t>& gauge) {
  return static_cast<double>(gauge.load(std::memory_order_relaxed));
}

} // namespace

std::string_view to_string(served_route r) noexcept {
  return route_names[static_cast<std::size_t>(r)];
}
std::string_view to_string(served_end e) noexcept {
  return end_names[static_cast<std::size_t>(e)];
}
std::string_view to_string(rejection r) noexcept {
  return rejection_names[static_cast<std::size_t>(r)];
}

serving_metrics::token_times::token_times()
    : first_token{first_token_bounds(), us},
      between_tokens{token_bounds(), us},
      per_token{token_bounds(), us},
      whole{whole_bounds(), us},
      queue{whole_bounds(), us},
      prefill{whole_bounds(), us},
      decode{whole_bounds(), us},
      inference{whole_bounds(), us},
      prompt_tokens{length_bounds(), 1},
      output_tokens{length_bounds(), 1},
      max_tokens{length_bounds(), 1},
      choices{{1, 2, 5, 10, 20}, 1} {
}

serving_metrics::serving_metrics(serving_metrics_options options)
    : options_{std::move(options)},
      started_s_{std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
                     .count()} {
  for (std::size_t i = 0; i < served_routes; ++i)
    http_took_.push_back(std::make_unique<atomic_histogram>(http_bounds(), us));
}

// --- counting

std::size_t serving_metrics::slot_of(int status) noexcept {
  const auto found = std::find(statuses.begin(), statuses.end(), status);
  if (found != statuses.end())
    return static_cast<std::size_t>(found - statuses.begin());
  return statuses.size() + static_cast<std::size_t>(std::clamp(status / 100, 1, 5) - 1);
}

void serving_metrics::http_began(served_route route) noexcept {
  http_open_[static_cast<std::size_t>(route)].fetch_add(1, std::memory_order_relaxed);
}

void serving_metrics::http_ended(served_route route, int status,
                                 std::chrono::nanoseconds took) noexcept {
  const auto r = static_cast<std::size_t>(route);
  http_open_[r].fetch_sub(1, std::memory_order_relaxed);
  add(http_[r][slot_of(status)]);
  http_took_[r]->observe(
      static_cast<std::uint64_t>(std::max<std::int64_t>(0, took.count() / 1000)));
}

void serving_metrics::http_bytes(std::uint64_t in, std::uint64_t out) noexcept {
  add(bytes_in_, in);
  add(bytes_out_, out);
}

void serving_metrics::server_counts_from(std::function<server_counts()> source) {
  const std::lock_guard lock{guard_};
  server_counts_ = std::move(source);
}

void serving_metrics::connections(std::int64_t change) noexcept {
  connections_.fetch_add(change, std::memory_order_relaxed);
  if (change > 0)
    add(opened_, static_cast<std::uint64_t>(change));
}

void serving_metrics::streams(std::int64_t change) noexcept {
  streams_.fetch_add(change, std::memory_order_relaxed);
}

void serving_metrics::rejected(rejection why) noexcept {
  add(rejected_[static_cast<std::size_t>(why)]);
}

void serving_metrics::stream_resumed() noexcept {
  add(resumed_);
}

void serving_metrics::request_known() noexcept {
  add(known_);
}

void serving_metrics::slow_client() noexcept {
  add(slow_);
}

// --- one request

request_meter::request_meter(serving_metrics& metrics, shape what, clock::time_point arrived)
    : metrics_{metrics}, shape_{what}, arrived_{arrived} {
  metrics_.opening_.fetch_add(1, std::memory_order_relaxed);
  add(metrics_.prompt_, shape_.prompt_tokens);
  metrics_.times_.prompt_tokens.observe(shape_.prompt_tokens);
  metrics_.times_.max_tokens.observe(shape_.max_tokens);
  metrics_.times_.choices.observe(shape_.choices);
}

request_meter::~request_meter() {
  ended(served_end::abort);
}

void request_meter::move_to(stage next) noexcept {
  const auto gauge = [&](stage s) -> std::atomic<std::int64_t>* {
    switch (s) {
    case stage::opening:
      return &metrics_.opening_;
    case stage::waiting:
      return &metrics_.waiting_;
    case stage::running:
      return &metrics_.running_;
    case stage::ended:
      break;
    }
    return nullptr;
  };
  if (auto* g = gauge(stage_))
    g->fetch_sub(1, std::memory_order_relaxed);
  stage_ = next;
  if (auto* g = gauge(stage_))
    g->fetch_add(1, std::memory_order_relaxed);
}

void request_meter::opened() {
  if (stage_ == stage::opening)
    move_to(stage::waiting);
}

void request_meter::tokens(std::uint32_t choice, std::size_t count, std::uint64_t cached,
                           clock::time_point now) {
  if (stage_ == stage::ended)
    return;
  if (cached > 0 && !std::exchange(cached_counted_, true))
    add(metrics_.cached_, std::min(cached, shape_.prompt_tokens));
  if (count == 0)
    return;
  if (stage_ != stage::running) {
    move_to(stage::running);
    first_ = now;
    metrics_.times_.first_token.observe(us_between(arrived_, now));
  }
  if (choice >= last_.size())
    last_.resize(std::size_t{choice} + 1);
  auto& last = last_[choice];
  if (last != clock::time_point{}) // a group of tokens: each took an equal part
    metrics_.times_.between_tokens.observe(us_between(last, now) / count, count);
  last = now;
  output_ += count;
  add(metrics_.output_, count);
}

void request_meter::choice_ended(const proto::choice_timings& spent) {
  auto& t = metrics_.times_;
  t.queue.observe(spent.queued_us);
  t.prefill.observe(spent.prefill_us);
  t.decode.observe(spent.decode_us);
  t.inference.observe(spent.prefill_us + spent.decode_us);
}

void request_meter::ended(served_end how, clock::time_point now) {
  if (stage_ == stage::ended)
    return;
  if (stage_ == stage::running && output_ > last_.size()) {
    const auto newest = *std::max_element(last_.begin(), last_.end());
    metrics_.times_.per_token.observe(us_between(first_, newest) * last_.size()
                                      / (output_ - last_.size()));
  }
  move_to(stage::ended);
  add(metrics_.ends_[static_cast<std::size_t>(how)]);
  metrics_.times_.whole.observe(us_between(arrived_, now));
  metrics_.times_.output_tokens.observe(output_);
}

// --- the page

std::string serving_metrics::text() const {
  metric_page page{{{"gateway", std::to_string(options_.gateway)}}};
  fill(page);
  return page.text();
}

void serving_metrics::fill(metric_page& page) const {
  page.gauge("di_process_start_time_seconds", "Start of the process since 1970.")
      .series(started_s_);
  fill_http(page);
  fill_tokens(page, false);
  if (options_.compat_metrics)
    fill_tokens(page, true);
}

void serving_metrics::fill_http(metric_page& page) const {
  page.counter("di_http_requests_total", "Requests answered, by route and status.");
  for (std::size_t r = 0; r < served_routes; ++r)
    for (std::size_t s = 0; s < status_slots; ++s)
      if (const double n = value_of(http_[r][s]); n > 0)
        page.series(
            n, {{"route", std::string{route_names[r]}},
                {"status", s < statuses.size() ? std::to_string(statuses[s])
                                               : fmt::format("{}xx", s - statuses.size() + 1)}});
  page.gauge("di_http_requests_in_flight", "Requests read and not yet answered to their end.");
  for (std::size_t r = 0; r < served_routes; ++r)
    page.series(value_of(http_open_[r]), {{"route", std::string{route_names[r]}}});
  page.histogram("di_http_request_duration_seconds", "Headers read until the answer's last byte.");
  for (std::size_t r = 0; r < served_routes; ++r)
    if (const auto took = http_took_[r]->read(); took.cumulative.back() > 0)
      page.series(took, {{"route", std::string{route_names[r]}}});
  page.counter("di_http_received_bytes_total", "Bodies of requests.").series(value_of(bytes_in_));
  page.counter("di_http_sent_bytes_total", "Bodies of answers.").series(value_of(bytes_out_));
  server_counts c;
  {
    const std::lock_guard lock{guard_};
    if (server_counts_)
      c = server_counts_();
  }
  const auto number = [](std::uint64_t n) { return static_cast<double>(n); };
  page.counter("di_http_connections_total", "Connections accepted.").series(value_of(opened_));
  page.gauge("di_http_connections_open", "Connections now.").series(value_of(connections_));
  page.counter("di_http_refused_total", "Requests that the server refused before any route.")
      .series(number(c.refused));
  page.counter("di_http_timeouts_total", "Requests or readers that were too slow.")
      .series(number(c.timed_out));
  page.counter("di_http_clients_left_total", "Clients that left before their answer was out.")
      .series(number(c.left));
  page.gauge("di_http_streams_open", "Event streams now.").series(value_of(streams_));
  page.counter("di_http_slow_clients_total", "Streams that waited because their reader was slow.")
      .series(value_of(slow_));
  page.counter("di_admission_rejections_total", "Requests turned away before any compute.");
  for (std::size_t i = 0; i < rejections; ++i)
    page.series(value_of(rejected_[i]), {{"reason", std::string{rejection_names[i]}}});
  page.counter("di_streams_resumed_total", "Streams taken up again by their client.")
      .series(value_of(resumed_));
  page.counter("di_requests_known_total", "Requests whose idempotency key named a known one.")
      .series(value_of(known_));
}

/// @param vllm  under the names that dashboards of vLLM ask for
void serving_metrics::fill_tokens(metric_page& page, bool vllm) const {
  const metric_labels model{{"model_name", options_.model}};
  const std::string p = vllm ? "vllm:" : "di_";
  const auto named = [&](std::string_view name) { return p + std::string{name}; };
  const auto counter = [&](std::string_view name, const char* help, const auto& n) {
    page.counter(named(name), help).series(value_of(n), model);
  };
  const auto histogram = [&](std::string_view name, const char* help, const atomic_histogram& h) {
    page.histogram(named(name), help).series(h.read(), model);
  };
  counter("prompt_tokens_total", "Tokens of prompts taken in.", prompt_);
  counter("generation_tokens_total", "Tokens generated.", output_);
  page.counter(named("request_success_total"), "Requests ended, by how.");
  for (std::size_t i = 0; i < served_ends; ++i)
    page.series(value_of(ends_[i]), {model[0], {"finished_reason", std::string{end_names[i]}}});
  if (vllm) {
    for (const std::string old : {"", "gpu_"}) {
      counter(old + "prefix_cache_queries_total", "Tokens of prompts taken in.", prompt_);
      counter(old + "prefix_cache_hits_total", "Tokens of prompts that were not computed again.",
              cached_);
    }
    page.counter(named("admission_rejections_total"), "As di_admission_rejections_total.");
    for (std::size_t i = 0; i < rejections; ++i)
      page.series(value_of(rejected_[i]), {model[0], {"reason", std::string{rejection_names[i]}}});
  } else {
    counter("cached_tokens_total", "Tokens of prompts that were not computed again.", cached_);
    counter("requests_aborted_total", "Requests whose client left or cancelled.",
            ends_[static_cast<std::size_t>(served_end::abort)]);
    page.gauge("di_gateway_requests", "Requests for tokens of this gateway now.")
        .series(value_of(opening_), {model[0], {"state", "opening"}})
        .series(value_of(waiting_), {model[0], {"state", "waiting"}})
        .series(value_of(running_), {model[0], {"state", "running"}});
  }
  histogram("time_to_first_token_seconds", "Headers read until the first token.",
            times_.first_token);
  histogram("inter_token_latency_seconds", "Between tokens of a choice.", times_.between_tokens);
  if (vllm)
    histogram("time_per_output_token_seconds", "As inter_token_latency_seconds; its older name.",
              times_.between_tokens);
  histogram("request_time_per_output_token_seconds", "Mean time between tokens of a request.",
            times_.per_token);
  histogram("e2e_request_latency_seconds", "Headers read until the last token.", times_.whole);
  histogram("request_queue_time_seconds", "Choices: given to a rank until its first row ran.",
            times_.queue);
  histogram("request_prefill_time_seconds", "Choices: first row until first token.",
            times_.prefill);
  histogram("request_decode_time_seconds", "Choices: first token until last.", times_.decode);
  histogram("request_inference_time_seconds", "Choices: first row until last token.",
            times_.inference);
  histogram("request_prompt_tokens", "Tokens of the prompt.", times_.prompt_tokens);
  histogram("request_generation_tokens", "Tokens generated for a request.", times_.output_tokens);
  histogram("request_params_max_tokens", "Tokens that a choice may have.", times_.max_tokens);
  histogram("request_params_n", "Choices asked for.", times_.choices);
}

} // namespace di::serve
