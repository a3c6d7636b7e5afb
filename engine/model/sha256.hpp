// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4), incremental. For identity of checkpoints, not for secrets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace di::engine {

class sha256 {
public:
  void update(std::span<const std::byte> bytes) noexcept;
  void update(std::string_view text) noexcept {
    update(std::as_bytes(std::span{text.data(), text.size()}));
  }
  /// The digest of all bytes so far, 64 lower-case hexadecimal digits. Call once.
  std::string hex();

private:
  void block(const std::byte* p) noexcept;

  std::array<std::uint32_t, 8> state_{0x6a09e667U, 0xbb67ae85U, 0x3c6ef372U, 0xa54ff53aU,
                                      0x510e527fU, 0x9b05688cU, 0x1f83d9abU, 0x5be0cd19U};
  std::array<std::byte, 64> pending_{};
  std::uint64_t length_ = 0; ///< [bytes]
};

/// Digest of one piece.
std::string sha256_hex(std::span<const std::byte> bytes);

} // namespace di::engine
