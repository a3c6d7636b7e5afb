// SPDX-License-Identifier: Apache-2.0
// Values with units as they stand in a topology: times, sizes, and lists of hosts.
#pragma once

#include "messaging/base/result.hpp"

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace di::launch {

/// A whole number from 0 to 2^63 - 1, decimal, no sign. @errors bad_argument
result<std::int64_t> parse_integer(std::string_view text);

/// `60ms`, `1.5s`, `2m`, `1h`, `3d`; the unit is mandatory. @errors bad_argument
result<std::chrono::nanoseconds> parse_time(std::string_view text);

/// `4096B`, `64KiB`, `1.5GiB`, `2TiB`, `10MB` (decimal); the unit is mandatory.
/// @errors bad_argument
result<std::uint64_t> parse_size(std::string_view text);

/// Largest unit that divides evenly: 60s, 1500ms, 64MiB.
std::string format_time(std::chrono::nanoseconds t);
std::string format_size(std::uint64_t size_bytes);
/// For people: 3 digits and a unit, 12.8 MiB.
std::string pretty_size(std::uint64_t size_bytes);

/// Slurm's list syntax: `gpu[001-003,7],cpu1` -> gpu001 gpu002 gpu003 gpu7 cpu1. At most
/// `hosts_max` names. @errors bad_argument, limit_exceeded
result<std::vector<std::string>> expand_hosts(std::string_view text);
inline constexpr std::size_t hosts_max = 4096;

/// The candidate that `word` most likely meant; empty if none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

} // namespace di::launch
