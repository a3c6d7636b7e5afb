// SPDX-License-Identifier: Apache-2.0
// Drawing and naming faults.
#include "chaos/sim_fault.hpp"

#include "messaging/proto/catalog.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace di::sim {

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr std::array<std::string_view, fault_kinds> names{
    "kill",    "crash",   "stop",      "slow",    "node", "loss",    "delay", "repeat",
    "reorder", "corrupt", "partition", "one_way", "disk", "control", "order", "gateway"};

/// Messages at which a process may end: where protocols have a before and an after.
constexpr std::array crash_points{
    proto::view_committed::wire,
    proto::placement_published::wire,
    proto::placement_installed::wire,
    proto::placement_proposed::wire,
    proto::placement_prepared::wire,
    proto::placement_settled::wire,
    proto::assign_request::wire,
    proto::request_taken::wire,
    proto::tokens_committed::wire,
    proto::commit_accepted::wire,
    proto::expert_batch::wire,
    proto::expert_rows::wire,
    proto::announce::wire,
    proto::directory_snapshot::wire,
    proto::admit_request::wire,
    proto::request_settled::wire,
    proto::tokens_released::wire,
    proto::release_acknowledged::wire,
};

/// Spread over magnitudes: [0.2 ms, 0.6 s].
duration some_time(sim_random& r) {
  const double power = static_cast<double>(r.below(3500)) / 1000; // 0..3.5
  return duration{static_cast<std::int64_t>(200e3 * std::pow(10.0, power))};
}

void draw(fault_kind kind, std::uint32_t ranks, std::uint32_t nodes, sim_random& r, fault& f) {
  f.kind = kind;
  f.at = some_time(r);
  f.lasting = r.span(milliseconds{1}, milliseconds{1'500});
  f.rank = static_cast<std::uint32_t>(r.below(ranks));
  switch (kind) {
  case fault_kind::crash:
    f.on = crash_points[r.below(crash_points.size())];
    f.nth = static_cast<std::uint32_t>(r.between(1, r.chance(0.5) ? 4 : 200));
    f.sender = r.chance(0.5);
    break;
  case fault_kind::stop:
    f.lasting = r.chance(0.3) ? r.span(milliseconds{1}, milliseconds{100})
                              : r.span(milliseconds{100}, milliseconds{3'000});
    break;
  case fault_kind::slow:
    f.amount = r.chance(0.5) ? 3 : 10;
    break;
  case fault_kind::node:
    f.rank = static_cast<std::uint32_t>(r.below(nodes));
    break;
  case fault_kind::loss:
    f.amount = static_cast<double>(r.between(1, 200)) / 1000;
    break;
  case fault_kind::repeat:
  case fault_kind::corrupt:
    f.amount = static_cast<double>(r.between(1, 100)) / 1000;
    break;
  case fault_kind::delay:
  case fault_kind::reorder:
    f.delay = r.span(microseconds{100}, milliseconds{r.chance(0.3) ? 300 : 20});
    break;
  case fault_kind::partition:
  case fault_kind::one_way:
    f.count = static_cast<std::uint32_t>(r.between(1, std::max(1U, ranks / 2)));
    f.other = static_cast<std::uint32_t>(r.below(ranks));
    f.hold = r.chance(0.5);
    f.lasting = r.span(milliseconds{5}, milliseconds{800});
    break;
  case fault_kind::disk:
    f.amount = static_cast<double>(r.below(3));
    break;
  default:
    break;
  }
}

} // namespace

std::string_view to_string(fault_kind k) noexcept {
  return names[static_cast<std::size_t>(k)];
}

result<fault_mask> parse_faults(std::string_view words) {
  if (words == "all")
    return all_faults;
  fault_mask mask = 0;
  while (!words.empty()) {
    const std::string_view word = words.substr(0, words.find(','));
    words.remove_prefix(std::min(words.size(), word.size() + 1));
    if (word == "none")
      continue;
    const auto at = std::find(names.begin(), names.end(), word);
    if (at == names.end())
      return fail(ec::bad_argument, "no fault '{}'; there are: all none {}", word,
                  fmt::join(names, " "));
    mask |= 1U << static_cast<std::uint32_t>(at - names.begin());
  }
  return mask;
}

std::string words_of(const fault& f) {
  const auto ms = [](duration d) { return static_cast<double>(d.count()) * 1e-6; };
  std::string s = fmt::format("{:9.3f} ms  {}", ms(f.at), to_string(f.kind));
  switch (f.kind) {
  case fault_kind::kill:
  case fault_kind::order:
    return s + fmt::format(" rank {}", f.rank);
  case fault_kind::crash:
    return fmt::format("             crash of the {} of {:#06x} number {}",
                       f.sender ? "sender" : "receiver", f.on.v, f.nth);
  case fault_kind::stop:
    return s + fmt::format(" rank {} for {:.1f} ms", f.rank, ms(f.lasting));
  case fault_kind::slow:
    return s + fmt::format(" rank {} x{} for {:.1f} ms", f.rank, f.amount, ms(f.lasting));
  case fault_kind::node:
    return s + fmt::format(" {}", f.rank);
  case fault_kind::loss:
  case fault_kind::repeat:
  case fault_kind::corrupt:
    return s + fmt::format(" {:.1f} % for {:.1f} ms", f.amount * 100, ms(f.lasting));
  case fault_kind::delay:
  case fault_kind::reorder:
    return s + fmt::format(" up to {:.1f} ms for {:.1f} ms", ms(f.delay), ms(f.lasting));
  case fault_kind::partition:
  case fault_kind::one_way:
    return s
           + fmt::format(" of {} ranks from {} on, {} for {:.1f} ms", f.count, f.other,
                         f.hold ? "held" : "lost", ms(f.lasting));
  case fault_kind::disk:
    return s
           + fmt::format(" {} for {:.1f} ms",
                         f.amount == 0   ? "full"
                         : f.amount == 1 ? "failing"
                                         : "slow",
                         ms(f.lasting));
  case fault_kind::control:
  case fault_kind::gateway:
    return s;
  }
  return s;
}

std::vector<fault> make_faults(std::uint64_t seed, std::uint32_t ranks, std::uint32_t nodes,
                               fault_mask kinds) {
  sim_random r = sim_random{seed}.fork(7);
  std::vector<fault> all;
  for (std::uint32_t k = 0; k < fault_kinds; ++k) {
    const auto kind = static_cast<fault_kind>(k);
    sim_random own = r.fork(k + 1);
    if ((kinds & mask_of(kind)) == 0 || !own.chance(0.35))
      continue;
    const std::uint64_t most = kind == fault_kind::node ? 1 : kind == fault_kind::control ? 2 : 3;
    for (std::uint64_t n = own.between(1, most); n > 0; --n) {
      fault f;
      draw(kind, ranks, nodes, own, f);
      all.push_back(f);
    }
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const fault& a, const fault& b) { return a.at < b.at; });
  return all;
}

duration end_of(std::span<const fault> faults, duration crash_within) {
  duration end{};
  for (const fault& f : faults)
    end = std::max(end, f.kind == fault_kind::crash ? crash_within : f.at + f.lasting);
  return end;
}

} // namespace di::sim
