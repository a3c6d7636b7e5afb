// SPDX-License-Identifier: Apache-2.0
// memfd, seals and maps.
#include "messaging/bus/segment.hpp"

#include "messaging/base/limits.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace di::bus {
namespace {

constexpr int size_seals = F_SEAL_SHRINK | F_SEAL_GROW;

failure system_failure(std::string_view call) {
  return fail(ec::io_error, "{}: {} (errno {})", call, std::strerror(errno), errno);
}

} // namespace

owned_fd::~owned_fd() {
  if (fd_ >= 0)
    ::close(fd_);
}

result<segment_files> make_segment(const std::string& name, std::uint64_t bytes) {
  if (bytes % slot_alignment != 0 || bytes < limits::segment_bytes_min
      || bytes > limits::segment_bytes_max)
    return fail(ec::bad_argument, "a segment of {} bytes; {} to {} are possible, in steps of {}",
                bytes, limits::segment_bytes_min, limits::segment_bytes_max, slot_alignment);
  segment_files out;
  out.writer = owned_fd{::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  if (out.writer.get() < 0)
    return system_failure("memfd_create");
  if (::ftruncate(out.writer.get(), static_cast<off_t>(bytes)) != 0)
    return system_failure("ftruncate memfd");
  if (::fcntl(out.writer.get(), F_ADD_SEALS, size_seals) != 0)
    return system_failure("seal the size of a memfd");
  const std::string path = fmt::format("/proc/self/fd/{}", out.writer.get());
  out.reader = owned_fd{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (out.reader.get() < 0)
    return system_failure("open a memfd for reading");
  return out;
}

segment_map::~segment_map() {
  if (data_ != nullptr)
    ::munmap(data_, size_);
}

result<segment_map> segment_map::map(int fd, int protection) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0)
    return system_failure("read the seals of a segment");
  if ((seals & size_seals) != size_seals)
    return fail(ec::refused, "a segment whose size may change (seals {:#x})", seals);
  struct stat s {};
  if (::fstat(fd, &s) != 0)
    return system_failure("stat of a segment");
  if (s.st_size < static_cast<off_t>(limits::segment_bytes_min))
    return fail(ec::refused, "a segment of {} bytes, at least {} are needed", s.st_size,
                limits::segment_bytes_min);
  segment_map out;
  const auto size = static_cast<std::size_t>(s.st_size);
  void* data = ::mmap(nullptr, size, protection, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    if (errno == EPERM)
      return fail(ec::refused, "the segment has its writer: it is sealed against another");
    return system_failure("map a segment");
  }
  out.data_ = static_cast<std::byte*>(data);
  out.size_ = size;
  return out;
}

result<segment_map> segment_map::for_writer(int fd) {
  DI_TRY(auto out, map(fd, PROT_READ | PROT_WRITE));
  if (::fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0)
    return system_failure("seal a segment");
  return out;
}

result<segment_map> segment_map::for_reader(int fd) {
  return map(fd, PROT_READ);
}

std::uint64_t slot_bytes_for(std::span<const std::uint64_t> sizes) noexcept {
  std::uint64_t bytes = slot_header_bytes;
  for (const std::uint64_t size : sizes)
    bytes += slot_aligned(size);
  return bytes;
}

} // namespace di::bus
