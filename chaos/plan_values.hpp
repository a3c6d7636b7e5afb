// SPDX-License-Identifier: Apache-2.0
// Values of a fault plan as they are written, and which keys each kind of fault takes.
#pragma once

#include "chaos/plan.hpp"
#include "launch/units.hpp"

#include <fmt/format.h>

#include <string>
#include <vector>

namespace di::chaos {

// All: @errors bad_config or bad_argument, saying what was expected.
result<std::uint32_t> parse_count(const std::string& text);
result<std::uint64_t> parse_number(const std::string& text);
result<range> parse_range(const std::string& text); ///< `3`, `3..8`
result<bool> parse_flag(const std::string& text);
result<double> parse_factor(const std::string& text); ///< `3`, `x3`
result<double> parse_rate(const std::string& text);   ///< `0.1`, `10%`
result<std::string> parse_word(const std::string& text);
result<fault_kind> parse_kind(const std::string& text);
result<fault_target> parse_target(const std::string& text);
result<fault_trigger> parse_trigger(const std::string& text);
/// F1 … F28, C01 … C47, I1 … I20.
bool is_coverage(std::string_view text);
/// What contradicts itself in one fault.
std::vector<std::string> check_fault(const fault& f);

} // namespace di::chaos
