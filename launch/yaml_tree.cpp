// SPDX-License-Identifier: Apache-2.0
// Builds the tree from yaml-cpp's parser events, so that every bound is ours.
#include "launch/yaml_tree.hpp"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <exception>
#include <istream>
#include <streambuf>

namespace di::launch {
namespace {

/// Thrown through yaml-cpp's parser to stop at a limit; caught in read_yaml.
struct stop_reading : std::exception {};

class builder : public YAML::EventHandler {
public:
  builder(std::uint32_t set, std::vector<problem>& problems, const yaml_limits& limits)
      : set_{set}, problems_{problems}, limits_{limits} {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    yaml_node n;
    n.at = at(mark);
    no_anchor(n.at, anchor);
    put(std::move(n));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    problems_.push_back({at(mark), "aliases (*name) are not supported: write the value out"});
    yaml_node n;
    n.at = at(mark);
    put(std::move(n));
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    yaml_node n;
    n.kind = yaml_kind::scalar;
    n.at = at(mark);
    n.quoted = tag == "!";
    n.text = value;
    no_anchor(n.at, anchor);
    no_tag(n.at, tag);
    put(std::move(n));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    begin(yaml_kind::sequence, mark, tag, anchor);
  }
  void OnSequenceEnd() override { end(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    begin(yaml_kind::mapping, mark, tag, anchor);
  }
  void OnMapEnd() override { end(); }

  yaml_node take() {
    while (!open_.empty())
      end();
    return std::move(root_);
  }

private:
  struct frame {
    yaml_node node;
    bool key_next = true; ///< in a mapping: the next value is a key
    bool skip = false;    ///< its value belongs to a refused key
  };

  place at(const YAML::Mark& m) const {
    return {static_cast<std::uint32_t>(m.line + 1), static_cast<std::uint32_t>(m.column + 1), set_};
  }
  void no_anchor(const place& p, YAML::anchor_t anchor) {
    if (anchor != YAML::NullAnchor)
      problems_.push_back({p, "anchors (&name) are not supported: write the value out"});
  }
  void no_tag(const place& p, const std::string& tag) {
    if (!tag.empty() && tag != "?" && tag != "!")
      problems_.push_back({p, fmt::format("tag {} is not supported", tag)});
  }

  void begin(yaml_kind kind, const YAML::Mark& mark, const std::string& tag,
             YAML::anchor_t anchor) {
    if (open_.size() >= limits_.depth) {
      problems_.push_back({at(mark), fmt::format("more than {} nested levels", limits_.depth)});
      throw stop_reading{};
    }
    frame f;
    f.node.kind = kind;
    f.node.at = at(mark);
    no_anchor(f.node.at, anchor);
    no_tag(f.node.at, tag);
    open_.push_back(std::move(f));
  }
  void end() {
    yaml_node n = std::move(open_.back().node);
    open_.pop_back();
    if (n.keys.size() > n.items.size())
      n.keys.resize(n.items.size());
    put(std::move(n));
  }

  void put(yaml_node n) {
    if (++nodes_ > limits_.nodes) {
      problems_.push_back({n.at, fmt::format("more than {} values", limits_.nodes)});
      throw stop_reading{};
    }
    if (open_.empty()) {
      root_ = std::move(n);
      return;
    }
    frame& f = open_.back();
    if (f.node.kind == yaml_kind::mapping && f.key_next)
      return put_key(f, n);
    f.key_next = true;
    if (f.skip)
      f.skip = false;
    else
      f.node.items.push_back(std::move(n));
  }
  void put_key(frame& f, const yaml_node& n) {
    f.key_next = false;
    if (n.kind != yaml_kind::scalar) {
      problems_.push_back({n.at, "a key must be a plain word"});
      f.skip = true;
      return;
    }
    if (const auto i = f.node.find(n.text); i != yaml_node::npos) {
      problems_.push_back({n.at, fmt::format("key {} is given twice; first at line {}", n.text,
                                             f.node.keys[i].at.line)});
      f.skip = true;
      return;
    }
    f.node.keys.push_back({n.text, n.at});
  }

  std::uint32_t set_;
  std::vector<problem>& problems_;
  yaml_limits limits_;
  std::vector<frame> open_;
  yaml_node root_;
  std::size_t nodes_ = 0;
};

struct view_buffer : std::streambuf {
  explicit view_buffer(std::string_view text) {
    char* p = const_cast<char*>(text.data()); // NOLINT: streambuf only reads here
    setg(p, p, p + text.size());
  }
};

} // namespace

std::size_t yaml_node::find(std::string_view key) const noexcept {
  for (std::size_t i = 0; i < keys.size(); ++i)
    if (keys[i].text == key)
      return i;
  return npos;
}

yaml_node read_yaml(std::string_view text, std::uint32_t set, std::vector<problem>& problems,
                    const yaml_limits& limits) {
  if (text.size() > limits.text_bytes) {
    problems.push_back(
        {{1, 1, set},
         fmt::format("{} bytes; at most {} are read", text.size(), limits.text_bytes)});
    return {};
  }
  builder b{set, problems, limits};
  try {
    view_buffer buffer{text};
    std::istream in{&buffer};
    YAML::Parser parser{in};
    parser.HandleNextDocument(b);
    yaml_node root = b.take();
    std::vector<problem> ignored;
    builder second{set, ignored, limits};
    if (parser.HandleNextDocument(second)) {
      problems.push_back({{1, 1, set}, "more than one document (---)"});
    }
    return root;
  } catch (const stop_reading&) {
  } catch (const YAML::Exception& e) {
    const bool known = !e.mark.is_null();
    const place p{known ? static_cast<std::uint32_t>(e.mark.line + 1) : 1U,
                  known ? static_cast<std::uint32_t>(e.mark.column + 1) : 1U, set};
    problems.push_back({p, e.msg});
  } catch (const std::exception& e) {
    problems.push_back({{1, 1, set}, e.what()});
  }
  return b.take();
}

} // namespace di::launch
