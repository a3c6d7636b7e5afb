// SPDX-License-Identifier: Apache-2.0
// Order first: no line overtakes one that waits.
#include "launch/line_backlog.hpp"

#include <utility>

namespace di::launch {

void line_backlog::put(std::string line, line_worth worth) {
  if (!flush() && worth == line_worth::spare && waiting_bytes_ + line.size() > spare_bytes_max_) {
    ++dropped_;
    return;
  }
  waiting_bytes_ += line.size();
  waiting_.push_back(std::move(line));
  flush();
}

bool line_backlog::flush() {
  while (!waiting_.empty()) {
    const auto sent = post_(waiting_.front());
    if (!sent.ok() && sent.error().code == ec::limit_exceeded)
      return false;
    waiting_bytes_ -= waiting_.front().size();
    waiting_.pop_front();
  }
  return true;
}

std::uint64_t line_backlog::take_dropped() noexcept {
  return std::exchange(dropped_, 0);
}

} // namespace di::launch
