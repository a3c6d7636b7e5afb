// SPDX-License-Identifier: Apache-2.0
// Reads plans: tables of keys, one setter each, so that what is unknown can be named.
#include "chaos/plan.hpp"

#include "chaos/plan_values.hpp"
#include "launch/topology.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>
#include <tuple>

namespace di::chaos {
namespace {

using launch::yaml_kind;
using launch::yaml_node;

/// One key of a section and what to do with its value.
struct key {
  std::string_view name;
  std::function<result<void>(const yaml_node&)> set;
  bool section = false; ///< the value is no scalar; `set` looks itself
};

class reader {
public:
  explicit reader(std::vector<problem>& problems) : problems_{problems} {}

  void add(const place& at, std::string what) { problems_.push_back({at, std::move(what)}); }

  void section(const yaml_node& node, std::string_view name, const std::vector<key>& keys) {
    if (node.kind != yaml_kind::mapping)
      return add(node.at, fmt::format("{} must be a section (key: value)", name));
    for (std::size_t i = 0; i < node.keys.size() && i < node.items.size(); ++i) {
      const auto& k = node.keys[i];
      const yaml_node& value = node.items[i];
      const auto at = std::find_if(keys.begin(), keys.end(),
                                   [&](const key& known) { return known.name == k.text; });
      if (at == keys.end()) {
        add(k.at, fmt::format("unknown key {} in {}{}", k.text, name, hint(k.text, keys)));
        continue;
      }
      if (!at->section && value.kind != yaml_kind::scalar) {
        add(value.at, fmt::format("{}.{} must be a single value", name, k.text));
        continue;
      }
      if (const auto set = at->set(value); !set)
        add(value.at, fmt::format("{}.{}: {}", name, k.text, set.error().what));
    }
  }

  result<void> texts(const yaml_node& node, std::vector<std::string>& into) {
    if (node.kind == yaml_kind::scalar) {
      into.push_back(node.text);
      return {};
    }
    if (node.kind != yaml_kind::sequence)
      return fail(ec::bad_config, "must be a list");
    for (const yaml_node& item : node.items)
      if (item.kind != yaml_kind::scalar)
        add(item.at, "must be a single value");
      else
        into.push_back(item.text);
    return {};
  }

private:
  static std::string hint(const std::string& word, const std::vector<key>& keys) {
    std::vector<std::string> names;
    std::string all;
    for (const key& k : keys) {
      names.emplace_back(k.name);
      all += (all.empty() ? "" : ", ") + names.back();
    }
    const auto near = launch::nearest(word, names);
    return near.empty() ? "; known here: " + all : "; did you mean " + near + "?";
  }

  std::vector<problem>& problems_;
};

template <class T, class Parse>
std::function<result<void>(const yaml_node&)> setter(T& into, Parse parse) {
  return [&into, parse](const yaml_node& n) -> result<void> {
    DI_TRY(into, parse(n.text));
    return {};
  };
}

void read_workload(reader& r, const yaml_node& node, workload& w) {
  r.section(node, "workload",
            {{"requests", setter(w.requests, parse_count)},
             {"after", setter(w.after, parse_count)},
             {"prompt_tokens", setter(w.prompt_tokens, parse_range)},
             {"output_tokens", setter(w.output_tokens, parse_range)},
             {"n", setter(w.choices, parse_range)},
             {"sampling", setter(w.mixed,
                                 [](const std::string& s) -> result<bool> {
                                   if (s != "mixed" && s != "greedy")
                                     return fail(ec::bad_config, "mixed or greedy, not {}", s);
                                   return s == "mixed";
                                 })},
             {"stop", setter(w.stop, parse_flag)},
             {"logprobs", setter(w.logprobs, parse_flag)},
             {"window", setter(w.window, parse_count)},
             {"seed", setter(w.seed, parse_number)}});
  if (w.requests == 0)
    r.add(node.at, "workload.requests must be at least 1");
  for (const auto& [name, of] : {std::pair{"prompt_tokens", &w.prompt_tokens},
                                 {"output_tokens", &w.output_tokens},
                                 {"n", &w.choices}})
    if (of->low == 0)
      r.add(node.at, fmt::format("workload.{} must be at least 1", name));
}

void read_fault(reader& r, const yaml_node& node, fault& f) {
  f.where = node.at;
  bool has_at = false, has_when = false, has_kind = false;
  const auto note = [](bool& flag, auto set) {
    return [&flag, set](const yaml_node& n) -> result<void> {
      flag = true;
      return set(n);
    };
  };
  fault_trigger at, when;
  r.section(node, "faults",
            {{"fault", note(has_kind, setter(f.kind, parse_kind))},
             {"target", setter(f.target, parse_target)},
             {"peer", setter(f.peer, parse_target)},
             {"at", note(has_at, setter(at.at, launch::parse_time))},
             {"when", note(has_when, setter(when, parse_trigger))},
             {"after", setter(f.after, launch::parse_time)},
             {"for", setter(f.lasts, launch::parse_time)},
             {"times", setter(f.times, parse_count)},
             {"every", setter(f.every, launch::parse_time)},
             {"factor", setter(f.factor, parse_factor)},
             {"rate", setter(f.rate, parse_rate)},
             {"delay", setter(f.delay, launch::parse_time)},
             {"jitter", setter(f.jitter, launch::parse_time)},
             {"one_way", setter(f.one_way, parse_flag)},
             {"point", setter(f.point, parse_word)},
             {"skip", setter(f.skip, parse_number)},
             {"size", setter(f.size_bytes, launch::parse_size)},
             {"threads", setter(f.threads, parse_count)},
             {"jump", setter(f.jump, launch::parse_time)},
             {"command",
              setter(f.command, [](const std::string& s) -> result<std::string> { return s; })}});
  if (node.kind != yaml_kind::mapping)
    return;
  if (!has_kind)
    return r.add(node.at, "a fault needs `fault: KIND`");
  if (has_at == has_when)
    return r.add(node.at, "a fault needs exactly one of `at` and `when`");
  f.trigger = has_at ? at : when;
  for (std::string& what : check_fault(f))
    r.add(node.at, std::move(what));
}

void read_expectations(reader& r, const yaml_node& node, expectations& e) {
  r.section(node, "expect",
            {{"exit", setter(e.exit, parse_count)},
             {"failed", setter(e.failed_max, parse_count)},
             {"late_faults", setter(e.late_faults, parse_flag)},
             {"others_leave", setter(e.others_leave, parse_flag)},
             {"identical", setter(e.identical, parse_flag)},
             {"views", setter(e.views, parse_range)},
             {"expelled", setter(e.expelled, parse_range)},
             {"joined", setter(e.joined, parse_range)},
             {"members", setter(e.members, parse_count)},
             {"members_min", setter(e.members_min, parse_count)},
             {"events", [&](const yaml_node& n) { return r.texts(n, e.events); }, true},
             {"no_events", [&](const yaml_node& n) { return r.texts(n, e.no_events); }, true},
             {"counters", [&](const yaml_node& n) { return r.texts(n, e.counters); }, true}});
}

void read_document(reader& r, const yaml_node& root, plan& p) {
  std::string version;
  const auto word = [](const std::string& s) -> result<std::string> { return s; };
  r.section(root, "the plan",
            {{"apiVersion", setter(version, word)},
             {"name", setter(p.name, parse_word)},
             {"doc", setter(p.doc, word)},
             {"covers", [&](const yaml_node& n) { return r.texts(n, p.covers); }, true},
             {"sets", [&](const yaml_node& n) { return r.texts(n, p.sets); }, true},
             {"seed", setter(p.seed, parse_number)},
             {"limit", setter(p.limit, launch::parse_time)},
             {"workload",
              [&](const yaml_node& n) -> result<void> {
                read_workload(r, n, p.work);
                return {};
              },
              true},
             {"faults",
              [&](const yaml_node& n) -> result<void> {
                if (n.kind != yaml_kind::sequence)
                  return fail(ec::bad_config, "must be a list");
                for (const yaml_node& item : n.items)
                  read_fault(r, item, p.faults.emplace_back());
                return {};
              },
              true},
             {"expect",
              [&](const yaml_node& n) -> result<void> {
                read_expectations(r, n, p.expect);
                return {};
              },
              true}});
  if (root.kind != yaml_kind::mapping)
    return;
  if (version != "di-chaos/v1")
    r.add(root.at, version.empty()
                       ? "apiVersion: di-chaos/v1 is missing"
                       : fmt::format("apiVersion must be di-chaos/v1, not {}", version));
  if (p.name.empty())
    r.add(root.at, "name is missing");
  for (const std::string& c : p.covers)
    if (!is_coverage(c))
      r.add(root.at, fmt::format("covers: {} is none of F1 to F28, C01 to C47, I1 to I20", c));
}

} // namespace

plan_outcome read_plan(std::string_view text, const std::string& file) {
  plan_outcome out;
  const yaml_node root = launch::read_yaml(text, 0, out.problems);
  plan p;
  p.file = file;
  if (out.problems.empty()) {
    reader r{out.problems};
    read_document(r, root, p);
  }
  std::stable_sort(out.problems.begin(), out.problems.end(),
                   [](const problem& a, const problem& b) {
                     return std::tie(a.at.line, a.at.column) < std::tie(b.at.line, b.at.column);
                   });
  if (out.problems.empty())
    out.value = std::move(p);
  return out;
}

result<plan> load_plan(const std::string& file) {
  std::ifstream in{file, std::ios::binary};
  if (!in)
    return fail(ec::io_error, "{}: {}", file, std::strerror(errno));
  std::stringstream text;
  text << in.rdbuf();
  auto read = read_plan(text.str(), file);
  if (!read.value)
    return fail(error{ec::bad_config, launch::render(read.problems, file, {})});
  return std::move(*read.value);
}

} // namespace di::chaos
