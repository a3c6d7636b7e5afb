// SPDX-License-Identifier: Apache-2.0
// The operators' HTTP listener of a cluster: status, orders, metrics of the cluster, and the live
// page. It runs in the process of gateway 0, so it outlives the control process and says so while
// that is away.
//
//   GET  /                      moves to /ui
//   GET  /ui                    the live page: one file, nothing from elsewhere
//   GET  /events                what the page shows, as server-sent events (live_feed.hpp)
//   GET  /health                200 while this process lives, with control's state
//   GET  /metrics               Prometheus: the cluster; of gateways only with ?gateway=1 (this
//   one) GET  /admin/status          as `dilaunch status --json` POST /admin/scale {"ranks": N}
//   POST /admin/drain|rejoin|kill {"rank": R}
//   POST /admin/upgrade
//
// Orders are answered when they are done ({"ok": true, "ranks": N, "view": V}) and go on if their
// client leaves. Errors: {"ok": false, "code", "error"} with 400, 404, 405, 413, 503 (control is
// away, or another order is under way; Retry-After), 504. The body may be left out if the query has
// the number (?rank=3).
//
// There are no keys here: it listens on 127.0.0.1 unless told otherwise. Orders that a foreign web
// page sends through a browser are refused (403): `Origin` must be this listener, and `Host` an
// address, `localhost` or the name it was told to listen at.
#pragma once

#include "messaging/base/result.hpp"
#include "messaging/bus/post_office.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace di::serve {

struct admin_listener_options {
  std::vector<int> listening;     ///< sockets made by others; duplicated. Empty: host and port
  std::string host = "127.0.0.1"; ///< also accepted as `Host` of orders
  std::uint16_t port = 0;         ///< 0: any free one
  address prefix = "/gateway/0";  ///< of this process: paths below it are bound at the office
  std::string topology;           ///< its name, shown on the page
  std::string model;              ///< its name: shown, and label of vLLM's metrics
  bool compat_metrics = false;
  std::chrono::milliseconds period{500}; ///< between two states of the live page
};

/// Thread-safe.
class admin_listener {
public:
  /// Binds paths below options.prefix at the office, listens, starts its threads (one of the
  /// server, one of the feed). @param office  outlives the listener; has a route to /control
  /// @errors duplicate; those of http::server::start()
  static result<std::unique_ptr<admin_listener>> start(bus::post_office& office,
                                                       admin_listener_options options);
  ~admin_listener();
  admin_listener(const admin_listener&) = delete;
  admin_listener& operator=(const admin_listener&) = delete;

  std::uint16_t port() const;
  /// Ends streams, answers what is at hand within the deadline, unbinds. Later calls do nothing.
  void stop(std::chrono::milliseconds deadline = std::chrono::milliseconds{200});

private:
  struct impl;
  explicit admin_listener(std::unique_ptr<impl> i);
  std::unique_ptr<impl> impl_;
};

} // namespace di::serve
