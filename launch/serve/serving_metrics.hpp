// SPDX-License-Identifier: Apache-2.0
// What one gateway process counts about its clients' requests, for Prometheus: counters and
// histograms that many threads write without locks, and the text of GET /metrics.
#pragma once

#include "launch/serve/metric_page.hpp"
#include "messaging/proto/sampling.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace di::serve {

/// Routes as metrics tell them apart; a bounded set, whatever paths clients think of.
enum class served_route : std::uint8_t {
  chat,
  completions,
  responses,
  messages,
  count_tokens,
  models,
  tokenize,
  health,
  metrics,
  admin,
  other,
};
inline constexpr std::size_t served_routes = static_cast<std::size_t>(served_route::other) + 1;
std::string_view to_string(served_route r) noexcept;

/// How a request for tokens ended, of its choices the last in this list.
enum class served_end : std::uint8_t {
  stop,       ///< end of sequence, stop token, stop string
  tool_calls, ///< with calls of tools
  length,     ///< max_tokens or the context
  abort,      ///< the client left or cancelled
  error,      ///< it failed
};
inline constexpr std::size_t served_ends = static_cast<std::size_t>(served_end::error) + 1;
std::string_view to_string(served_end e) noexcept;

/// Why a request was turned away before any compute.
enum class rejection : std::uint8_t {
  queue_full, ///< 503: the cluster's queue or the gateway's
  key_limit,  ///< 429: of the client's key
  draining,   ///< 503
  too_large,  ///< 400, 413: body, context, n, stop list
  deadline,   ///< 504: not served in time
};
inline constexpr std::size_t rejections = static_cast<std::size_t>(rejection::deadline) + 1;
std::string_view to_string(rejection r) noexcept;

/// What the HTTP server counts itself; see http::counts.
struct server_counts {
  std::uint64_t refused = 0, timed_out = 0, left = 0;
};

struct serving_metrics_options {
  std::uint32_t gateway = 0;   ///< label `gateway` of every series
  std::string model;           ///< label `model_name` of what is about tokens
  bool compat_metrics = false; ///< the same numbers under the names of vLLM, beside ours
};

/// One per gateway process; all calls are thread-safe and wait for nobody: each is a few relaxed
/// atomic additions. Counters begin at 0 with the process; di_process_start_time_seconds says when.
class serving_metrics {
public:
  explicit serving_metrics(serving_metrics_options options);

  /// An HTTP request's headers were read / its answer is written or given up. A stream counts as
  /// one request that lasts until its end.
  void http_began(served_route route) noexcept;
  void http_ended(served_route route, int status, std::chrono::nanoseconds took) noexcept;
  /// Bytes of bodies. @param in, out [bytes]
  void http_bytes(std::uint64_t in, std::uint64_t out) noexcept;

  void streams(std::int64_t change) noexcept; ///< SSE answers under way
  void rejected(rejection why) noexcept;
  void connections(std::int64_t change) noexcept; ///< +1 opened, -1 closed
  /// Where the page gets them from; may be called until it is replaced. The one call that locks.
  void server_counts_from(std::function<server_counts()> source);
  void stream_resumed() noexcept; ///< by Last-Event-ID or a second GET
  void request_known() noexcept;  ///< an idempotency key named one that exists
  void slow_client() noexcept;    ///< its buffer was full: the stream waited

  /// The page of GET /metrics of the public listener: Prometheus text format 0.0.4.
  std::string text() const;
  /// Content-Type of text().
  static constexpr const char* content_type = "text/plain; version=0.0.4; charset=utf-8";

  /// As text(), before it is text; the admin page has other parts.
  void fill(metric_page& page) const;

private:
  friend class request_meter;
  using count = std::atomic<std::uint64_t>;
  /// Statuses that are told apart; others count under their class, e.g. 4xx.
  static constexpr std::array<int, 20> statuses{200, 202, 204, 206, 400, 401, 403, 404, 405, 408,
                                                409, 411, 413, 415, 422, 429, 431, 499, 500, 503};
  static constexpr std::size_t status_slots = statuses.size() + 5; ///< then 1xx .. 5xx
  static std::size_t slot_of(int status) noexcept;

  struct token_times { ///< [us] or [tokens]; see the .cpp for the buckets
    atomic_histogram first_token, between_tokens, per_token, whole, queue, prefill, decode,
        inference;
    atomic_histogram prompt_tokens, output_tokens, max_tokens, choices;
    token_times();
  };
  void fill_http(metric_page& page) const;
  void fill_tokens(metric_page& page, bool vllm) const;

  serving_metrics_options options_;
  double started_s_; ///< [s] since 1970
  std::array<std::array<count, status_slots>, served_routes> http_{};
  std::vector<std::unique_ptr<atomic_histogram>> http_took_; ///< [routes]
  std::array<std::atomic<std::int64_t>, served_routes> http_open_{};
  std::atomic<std::int64_t> connections_{0}, streams_{0}, opening_{0}, waiting_{0}, running_{0};
  std::array<count, served_ends> ends_{};
  std::array<count, rejections> rejected_{};
  count bytes_in_{0}, bytes_out_{0}, prompt_{0}, output_{0}, cached_{0}, resumed_{0}, known_{0},
      slow_{0}, opened_{0};
  token_times times_;
  mutable std::mutex guard_; ///< of the source
  std::function<server_counts()> server_counts_;
};

/// One request for tokens, from its admission to its end; on one thread at a time. A meter that is
/// destroyed before ended() counts as abort.
///
///   request_meter meter{metrics, {.prompt_tokens = p, .max_tokens = m, .choices = n}, arrived};
///   meter.opened();                        // stream_listener::opened
///   meter.tokens(m.choice, m.tokens.size(), m.cached_tokens);
///   meter.choice_ended(m.timings);         // of the choice, once
///   meter.ended(served_end::stop);
class request_meter {
public:
  using clock = std::chrono::steady_clock;
  struct shape {
    std::uint64_t prompt_tokens = 0; ///< [tokens]
    std::uint64_t max_tokens = 0;    ///< [tokens] per choice
    std::uint32_t choices = 1;
  };

  /// @param metrics  outlives the meter  @param arrived  when the headers of the request were read
  request_meter(serving_metrics& metrics, shape what, clock::time_point arrived);
  ~request_meter();
  request_meter(const request_meter&) = delete;
  request_meter& operator=(const request_meter&) = delete;

  void opened();
  /// New tokens of a choice: each once, also when they were computed by several ranks.
  /// @param cached [tokens] of the prompt that were not computed; as the message says, counted once
  void tokens(std::uint32_t choice, std::size_t count, std::uint64_t cached = 0,
              clock::time_point now = clock::now());
  void choice_ended(const proto::choice_timings& spent);
  void ended(served_end how, clock::time_point now = clock::now());

private:
  enum class stage : std::uint8_t { opening, waiting, running, ended };
  void move_to(stage next) noexcept;

  serving_metrics& metrics_;
  shape shape_;
  clock::time_point arrived_, first_{};
  std::vector<clock::time_point> last_; ///< [choices] when its last tokens came
  std::uint64_t output_ = 0;            ///< [tokens] of all choices
  bool cached_counted_ = false;
  stage stage_ = stage::opening;
};

} // namespace di::serve
