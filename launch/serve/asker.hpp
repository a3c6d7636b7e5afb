// SPDX-License-Identifier: Apache-2.0
// Questions to actors from code that is no actor: an address of its own, and a callback per answer.
#pragma once

#include "messaging/bus/post_office.hpp"

#include <functional>
#include <memory>

namespace di::serve {

/// Thread-safe. Sits at a path of the post office until it is destroyed; answers that come later
/// are dropped with their callbacks.
class asker {
public:
  using answer_fn = std::function<void(result<parcel>)>;

  /// @param office  outlives the asker  @errors duplicate
  static result<std::unique_ptr<asker>> open(bus::post_office& office, address path);
  ~asker();
  asker(const asker&) = delete;
  asker& operator=(const asker&) = delete;

  /// @param answer  called once within the timeout, on any thread, also on the caller's; must not
  /// wait
  void ask(const address& to, parcel question, duration timeout, answer_fn answer);

private:
  struct desk; ///< shared with the post office, which may deliver for a moment after unbind()
  explicit asker(std::shared_ptr<desk> d) : desk_{std::move(d)} {}
  std::shared_ptr<desk> desk_;
};

} // namespace di::serve
