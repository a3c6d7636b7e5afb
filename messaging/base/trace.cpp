// SPDX-License-Identifier: Apache-2.0
// The ring of spans: slots with a sequence number each, claimed by an atomic counter.
#include "messaging/base/trace.hpp"

#include "messaging/base/check.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <ctime>
#include <memory>
#include <mutex>

namespace di::trace {
namespace {

constexpr std::array<std::string_view, kinds> names = {
    "step",   "attention", "dispatch", "wait",    "experts", "combine", "draft",
    "verify", "sample",    "commit",   "prefill", "submit",  "record",  "admit",
    "assign", "take",      "accept",   "release", "finish",  "balance", "plan"};

/// `state` is 2 * number + 1 while event `number` is being written, 2 * number + 2 once it is
/// there, 0 before the first. Fields are atomics so that a reader may race with a writer; the state
/// tells it that it did.
struct slot {
  std::atomic<std::uint64_t> state{0};
  std::array<std::atomic<std::uint64_t>, 5> words{};
};
static_assert(sizeof(slot) == 48);

struct ring {
  explicit ring(std::size_t n) : mask{n - 1}, slots{std::make_unique<slot[]>(n)} {}
  std::uint64_t mask;
  std::atomic<std::uint64_t> next{0};
  std::unique_ptr<slot[]> slots;
};

std::atomic<ring*> current_ring{nullptr};

/// Rings that were ever enabled: a writer may still hold an old one. Leaked with the process.
std::vector<std::unique_ptr<ring>>& all_rings() {
  static auto* rings = new std::vector<std::unique_ptr<ring>>;
  return *rings;
}
std::mutex ring_guard;

struct track_names {
  std::mutex guard;
  std::vector<std::string> names{""};
};
track_names& known_tracks() {
  static auto* tracks = new track_names;
  return *tracks;
}

std::int64_t read_clock(clockid_t id) noexcept {
  timespec t{};
  ::clock_gettime(id, &t);
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

std::uint64_t pack_head(kind what, track_id track, std::int32_t layer) noexcept {
  return static_cast<std::uint64_t>(what) | std::uint64_t{track} << 8U
         | std::uint64_t{static_cast<std::uint32_t>(layer)} << 32U;
}

event unpack(const std::array<std::uint64_t, 5>& w) {
  event e;
  e.begin_ns = static_cast<std::int64_t>(w[0]);
  e.end_ns = static_cast<std::int64_t>(w[1]);
  e.flow = request_id{w[2]};
  e.what = static_cast<kind>(w[3] & 0xFFU);
  e.track = static_cast<track_id>(w[3] >> 8U);
  e.args.layer = static_cast<std::int32_t>(w[3] >> 32U);
  e.args.rows = static_cast<std::uint32_t>(w[4]);
  e.args.value = std::bit_cast<float>(static_cast<std::uint32_t>(w[4] >> 32U));
  return e;
}

} // namespace

std::string_view to_string(kind k) noexcept {
  const auto i = static_cast<std::size_t>(k);
  return i < kinds ? names[i] : std::string_view{"unknown"};
}

std::optional<kind> kind_of(std::string_view name) noexcept {
  const auto at = std::find(names.begin(), names.end(), name);
  if (at == names.end())
    return std::nullopt;
  return static_cast<kind>(at - names.begin());
}

bool operator==(const event& a, const event& b) {
  return a.what == b.what && a.track == b.track && a.begin_ns == b.begin_ns && a.end_ns == b.end_ns
         && a.flow == b.flow && a.args.rows == b.args.rows && a.args.layer == b.args.layer
         && a.args.value == b.args.value;
}

void enable(std::size_t spans) {
  DI_CHECK(spans > 0 && spans <= spans_max);
  auto made = std::make_unique<ring>(std::bit_ceil(spans));
  const std::lock_guard lock{ring_guard};
  current_ring.store(made.get(), std::memory_order_release);
  all_rings().push_back(std::move(made));
  detail::on.store(true, std::memory_order_release);
}

void disable() noexcept {
  detail::on.store(false, std::memory_order_release);
}

std::int64_t now_ns() noexcept {
  return read_clock(CLOCK_MONOTONIC);
}

clock_pair clocks() noexcept {
  // The wall clock read between two readings of the other; their middle belongs to it.
  const std::int64_t before = read_clock(CLOCK_MONOTONIC);
  const std::int64_t wall = read_clock(CLOCK_REALTIME);
  return {before + (read_clock(CLOCK_MONOTONIC) - before) / 2, wall};
}

std::string host_key() {
  std::array<char, 64> text{};
  if (std::FILE* f = std::fopen("/proc/sys/kernel/random/boot_id", "re")) {
    const std::size_t n = std::fread(text.data(), 1, text.size() - 1, f);
    std::fclose(f);
    std::string key(text.data(), n);
    while (!key.empty() && key.back() == '\n')
      key.pop_back();
    return key;
  }
  return {};
}

track_id track(std::string_view name) {
  track_names& t = known_tracks();
  const std::lock_guard lock{t.guard};
  const auto at = std::find(t.names.begin(), t.names.end(), name);
  if (at != t.names.end())
    return static_cast<track_id>(at - t.names.begin());
  if (t.names.size() >= tracks_max)
    return 0;
  t.names.emplace_back(name);
  return static_cast<track_id>(t.names.size() - 1);
}

void detail::put(kind what, track_id track, std::int64_t begin_ns, std::int64_t end_ns,
                 request_id flow, const numbers& args) noexcept {
  ring* const r = current_ring.load(std::memory_order_acquire);
  if (r == nullptr) // read as on before enable() was seen as a whole
    return;
  const std::uint64_t number = r->next.fetch_add(1, std::memory_order_relaxed);
  slot& s = r->slots[number & r->mask];
  std::uint64_t seen = s.state.load(std::memory_order_relaxed);
  // A writer that was stopped for a whole round must not mix with this one: the event is lost then.
  if ((seen & 1U) != 0 || seen > 2 * number
      || !s.state.compare_exchange_strong(seen, 2 * number + 1, std::memory_order_acq_rel,
                                          std::memory_order_relaxed))
    return;
  std::atomic_thread_fence(std::memory_order_release);
  const std::array<std::uint64_t, 5> words = {
      static_cast<std::uint64_t>(begin_ns), static_cast<std::uint64_t>(end_ns), flow.v,
      pack_head(what, track, args.layer),
      args.rows | std::uint64_t{std::bit_cast<std::uint32_t>(args.value)} << 32U};
  for (std::size_t i = 0; i < words.size(); ++i)
    s.words[i].store(words[i], std::memory_order_relaxed);
  s.state.store(2 * number + 2, std::memory_order_release);
}

part read(std::uint64_t first, std::size_t events_max) {
  part p;
  p.clocks = clocks();
  {
    track_names& t = known_tracks();
    const std::lock_guard lock{t.guard};
    p.tracks = t.names;
  }
  p.first = p.next = first;
  const ring* const r = current_ring.load(std::memory_order_acquire);
  if (r == nullptr)
    return p;
  const std::uint64_t end = r->next.load(std::memory_order_acquire);
  const std::uint64_t oldest = end > r->mask + 1 ? end - (r->mask + 1) : 0;
  std::uint64_t at = std::max(first, oldest);
  p.lost = at - first;
  p.first = at;
  for (; at < end && p.events.size() < events_max; ++at) {
    const slot& s = r->slots[at & r->mask];
    std::array<std::uint64_t, 5> words{};
    const std::uint64_t before = s.state.load(std::memory_order_acquire);
    for (std::size_t i = 0; i < words.size(); ++i)
      words[i] = s.words[i].load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (before != 2 * at + 2 || s.state.load(std::memory_order_relaxed) != before)
      ++p.lost;
    else
      p.events.push_back(unpack(words));
  }
  p.next = std::max(at, first);
  p.more = p.next < end;
  return p;
}

} // namespace di::trace
