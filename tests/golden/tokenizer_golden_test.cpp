// SPDX-License-Identifier: Apache-2.0
// Every stored case of the released tokenizer and of the tiny one: pieces, ids, bytes, text,
// streamed text.
#include "engine/text/pre_tokenizer.hpp"
#include "engine/text/tokenizer.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>

namespace di::engine {
namespace {

using json = nlohmann::json;

const std::string data_dir = DI_SOURCE_DIR "/tests/golden/data/tokenizer/";
const std::string unpacked_dir = DI_BINARY_DIR "/tests/golden/tokenizer/";

std::vector<json> read_cases(const std::string& name) {
  std::vector<json> out;
  std::ifstream in{data_dir + name};
  for (std::string line; std::getline(in, line);)
    out.push_back(json::parse(line));
  return out;
}

const tokenizer& loaded(const std::string& path) {
  static std::map<std::string, tokenizer> known;
  auto it = known.find(path);
  if (it == known.end()) {
    result<tokenizer> r = tokenizer::load(path);
    if (!r.ok())
      ADD_FAILURE() << r.error().render();
    it = known.emplace(path, std::move(r).value()).first;
  }
  return it->second;
}

const tokenizer& large() {
  return loaded(unpacked_dir + "tokenizer.json");
}
const tokenizer& tiny() {
  return loaded(data_dir + "tiny/tokenizer.json");
}

std::string hex(std::string_view bytes) {
  std::string out;
  for (const char c : bytes)
    out += fmt::format("{:02x}", static_cast<unsigned>(static_cast<std::uint8_t>(c)));
  return out;
}

void check_encode(const tokenizer& t, const std::string& file, std::size_t cases) {
  const std::vector<json> all = read_cases(file);
  ASSERT_EQ(all.size(), cases);
  for (const json& c : all) {
    const auto text = c["text"].get<std::string>();
    const auto full = c["ids"].get<std::vector<token_id>>();
    const auto plain =
        c["ids_plain"].is_null() ? full : c["ids_plain"].get<std::vector<token_id>>();
    ASSERT_EQ(t.encode(text, encode_mode::full).value(), full) << c["id"] << ' ' << text;
    ASSERT_EQ(t.encode(text, encode_mode::plain).value(), plain) << c["id"] << ' ' << text;
    ASSERT_EQ(t.bytes(full), text) << c["id"];
    ASSERT_EQ(t.bytes(plain), text) << c["id"];
  }
}

void check_decode(const tokenizer& t, const std::string& file, std::size_t cases) {
  const std::vector<json> all = read_cases(file);
  ASSERT_EQ(all.size(), cases);
  for (const json& c : all) {
    const auto ids = c["ids"].get<std::vector<token_id>>();
    const auto text = c["text"].get<std::string>();
    const auto skipped =
        c["text_skip_special"].is_null() ? text : c["text_skip_special"].get<std::string>();
    ASSERT_EQ(hex(t.bytes(ids)), c["bytes_hex"].get<std::string>()) << c["id"];
    ASSERT_EQ(t.decode(ids), text) << c["id"];
    ASSERT_EQ(t.decode(ids, special_tokens::skip), skipped) << c["id"];
    stream_decoder stream{t};
    for (std::size_t i = 0; i < ids.size(); ++i)
      ASSERT_EQ(stream.push(ids[i]), c["stream"][i].get<std::string>()) << c["id"] << " id " << i;
    ASSERT_EQ(stream.flush(), c["stream_flush"].get<std::string>()) << c["id"];
  }
}

TEST(tokenizer_golden, cuts_all_texts_into_the_stored_pieces) {
  const std::vector<json> all = read_cases("pieces.jsonl");
  ASSERT_EQ(all.size(), 400U);
  std::vector<std::size_t> ends;
  for (const json& c : all) {
    const auto text = c["text"].get<std::string>();
    cut_pieces(text, ends);
    std::vector<std::string> pieces;
    for (std::size_t begin = 0; const std::size_t end : ends) {
      pieces.push_back(text.substr(begin, end - begin));
      begin = end;
    }
    ASSERT_EQ(pieces, c["pieces"].get<std::vector<std::string>>()) << c["id"];
  }
}

TEST(tokenizer_golden, encodes_all_texts_with_the_released_file) {
  check_encode(large(), "encode.jsonl", 1927);
}

TEST(tokenizer_golden, encodes_all_texts_with_the_tiny_file) {
  check_encode(tiny(), "tiny_encode.jsonl", 450);
}

TEST(tokenizer_golden, decodes_and_streams_all_ids_with_the_released_file) {
  check_decode(large(), "decode.jsonl", 420);
}

TEST(tokenizer_golden, decodes_and_streams_all_ids_with_the_tiny_file) {
  check_decode(tiny(), "tiny_decode.jsonl", 140);
}

TEST(tokenizer_golden, agrees_with_the_worked_examples_of_the_specification) {
  std::vector<token_id> ids =
      large().encode("Hello! 毕老师！1 + 1 = 2", encode_mode::plain).value();
  EXPECT_EQ(ids, (std::vector<token_id>{19923, 3, 223, 5464, 5008, 1175, 19, 940, 223, 19, 438, 223,
                                        20}));
  ids = large()
            .encode("<｜User｜>你好<｜Assistant｜><think>推理</think>答案<｜end▁of▁sentence｜>",
                    encode_mode::full)
            .value();
  EXPECT_EQ(ids, (std::vector<token_id>{128803, 30594, 128804, 128821, 36101, 128822, 7624, 1}));
  EXPECT_EQ(large().size(), 129280U);
  EXPECT_EQ(tiny().size(), 1024U);
}

} // namespace
} // namespace di::engine
