// SPDX-License-Identifier: Apache-2.0
// From records to state and back.
#include "engine/core/journal_image.hpp"

#include "engine/core/deadline.hpp"

#include <algorithm>

namespace di::engine {
namespace {

namespace record = journal_record;

/// Applies one record to an image; a record that does not fit changes nothing.
struct applier {
  journal_image& image;
  std::uint64_t elapsed_ms;

  result<request_image*> find(request_id id) const {
    const auto at = image.requests.find(id);
    if (at == image.requests.end())
      return fail(ec::corrupt, "request {} is not open", id.v);
    return &at->second;
  }

  result<void> operator()(const record::begun& r) const {
    image.run = r.run;
    return {};
  }

  result<void> operator()(const record::opened& r) const {
    const request_id id = r.spec.request;
    if (r.spec.sampling.n == 0 || r.spec.sampling.n > 1024)
      return fail(ec::corrupt, "request {} has {} choices", id.v, r.spec.sampling.n);
    if (image.requests.contains(id) || image.forgotten.contains(id.v))
      return fail(ec::corrupt, "request {} is opened twice", id.v);
    request_image made;
    made.spec = r.spec;
    made.attempt = r.attempt;
    made.keep = r.keep;
    made.choices.resize(r.spec.sampling.n);
    if (r.spec.deadline_ms > 0)
      made.deadline_at_ms = elapsed_ms + r.deadline_left_ms;
    made.note = r.note;
    made.dedup = r.dedup;
    made.dedup_digest = r.dedup_digest;
    made.keep_ms = r.keep_ms;
    made.detached_ms = r.detached_ms;
    made.attended = r.attended;
    made.opened_at_ms = elapsed_ms - std::min(elapsed_ms, r.age_ms);
    image.requests.emplace(id, std::move(made));
    return {};
  }

  result<void> operator()(const record::placed& r) const {
    DI_TRY(request_image * request, find(r.request));
    if (r.attempt < request->attempt)
      return fail(ec::corrupt, "request {} goes from attempt {} back to {}", r.request.v,
                  request->attempt, r.attempt);
    request->attempt = r.attempt;
    request->rank = r.on_rank ? std::optional{r.rank} : std::nullopt;
    request->life = r.on_rank ? r.life : incarnation{};
    return {};
  }

  result<void> operator()(const record::tokens& r) const {
    DI_TRY(request_image * request, find(r.request));
    if (r.choice >= request->choices.size())
      return fail(ec::corrupt, "request {} has no choice {}", r.request.v, r.choice);
    choice_image& c = request->choices[r.choice];
    if (r.first_index != c.tokens.size() || c.end.reason != proto::finish_reason::none)
      return fail(ec::corrupt, "request {} choice {}: tokens from {} on, it has {}{}", r.request.v,
                  r.choice, r.first_index, c.tokens.size(),
                  c.end.reason != proto::finish_reason::none ? " and has ended" : "");
    if (!r.logprobs.empty() && r.logprobs.size() != r.ids.size())
      return fail(ec::corrupt, "request {} choice {}: {} logprobs of {} tokens", r.request.v,
                  r.choice, r.logprobs.size(), r.ids.size());
    c.tokens.insert(c.tokens.end(), r.ids.begin(), r.ids.end());
    c.logprobs.insert(c.logprobs.end(), r.logprobs.begin(), r.logprobs.end());
    c.end = r.end;
    c.timings = r.timings;
    if (r.prefix_recorded) {
      request->spec.prefix_recorded = true;
      request->spec.prefix_tokens = r.prefix_tokens;
    }
    request->cached_tokens = r.cached_tokens;
    return {};
  }

  result<void> operator()(const record::closed& r) const {
    DI_TRY(request_image * request, find(r.request));
    for (const record::cut_choice& c : r.cut)
      if (c.choice >= request->choices.size() || c.next > request->choices[c.choice].tokens.size())
        return fail(ec::corrupt, "request {} choice {} keeps {} tokens, it has fewer", r.request.v,
                    c.choice, c.next);
    for (const record::cut_choice& c : r.cut) {
      choice_image& choice = request->choices[c.choice];
      choice.tokens.resize(c.next);
      choice.logprobs.resize(std::min<std::size_t>(c.next, choice.logprobs.size()));
      choice.end = r.end;
      choice.end.kept_tokens = c.next;
      choice.cut = true;
    }
    request->closed = true;
    request->closed_at_ms = elapsed_ms - std::min(elapsed_ms, r.age_ms);
    return {};
  }

  result<void> operator()(const record::forgotten& r) const {
    if (r.first > r.last)
      return fail(ec::corrupt, "requests {} to {} are forgotten", r.first, r.last);
    image.requests.erase(image.requests.lower_bound(request_id{r.first}),
                         image.requests.upper_bound(request_id{r.last}));
    image.forgotten.add(r.first, r.last);
    return {};
  }

  result<void> operator()(const record::view& r) const {
    image.view = r.next;
    return {};
  }

  result<void> operator()(const record::snapshot_end& r) const {
    if (image.requests.size() != r.requests)
      return fail(ec::corrupt, "a snapshot of {} requests has {}", r.requests,
                  image.requests.size());
    return {};
  }
};

} // namespace

result<void> journal_image::apply(const framed_record& r) {
  DI_TRY_VOID(std::visit(applier{*this, r.elapsed_ms}, r.body));
  number = r.number;
  elapsed_ms = r.elapsed_ms;
  return {};
}

std::vector<any_record> journal_image::snapshot() const {
  std::vector<any_record> all;
  all.emplace_back(record::begun{std::string{record::begun::magic_text}, run});
  if (view)
    all.emplace_back(record::view{*view});
  for (const auto& [first, last] : forgotten.runs())
    all.emplace_back(record::forgotten{first, last});
  for (const auto& [id, r] : requests) {
    const std::uint64_t left = std::max(r.deadline_at_ms, elapsed_ms + 1) - elapsed_ms;
    const auto age = [this](std::uint64_t since) {
      return elapsed_ms - std::min(elapsed_ms, since);
    };
    all.emplace_back(record::opened{r.spec, r.attempt, r.spec.deadline_ms > 0 ? left : 0, r.keep,
                                    r.note, r.dedup, r.dedup_digest, r.keep_ms, r.detached_ms,
                                    r.attended, age(r.opened_at_ms)});
    if (r.rank)
      all.emplace_back(record::placed{id, r.attempt, true, *r.rank, r.life});
    record::closed closing;
    closing.request = id;
    closing.age_ms = age(r.closed_at_ms);
    for (std::uint32_t i = 0; i < r.choices.size(); ++i) {
      const choice_image& c = r.choices[i];
      const bool own_end = c.end.reason != proto::finish_reason::none && !c.cut;
      if (!c.tokens.empty() || own_end)
        all.emplace_back(record::tokens{
            id, i, 0, c.tokens, c.logprobs, own_end ? c.end : proto::choice_end{}, c.timings,
            r.spec.prefix_recorded, r.spec.prefix_tokens, r.cached_tokens});
      if (c.cut) {
        closing.end = c.end;
        closing.cut.push_back({i, static_cast<std::uint32_t>(c.tokens.size())});
      }
    }
    if (r.closed)
      all.emplace_back(std::move(closing));
  }
  all.emplace_back(record::snapshot_end{requests.size()});
  return all;
}

result<recovered_log> recover_log(std::span<const std::byte> log, const std::string& name) {
  recovered_log out;
  log_reader reader{log, name};
  for (bool first = true;; first = false) {
    const std::size_t offset = reader.offset();
    DI_TRY(const auto record, reader.next());
    if (!record)
      break;
    const auto* begun = std::get_if<record::begun>(&record->body);
    if (first != (begun != nullptr))
      return fail(ec::bad_format, "{}: offset {}: {}", name, offset,
                  first ? "is no journal" : "a journal begins within a journal");
    if (begun && begun->magic != record::begun::magic_text)
      return fail(ec::bad_format, "{}: is a \"{}\", this build reads \"{}\"", name, begun->magic,
                  record::begun::magic_text);
    if (const auto fits = out.image.apply(*record); !fits)
      return fail(ec::corrupt, "{}: offset {}: record {}: {}", name, offset, record->number,
                  fits.error().what);
    out.complete |= std::holds_alternative<record::snapshot_end>(record->body);
  }
  out.whole_bytes = reader.offset();
  out.ended = reader.ended();
  out.why = reader.why();
  return out;
}

} // namespace di::engine
