// SPDX-License-Identifier: Apache-2.0
// Encoding speed on one thread. Prints one JSON line per pass over the documents.
//
//   tokenizer_bench TOKENIZER.json DOCUMENTS [PASSES]
//
// DOCUMENTS is text; the byte 0x1E separates documents. With PASSES = 0 a pass runs for every line
// on standard input, so that another program can take turns with this one
// (tests/bench/tokenizer_compare.py).
#include "engine/text/tokenizer.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

namespace {

using clock_type = std::chrono::steady_clock;

double seconds_since(clock_type::time_point begin) {
  return std::chrono::duration<double>(clock_type::now() - begin).count();
}

std::vector<std::string> read_documents(const char* path) {
  std::ifstream in{path, std::ios::binary};
  const std::string all{std::istreambuf_iterator<char>{in}, {}};
  std::vector<std::string> out;
  for (std::size_t begin = 0; begin < all.size();) {
    const std::size_t end = std::min(all.find('\x1E', begin), all.size());
    out.push_back(all.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

// Time that this thread was on a core: what counts on a machine that others use too.
double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

bool pass(const di::engine::tokenizer& words, const std::vector<std::string>& documents) {
  std::size_t tokens = 0, bytes = 0;
  std::uint64_t hash =
      0xCBF29CE484222325U; // FNV-1a over the ids: the other side must have the same ones
  const auto begin = clock_type::now();
  const double cpu_begin = cpu_seconds();
  std::vector<std::vector<di::token_id>> encoded;
  encoded.reserve(documents.size());
  for (const std::string& d : documents) {
    auto ids = words.encode(d, di::engine::encode_mode::full);
    if (!ids.ok()) {
      std::cerr << ids.error().render() << '\n';
      return false;
    }
    encoded.push_back(std::move(ids).value());
  }
  const double seconds = seconds_since(begin), cpu = cpu_seconds() - cpu_begin;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    bytes += documents[i].size();
    tokens += encoded[i].size();
    for (const di::token_id id : encoded[i])
      hash = (hash ^ static_cast<std::uint64_t>(id)) * 0x100000001B3U;
  }
  fmt::print("{{\"seconds\": {:.6f}, \"cpu_seconds\": {:.6f}, \"bytes\": {}, \"tokens\": {}, "
             "\"ids_fnv\": \"{:016x}\", "
             "\"mb_per_cpu_s\": {:.2f}}}\n",
             seconds, cpu, bytes, tokens, hash, static_cast<double>(bytes) / cpu / 1e6);
  std::fflush(stdout);
  return true;
}

} // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: tokenizer_bench TOKENIZER.json DOCUMENTS [PASSES]\n";
    return 2;
  }
  const auto begin = clock_type::now();
  const auto words = di::engine::tokenizer::load(argv[1]);
  if (!words.ok()) {
    std::cerr << words.error().render() << '\n';
    return 2;
  }
  std::cerr << "load_seconds " << seconds_since(begin) << '\n';
  const std::vector<std::string> documents = read_documents(argv[2]);
  const int passes = argc > 3 ? std::atoi(argv[3]) : 5;
  std::string line;
  for (int i = 0; passes == 0 ? static_cast<bool>(std::getline(std::cin, line)) : i < passes; ++i)
    if (!pass(*words, documents))
      return 1;
  return 0;
}
