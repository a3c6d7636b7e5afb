// SPDX-License-Identifier: Apache-2.0
// Bytes on their way to a client: small pieces join, what is being written stays where it is.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <utility>

namespace di::http {

/// For one thread. The pieces that parts() showed stay valid until consume().
class output_queue {
public:
  void append(std::string&& bytes) {
    if (bytes.empty())
      return;
    bytes_ += bytes.size();
    const bool join =
        pieces_.size() > shown_ && pieces_.back().size() + bytes.size() <= joined_bytes_max;
    if (join)
      pieces_.back() += bytes;
    else
      pieces_.push_back(std::move(bytes));
  }

  std::size_t bytes() const noexcept { return bytes_; }
  bool empty() const noexcept { return bytes_ == 0; }

  /// Calls `each(std::string_view)` with up to `count` pieces from the front.
  template <class Each>
  void parts(std::size_t count, Each each) {
    shown_ = count < pieces_.size() ? count : pieces_.size();
    for (std::size_t i = 0; i < shown_; ++i)
      each(std::string_view{pieces_[i]}.substr(i == 0 ? offset_ : 0));
  }

  /// @pre count <= bytes()
  void consume(std::size_t count) {
    bytes_ -= count;
    shown_ = 0;
    while (!pieces_.empty() && count >= pieces_.front().size() - offset_) {
      count -= pieces_.front().size() - offset_;
      offset_ = 0;
      pieces_.pop_front();
    }
    offset_ += count;
  }

  void clear() { *this = output_queue{}; }

private:
  static constexpr std::size_t joined_bytes_max = 16u << 10;
  std::deque<std::string> pieces_;
  std::size_t offset_ = 0; ///< of the front piece, sent already
  std::size_t bytes_ = 0;
  std::size_t shown_ = 0;
};

} // namespace di::http
