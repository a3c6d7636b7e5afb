// SPDX-License-Identifier: Apache-2.0
// Checks before use, at the end of use, and the bundling of releases.
#include "messaging/bus/segment_readers.hpp"

#include "messaging/base/limits.hpp"
#include "messaging/base/log.hpp"
#include "messaging/base/probe.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace di::bus {

/// What held slots need when the readers may be gone already.
struct segment_readers::shared_state {
  std::function<void()> due;
  std::atomic<std::uint64_t>* overwritten = nullptr;
  std::atomic<std::size_t> sources{0};
  std::atomic<bool> some_due{false};
  std::mutex guard; ///< for `alive`: held while `due` runs
  bool alive = true;

  void announce() {
    if (some_due.exchange(true))
      return;
    const std::lock_guard lock{guard};
    if (alive)
      due();
  }
};

/// One neighbour's segment.
class segment_readers::source {
public:
  source(owned_fd fd, std::shared_ptr<shared_state> state)
      : fd_{std::move(fd)}, state_{std::move(state)} {}

  /// Maps at the first call.
  result<const segment_map*> map() {
    const std::lock_guard lock{guard_};
    if (!map_) {
      DI_TRY(map_, segment_map::for_reader(fd_.get()));
      fd_ = owned_fd{};
    }
    return &map_;
  }

  /// The end of use of a slot.
  void released(const wire::segment_slot& slot) {
    if (map_.generation_at(slot.offset).load(std::memory_order_acquire) != slot.generation) {
      reached("segment.overwritten_while_held");
      const std::lock_guard lock{state_->guard};
      if (state_->alive)
        ++*state_->overwritten;
    }
    bool due = false;
    {
      const std::lock_guard lock{guard_};
      if (forgotten_)
        return;
      pending_.push_back({slot.offset, slot.generation});
      pending_bytes_ += slot.bytes;
      due = is_due();
    }
    if (due)
      state_->announce();
  }

  std::vector<proto::released_slot> take_due() {
    const std::lock_guard lock{guard_};
    if (!is_due())
      return {};
    pending_bytes_ = 0;
    return std::exchange(pending_, {});
  }
  void forget() {
    const std::lock_guard lock{guard_};
    forgotten_ = true;
    pending_.clear();
  }

private:
  /// What all neighbours together keep back is at most a quarter of the segment.
  bool is_due() const {
    const std::size_t neighbours = std::max<std::size_t>(1, state_->sources.load());
    return pending_.size() >= limits::segment_releases_bundled
           || pending_bytes_ >= map_.size() / (4 * neighbours);
  }

  owned_fd fd_;
  segment_map map_; ///< set once, under guard_, before the first slot is held
  std::shared_ptr<shared_state> state_;
  std::mutex guard_;
  std::vector<proto::released_slot> pending_;
  std::uint64_t pending_bytes_ = 0;
  bool forgotten_ = false;
};

/// Owner of the attachments of one mail.
struct segment_readers::hold {
  std::shared_ptr<source> in;
  wire::segment_slot slot;
  hold(std::shared_ptr<source> s, const wire::segment_slot& w) : in{std::move(s)}, slot{w} {}
  hold(const hold&) = delete;
  ~hold() { in->released(slot); }
};

segment_readers::segment_readers(std::function<void()> due, std::atomic<std::uint64_t>& overwritten)
    : state_{std::make_shared<shared_state>()} {
  state_->due = std::move(due);
  state_->overwritten = &overwritten;
}

segment_readers::~segment_readers() {
  const std::lock_guard lock{state_->guard};
  state_->alive = false;
}

void segment_readers::add(incarnation writer, owned_fd fd) {
  const std::lock_guard lock{guard_};
  sources_.insert_or_assign(writer, std::make_shared<source>(std::move(fd), state_));
  state_->sources.store(sources_.size());
}

bool segment_readers::knows(incarnation writer) const {
  const std::lock_guard lock{guard_};
  return sources_.contains(writer);
}

result<void> segment_readers::fetch(incarnation writer, const wire::segment_slot& slot,
                                    std::span<const std::uint64_t> sizes,
                                    std::vector<shared_bytes>& out) {
  std::shared_ptr<source> from;
  {
    const std::lock_guard lock{guard_};
    if (const auto at = sources_.find(writer); at != sources_.end())
      from = at->second;
  }
  if (from == nullptr)
    return fail(ec::not_found, "no segment of life {:016x} is known here", writer.v);
  DI_TRY(const segment_map* map, from->map());
  if (slot.offset % slot_alignment != 0 || slot.offset > map->size()
      || slot.bytes > map->size() - slot.offset)
    return fail(ec::corrupt, "slot at {} of {} bytes in a segment of {}", slot.offset, slot.bytes,
                map->size());
  if (const std::uint64_t needed = slot_bytes_for(sizes); slot.bytes != needed)
    return fail(ec::corrupt, "slot of {} bytes, its attachments need {}", slot.bytes, needed);
  const std::uint64_t there = map->generation_at(slot.offset).load(std::memory_order_acquire);
  if (slot.generation == 0 || there != slot.generation)
    return fail(ec::stale_incarnation, "slot at {} has generation {}, the mail says {}",
                slot.offset, there, slot.generation);
  if (map->bytes_at(slot.offset).load(std::memory_order_relaxed) != slot.bytes)
    return fail(ec::corrupt, "slot at {} has another size than the mail says, {}", slot.offset,
                slot.bytes);
  const auto held = std::make_shared<const hold>(from, slot);
  std::uint64_t at = slot.offset + slot_header_bytes;
  for (const std::uint64_t size : sizes) {
    if (size == 0)
      out.emplace_back();
    else
      out.emplace_back(held, map->at(at), static_cast<std::size_t>(size));
    at += slot_aligned(size);
  }
  return {};
}

void segment_readers::forget(incarnation writer) {
  std::shared_ptr<source> gone;
  const std::lock_guard lock{guard_};
  if (const auto at = sources_.find(writer); at != sources_.end()) {
    gone = std::move(at->second);
    sources_.erase(at);
    gone->forget();
  }
  state_->sources.store(sources_.size());
}

std::vector<segment_readers::releases> segment_readers::take_due() {
  if (!state_->some_due.exchange(false))
    return {};
  std::vector<releases> out;
  const std::lock_guard lock{guard_};
  for (const auto& [writer, from] : sources_)
    if (auto slots = from->take_due(); !slots.empty())
      out.push_back({writer, std::move(slots)});
  return out;
}

} // namespace di::bus
