// SPDX-License-Identifier: Apache-2.0
// Groups, tears and retries.
#include "chaos/sim_disk.hpp"

#include "messaging/base/probe.hpp"
#include "messaging/proto/journal.hpp"

#include <algorithm>

namespace di::sim {

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr duration retry_first = milliseconds{100}, retry_most = std::chrono::seconds{2};

} // namespace

void sim_disk::sink::append(std::uint64_t position, std::uint64_t elapsed_ms,
                            engine::any_record record) {
  order o{position, elapsed_ms, {}, false};
  o.records.push_back(std::move(record));
  disk_.put(control_, std::move(o));
}

void sim_disk::sink::begin_file(std::uint64_t position, std::uint64_t elapsed_ms,
                                std::vector<engine::any_record> snapshot) {
  disk_.put(control_, {position, elapsed_ms, std::move(snapshot), true});
}

engine::journal_sink& sim_disk::open(incarnation control) {
  control_ = control;
  queue_.clear();
  scheduled_ = failing_ = false;
  written_ = 0;
  retry_ = {};
  sinks_.push_back(std::make_unique<sink>(*this, control));
  return *sinks_.back();
}

void sim_disk::put(incarnation control, order o) {
  if (control != control_)
    return;
  queue_.push_back(std::move(o));
  if (!failing_)
    schedule();
}

void sim_disk::schedule() {
  if (std::exchange(scheduled_, true))
    return;
  const duration takes = failing_ ? retry_
                         : trouble_ == disk_trouble::slow
                             ? random_.span(milliseconds{20}, milliseconds{60})
                             : random_.span(microseconds{10}, microseconds{300});
  world_.after(takes, [this, control = control_] { write(control); });
}

void sim_disk::encode(const order& o, std::vector<std::byte>& out, engine::journal_image& image) {
  if (o.begins_file)
    image = {};
  for (const engine::any_record& r : o.records) {
    const engine::framed_record framed{++record_number_, o.elapsed_ms, r};
    DI_CHECK(engine::append_frame(out, framed));
    const auto applied = image.apply(framed);
    DI_CHECK(applied.ok());
  }
}

/// Everything that waits, as far as it gets.
void sim_disk::write(incarnation control) {
  if (control != control_)
    return;
  scheduled_ = false;
  std::vector<order> group;
  while (!queue_.empty() && (group.empty() || !queue_.front().begins_file)) {
    group.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  if (group.empty())
    return;
  if (trouble_ == disk_trouble::full || trouble_ == disk_trouble::failing) {
    reached("sim.write_fails");
    ++failed_;
    if (trouble_ == disk_trouble::full)
      ++torn_; // what got out is cut off again
    for (auto at = group.rbegin(); at != group.rend(); ++at)
      queue_.push_front(std::move(*at));
    failing_ = true;
    retry_ = retry_ == duration{} ? retry_first : std::min(2 * retry_, retry_most);
  } else {
    std::vector<std::byte> bytes;
    engine::journal_image next = std::move(durable_);
    for (const order& o : group) {
      if (o.begins_file)
        ++file_number_, file_.clear();
      encode(o, bytes, next);
      written_ = o.position;
    }
    file_.insert(file_.end(), bytes.begin(), bytes.end());
    durable_ = std::move(next);
    failing_ = false;
    retry_ = {};
  }
  tell();
  if (failing_ || !queue_.empty())
    schedule();
}

void sim_disk::tell() {
  sim_process* p = world_.find(control_);
  if (!p || p->state == process_state::dead)
    return;
  proto::journal_written m;
  m.position = written_;
  m.file = file_number_;
  m.file_bytes = file_.size();
  m.failing = failing_;
  if (failing_)
    m.what = "the disk takes nothing";
  world_.inject(*p, "/control/journal", parcel::of(m), microseconds{1});
}

bool sim_disk::has(request_id request, std::uint32_t choice, std::uint32_t next) const {
  const auto at = durable_.requests.find(request);
  return at == durable_.requests.end() ? durable_.forgotten.contains(request.v)
                                       : at->second.choices.at(choice).tokens.size() >= next;
}

void sim_disk::crash() {
  if (!queue_.empty() && scheduled_ && !failing_ && random_.chance(0.5)) {
    // A write was under way: some of it got out.
    std::vector<std::byte> bytes;
    const std::uint64_t number = record_number_;
    engine::journal_image next = durable_;
    if (!queue_.front().begins_file) { // a new file would not have taken its place yet
      encode(queue_.front(), bytes, next);
      const std::size_t out = random_.below(bytes.size());
      file_.insert(file_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(out));
      reached("sim.write_torn");
      ++torn_;
    }
    record_number_ = number;
  }
  control_ = {};
  queue_.clear();
}

result<std::optional<engine::journal_image>> sim_disk::recover() const {
  if (file_.empty())
    return std::optional<engine::journal_image>{};
  DI_TRY(auto read, engine::recover_log(file_, "the simulated journal"));
  if (!read.complete)
    return std::optional<engine::journal_image>{};
  return std::optional{std::move(read.image)};
}

} // namespace di::sim
