// SPDX-License-Identifier: Apache-2.0
// Threads: write_synthetic() starts options.threads - 1 std::threads that take pieces from a shared
// counter and end before it returns; they share nothing else.
#include "engine/model/synthetic.hpp"

#include "engine/model/synthetic_values.hpp"
#include "engine/model/tensor_table.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <mutex>
#include <numeric>
#include <sys/statvfs.h>
#include <thread>
#include <unistd.h>

namespace di::engine {
namespace {

constexpr std::int64_t piece_elements = std::int64_t{1} << 20;
constexpr std::uint32_t shards_max = 99999; ///< five digits in file names

struct shard_plan {
  std::string name;
  std::string header;
  std::vector<const expected_tensor*> tensors; ///< in data order
  std::uint64_t data_bytes = 0;
};

std::uint64_t bytes_of(const expected_tensor& t) {
  return static_cast<std::uint64_t>(t.shape.count() * element_bytes(t.type));
}

std::string joined(std::span<const std::int64_t> numbers) {
  return fmt::format("[{}]", fmt::join(numbers.begin(), numbers.end(), ","));
}

std::string header_text(const shard_plan& shard) {
  std::string text = R"({"__metadata__":{"format":"pt"})";
  std::uint64_t begin = 0;
  for (const auto* t : shard.tensors) {
    const std::uint64_t end = begin + bytes_of(*t);
    text += fmt::format(R"(,"{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", t->name,
                        to_string(t->type), joined(t->shape.extents()), begin, end);
    begin = end;
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + text;
}

/// Everything about the files but the element values.
struct layout {
  model_spec spec;
  std::vector<expected_tensor> tensors;
  std::vector<shard_plan> shards;
  synthetic_summary summary;

  static result<layout> make(const synthetic_options& options) {
    if (options.shards < 1 || options.shards > shards_max)
      return fail(ec::bad_argument, "shards: expected 1..{}, found {}", shards_max, options.shards);
    layout l;
    DI_TRY(l.spec, parse_model_spec(options.config_text));
    l.tensors = expected_tensors(l.spec);
    const auto units = static_cast<std::uint64_t>(1 + l.spec.all_layers());
    l.shards.resize(options.shards);
    for (const auto& t : l.tensors) {
      l.shards[static_cast<std::uint64_t>(t.unit) * options.shards / units].tensors.push_back(&t);
      l.summary.data_bytes += bytes_of(t);
      if (t.type != dtype::f8_e8m0)
        l.summary.parameters += t.shape.count() * (t.type == dtype::i8 ? 2 : 1);
    }
    l.summary.tensors = static_cast<std::int64_t>(l.tensors.size());
    for (std::uint32_t i = 0; i < options.shards; ++i)
      l.finish_shard(i, options.shards);
    return l;
  }

  layout() = default;
  layout(layout&&) = default; // moving keeps the tensors' addresses
  layout& operator=(layout&&) = default;
  layout(const layout&) = delete;
  layout& operator=(const layout&) = delete;

  std::string index_text() const {
    std::vector<std::pair<std::string_view, std::string_view>> map;
    for (const auto& s : shards)
      for (const auto* t : s.tensors)
        map.emplace_back(t->name, s.name);
    std::sort(map.begin(), map.end());
    std::string text =
        fmt::format(R"({{"metadata":{{"total_size":{}}},"weight_map":{{)", summary.data_bytes);
    for (std::size_t i = 0; i < map.size(); ++i)
      text += fmt::format(R"({}"{}":"{}")", i > 0 ? "," : "", map[i].first, map[i].second);
    return text + "}}\n";
  }

  std::string token_map() const {
    std::string bytes;
    for (std::int64_t i = 0; i < spec.vocab_size; ++i) {
      const auto c =
          static_cast<std::int32_t>(i * spec.engram_compressed_vocab_size / spec.vocab_size);
      bytes.append(reinterpret_cast<const char*>(&c), sizeof c);
    }
    return bytes;
  }

  std::string engram_meta() const {
    const auto list = [](const auto& items, auto show) {
      std::string text;
      for (const auto& item : items)
        text.append(text.empty() ? "[" : ",").append(show(item));
      return text.append("]");
    };
    const auto row = [](const std::vector<std::int64_t>& r) { return joined(r); };
    const auto rows = [&](const std::vector<std::vector<std::int64_t>>& r) { return list(r, row); };
    return fmt::format("{{\"primes\":{},\"multipliers\":{}}}\n", list(spec.engram.primes, rows),
                       list(spec.engram.multipliers, row));
  }

private:
  void finish_shard(std::uint32_t i, std::uint32_t n) {
    auto& s = shards[i];
    s.name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, n);
    std::sort(s.tensors.begin(), s.tensors.end(), [](const auto* a, const auto* b) {
      const auto wa = element_bytes(a->type);
      const auto wb = element_bytes(b->type);
      return wa != wb ? wa > wb : a->name < b->name;
    });
    for (const auto* t : s.tensors)
      s.data_bytes += bytes_of(*t);
    s.header = header_text(s);
    summary.files.push_back({s.name, s.header.size() + s.data_bytes});
  }
};

failure os_failure(const std::string& path, const char* what) {
  return fail(ec::io_error, "{}: {}: {}", path, what, std::strerror(errno));
}

/// An open file for writing.
class output {
public:
  explicit output(std::string path)
      : path_{std::move(path)},
        fd_{::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)} {}
  output(output&& o) noexcept : path_{std::move(o.path_)}, fd_{std::exchange(o.fd_, -1)} {}
  output& operator=(output&&) = delete;
  ~output() {
    if (fd_ >= 0)
      ::close(fd_);
  }

  result<void> write(const void* data, std::size_t bytes, std::uint64_t at) const {
    const auto* p = static_cast<const char*>(data);
    while (bytes > 0) {
      const auto n = ::pwrite(fd_, p, bytes, static_cast<off_t>(at));
      if (n < 0 && errno == EINTR)
        continue;
      if (n <= 0)
        return os_failure(path_, "write");
      p += n;
      at += static_cast<std::uint64_t>(n);
      bytes -= static_cast<std::size_t>(n);
    }
    return {};
  }
  result<void> set_size(std::uint64_t bytes) const {
    if (fd_ < 0)
      return os_failure(path_, "open");
    if (::ftruncate(fd_, static_cast<off_t>(bytes)) != 0)
      return os_failure(path_, "set size");
    return {};
  }

private:
  std::string path_;
  int fd_;
};

result<void> write_file(const std::string& path, std::string_view text) {
  const output file{path};
  DI_TRY_VOID(file.set_size(text.size()));
  return file.write(text.data(), text.size(), 0);
}

/// One stretch of one tensor: what a thread takes at a time.
struct piece {
  const expected_tensor* tensor;
  const output* file;
  std::int64_t first, count;
  std::uint64_t at; ///< [bytes] in the file
};

/// Generates and writes all pieces on several threads.
class piece_writer {
public:
  piece_writer(const layout& l, const synthetic_options& options) : l_{l}, options_{options} {}

  void add(const output& file, const shard_plan& shard) {
    std::uint64_t at = shard.header.size();
    for (const auto* t : shard.tensors) {
      const auto count = t->shape.count();
      for (std::int64_t first = 0; first < count; first += piece_elements)
        pieces_.push_back({t, &file, first, std::min(piece_elements, count - first),
                           at + static_cast<std::uint64_t>(first * element_bytes(t->type))});
      at += bytes_of(*t);
    }
  }

  result<void> run() {
    std::vector<std::thread> helpers;
    for (unsigned i = 1; i < options_.threads; ++i)
      helpers.emplace_back([this] { work(false); });
    work(true);
    for (auto& h : helpers)
      h.join();
    return std::move(outcome_);
  }

private:
  void work(bool reports) {
    std::vector<std::byte> buffer(static_cast<std::size_t>(piece_elements) * 4);
    for (std::size_t i = next_++; i < pieces_.size() && !failed_; i = next_++) {
      const auto& p = pieces_[i];
      const auto bytes = static_cast<std::size_t>(p.count * element_bytes(p.tensor->type));
      synthetic_values{options_.seed, *p.tensor, l_.spec}.fill(p.first, p.count, buffer.data());
      if (auto r = p.file->write(buffer.data(), bytes, p.at); !r.ok()) {
        const std::lock_guard lock{mutex_};
        failed_ = true;
        outcome_ = fail(r.error());
      }
      done_ += bytes;
      if (reports && options_.progress)
        options_.progress(done_, l_.summary.data_bytes);
    }
  }

  const layout& l_;
  const synthetic_options& options_;
  std::vector<piece> pieces_;
  std::atomic<std::size_t> next_ = 0;
  std::atomic<std::uint64_t> done_ = 0;
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;
  result<void> outcome_;
};

result<void> check_room(const std::string& dir, std::uint64_t bytes) {
  struct statvfs fs {};
  if (::statvfs(dir.c_str(), &fs) != 0)
    return os_failure(dir, "statvfs");
  const std::uint64_t room = std::uint64_t{fs.f_bavail} * fs.f_frsize;
  if (room < bytes)
    return fail(ec::io_error, "{}: expected room for {} bytes, found {}", dir, bytes, room);
  return {};
}

result<synthetic_summary> write_all(const synthetic_options& options, const std::string& dir,
                                    bool with_values) {
  DI_TRY(layout l, layout::make(options));
  std::error_code code;
  std::filesystem::create_directories(dir, code);
  if (code)
    return fail(ec::io_error, "{}: make directory: {}", dir, code.message());
  if (with_values)
    DI_TRY_VOID(check_room(dir, l.summary.data_bytes));
  std::vector<output> files;
  files.reserve(l.shards.size());
  piece_writer writer{l, options};
  for (const auto& s : l.shards) {
    files.emplace_back(dir + "/" + s.name);
    DI_TRY_VOID(files.back().set_size(s.header.size() + s.data_bytes));
    DI_TRY_VOID(files.back().write(s.header.data(), s.header.size(), 0));
    if (with_values)
      writer.add(files.back(), s);
  }
  DI_TRY_VOID(writer.run());
  const auto put = [&](const char* name, const std::string& text) {
    l.summary.files.push_back({name, text.size()});
    return write_file(dir + "/" + name, text);
  };
  if (!l.spec.engram_layer_ids.empty()) {
    DI_TRY_VOID(put("engram_token_map.i32", l.token_map()));
    DI_TRY_VOID(put("engram_meta.json", l.engram_meta()));
  }
  DI_TRY_VOID(put("model.safetensors.index.json", l.index_text()));
  DI_TRY_VOID(put("config.json", options.config_text));
  return std::move(l.summary);
}

} // namespace

result<synthetic_summary> plan_synthetic(const synthetic_options& options) {
  DI_TRY(layout l, layout::make(options));
  return std::move(l.summary);
}

result<synthetic_summary> write_synthetic(const synthetic_options& options,
                                          const std::string& dir) {
  return write_all(options, dir, true);
}

result<synthetic_summary> write_synthetic_headers(const synthetic_options& options,
                                                  const std::string& dir) {
  return write_all(options, dir, false);
}

} // namespace di::engine
