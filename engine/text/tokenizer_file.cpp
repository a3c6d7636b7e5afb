// SPDX-License-Identifier: Apache-2.0
// Reads tokenizer.json. Everything in it that would change the result is checked; other forms are
// refused by place.
#include "engine/text/pre_tokenizer.hpp"
#include "engine/text/tokenizer.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace di::engine {
namespace {

using json = nlohmann::json;

// The two long lists are taken out while parsing, so that no tree of a quarter million nodes is
// built.
struct token_file {
  json rest;                                               // everything but the two lists
  std::vector<std::pair<std::string, token_id>> vocab;     // in file order
  std::vector<std::pair<std::string, std::string>> merges; // in rank order
};

// Receives the parser's events for model.vocab and model.merges; the first fault found is kept.
class list_catcher {
public:
  list_catcher(token_file& out, std::string_view name) : out_{out}, name_{name} {}

  // Whether the parser keeps the value. Depth counts the containers around it.
  bool on(int depth, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::key) {
      if (depth <= 3)
        path_[depth - 1] = value.get_ref<const std::string&>();
      return true;
    }
    if (depth < 3 || path_[0] != "model" || error_)
      return true;
    if (depth > 3 || event == json::parse_event_t::object_start
        || event == json::parse_event_t::array_start)
      return true;
    if (path_[1] == "vocab")
      on_vocab(value);
    else if (path_[1] == "merges")
      on_merge(value);
    else
      return true;
    return false;
  }
  const std::optional<error>& fault() const { return error_; }

private:
  void on_vocab(const json& value) {
    if (!value.is_number_integer() || value < 0 || value >= byte_pairs::ids_max)
      error_ = fail(ec::bad_format, "{}: model.vocab[\"{}\"]: expected an id in [0, {}), found {}",
                    name_, path_[2], byte_pairs::ids_max, brief(value))
                   .err;
    else
      out_.vocab.emplace_back(path_[2], value.get<token_id>());
  }

  void on_merge(const json& value) {
    const auto wrong = [&] {
      error_ = fail(ec::bad_format, "{}: model.merges[{}]: expected \"left right\", found {}",
                    name_, out_.merges.size(), brief(value))
                   .err;
    };
    if (value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string()) {
      out_.merges.emplace_back(value[0].get<std::string>(), value[1].get<std::string>());
      return;
    }
    if (!value.is_string())
      return wrong();
    const auto& text = value.get_ref<const std::string&>();
    const std::size_t blank = text.find(' ');
    if (blank == std::string::npos || blank == 0 || blank + 1 == text.size()
        || text.find(' ', blank + 1) != std::string::npos)
      return wrong();
    out_.merges.emplace_back(text.substr(0, blank), text.substr(blank + 1));
  }

public:
  // A value as it stands in an error: at most 60 bytes of it.
  static std::string brief(const json& value) {
    std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
    if (text.size() > 60)
      text = text.substr(0, 57) + "...";
    return text;
  }

private:
  token_file& out_;
  std::string_view name_;
  std::array<std::string, 3> path_; // keys above the current value
  std::optional<error> error_;
};

result<token_file> parse_file(std::string_view text, std::string_view name) {
  token_file file;
  list_catcher lists{file, name};
  try {
    file.rest = json::parse(text.begin(), text.end(),
                            [&](int depth, json::parse_event_t event, json& value) {
                              return lists.on(depth, event, value);
                            });
  } catch (const json::exception& e) {
    return fail(ec::bad_format, "{}: not JSON: {}", name, e.what());
  }
  if (lists.fault())
    return fail(*lists.fault());
  return file;
}

// Walks to a value by keys joined with dots; a null value if some step is absent.
const json& at_path(const json& from, std::string_view path) {
  static const json nothing;
  const json* at = &from;
  for (;;) {
    const std::size_t dot = path.find('.');
    const std::string key{path.substr(0, dot)};
    if (!at->is_object() || !at->contains(key))
      return nothing;
    at = &(*at)[key];
    if (dot == std::string_view::npos)
      return *at;
    path.remove_prefix(dot + 1);
  }
}

// One demand on the file: the value at a path is one of those that this tokenizer implements.
struct demand {
  std::string_view path;
  std::vector<json> allowed;
};

result<void> check_settings(const json& rest, std::string_view name) {
  const json off = nullptr;
  const json no = false;
  const demand demands[] = {
      {"truncation", {off}},
      {"padding", {off}},
      {"normalizer", {off, json{{"type", "Sequence"}, {"normalizers", json::array()}}}},
      {"model.type", {"BPE"}},
      {"model.dropout", {off}},
      {"model.unk_token", {off}},
      {"model.continuing_subword_prefix", {off, ""}},
      {"model.end_of_word_suffix", {off, ""}},
      {"model.byte_fallback", {off, no}},
      {"model.ignore_merges", {off, no}},
      {"decoder.type", {"ByteLevel"}},
      {"post_processor.type", {off, "ByteLevel"}},
      {"pre_tokenizer.type", {"Sequence"}},
  };
  for (const demand& d : demands) {
    const json& found = at_path(rest, d.path);
    if (std::find(d.allowed.begin(), d.allowed.end(), found) == d.allowed.end())
      return fail(ec::bad_format, "{}: {}: expected {}, found {}", name, d.path,
                  d.allowed.back().dump(), list_catcher::brief(found));
  }
  return {};
}

result<void> check_pre_tokenizer(const json& rest, std::string_view name) {
  const json& stages = at_path(rest, "pre_tokenizer.pretokenizers");
  if (!stages.is_array() || stages.size() != 4)
    return fail(ec::bad_format, "{}: pre_tokenizer.pretokenizers: expected 4 stages, found {}",
                name,
                stages.is_array() ? std::to_string(stages.size()) : list_catcher::brief(stages));
  for (std::size_t i = 0; i < 4; ++i) {
    const json& stage = stages[i];
    const auto wrong = [&](const char* field, const json& expected) -> failure {
      return fail(ec::bad_format, "{}: pre_tokenizer.pretokenizers[{}].{}: expected {}, found {}",
                  name, i, field, list_catcher::brief(expected),
                  list_catcher::brief(at_path(stage, field)));
    };
    const json type = i < 3 ? "Split" : "ByteLevel";
    if (at_path(stage, "type") != type)
      return wrong("type", type);
    if (i == 3) {
      for (const char* field : {"add_prefix_space", "use_regex"})
        if (at_path(stage, field) != false)
          return wrong(field, false);
      continue;
    }
    const json pattern = {{"Regex", std::string{pre_tokenizer_patterns[i]}}};
    if (at_path(stage, "pattern") != pattern)
      return wrong("pattern", pattern);
    if (at_path(stage, "behavior") != "Isolated")
      return wrong("behavior", "Isolated");
    if (at_path(stage, "invert") != false)
      return wrong("invert", false);
  }
  return {};
}

// Bytes behind the printable alphabet: code point -> byte, -1 where the code point is not in it.
std::array<int, 0x144> byte_alphabet() {
  std::array<int, 0x144> of{};
  of.fill(-1);
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    of[static_cast<std::size_t>(printable ? byte : next++)] = byte;
  }
  return of;
}

// The bytes that a vocabulary spelling stands for; nothing if a character is not in the alphabet.
std::optional<std::string> spelled_bytes(std::string_view spelling) {
  static const std::array<int, 0x144> alphabet = byte_alphabet();
  std::string out;
  for (std::size_t i = 0; i < spelling.size(); ++i) { // JSON strings are well-formed UTF-8
    const auto lead = static_cast<std::uint8_t>(spelling[i]);
    std::size_t code_point = lead;
    if (lead >= 0xE0)
      return std::nullopt;
    if (lead >= 0x80)
      code_point = static_cast<std::size_t>(lead & 0x1F) << 6
                   | (static_cast<std::uint8_t>(spelling[++i]) & 0x3FU);
    if (code_point >= alphabet.size() || alphabet[code_point] < 0)
      return std::nullopt;
    out += static_cast<char>(alphabet[code_point]);
  }
  return out;
}

result<std::vector<tokenizer::entry>> read_added(const json& rest, std::string_view name) {
  const json& list = at_path(rest, "added_tokens");
  std::vector<tokenizer::entry> out;
  if (list.is_null())
    return out;
  if (!list.is_array())
    return fail(ec::bad_format, "{}: added_tokens: expected an array, found {}", name,
                list_catcher::brief(list));
  for (std::size_t i = 0; i < list.size(); ++i) {
    const json& item = list[i];
    const json& id = at_path(item, "id");
    const json& content = at_path(item, "content");
    if (!id.is_number_integer() || id < 0 || id >= byte_pairs::ids_max)
      return fail(ec::bad_format, "{}: added_tokens[{}].id: expected an id in [0, {}), found {}",
                  name, i, byte_pairs::ids_max, list_catcher::brief(id));
    if (!content.is_string() || content.get_ref<const std::string&>().empty())
      return fail(ec::bad_format, "{}: added_tokens[{}].content: expected a text, found {}", name,
                  i, list_catcher::brief(content));
    for (const char* field : {"single_word", "lstrip", "rstrip"})
      if (const json& v = at_path(item, field); !v.is_null() && v != false)
        return fail(ec::bad_format, "{}: added_tokens[{}].{}: expected false, found {}", name, i,
                    field, list_catcher::brief(v));
    out.push_back(
        {id.get<token_id>(), content.get<std::string>(), true, at_path(item, "special") == true});
  }
  return out;
}

using id_table = std::unordered_map<std::string_view, token_id>;

// Vocabulary entries become tokens; those that an added token repeats are given by the added token.
result<id_table> read_vocab(const token_file& file, std::string_view name,
                            std::vector<tokenizer::entry>& entries) {
  std::unordered_map<token_id, std::size_t> added;
  for (std::size_t i = 0; i < entries.size(); ++i)
    added.emplace(entries[i].id, i);
  id_table ids;
  ids.reserve(file.vocab.size());
  entries.reserve(entries.size() + file.vocab.size());
  for (const auto& [spelling, id] : file.vocab) {
    if (!ids.emplace(spelling, id).second)
      return fail(ec::duplicate, "{}: model.vocab[\"{}\"]: this spelling stands there twice", name,
                  spelling);
    std::optional<std::string> bytes = spelled_bytes(spelling);
    if (const auto it = added.find(id); it != added.end()) {
      const std::string& content = entries[it->second].bytes;
      if (content != spelling && bytes != content)
        return fail(ec::bad_format, "{}: model.vocab[\"{}\"]: id {} is the added token \"{}\"",
                    name, spelling, id, content);
      continue;
    }
    if (!bytes || bytes->empty())
      return fail(
          ec::bad_format,
          "{}: model.vocab[\"{}\"]: not spelled in the byte alphabet, and id {} is no added "
          "token",
          name, spelling, id);
    entries.push_back({id, std::move(*bytes), false, false});
  }
  return ids;
}

result<std::array<token_id, 256>> read_byte_ids(const id_table& ids, std::string_view name) {
  std::array<token_id, 256> out{};
  out.fill(-1);
  for (const auto& [spelling, id] : ids)
    if (spelling.size() <= 2)
      if (const auto bytes = spelled_bytes(spelling); bytes && bytes->size() == 1)
        out[static_cast<std::uint8_t>((*bytes)[0])] = id;
  for (std::size_t byte = 0; byte < out.size(); ++byte)
    if (out[byte] < 0)
      return fail(ec::bad_format, "{}: model.vocab: no entry for the single byte 0x{:02X}", name,
                  byte);
  return out;
}

result<std::vector<merge_rule>> read_merges(const token_file& file, std::string_view name,
                                            const id_table& ids) {
  std::vector<merge_rule> out;
  out.reserve(file.merges.size());
  std::string joined;
  for (std::size_t i = 0; i < file.merges.size(); ++i) {
    const auto& [left, right] = file.merges[i];
    joined = left;
    joined += right;
    merge_rule rule;
    for (const auto& [part, id] : {std::pair{std::string_view{left}, &rule.left},
                                   {right, &rule.right},
                                   {joined, &rule.result}}) {
      const auto it = ids.find(part);
      if (it == ids.end())
        return fail(ec::bad_format, "{}: model.merges[{}]: \"{}\" is not in model.vocab", name, i,
                    part);
      *id = it->second;
    }
    out.push_back(rule);
  }
  return out;
}

} // namespace

result<tokenizer> tokenizer::parse(std::string_view text, std::string_view name) {
  DI_TRY(const token_file file, parse_file(text, name));
  DI_TRY_VOID(check_settings(file.rest, name));
  DI_TRY_VOID(check_pre_tokenizer(file.rest, name));
  DI_TRY(std::vector<entry> entries, read_added(file.rest, name));
  DI_TRY(const id_table ids, read_vocab(file, name, entries));
  DI_TRY(const auto byte_ids, read_byte_ids(ids, name));
  DI_TRY(std::vector<merge_rule> merges, read_merges(file, name, ids));
  result<tokenizer> made = build(std::move(entries), byte_ids, std::move(merges));
  if (!made.ok())
    return fail(made.error().code, "{}: {}", name, made.error().what);
  return made;
}

result<tokenizer> tokenizer::load(const std::filesystem::path& file) {
  std::ifstream in{file, std::ios::binary};
  const std::string text{std::istreambuf_iterator<char>{in}, {}};
  if (!in.is_open() || in.bad())
    return fail(ec::io_error, "{}: cannot be read", file.string());
  return parse(text, file.string());
}

} // namespace di::engine
