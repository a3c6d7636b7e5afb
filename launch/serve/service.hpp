// SPDX-License-Identifier: Apache-2.0
// What all routes of a gateway share: settings, model, desk, keys, admission, open sessions; and
// how a call is answered.
#pragma once

#include "actors/stream_gateway.hpp"
#include "engine/chat/prepare.hpp"
#include "engine/text/tokenizer.hpp"
#include "launch/serve/admission.hpp"
#include "launch/serve/call.hpp"
#include "launch/serve/health_source.hpp"
#include "launch/serve/parked_places.hpp"
#include "launch/serve/serve_settings.hpp"
#include "launch/serve/serving_metrics.hpp"
#include "launch/serve/side_worker.hpp"

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>

namespace di::serve {

class session;

struct service_parts {
  serve_settings settings;
  std::shared_ptr<const engine::tokenizer> words; ///< never null
  std::shared_ptr<actors::gateway_desk> desk;     ///< never null
  std::shared_ptr<const health_source> health;    ///< never null
  env* world = &real_env();
  serving_metrics* metrics = nullptr; ///< null: nothing is counted; outlives the service
};

/// Any thread, but for what a call brings with it (see call.hpp). Outlives the HTTP server.
class service {
public:
  explicit service(service_parts parts);
  ~service();
  service(const service&) = delete;
  service& operator=(const service&) = delete;

  std::shared_ptr<const serve_settings> settings() const;
  /// Takes other limits, names and switches; requests at hand keep the old ones. Reads the keys
  /// file again. @errors those of api_keys::reload(): then the keys stay as they were
  result<void> reload(serve_settings next);
  /// Reads the keys file; before the first request. @errors io_error, bad_config
  result<void> load_keys();

  const std::shared_ptr<const engine::tokenizer>& words() const { return parts_.words; }
  actors::gateway_desk& desk() const { return *parts_.desk; }
  health_state health() const { return parts_.health->health(); }
  env& world() const { return *parts_.world; }
  admission& doors() { return doors_; }
  parked_places& parked() { return parked_; }
  const api_keys& keys() const { return *keys_; }

  /// Rules for bodies as the settings say.
  engine::request_rules rules() const;
  /// Whether a request may give this name; the shown name if so.
  std::optional<std::string> model_of(std::string_view name, bool messages) const;
  /// `system_fingerprint`: from the contract id; empty while it is unknown.
  std::string fingerprint() const;

  /// Headers of every answer: request id, processing time, warnings, CORS.
  http::header_list headers(const call& c) const;
  /// Lets a page of another origin read the answer, if the settings do.
  void add_cors(http::header_list& to, const http::request& asked) const;
  /// A whole answer with a JSON body. Logs the call.
  void answer(call& c, int status, std::string json_body, http::header_list extra = {});
  /// The error in the call's dialect. Logs the call.
  void refuse(call& c, const api_error& e);
  /// Tells log and observer that the call is over. Once, by whoever answered it.
  void finished(call& c);
  serving_metrics* metrics() const { return parts_.metrics; }

  /// Runs `work`, which holds a body of so many bytes, on a thread beside those of HTTP. False if
  /// too much waits there already.
  bool aside(std::size_t bytes, std::function<void()> work) {
    return side_.add(bytes, std::move(work));
  }

  /// Sessions live here from their start to their end.
  void hold(std::shared_ptr<session> s);
  void release(const session* s);
  std::size_t sessions() const;

  /// Lets sessions that were silent send a comment. Called by the thread of start_clock(); tests
  /// call it themselves.
  void tick();
  /// Calls tick() as often as the settings ask for, on a thread of its own, until destruction.
  void start_clock();

private:
  void run_clock();

  service_parts parts_;
  std::shared_ptr<api_keys> keys_;
  admission doors_;
  parked_places parked_;     ///< after doors_: it goes first
  mutable std::mutex guard_; ///< of settings_, sessions_, stop_
  std::shared_ptr<const serve_settings> settings_;
  std::unordered_map<const session*, std::shared_ptr<session>> sessions_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread clock_;
  side_worker side_; ///< last: its work uses all the others
};

} // namespace di::serve
