// SPDX-License-Identifier: Apache-2.0
// CRC-32C (Castagnoli), by the processor's instruction where there is one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace di {

/// Checksum of `bytes`, continuing from `before` (0 at the start). The empty span changes nothing.
/// @source RFC 3720 B.4; check value of "123456789" is e3069283
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0) noexcept;

namespace detail {
/// The table-driven twin, for processors without the instruction and for tests.
std::uint32_t crc32c_portable(std::span<const std::byte> bytes, std::uint32_t before) noexcept;
} // namespace detail

} // namespace di
