// SPDX-License-Identifier: Apache-2.0
#include "engine/model/safetensors.hpp"

#include "engine/model/bounded_json.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace di::engine {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "data are used in place");

constexpr std::uint64_t length_bytes = 8;
constexpr std::int64_t count_max = std::int64_t{1} << 62; ///< [elements] keeps byte counts in u64
constexpr std::size_t name_shown_max = 120;

/// A name from the file, short enough for a message.
std::string shown(const std::string& name) {
  return name.size() <= name_shown_max ? name : name.substr(0, name_shown_max) + "...";
}

/// Reads the entries of one header.
class header_reader {
public:
  header_reader(std::string_view file, std::uint64_t data_bytes, std::uint64_t data_start,
                problem_list& problems)
      : file_{file}, data_bytes_{data_bytes}, data_start_{data_start}, problems_{problems} {}

  std::vector<tensor_entry> read(const json& root) {
    std::vector<tensor_entry> out;
    for (const auto& item : root.items()) {
      if (item.key() == "__metadata__")
        metadata(item.value());
      else
        entry(item.key(), item.value(), out);
    }
    return out;
  }

  /// Sorts by offset; drops and reports overlaps, holes and a rest.
  void layout(std::vector<tensor_entry>& entries, bool complete) {
    std::sort(entries.begin(), entries.end(), [](const tensor_entry& a, const tensor_entry& b) {
      return a.begin != b.begin ? a.begin < b.begin
             : a.end != b.end   ? a.end < b.end
                                : a.name < b.name;
    });
    std::uint64_t end = 0;
    const std::string* last = nullptr;
    std::vector<tensor_entry> sound;
    sound.reserve(entries.size());
    for (auto& e : entries) {
      if (e.begin < end) {
        bad(e.name, "expected data from byte {} on, after {}; found {}..{}, an overlap", end,
            shown(*last), e.begin, e.end);
        continue;
      }
      // Defective entries are missing here: holes mean something only if there were none.
      if (e.begin > end && complete)
        bad(e.name, "expected data from byte {} on, found {}..{}: a hole of {} bytes", end, e.begin,
            e.end, e.begin - end);
      end = e.end;
      sound.push_back(std::move(e));
      last = &sound.back().name;
    }
    if (end < data_bytes_ && complete)
      problems_.add(ec::bad_format,
                    "{}: expected {} bytes of data, found {}: {} bytes after the "
                    "last tensor",
                    file_, end, data_bytes_, data_bytes_ - end);
    entries = std::move(sound);
  }

private:
  template <class... Args>
  void bad(const std::string& name, fmt::format_string<Args...> text, Args&&... args) {
    problems_.add(ec::bad_format, "{}: tensor {}: {}", file_, shown(name),
                  fmt::format(text, std::forward<Args>(args)...));
  }

  void metadata(const json& v) {
    bool strings = v.is_object();
    if (strings)
      for (const auto& m : v)
        strings = strings && m.is_string();
    if (!strings)
      problems_.add(ec::bad_format, "{}: __metadata__: expected an object of strings, found {}",
                    file_, v.type_name());
  }

  void entry(const std::string& name, const json& v, std::vector<tensor_entry>& out) {
    tensor_entry e;
    e.name = name;
    if (!v.is_object())
      return bad(name, "expected an object, found {}", v.type_name());
    for (const auto& item : v.items())
      if (item.key() != "dtype" && item.key() != "shape" && item.key() != "data_offsets")
        return bad(name, "expected dtype, shape and data_offsets, found key {}", shown(item.key()));
    if (read_type(v, e) && read_shape(v, e) && read_offsets(v, e))
      out.push_back(std::move(e));
  }

  bool read_type(const json& v, tensor_entry& e) {
    const auto it = v.find("dtype");
    if (it == v.end() || !it->is_string()) {
      bad(e.name, "dtype: expected a string, found {}", it == v.end() ? "none" : it->type_name());
      return false;
    }
    const auto type = parse_dtype(it->get_ref<const std::string&>());
    if (!type) {
      bad(e.name, "dtype: expected F8_E4M3, F8_E8M0, I8, U8, BF16, F32 or I32, found {}",
          shown(it->get_ref<const std::string&>()));
      return false;
    }
    e.type = *type;
    return true;
  }

  bool read_shape(const json& v, tensor_entry& e) {
    const auto it = v.find("shape");
    if (it == v.end() || !it->is_array() || it->size() > tensor_shape::rank_max) {
      bad(e.name, "shape: expected a list of at most {} extents, found {}", tensor_shape::rank_max,
          it == v.end()    ? std::string{"none"}
          : it->is_array() ? fmt::format("{} extents", it->size())
                           : std::string{it->type_name()});
      return false;
    }
    std::int64_t count = 1;
    for (const auto& x : *it) {
      const std::uint64_t extent = x.is_number_unsigned() ? x.get<std::uint64_t>() : ~0ULL;
      if (extent >= static_cast<std::uint64_t>(count_max)
          || (extent != 0 && count > count_max / static_cast<std::int64_t>(extent))) {
        bad(e.name, "shape: expected extents whose product is below 2^62, found {}",
            shown(it->dump()));
        return false;
      }
      count *= static_cast<std::int64_t>(extent);
      e.shape.push(static_cast<std::int64_t>(extent));
    }
    if (count > count_max / 4) {
      bad(e.name, "shape: expected fewer than 2^60 elements, found {}", count);
      return false;
    }
    return true;
  }

  bool read_offsets(const json& v, tensor_entry& e) {
    const auto it = v.find("data_offsets");
    if (it == v.end() || !it->is_array() || it->size() != 2 || !(*it)[0].is_number_unsigned()
        || !(*it)[1].is_number_unsigned()) {
      bad(e.name, "data_offsets: expected two byte offsets, found {}",
          it == v.end() ? std::string{"none"} : shown(it->dump()));
      return false;
    }
    e.begin = (*it)[0].get<std::uint64_t>();
    e.end = (*it)[1].get<std::uint64_t>();
    if (e.begin > e.end || e.end > data_bytes_) {
      bad(e.name, "data_offsets: expected a range inside the {} bytes of data, found {}..{}",
          data_bytes_, e.begin, e.end);
      return false;
    }
    const auto expected = static_cast<std::uint64_t>(e.shape.count() * element_bytes(e.type));
    if (e.end - e.begin != expected) {
      bad(e.name, "data_offsets: expected {} bytes for {} {}, found {}..{}, {} bytes", expected,
          to_string(e.type), to_string(e.shape), e.begin, e.end, e.end - e.begin);
      return false;
    }
    if ((data_start_ + e.begin) % static_cast<std::uint64_t>(element_bytes(e.type)) != 0) {
      bad(e.name, "data_offsets: expected alignment to {} bytes, found byte {} of the file",
          element_bytes(e.type), data_start_ + e.begin);
      return false;
    }
    return true;
  }

  std::string_view file_;
  std::uint64_t data_bytes_;
  std::uint64_t data_start_;
  problem_list& problems_;
};

failure os_failure(const std::string& path, const char* what) {
  const int code = errno;
  return fail(code == ENOENT || code == ENOTDIR ? ec::not_found : ec::io_error, "{}: {}: {}", path,
              what, std::strerror(code));
}

} // namespace

safetensors_header parse_safetensors_header(std::span<const std::byte> start,
                                            std::uint64_t file_bytes, std::string_view file,
                                            problem_list& problems) {
  safetensors_header header;
  if (start.size() < length_bytes || file_bytes < length_bytes) {
    problems.add(ec::bad_format, "{}: expected 8 bytes of header length, found a file of {} bytes",
                 file, file_bytes);
    return header;
  }
  std::uint64_t length = 0;
  std::memcpy(&length, start.data(), length_bytes);
  if (length > header_bytes_max) {
    problems.add(ec::bad_format, "{}: expected a header of at most {} bytes, found length {}", file,
                 header_bytes_max, length);
    return header;
  }
  if (length > file_bytes - length_bytes || length > start.size() - length_bytes) {
    problems.add(ec::bad_format,
                 "{}: truncated header: expected {} bytes after the length, found {}", file, length,
                 std::min<std::uint64_t>(file_bytes, start.size()) - length_bytes);
    return header;
  }
  header.data_start = length_bytes + length;
  const std::string_view text{reinterpret_cast<const char*>(start.data()) + length_bytes,
                              static_cast<std::size_t>(length)};
  const auto root = parse_bounded_json(text, file, {header_bytes_max, 4});
  if (!root.ok()) {
    problems.add(root.error());
    return header;
  }
  if (!root->is_object()) {
    problems.add(ec::bad_format, "{}: header: expected a JSON object, found {}", file,
                 root->type_name());
    return header;
  }
  header_reader reader{file, file_bytes - header.data_start, header.data_start, problems};
  const auto before = problems.total();
  header.tensors = reader.read(*root);
  reader.layout(header.tensors, problems.total() == before);
  return header;
}

result<mapped_file> mapped_file::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return os_failure(path, "open");
  struct stat st {};
  if (::fstat(fd, &st) != 0) {
    auto e = os_failure(path, "stat");
    ::close(fd);
    return e;
  }
  if (!S_ISREG(st.st_mode)) {
    ::close(fd);
    return fail(ec::io_error, "{}: expected a regular file", path);
  }
  mapped_file file;
  file.size_ = static_cast<std::size_t>(st.st_size);
  if (file.size_ > 0) {
    void* p = ::mmap(nullptr, file.size_, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (p == MAP_FAILED) {
      auto e = os_failure(path, "mmap");
      ::close(fd);
      file.size_ = 0;
      return e;
    }
    file.data_ = static_cast<const std::byte*>(p);
  }
  ::close(fd);
  return file;
}

void mapped_file::expect_scattered(bool scattered) const noexcept {
  if (data_ != nullptr)
    (void)::madvise(const_cast<std::byte*>(data_), size_, scattered ? MADV_RANDOM : MADV_NORMAL);
}

mapped_file::mapped_file(mapped_file&& other) noexcept
    : data_{std::exchange(other.data_, nullptr)}, size_{std::exchange(other.size_, 0)} {
}

mapped_file& mapped_file::operator=(mapped_file&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

mapped_file::~mapped_file() {
  if (data_ != nullptr)
    ::munmap(const_cast<std::byte*>(data_), size_);
}

} // namespace di::engine
