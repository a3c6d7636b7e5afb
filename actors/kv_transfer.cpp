// SPDX-License-Identifier: Apache-2.0
// Copies of sealed pages and windows out; pages and windows of resumed attempts in.
#include "actors/kv_transfer.hpp"

#include "engine/core/kv_store.hpp" // kv_checksum
#include "messaging/base/log.hpp"

#include <algorithm>

namespace di::actors {

using engine::page_address;

namespace {

/// [bytes] copied into one buffer: it stays until the last piece of it was sent.
constexpr std::size_t seal_bytes = std::size_t{512} << 10;

proto::kv_address wire(const page_address& a) {
  return {a.low, a.high};
}

std::int64_t whole_pages(std::size_t tokens) {
  return static_cast<std::int64_t>(tokens) / engine::page_tokens * engine::page_tokens;
}

/// Prompt and emitted tokens of a choice.
std::vector<token_id> text_of(const proto::request_spec& spec,
                              const proto::choice_progress& progress) {
  std::vector<token_id> text = spec.prompt;
  text.insert(text.end(), progress.tokens.begin(), progress.tokens.end());
  return text;
}

/// All choices that go on, also those without a token yet.
std::vector<proto::choice_progress> open_choices(const proto::assign_request& m) {
  std::vector<proto::choice_progress> out;
  for (std::uint32_t choice = 0; choice < m.spec.sampling.n; ++choice) {
    const auto at = std::find_if(m.progress.begin(), m.progress.end(),
                                 [choice](const auto& p) { return p.choice == choice; });
    if (at == m.progress.end())
      out.push_back({choice, {}, false});
    else if (!at->finished)
      out.push_back(*at);
  }
  return out;
}

engine::prefix_key key_of(const proto::request_spec& spec, const std::string& salt) {
  const bool bounded = spec.prefix == proto::prefix_mode::bounded;
  return {salt, bounded ? static_cast<std::int64_t>(spec.prefix_tokens) : 0};
}

} // namespace

kv_transfer::copy::copy(std::vector<std::byte> b, std::shared_ptr<std::atomic<std::uint64_t>> g)
    : bytes{std::move(b)}, gauge{std::move(g)} {
  *gauge += bytes.size();
}

kv_transfer::copy::~copy() {
  *gauge -= bytes.size();
}

engine::prefill_request kv_transfer::known_as(const proto::request_spec& spec, std::string& salt) {
  engine::prefill_request request{static_cast<std::int64_t>(spec.prompt.size()), spec.prefill,
                                  static_cast<std::int64_t>(spec.keep_rows), spec.prefix};
  salt = spec.prefix_salt;
  if (spec.prefix == proto::prefix_mode::off)
    salt = std::string{"\0request ", 9} + std::to_string(spec.request.v);
  if (spec.prefix == proto::prefix_mode::off
      || (spec.prefix == proto::prefix_mode::bounded && spec.prefix_recorded
          && spec.prefix_tokens == 0))
    request.prefix = proto::prefix_mode::exact;
  return request;
}

// --- out

void kv_transfer::open(engine::sequence_key key, const engine::kv_opening& what) {
  if (!enabled())
    return;
  outgoing& o = outgoing_[key];
  o.request = what.spec->request;
  o.attempt = what.attempt;
  o.choice = what.choice;
  o.boundary = whole_pages(what.tokens.size() - 1);
}

void kv_transfer::close(engine::sequence_key key) {
  outgoing_.erase(key);
}

void kv_transfer::fork(engine::sequence_key from, engine::sequence_key to, std::uint32_t tokens) {
  const auto source = outgoing_.find(from);
  const auto target = outgoing_.find(to);
  if (source == outgoing_.end() || target == outgoing_.end())
    return;
  target->second.addresses = source->second.addresses;
  const auto pages = static_cast<std::size_t>(whole_pages(tokens) / engine::page_tokens);
  target->second.addresses.resize(std::min(pages, target->second.addresses.size()));
  target->second.sent = std::min(target->second.addresses.size(), source->second.sent);
}

bool kv_transfer::has_room(std::uint64_t bytes) const noexcept {
  return gauge_->load(std::memory_order_relaxed) + bytes <= options_.bytes_max;
}

void kv_transfer::seal(const outgoing& o, std::vector<proto::kv_item> items,
                       std::vector<std::byte> bytes) {
  const auto owner = std::make_shared<const copy>(std::move(bytes), gauge_);
  sealed_.push_back({o.request, o.attempt, std::move(items),
                     shared_bytes{owner, owner->bytes.data(), owner->bytes.size()}});
}

void kv_transfer::take_pages(outgoing& o, const engine::sequence_state& sequence,
                             std::size_t full) {
  const std::size_t bytes = layout_.page_bytes;
  std::vector<proto::kv_item> items;
  std::vector<std::byte> copied;
  for (; o.sent < full && has_room(copied.size() + bytes); ++o.sent) {
    if (!items.empty() && copied.size() + bytes > seal_bytes) {
      seal(o, std::exchange(items, {}), std::exchange(copied, {}));
      if (!has_room(bytes))
        return;
    }
    const std::span page{pool_.data(sequence.pages()[o.sent]), bytes};
    proto::kv_item item{wire(o.addresses[o.sent]),
                        proto::kv_kind::page,
                        o.choice,
                        static_cast<std::uint32_t>((o.sent + 1) * engine::page_tokens),
                        static_cast<std::uint32_t>(bytes),
                        0};
    item.crc = engine::kv_checksum(item, page);
    items.push_back(item);
    copied.insert(copied.end(), page.begin(), page.end());
  }
  if (!items.empty())
    seal(o, std::move(items), std::move(copied));
}

void kv_transfer::take_windows(outgoing& o, const engine::prefix_session& session,
                               const engine::sequence_state& sequence, std::int64_t length) {
  auto windows = sequence.resume_windows(length);
  if (!windows)
    return; // the rings have moved on
  o.windows = length;
  const std::int64_t floor = engine::decoder_floor(cache_.rules(), session.request);
  const page_address& page =
      o.addresses[static_cast<std::size_t>(length / engine::page_tokens) - 1];
  std::vector<std::byte> bytes = pack(*windows);
  if (!has_room(bytes.size()))
    return;
  proto::kv_item item{wire(windows_address(page, floor, layout_.layers)),
                      proto::kv_kind::windows,
                      o.choice,
                      static_cast<std::uint32_t>(length),
                      static_cast<std::uint32_t>(bytes.size()),
                      0};
  item.crc = engine::kv_checksum(item, bytes);
  seal(o, {item}, std::move(bytes));
}

void kv_transfer::advanced(engine::sequence_key key, const engine::prefix_session& session,
                           const engine::sequence_state& sequence, std::uint32_t settled) {
  const auto at = outgoing_.find(key);
  if (at == outgoing_.end())
    return;
  outgoing& o = at->second;
  const std::int64_t end = whole_pages(settled);
  const auto full = static_cast<std::size_t>(end / engine::page_tokens);
  if (full <= o.sent && end <= o.windows)
    return;
  std::string salt = session.salt;
  if (session.request.prefix == proto::prefix_mode::off) {
    proto::request_spec off;
    off.request = o.request;
    known_as(off, salt);
  }
  const auto text = sequence.tokens().first(static_cast<std::size_t>(end));
  cache_.index().name_pages(text, {salt, engine::prefix_cache::key_of(session).bounded_hit},
                            o.addresses);
  if (full > o.sent)
    take_pages(o, sequence, full);
  if (o.sent == full && end >= o.boundary && end > std::max(o.windows, session.bounded)
      && !session.rebuilding)
    take_windows(o, session, sequence, end);
}

std::uint32_t kv_transfer::chunk_end(engine::sequence_key key, std::uint32_t position) const {
  const auto at = outgoing_.find(key);
  if (at == outgoing_.end() || position >= at->second.boundary)
    return ~0U;
  return static_cast<std::uint32_t>(at->second.boundary);
}

std::vector<proto::pages_sealed> kv_transfer::take_sealed() {
  return std::exchange(sealed_, {});
}

void kv_transfer::offer_again() {
  for (auto& [key, o] : outgoing_)
    o.sent = 0, o.windows = 0;
}

// --- in

std::optional<proto::restore_pages> kv_transfer::wants(const proto::assign_request& m,
                                                       double token_us) const {
  const proto::request_spec& spec = m.spec;
  if (!enabled() || m.attempt < 2
      || (spec.prefix == proto::prefix_mode::bounded && !spec.prefix_recorded))
    return std::nullopt; // nothing was emitted: its hit is not known
  std::string salt;
  const engine::prefill_request request = known_as(spec, salt);
  const engine::prefix_key key = key_of(spec, salt);
  const engine::prefill_rules& rules = cache_.rules();
  const std::int64_t floor = engine::decoder_floor(rules, request);
  proto::restore_pages ask{spec.request,
                           m.attempt,
                           {},
                           static_cast<std::uint32_t>(rules.page_tokens),
                           options_.token_us > 0 ? options_.token_us : token_us,
                           0};
  std::size_t longest = 0;
  for (const proto::choice_progress& progress : open_choices(m)) {
    const std::vector<token_id> text = text_of(spec, progress);
    const std::int64_t end = whole_pages(text.size() - 1);
    std::vector<page_address> names;
    cache_.index().name_pages(std::span{text}.first(static_cast<std::size_t>(end)), key, names);
    if (text.size() < options_.tokens_min || names.empty())
      continue;
    longest = std::max(longest, text.size());
    proto::kv_want want;
    want.choice = progress.choice;
    want.first_page =
        static_cast<std::uint32_t>(cache_.index().known(text, key, end) / rules.page_tokens);
    for (std::size_t i = want.first_page; i < names.size(); ++i)
      want.pages.push_back(wire(names[i]));
    for (std::int64_t at = end;
         at > key.bounded_hit && at > 0 && at >= whole_pages(spec.prompt.size() - 1);
         at -= rules.page_tokens) {
      const page_address& page = names[static_cast<std::size_t>(at / rules.page_tokens) - 1];
      want.windows.push_back(wire(windows_address(page, floor, layout_.layers)));
      want.ends.push_back(static_cast<std::uint32_t>(at));
    }
    const engine::prefill_start plain = engine::plan_start(rules, floor, end, 0, 0);
    want.rebuild_tokens = static_cast<std::uint32_t>(end - plain.first_row);
    ask.wants.push_back(std::move(want));
  }
  if (ask.wants.empty())
    return std::nullopt;
  const double compute_ms = static_cast<double>(longest) * ask.token_us * 1e-3;
  ask.within_ms = static_cast<std::uint32_t>(std::clamp(compute_ms, 50.0, 2'000.0));
  return ask;
}

void kv_transfer::import(const proto::assign_request& m, const proto::pages_restored& restored) {
  std::map<proto::kv_address, std::span<const std::byte>> pieces;
  std::size_t offset = 0;
  for (const proto::kv_item& item : restored.items) {
    if (item.bytes > restored.bytes.size() - offset)
      break;
    pieces[item.at] = restored.bytes.bytes().subspan(offset, item.bytes);
    offset += item.bytes;
  }
  if (pieces.empty())
    return;
  for (const proto::choice_progress& progress : open_choices(m))
    import_choice(m, progress, pieces);
}

void kv_transfer::import_choice(
    const proto::assign_request& m, const proto::choice_progress& progress,
    const std::map<proto::kv_address, std::span<const std::byte>>& pieces) {
  std::string salt;
  const engine::prefill_request request = known_as(m.spec, salt);
  const engine::prefix_key key = key_of(m.spec, salt);
  const std::vector<token_id> text = text_of(m.spec, progress);
  const auto end = static_cast<std::size_t>(whole_pages(text.size() - 1));
  std::vector<page_address> names;
  cache_.index().name_pages(std::span{text}.first(end), key, names);
  std::int64_t known = cache_.index().known(text, key, static_cast<std::int64_t>(end));
  const auto first = static_cast<std::size_t>(known / engine::page_tokens);
  std::vector<std::span<const std::byte>> pages;
  for (std::size_t i = first; i < names.size(); ++i) {
    const auto at = pieces.find(wire(names[i]));
    if (at == pieces.end() || at->second.size() != layout_.page_bytes)
      break;
    pages.push_back(at->second);
  }
  if (!pages.empty()) {
    const auto made = cache_.index().import_pages(text, key, first, pages);
    if (!made) {
      log::info("kv_not_imported",
                {{"request", m.spec.request.v}, {"reason", made.error().render()}});
      return;
    }
    known = *made;
  }
  if (known == 0)
    return;
  resumed_kv& r = resumed_[{m.spec.request, progress.choice}];
  r = {.attempt = m.attempt, .windows = nullptr};
  const std::int64_t floor = engine::decoder_floor(cache_.rules(), request);
  for (std::size_t i = names.size(); i-- > 0 && r.windows == nullptr;) {
    const auto at = pieces.find(wire(windows_address(names[i], floor, layout_.layers)));
    const auto length = static_cast<std::int64_t>(i + 1) * engine::page_tokens;
    if (at == pieces.end() || length > known)
      continue;
    auto windows = engine::unpack_windows(at->second);
    const std::int64_t rows = std::min(length, layout_.window - 1);
    if (!windows || windows->length != length || windows->layers != layout_.layers
        || windows->rows != rows
        || windows->rings.size()
               != static_cast<std::size_t>(layout_.layers * rows) * layout_.window_row_bytes
        || windows->draft_rows > layout_.window
        || windows->draft_rings.size()
               != static_cast<std::size_t>(layout_.draft_layers * windows->draft_rows)
                      * layout_.window_row_bytes)
      continue;
    r.windows = std::make_shared<const engine::window_snapshot>(std::move(*windows));
  }
}

const resumed_kv* kv_transfer::resumed(request_id request, std::uint32_t choice) const {
  const auto at = resumed_.find({request, choice});
  return at == resumed_.end() ? nullptr : &at->second;
}

void kv_transfer::forget_until(request_id request, std::uint32_t attempt) {
  std::erase_if(resumed_, [&](const auto& r) {
    return r.first.first == request && r.second.attempt <= attempt;
  });
}

} // namespace di::actors
