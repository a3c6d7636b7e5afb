// SPDX-License-Identifier: Apache-2.0
// Reads line by line, so that it works in a pipe and on files larger than memory.
#include "launch/cmd_tokenize.hpp"

#include "engine/text/pre_tokenizer.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <nlohmann/json.hpp>

#include <functional>
#include <iostream>
#include <limits>
#include <memory>
#include <string>

namespace di::launch {
namespace {

using engine::encode_mode, engine::special_tokens, engine::tokenizer;
// Fields come out in the order in which they are set.
using json = nlohmann::ordered_json;

result<json> read_object(const std::string& line) {
  try {
    json object = json::parse(line);
    if (!object.is_object())
      return fail(ec::bad_format, "expected an object, found {}", object.type_name());
    return object;
  } catch (const json::exception& e) {
    return fail(ec::bad_format, "{}", e.what());
  }
}

result<json> tokenize(const tokenizer& words, bool with_pieces, const json& in) {
  const auto text = in.find("text");
  if (text == in.end() || !text->is_string())
    return fail(ec::bad_format, "text: expected a string, found {}",
                text == in.end() ? "nothing" : text->type_name());
  const auto& value = text->get_ref<const std::string&>();
  DI_TRY(const auto full, words.encode(value, encode_mode::full));
  DI_TRY(const auto plain, words.encode(value, encode_mode::plain));
  json out;
  if (in.contains("id"))
    out["id"] = in["id"];
  out["text"] = value;
  out["ids"] = full;
  out["ids_plain"] = plain == full ? json{} : json(plain);
  if (!with_pieces)
    return out;
  std::vector<std::size_t> ends;
  engine::cut_pieces(value, ends);
  json& pieces = out["pieces"] = json::array();
  for (std::size_t begin = 0; const std::size_t end : ends) {
    pieces.push_back(value.substr(begin, end - begin));
    begin = end;
  }
  return out;
}

result<std::vector<token_id>> read_ids(const json& in) {
  const auto ids = in.find("ids");
  if (ids == in.end() || !ids->is_array())
    return fail(ec::bad_format, "ids: expected an array, found {}",
                ids == in.end() ? "nothing" : ids->type_name());
  std::vector<token_id> out;
  for (std::size_t i = 0; i < ids->size(); ++i) {
    const json& id = (*ids)[i];
    if (!id.is_number_integer() || id < 0 || id > std::numeric_limits<token_id>::max())
      return fail(ec::bad_format, "ids[{}]: expected a token id, found {}", i,
                  id.dump().substr(0, 40));
    out.push_back(id.get<token_id>());
  }
  return out;
}

result<json> detokenize(const tokenizer& words, const json& in) {
  DI_TRY(const std::vector<token_id> ids, read_ids(in));
  json out;
  if (in.contains("id"))
    out["id"] = in["id"];
  out["ids"] = ids;
  std::string hex;
  for (const char c : words.bytes(ids))
    hex += fmt::format("{:02x}", static_cast<unsigned>(static_cast<std::uint8_t>(c)));
  out["bytes_hex"] = std::move(hex);
  const std::string text = words.decode(ids);
  const std::string shown = words.decode(ids, special_tokens::skip);
  out["text"] = text;
  out["text_skip_special"] = shown == text ? json{} : json(shown);
  engine::stream_decoder stream{words};
  json& steps = out["stream"] = json::array();
  for (const token_id id : ids)
    steps.push_back(stream.push(id));
  out["stream_flush"] = stream.flush();
  return out;
}

line_counts each_line(std::istream& in, std::ostream& out, std::ostream& errors,
                      const char* command, const std::function<result<json>(const json&)>& work) {
  line_counts counts;
  std::string line;
  for (std::uint64_t number = 1; std::getline(in, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos)
      continue;
    const result<json> answer = [&]() -> result<json> {
      DI_TRY(const json object, read_object(line));
      return work(object);
    }();
    if (answer.ok()) {
      ++counts.done;
      out << answer->dump() << '\n';
    } else {
      ++counts.failed;
      errors << "dilaunch " << command << ": line " << number << ": " << answer.error().what
             << '\n';
    }
  }
  out.flush();
  return counts;
}

// What the command line gave; shared by the option parser and the callback.
struct command_options {
  line_files files;
  bool pieces = false;
};

CLI::App* add_command(CLI::App& app, const char* name, const char* about,
                      const std::shared_ptr<command_options>& options) {
  CLI::App* command = app.add_subcommand(name, about);
  command
      ->add_option("--tokenizer", options->files.tokenizer,
                   "tokenizer.json, or the folder of a model")
      ->required();
  add_line_files(*command, options->files);
  return command;
}

} // namespace

line_counts tokenize_lines(const tokenizer& words, bool with_pieces, std::istream& in,
                           std::ostream& out, std::ostream& errors) {
  return each_line(in, out, errors, "tokenize",
                   [&](const json& object) { return tokenize(words, with_pieces, object); });
}

line_counts detokenize_lines(const tokenizer& words, std::istream& in, std::ostream& out,
                             std::ostream& errors) {
  return each_line(in, out, errors, "detokenize",
                   [&](const json& object) { return detokenize(words, object); });
}

void add_tokenize_commands(CLI::App& app, int& exit_code) {
  const auto options = std::make_shared<command_options>();
  CLI::App* to_ids = add_command(
      app, "tokenize", "Text to token ids: lines {\"text\"} to {\"ids\", \"ids_plain\"}", options);
  to_ids->add_flag("--pieces", options->pieces, "also print the pieces within which merges happen");
  to_ids->callback([options, &exit_code] {
    exit_code = run_lines(options->files, "tokenize",
                          [&](const tokenizer* words, std::istream& in, std::ostream& out) {
                            return tokenize_lines(*words, options->pieces, in, out, std::cerr);
                          });
  });
  CLI::App* to_text = add_command(
      app, "detokenize", "Token ids to text: lines {\"ids\"} to {\"text\", \"stream\"}", options);
  to_text->callback([options, &exit_code] {
    exit_code = run_lines(options->files, "detokenize",
                          [](const tokenizer* words, std::istream& in, std::ostream& out) {
                            return detokenize_lines(*words, in, out, std::cerr);
                          });
  });
}

} // namespace di::launch
