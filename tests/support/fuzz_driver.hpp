// SPDX-License-Identifier: Apache-2.0
// A small mutation fuzzer for plain executables: deterministic by seed, keeps a corpus folder, and
// steers by what the target reports. No compiler support is needed.
//
// A target maps bytes to a signature of what happened (di::testing::fuzz_signature of the error
// text, say). Inputs with a new signature join the pool that mutations start from. A crash, a
// sanitizer report or an allocation above the bound ends the program; the input is then found in
// fuzz-<name>-crash in the working directory.
//
//   DI_FUZZ_MAIN("wire_decoder", [](std::span<const std::byte> in) -> std::uint64_t { ... })
//
// Environment: DI_FUZZ_SECONDS (default 10), DI_FUZZ_INPUTS (a count; then no time limit),
// DI_FUZZ_SEED (default 1), DI_FUZZ_CORPUS (default tests/fuzz/corpus/<name>), DI_FUZZ_KEEP (a
// folder that gets every input with a new signature). `fuzz_x FILE...` runs just these inputs.
#pragma once

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)(void));

namespace di::testing {

using fuzz_bytes = std::vector<std::byte>;
using fuzz_target = std::function<std::uint64_t(std::span<const std::byte>)>;

/// Hash of a text without its digits, so that texts which differ in numbers only count as one.
inline std::uint64_t fuzz_signature(std::string_view text) {
  std::uint64_t h = 0xCBF29CE484222325ULL;
  for (const char c : text)
    if (c < '0' || c > '9')
      h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  return h;
}

/// splitmix64: small, fast, the same everywhere.
class fuzz_random {
public:
  explicit fuzz_random(std::uint64_t seed) : state_{seed} {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  std::size_t below(std::size_t n) { return n == 0 ? 0 : static_cast<std::size_t>(next() % n); }

private:
  std::uint64_t state_;
};

/// Changes inputs; `pool` gives material to splice from.
class fuzz_mutator {
public:
  fuzz_mutator(fuzz_random& random, const std::vector<fuzz_bytes>& pool)
      : random_{random}, pool_{pool} {}

  void mutate(fuzz_bytes& b) {
    for (std::size_t n = 1 + random_.below(4); n > 0; --n)
      once(b);
    if (b.size() > input_bytes_max)
      b.resize(input_bytes_max);
  }

private:
  static constexpr std::size_t input_bytes_max = std::size_t{1} << 16;
  using difference = fuzz_bytes::difference_type;

  static fuzz_bytes::iterator at(fuzz_bytes& b, std::size_t i) {
    return b.begin() + static_cast<difference>(i);
  }
  void insert(fuzz_bytes& b, std::string_view text) {
    const auto* p = reinterpret_cast<const std::byte*>(text.data());
    b.insert(at(b, random_.below(b.size() + 1)), p, p + text.size());
  }

  void once(fuzz_bytes& b) {
    if (b.empty())
      return insert(b, "{}");
    const std::size_t i = random_.below(b.size());
    const std::size_t length = 1 + random_.below(std::min<std::size_t>(b.size() - i, 64));
    switch (random_.below(10)) {
    case 0:
      b[i] ^= static_cast<std::byte>(1U << random_.below(8));
      break;
    case 1:
      b[i] = static_cast<std::byte>(random_.next());
      break;
    case 2:
      b.erase(at(b, i), at(b, i + length));
      break;
    case 3: { // a piece twice
      const fuzz_bytes piece{at(b, i), at(b, i + length)};
      b.insert(at(b, random_.below(b.size() + 1)), piece.begin(), piece.end());
      break;
    }
    case 4:
      b.resize(i);
      break;
    case 5:
      splice(b, i);
      break;
    case 6:
    case 7:
      number(b, i);
      break;
    case 8:
      insert(b, tokens[random_.below(std::size(tokens))]);
      break;
    default:
      wide(b, i);
      break;
    }
  }

  void splice(fuzz_bytes& b, std::size_t i) {
    const auto& other = pool_[random_.below(pool_.size())];
    if (other.empty())
      return;
    const std::size_t from = random_.below(other.size());
    const std::size_t n = 1 + random_.below(std::min<std::size_t>(other.size() - from, 256));
    const auto* p = other.data() + from;
    b.insert(at(b, i), p, p + n);
  }

  /// Replaces the next decimal number by an awkward one.
  void number(fuzz_bytes& b, std::size_t i) {
    const auto digit = [](std::byte c) { return c >= std::byte{'0'} && c <= std::byte{'9'}; };
    const auto first = std::find_if(at(b, i), b.end(), digit);
    const auto last = std::find_if_not(first, b.end(), digit);
    if (first == b.end())
      return;
    const auto where = first - b.begin();
    b.erase(first, last);
    std::string_view text = numbers[random_.below(std::size(numbers))];
    const std::string small = std::to_string(random_.below(300));
    if (random_.below(2) == 0)
      text = small;
    const auto* p = reinterpret_cast<const std::byte*>(text.data());
    b.insert(b.begin() + where, p, p + text.size());
  }

  /// Overwrites 2, 4 or 8 bytes by an awkward little-endian integer.
  void wide(fuzz_bytes& b, std::size_t i) {
    static constexpr std::uint64_t values[] = {0,          1,          0x7F,       0xFF,
                                               0xFFFF,     0x7FFFFFFF, 0xFFFFFFFF, ~0ULL,
                                               ~0ULL >> 1, 1ULL << 63, 1ULL << 32, 0x100000};
    const std::uint64_t v = values[random_.below(std::size(values))];
    const std::size_t n = std::size_t{2} << random_.below(3);
    for (std::size_t k = 0; k < n && i + k < b.size(); ++k)
      b[i + k] = static_cast<std::byte>(v >> (8 * k));
  }

  static constexpr std::string_view numbers[] = {"0",
                                                 "-1",
                                                 "1",
                                                 "32",
                                                 "65535",
                                                 "65536",
                                                 "2147483647",
                                                 "2147483648",
                                                 "4294967295",
                                                 "4294967296",
                                                 "1e308",
                                                 "1e999",
                                                 "0.5",
                                                 "-0",
                                                 "1e-320",
                                                 "9223372036854775807",
                                                 "9223372036854775808",
                                                 "18446744073709551615",
                                                 "18446744073709551616",
                                                 "1152921504606846976"};
  static constexpr std::string_view tokens[] = {
      "{",       "}",       "[",    "]",    ",",
      ":",       "\"",      "null", "true", "false",
      "\\u0000", "\\ud800", "{}",   "[]",   "[[[[[[[[[[[[[[[[[[[[",
      "\xff",    "\"\":"};

  fuzz_random& random_;
  const std::vector<fuzz_bytes>& pool_;
};

/// One fuzzing run. Single-threaded.
class fuzz_run {
public:
  fuzz_run(std::string name, std::string corpus, fuzz_target target)
      : name_{std::move(name)},
        corpus_{env("DI_FUZZ_CORPUS", corpus.c_str())},
        target_{std::move(target)} {
    self() = this;
    if (&__sanitizer_set_death_callback != nullptr) // reports of sanitizers end the process there
      __sanitizer_set_death_callback(&fuzz_run::save_current);
    for (const int s : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE})
      if (s == SIGABRT || &__sanitizer_set_death_callback == nullptr)
        std::signal(s, [](int number) {
          save_current();
          std::signal(number, SIG_DFL);
          std::raise(number);
        });
  }

  int main(int argc, char** argv) {
    for (int i = 1; i < argc; ++i)
      one(read(argv[i]));
    if (argc > 1)
      return 0;
    load();
    loop();
    std::printf("{\"fuzz\": \"%s\", \"inputs\": %llu, \"corpus\": %zu, \"pool\": %zu, "
                "\"signatures\": %zu, \"seconds\": %.1f}\n",
                name_.c_str(), static_cast<unsigned long long>(inputs_), seeds_, pool_.size(),
                seen_.size(), seconds());
    return seeds_ > 0 ? 0 : 1; // an empty corpus is a broken checkout
  }

private:
  static constexpr std::size_t pool_max = 4096;

  static fuzz_run*& self() {
    static fuzz_run* run = nullptr;
    return run;
  }
  static std::string env(const char* key, const char* other) {
    const char* v = std::getenv(key);
    return v != nullptr ? v : other;
  }
  static fuzz_bytes read(const std::filesystem::path& path) {
    std::ifstream in{path, std::ios::binary};
    const std::string text{std::istreambuf_iterator<char>{in}, {}};
    const auto* p = reinterpret_cast<const std::byte*>(text.data());
    return {p, p + text.size()};
  }
  static void write(const std::string& path, const fuzz_bytes& b) {
    if (std::FILE* f = std::fopen(path.c_str(), "wb")) {
      std::fwrite(b.data(), 1, b.size(), f);
      std::fclose(f);
    }
  }
  static void save_current() {
    const fuzz_run* run = self();
    if (run == nullptr || run->saved_)
      return;
    self()->saved_ = true;
    write("fuzz-" + run->name_ + "-crash", run->current_);
    std::fprintf(stderr, "fuzz %s: input %llu, saved to fuzz-%s-crash\n", run->name_.c_str(),
                 static_cast<unsigned long long>(run->inputs_), run->name_.c_str());
  }

  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

  void one(const fuzz_bytes& input) {
    current_ = input;
    ++inputs_;
    // An exact copy on the heap: reads past the end are seen.
    const fuzz_bytes exact{current_.begin(), current_.end()};
    if (!seen_.insert(target_(exact)).second || pool_.size() >= pool_max)
      return;
    pool_.push_back(current_);
    const auto keep = env("DI_FUZZ_KEEP", "");
    if (!keep.empty())
      write(keep + "/" + std::to_string(seen_.size()), current_);
  }

  void load() {
    std::vector<std::filesystem::path> files;
    if (std::filesystem::is_directory(corpus_))
      for (const auto& f : std::filesystem::directory_iterator(corpus_))
        files.push_back(f.path());
    std::sort(files.begin(), files.end());
    for (const auto& f : files) {
      auto bytes = read(f);
      one(bytes);
      pool_.push_back(std::move(bytes));
    }
    seeds_ = files.size();
    if (pool_.empty())
      pool_.emplace_back();
  }

  void loop() {
    fuzz_random random{std::stoull(env("DI_FUZZ_SEED", "1"))};
    fuzz_mutator mutator{random, pool_};
    const auto count = std::stoull(env("DI_FUZZ_INPUTS", "0"));
    const double limit = std::stod(env("DI_FUZZ_SECONDS", "10"));
    while (count > 0 ? inputs_ < count : seconds() < limit) {
      fuzz_bytes input = pool_[random.below(pool_.size())];
      mutator.mutate(input);
      one(input);
    }
  }

  std::string name_;
  std::string corpus_;
  fuzz_target target_;
  std::vector<fuzz_bytes> pool_;
  std::unordered_set<std::uint64_t> seen_;
  fuzz_bytes current_;
  std::uint64_t inputs_ = 0;
  std::size_t seeds_ = 0;
  bool saved_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

} // namespace di::testing

/// The program of one target. An allocation above 256 MiB counts as a crash. Reports show two
/// frames of who allocated; more (ASAN_OPTIONS=malloc_context_size=30) cost a quarter of the time.
#define DI_FUZZ_MAIN(name, ...)                                                                    \
  extern "C" const char* __asan_default_options();                                                 \
  extern "C" const char* __asan_default_options() {                                                \
    return "max_allocation_size_mb=256:allocator_may_return_null=0:detect_leaks=1:"                \
           "malloc_context_size=2";                                                                \
  }                                                                                                \
  int main(int argc, char** argv) {                                                                \
    return di::testing::fuzz_run{name, std::string{DI_SOURCE_DIR "/tests/fuzz/corpus/"} + (name),  \
                                 __VA_ARGS__}                                                      \
        .main(argc, argv);                                                                         \
  }
