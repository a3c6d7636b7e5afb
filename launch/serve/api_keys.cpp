// SPDX-License-Identifier: Apache-2.0
// The keys file and the look-up.
#include "launch/serve/api_keys.hpp"

#include "engine/model/sha256.hpp"
#include "launch/yaml_tree.hpp"

#include <charconv>
#include <fstream>
#include <iterator>
#include <span>

namespace di::serve {
namespace {

using launch::yaml_kind;
using launch::yaml_node;

std::string digest_of(std::string_view key) {
  return engine::sha256_hex(std::as_bytes(std::span{key.data(), key.size()}));
}

/// Reads keys with their places; the first defects are told all at once.
class keys_reader {
public:
  explicit keys_reader(std::vector<launch::problem>& problems) : problems_{problems} {}

  void entry(const yaml_node& n, std::vector<std::string>& digests,
             std::vector<key_grant>& grants) {
    if (n.kind != yaml_kind::mapping)
      return bad(n, "a key is a mapping with `key` or `sha256`");
    key_grant g;
    std::string digest;
    for (std::size_t i = 0; i < n.keys.size(); ++i)
      field(n.keys[i], n.items[i], g, digest);
    if (digest.empty())
      return bad(n, "needs `key` or `sha256`");
    if (g.name.empty())
      g.name = "key-" + digest.substr(0, 8);
    if (g.tenant.empty())
      g.tenant = g.name;
    for (const auto& d : digests)
      if (d == digest)
        return bad(n, "the same key stands here twice");
    digests.push_back(std::move(digest));
    grants.push_back(std::move(g));
  }

  void bad(const yaml_node& n, std::string what) { problems_.push_back({n.at, std::move(what)}); }

private:
  void field(const yaml_node::key_text& key, const yaml_node& v, key_grant& g,
             std::string& digest) {
    const auto& k = key.text;
    if (v.kind != yaml_kind::scalar)
      return bad(v, "`" + k + "` is one value");
    if (k == "key")
      v.text.size() < 8 ? bad(v, "a key has at least 8 bytes")
                        : static_cast<void>(digest = digest_of(v.text));
    else if (k == "sha256")
      set_digest(v, digest);
    else if (k == "name")
      short_text(v, g.name);
    else if (k == "tenant")
      short_text(v, g.tenant);
    else if (k == "requests")
      number(v, 0, 1'000'000, g.requests);
    else if (k == "choices")
      number(v, 0, 1'000'000, g.choices);
    else if (k == "tokens_per_minute")
      number(v, 0, 2'000'000'000, g.tokens_per_minute);
    else if (k == "priority")
      number(v, -10, 10, g.priority);
    else
      bad(v, "unknown key `" + k
                 + "`; known: key, sha256, name, tenant, requests, choices, tokens_per_minute, "
                   "priority");
  }

  void set_digest(const yaml_node& v, std::string& digest) {
    if (v.text.size() != 64 || v.text.find_first_not_of("0123456789abcdef") != std::string::npos)
      return bad(v, "sha256 has 64 lower-case hexadecimal digits");
    digest = v.text;
  }

  void short_text(const yaml_node& v, std::string& out) {
    if (v.text.empty() || v.text.size() > 64)
      return bad(v, "has 1 to 64 bytes");
    out = v.text;
  }

  template <class Int>
  void number(const yaml_node& v, std::int64_t least, std::int64_t most, Int& out) {
    std::int64_t read = 0;
    const auto* end = v.text.data() + v.text.size();
    const auto [at, err] = std::from_chars(v.text.data(), end, read);
    if (err != std::errc{} || at != end || read < least || read > most)
      return bad(v, fmt::format("`{}` is no number in [{}, {}]", v.text, least, most));
    out = static_cast<Int>(read);
  }

  std::vector<launch::problem>& problems_;
};

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  unsigned differing = a.size() == b.size() ? 0U : 1U;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i)
    differing |= static_cast<unsigned>(a[i] ^ b[i]);
  return differing == 0;
}

} // namespace

result<key_table> key_table::parse(std::string_view yaml, std::string_view file) {
  std::vector<launch::problem> problems;
  const auto root = launch::read_yaml(yaml, 0, problems);
  key_table made;
  keys_reader reader{problems};
  if (problems.empty()) {
    const auto at = root.kind == yaml_kind::mapping ? root.find("keys") : yaml_node::npos;
    if (at == yaml_node::npos || root.keys.size() != 1
        || root.items[at].kind != yaml_kind::sequence)
      reader.bad(root, "needs exactly one key, `keys`, with a list");
    else
      for (const auto& item : root.items[at].items)
        reader.entry(item, made.digests_, made.grants_);
  }
  if (problems.empty())
    return made;
  std::string what;
  for (const auto& p : problems)
    what += fmt::format("{}{}:{}:{}: {}", what.empty() ? "" : "; ", file, p.at.line, p.at.column,
                        p.what);
  return fail(ec::bad_config, "{}", what);
}

const key_grant* key_table::find(std::string_view key) const {
  const auto digest = digest_of(key);
  const key_grant* found = nullptr;
  for (std::size_t i = 0; i < digests_.size(); ++i) // all of them: time tells nothing
    if (equal_in_constant_time(digests_[i], digest))
      found = &grants_[i];
  return found;
}

result<void> api_keys::reload() {
  if (!guarded())
    return {};
  std::ifstream in{file_, std::ios::binary};
  if (!in)
    return fail(ec::io_error, "{}: cannot be read", file_);
  const std::string text{std::istreambuf_iterator<char>{in}, {}};
  DI_TRY(auto table, key_table::parse(text, file_));
  const std::scoped_lock lock{guard_};
  table_ = std::make_shared<const key_table>(std::move(table));
  return {};
}

std::shared_ptr<const key_grant> api_keys::find(std::string_view key) const {
  static const auto everybody = std::make_shared<const key_grant>();
  if (!guarded())
    return everybody;
  std::shared_ptr<const key_table> table;
  {
    const std::scoped_lock lock{guard_};
    table = table_;
  }
  if (!table)
    return nullptr;
  const auto* grant = table->find(key);
  return grant == nullptr ? nullptr : std::shared_ptr<const key_grant>{table, grant};
}

std::string_view bearer_key(std::string_view authorization, std::string_view x_api_key) {
  constexpr std::string_view scheme = "bearer ";
  if (authorization.size() > scheme.size()) {
    bool same = true;
    for (std::size_t i = 0; i < scheme.size(); ++i)
      same = same && (authorization[i] | 0x20) == (scheme[i] | 0x20);
    if (same) {
      auto key = authorization.substr(scheme.size());
      while (!key.empty() && key.front() == ' ')
        key.remove_prefix(1);
      return key;
    }
  }
  return x_api_key;
}

} // namespace di::serve
