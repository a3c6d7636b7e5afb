// SPDX-License-Identifier: Apache-2.0
// Walks the YAML tree along the key table, then checks what single keys cannot show.
#include "launch/topology.hpp"

#include "launch/explain.hpp"
#include "launch/topology_checks.hpp"
#include "launch/units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <tuple>

namespace di::launch {
namespace {

namespace fs = std::filesystem;

std::string join(std::string_view parent, std::string_view key) {
  return parent.empty() ? std::string{key} : fmt::format("{}.{}", parent, key);
}

/// Last component of a key directly below `parent`, else empty.
std::string_view child_name(std::string_view key, std::string_view parent) {
  if (!parent.empty()) {
    if (!key.starts_with(parent) || key.size() <= parent.size() || key[parent.size()] != '.')
      return {};
    key.remove_prefix(parent.size() + 1);
  }
  return key.find_first_of(".[") == std::string_view::npos ? key : std::string_view{};
}

bool one_of(std::string_view choices, std::string_view word) {
  while (true) {
    const auto bar = choices.find('|');
    if (choices.substr(0, bar) == word)
      return true;
    if (bar == std::string_view::npos)
      return false;
    choices.remove_prefix(bar + 1);
  }
}

std::string suggestion(std::string_view parent, const std::string& word) {
  std::vector<std::string> siblings;
  for (const auto& r : all_keys()) {
    const auto name = child_name(r.key, parent);
    if (name.empty())
      continue;
    siblings.emplace_back(name);
    if (!r.other_names.empty() && one_of(r.other_names, word))
      return fmt::format("; did you mean {}?", r.key);
  }
  if (const auto best = nearest(word, siblings); !best.empty())
    return fmt::format("; did you mean {}?", join(parent, best));
  for (const auto& r : all_keys()) // the right word in the wrong place
    if (r.key.substr(r.key.find_last_of(".") + 1) == word
        || (!r.other_names.empty() && one_of(r.other_names, word)))
      return fmt::format("; did you mean {}?", r.key);
  std::string list;
  for (const auto& s : siblings)
    list += (list.empty() ? "" : ", ") + s;
  return fmt::format("; known here: {}", list);
}

std::string_view kind_of(const yaml_node& n) {
  switch (n.kind) {
  case yaml_kind::null:
    return "nothing";
  case yaml_kind::scalar:
    return "a single value";
  case yaml_kind::sequence:
    return "a list";
  case yaml_kind::mapping:
    return "a section";
  }
  return "";
}

class reader {
public:
  reader(topology& t, std::vector<problem>& problems, std::string base)
      : t_{t}, problems_{problems}, base_{std::move(base)} {}

  void section(const yaml_node& node, const std::string& pattern, const std::string& shown,
               std::size_t index) {
    for (std::size_t i = 0; i < node.keys.size() && i < node.items.size(); ++i) {
      const auto& key = node.keys[i];
      const key_row* row = key.text.find_first_of(".[]") == std::string::npos
                               ? find_key(join(pattern, key.text))
                               : nullptr;
      if (!row)
        add(key.at, "unknown key {}{}", join(shown, key.text), suggestion(pattern, key.text));
      else
        value(node.items[i], *row, join(shown, key.text), index);
    }
    for (const auto& r : all_keys())
      if (const auto name = child_name(r.key, pattern); r.required && !name.empty())
        if (node.find(name) == yaml_node::npos)
          add(node.at, "{} is missing: {}", join(shown, name), r.doc);
  }

  /// Puts the defaults of all rows at or below `pattern` that are not inside a deeper list.
  void defaults(const std::string& pattern, std::size_t index) {
    for (const auto& r : all_keys()) {
      if (!r.key.starts_with(pattern) || r.fallback.empty() || r.fallback.front() == '('
          || r.key.substr(pattern.size()).find('[') != std::string_view::npos)
        continue;
      std::vector<problem> none;
      yaml_node node = read_yaml(r.fallback, 0, none);
      node.at = {};
      given_ = false;
      value(node, r, std::string{r.key}, index);
      given_ = true;
    }
  }

private:
  template <class... Args>
  void add(const place& at, fmt::format_string<Args...> text, Args&&... args) {
    problems_.push_back({at, fmt::format(text, std::forward<Args>(args)...)});
  }

  void value(const yaml_node& node, const key_row& row, const std::string& shown,
             std::size_t index) {
    switch (row.kind) {
    case key_kind::section:
      if (node.kind == yaml_kind::mapping)
        section(node, std::string{row.key}, shown, index);
      else if (node.kind != yaml_kind::null || row.required)
        add(node.at, "{} must be a section (key: value), not {}", shown, kind_of(node));
      return;
    case key_kind::list:
      return list(node, row, shown);
    case key_kind::texts:
    case key_kind::paths:
      return texts(node, row, shown, index);
    case key_kind::free_map:
      return free_map(node, shown, index);
    default:
      return single(node, row, shown, index);
    }
  }

  void list(const yaml_node& node, const key_row& row, const std::string& shown) {
    if (node.kind != yaml_kind::sequence)
      return add(node.at, "{} must be a list, not {}", shown, kind_of(node));
    const auto n = static_cast<std::int64_t>(node.items.size());
    if (n < row.min || n > row.max)
      add(node.at, "{} has {} entries; allowed are {} to {}", shown, n, row.min, row.max);
    const auto pattern = fmt::format("{}[]", row.key);
    for (std::size_t i = 0; i < node.items.size() && static_cast<std::int64_t>(i) < row.max; ++i) {
      const auto entry = fmt::format("{}[{}]", shown, i);
      if (row.key == "cluster.nodes")
        t_.nodes.push_back({.hosts = {}, .address = {}, .at = node.items[i].at});
      else
        t_.actors.push_back(
            {.kind = {}, .at = {}, .listen = {}, .config = {}, .where = node.items[i].at});
      defaults(pattern + ".", i);
      if (node.items[i].kind == yaml_kind::mapping)
        section(node.items[i], pattern, entry, i);
      else
        add(node.items[i].at, "{} must be a section (key: value), not {}", entry,
            kind_of(node.items[i]));
    }
  }

  void texts(const yaml_node& node, const key_row& row, const std::string& shown,
             std::size_t index) {
    if (node.kind != yaml_kind::sequence)
      return add(node.at, "{} must be a list, not {}", shown, kind_of(node));
    if (row.key == "cluster.ssh.command")
      t_.ssh_command.clear(); // a list in the file replaces the default
    for (std::size_t i = 0; i < node.items.size(); ++i)
      single(node.items[i], row, fmt::format("{}[{}]", shown, i), index);
  }

  void free_map(const yaml_node& node, const std::string& shown, std::size_t index) {
    if (node.kind != yaml_kind::mapping)
      return add(node.at, "{} must be a section (key: value), not {}", shown, kind_of(node));
    flatten(node, shown, "", index);
  }
  void flatten(const yaml_node& node, const std::string& shown, const std::string& prefix,
               std::size_t index) {
    for (std::size_t i = 0; i < node.keys.size() && i < node.items.size(); ++i) {
      const auto key = join(prefix, node.keys[i].text);
      const auto& item = node.items[i];
      if (item.kind == yaml_kind::mapping)
        flatten(item, shown, key, index);
      else if (item.kind == yaml_kind::sequence)
        add(item.at, "{}.{} must be a single value, not a list", shown, key);
      else {
        t_.places[join(shown, key)] = item.at;
        t_.actors[index].config.emplace_back(key, item.text);
      }
    }
  }

  void single(const yaml_node& node, const key_row& row, const std::string& shown,
              std::size_t index) {
    if (node.kind != yaml_kind::scalar || node.text.empty())
      return add(node.at, "{} must be {} {}, not {}", shown,
                 row.kind == key_kind::integer ? "an" : "a", to_string(row.kind),
                 node.kind == yaml_kind::scalar ? "empty" : kind_of(node));
    scalar v;
    v.text = node.text;
    v.at = node.at;
    if (const auto checked = check(node, row, v); !checked.ok())
      return add(node.at, "{}: {}", shown, checked.error().what);
    if (given_)
      t_.places[shown] = node.at;
    row.set(t_, index, v);
  }

  result<void> check(const yaml_node& node, const key_row& row, scalar& v) {
    const auto& text = node.text;
    const auto show = [&](std::int64_t n) {
      return row.kind == key_kind::time   ? format_time(nanoseconds{n})
             : row.kind == key_kind::size ? format_size(static_cast<std::uint64_t>(n))
                                          : std::to_string(n);
    };
    switch (row.kind) {
    case key_kind::integer: {
      DI_TRY(v.number, parse_integer(text));
      break;
    }
    case key_kind::time: {
      DI_TRY(const auto t, parse_time(text));
      v.number = t.count();
      break;
    }
    case key_kind::size: {
      DI_TRY(const auto n, parse_size(text));
      v.number = static_cast<std::int64_t>(n);
      break;
    }
    case key_kind::boolean:
      if (node.quoted || (text != "true" && text != "false"))
        return fail(ec::bad_argument, "{} is no boolean: write true or false", text);
      v.truth = text == "true";
      return {};
    case key_kind::choice:
      if (!one_of(row.choices, text)) {
        std::string known{row.choices};
        for (std::size_t at = 0; (at = known.find('|', at)) != std::string::npos; at += 2)
          known.replace(at, 1, ", ");
        return fail(ec::bad_argument, "{} is not known; choose {}", text, known);
      }
      return {};
    case key_kind::file_path:
    case key_kind::paths:
      if (text.find('\0') != std::string::npos || text.size() > 4000)
        return fail(ec::bad_argument, "no usable path");
      v.text = (fs::path{base_} / text).lexically_normal().string();
      return {};
    default:
      if (text.size() > 4000 || text.find('\0') != std::string::npos)
        return fail(ec::bad_argument, "text of {} bytes; at most 4000, without NUL", text.size());
      return {};
    }
    if (v.number < row.min || v.number > row.max)
      return fail(ec::bad_argument, "{} is outside {} to {}", text, show(row.min), show(row.max));
    return {};
  }

  topology& t_;
  std::vector<problem>& problems_;
  std::string base_;
  bool given_ = true; ///< false while defaults are put
};

/// Puts one `--set` into the tree. Lists are entered with [index]; the next free index appends.
void apply_set(yaml_node& root, const std::string& set, std::uint32_t number,
               std::vector<problem>& problems) {
  const place at{1, 1, number};
  const auto equals = set.find('=');
  if (equals == std::string::npos || equals == 0) {
    problems.push_back({at, "write --set key=value"});
    return;
  }
  yaml_node* node = &root;
  std::string_view rest{set.data(), equals};
  std::size_t depth = 0;
  while (!rest.empty()) {
    if (++depth > 16) {
      problems.push_back({at, "more than 16 nested levels"});
      return;
    }
    if (rest.front() == '[') {
      const auto close = rest.find(']');
      const auto index = parse_integer(close == rest.npos ? "" : rest.substr(1, close - 1));
      if (!index.ok() || (node->kind != yaml_kind::sequence && node->kind != yaml_kind::null)
          || static_cast<std::size_t>(*index) > node->items.size()) {
        problems.push_back({at, fmt::format("no list entry {}; the list has {}",
                                            rest.substr(0, close + 1), node->items.size())});
        return;
      }
      if (node->kind == yaml_kind::null)
        node->kind = yaml_kind::sequence;
      if (static_cast<std::size_t>(*index) == node->items.size())
        node->items.emplace_back().at = at;
      node = &node->items[static_cast<std::size_t>(*index)];
      rest.remove_prefix(close + 1);
      if (!rest.empty() && rest.front() == '.')
        rest.remove_prefix(1);
      continue;
    }
    const auto end = rest.find_first_of(".[");
    const std::string key{rest.substr(0, end)};
    if (node->kind != yaml_kind::mapping)
      *node = yaml_node{.kind = yaml_kind::mapping, .at = at, .text = {}, .keys = {}, .items = {}};
    auto i = node->find(key);
    if (i == yaml_node::npos) {
      i = node->keys.size();
      node->keys.push_back({key, at});
      node->items.emplace_back().at = at;
    }
    node = &node->items[i];
    rest.remove_prefix(end == rest.npos ? rest.size() : end);
    if (!rest.empty() && rest.front() == '.')
      rest.remove_prefix(1);
  }
  *node = read_yaml(std::string_view{set}.substr(equals + 1), number, problems);
}

} // namespace

std::string_view to_string(launcher_kind kind) noexcept {
  constexpr std::array<std::string_view, 4> names{"auto", "local", "ssh", "agent"};
  return names[static_cast<std::size_t>(kind)];
}
std::string_view to_string(rank_loss policy) noexcept {
  constexpr std::array<std::string_view, 3> names{"shrink", "restart_smaller", "restart"};
  return names[static_cast<std::size_t>(policy)];
}

topology_outcome read_topology(std::string_view text, const std::string& file,
                               const std::vector<std::string>& sets) {
  topology_outcome out;
  topology t;
  t.file = file;
  t.sets = sets;
  auto& problems = out.problems;
  yaml_node root = read_yaml(text, 0, problems);
  if (problems.empty()) {
    std::uint32_t number = 0;
    for (const auto& set : sets)
      apply_set(root, set, ++number, problems);
    if (root.kind != yaml_kind::mapping) {
      problems.push_back({root.at, fmt::format("expected keys like model: and cluster:, found {}",
                                               kind_of(root))});
    } else {
      reader r{t, problems, fs::path{file}.parent_path().string()};
      r.defaults("", 0);
      r.section(root, "", "", 0);
      check_topology(t, root, problems);
    }
  }
  std::stable_sort(problems.begin(), problems.end(), [](const problem& a, const problem& b) {
    return std::tuple{a.at.set, a.at.line, a.at.column}
           < std::tuple{b.at.set, b.at.line, b.at.column};
  });
  if (problems.empty())
    out.value = std::move(t);
  return out;
}

std::string render(const std::vector<problem>& problems, const std::string& file,
                   const std::vector<std::string>& sets) {
  std::string out;
  for (const auto& p : problems) {
    if (!out.empty())
      out += '\n';
    if (p.at.set == 0)
      out += fmt::format("{}:{}:{}: {}", file, p.at.line, p.at.column, p.what);
    else
      out += fmt::format("--set {}: {}",
                         p.at.set <= sets.size() ? sets[p.at.set - 1] : std::string{"?"}, p.what);
  }
  return out;
}

place topology::blame(std::initializer_list<std::string> keys, const place& fallback) const {
  const place* found = nullptr;
  for (const auto& key : keys)
    if (const auto i = places.find(key); i != places.end())
      if (!found || i->second.set > found->set)
        found = &i->second;
  return found ? *found : fallback;
}

std::string shown_place(const topology& t, const place& at) {
  if (at.set == 0)
    return fmt::format("{}:{}:{}", t.file, at.line, at.column);
  return "--set " + (at.set <= t.sets.size() ? t.sets[at.set - 1] : std::string{"?"});
}

std::string located(const topology& t, const place& at, const std::string& what) {
  return render({{at, what}}, t.file, t.sets);
}

std::string located(const topology& t, const place& at, const std::vector<std::string>& sets,
                    const std::string& what) {
  return render({{at, what}}, t.file, sets);
}

result<topology> load_topology(const std::string& file, const std::vector<std::string>& sets) {
  std::ifstream in{file, std::ios::binary};
  if (!in)
    return fail(ec::io_error, "{}: {}", file, std::strerror(errno));
  std::string text(yaml_limits{}.text_bytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (in.bad())
    return fail(ec::io_error, "{}: cannot be read", file);
  auto outcome = read_topology(text, file, sets);
  if (!outcome.value)
    return fail(error{ec::bad_config, render(outcome.problems, file, sets)});
  return std::move(*outcome.value);
}

} // namespace di::launch
