// SPDX-License-Identifier: Apache-2.0
// Reader of one safetensors file: the header from untrusted bytes, the data memory-mapped.
#pragma once

#include "engine/model/problems.hpp"
#include "engine/model/tensor.hpp"
#include "messaging/base/result.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace di::engine {

/// One tensor as its header describes it. Offsets count from the start of the data section.
struct tensor_entry {
  std::string name;
  dtype type = dtype::u8;
  tensor_shape shape;
  std::uint64_t begin = 0; ///< [bytes]
  std::uint64_t end = 0;   ///< [bytes] exclusive
};

struct safetensors_header {
  std::vector<tensor_entry> tensors; ///< in data order; only entries without a defect
  std::uint64_t data_start = 0;      ///< [bytes] from the start of the file
};

constexpr std::uint64_t header_bytes_max = std::uint64_t{100} << 20; ///< [bytes] of JSON

/// Parses and checks a header. Adds every defect to `problems` and keeps what is sound: dtype,
/// shape and offsets agree, ranges lie inside the file, are aligned, follow each other without
/// overlap or hole, and end with the file.
///
/// @param start       first bytes of the file; at least the header where the file has one
/// @param file_bytes  size of the whole file [bytes]
/// @param file        named in defects
safetensors_header parse_safetensors_header(std::span<const std::byte> start,
                                            std::uint64_t file_bytes, std::string_view file,
                                            problem_list& problems);

/// A whole file mapped read-only and shared: processes on one host use the same pages. Moves, does
/// not copy. Pages are read when they are touched; a file that is cut after opening ends the
/// process with SIGBUS when its lost part is touched.
class mapped_file {
public:
  /// @errors ec::not_found, ec::io_error
  static result<mapped_file> open(const std::string& path);

  mapped_file() = default;
  mapped_file(mapped_file&& other) noexcept;
  mapped_file& operator=(mapped_file&& other) noexcept;
  mapped_file(const mapped_file&) = delete;
  mapped_file& operator=(const mapped_file&) = delete;
  ~mapped_file();

  std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }
  std::string_view text() const noexcept { return {reinterpret_cast<const char*>(data_), size_}; }

  /// Tells the system how pages will be touched: scattered (no read-ahead) or as usual.
  void expect_scattered(bool scattered) const noexcept;

private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

} // namespace di::engine
