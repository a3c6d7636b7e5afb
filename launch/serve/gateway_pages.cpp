// SPDX-License-Identifier: Apache-2.0
// Asking gateways, merging their text.
#include "launch/serve/gateway_pages.hpp"

#include "messaging/proto/telemetry.hpp"

#include <map>
#include <mutex>
#include <set>
#include <string_view>

namespace di::serve {
namespace {

constexpr duration page_timeout = std::chrono::seconds{2};

/// Answers of one round.
struct pages_round {
  std::mutex guard;
  std::vector<std::string> pages; ///< as asked
  std::size_t open = 0;
  std::function<void(std::string)> done;

  void take(std::size_t index, std::string text) {
    {
      const std::lock_guard lock{guard};
      pages[index] = std::move(text);
      if (--open > 0)
        return;
    }
    done(merged_pages(pages));
  }
};

} // namespace

result<std::unique_ptr<metrics_desk>>
metrics_desk::open(bus::post_office& office, const address& prefix,
                   std::shared_ptr<const serving_metrics> metrics) {
  std::unique_ptr<metrics_desk> d{new metrics_desk{office, prefix + "/metrics"}};
  DI_TRY_VOID(office.bind(d->path_, [&office, metrics](const envelope& mail) {
    if (mail.kind != mail_kind::request)
      return;
    envelope back;
    back.to = mail.from;
    back.from = mail.to;
    back.kind = mail_kind::reply;
    back.request = mail.request;
    back.sender = mail.sender;
    back.body = parcel::of(proto::metrics_text{metrics->text()});
    (void)office.post(std::move(back)); // who asked has left
  }));
  return d;
}

metrics_desk::~metrics_desk() {
  office_.unbind(path_, {ec::ok, ""});
}

void read_gateways(bus::post_office& office, asker& from, const address& self,
                   std::function<void(std::string)> done) {
  std::set<address> gateways{self};
  for (const auto& peer : office.routes())
    if (peer.prefix.starts_with("/gateway/"))
      gateways.insert(peer.prefix);
  auto round = std::make_shared<pages_round>();
  round->pages.resize(gateways.size());
  round->open = gateways.size();
  round->done = std::move(done);
  std::size_t index = 0;
  for (const auto& prefix : gateways)
    from.ask(prefix + "/metrics", parcel::of(proto::get_metrics{}), page_timeout,
             [round, i = index++](const result<parcel>& answer) {
               const auto* page = answer.ok() ? answer->as<proto::metrics_text>() : nullptr;
               round->take(i, page == nullptr ? std::string{} : page->text);
             });
}

std::string merged_pages(const std::vector<std::string>& pages) {
  struct family {
    std::string head, series;
  };
  std::vector<std::string> order;
  std::map<std::string, family> all;
  for (const auto& page : pages) {
    std::string_view rest = page;
    family* now = nullptr;
    bool first = false; // of the pages with this family
    while (!rest.empty()) {
      const auto end = rest.find('\n');
      const auto line = rest.substr(0, end);
      rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
      if (line.starts_with("# HELP ")) {
        const std::string name{line.substr(7, line.find(' ', 7) - 7)};
        first = !all.contains(name);
        if (first)
          order.push_back(name);
        now = &all[name];
      }
      if (now == nullptr || line.empty() || (line.starts_with('#') && !first))
        continue;
      auto& to = line.starts_with('#') ? now->head : now->series;
      to.append(line).push_back('\n');
    }
  }
  std::string out;
  for (const auto& name : order)
    out += all[name].head + all[name].series;
  return out;
}

} // namespace di::serve
