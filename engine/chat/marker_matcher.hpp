// SPDX-License-Identifier: Apache-2.0
// Finds markers and stop strings in an output that arrives piece by piece.
#pragma once

#include "messaging/base/ids.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace di::engine {

/// One step of an output: a byte of ordinary text, or a token that is special as such.
struct output_symbol {
  std::uint32_t code = 0; ///< [0, 256): this byte; else 256 + token id

  static output_symbol byte(char c) noexcept { return {static_cast<unsigned char>(c)}; }
  static output_symbol special(token_id id) noexcept {
    return {256U + static_cast<std::uint32_t>(id)};
  }
  friend bool operator==(output_symbol, output_symbol) = default;
};

/// What is looked for: symbols in a row.
class marker {
public:
  /// Appends ordinary text.
  marker& text(std::string_view bytes);

  /// Appends a token that must have been sampled as such. @param spelling  how it is written out
  marker& special(token_id id, std::string_view spelling);

  /// Line feeds directly before it belong to it.
  marker& with_newlines() {
    newlines_ = true;
    return *this;
  }

  std::size_t size() const noexcept { return symbols_.size(); }

private:
  friend class marker_set;
  void append(output_symbol symbol, std::size_t size_bytes);

  std::vector<output_symbol> symbols_;
  std::vector<std::uint32_t> bytes_{0}; // [symbols + 1] size of the first k symbols written out
  std::vector<std::uint32_t> borders_;  // [symbols] longest proper border of the first k + 1
  bool newlines_ = false;
};

/// Looks for several markers at once (Knuth, Morris and Pratt, one automaton each).
///
/// The one that completes first wins; of several that complete together the one that began first,
/// then the one added first. Copyable value.
class marker_set {
public:
  void add(marker m);

  /// Forgets what was pushed.
  void reset();

  struct match {
    std::size_t index = 0; ///< of the marker, in the order of add()
    std::size_t bytes = 0; ///< [bytes] at the end of what was pushed that belong to it
  };

  /// Takes a symbol. After a match the caller resets.
  std::optional<match> push(output_symbol symbol);

  /// [bytes] at the end of what was pushed that may be the beginning of a marker.
  std::size_t held_bytes() const noexcept;

private:
  struct progress {
    marker wanted;
    std::uint32_t symbols = 0;  // matched so far
    std::uint32_t newlines = 0; // directly before them
  };
  std::vector<progress> progress_;
  std::uint32_t newlines_ = 0; // at the end of what was pushed
};

} // namespace di::engine
