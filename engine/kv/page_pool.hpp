// SPDX-License-Identifier: Apache-2.0
// The pages that hold a rank's compressed KV: one slab, reference counts, a free list. What lies in
// a page is the owner's business (engine/model/kv_layout.hpp).
#pragma once

#include "messaging/base/ids.hpp"
#include "messaging/base/result.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace di::engine {

/// Hands out pages of one size and counts who uses them.
///
/// A page is free, or has one or more references. The slab is reserved at once and touched page by
/// page, so an unused page costs address space only. Owned by RANK, used on its thread only.
class page_pool {
public:
  /// @param page_bytes  [bytes] at least 1; rounded up to a multiple of 64
  /// @param pages       [pages] at least 1
  /// @errors            ec::bad_argument, ec::limit_exceeded (the system refuses the slab)
  static result<std::unique_ptr<page_pool>> create(std::size_t page_bytes, std::uint32_t pages);

  page_pool(const page_pool&) = delete;
  page_pool& operator=(const page_pool&) = delete;
  ~page_pool();

  /// A page with one reference; its content is what the last owner left.
  /// @errors ec::kv_exhausted
  result<page_id> acquire();
  /// One more reference. @pre the page is in use
  void share(page_id page);
  /// One reference less; without any the page is free again. @pre the page is in use
  void release(page_id page);

  /// Start of a page, aligned to 64 bytes. @pre the page is in use
  std::byte* data(page_id page);
  const std::byte* data(page_id page) const;

  std::uint32_t references(page_id page) const; ///< 0: free
  std::uint32_t pages() const noexcept { return static_cast<std::uint32_t>(references_.size()); }
  std::uint32_t free_pages() const noexcept { return static_cast<std::uint32_t>(free_.size()); }
  std::size_t page_bytes() const noexcept { return page_bytes_; }
  /// Grows with every change of a reference count.
  std::uint64_t changes() const noexcept { return changes_; }

  /// Proves that no page is lost or handed out twice: every page is either on the free list, once,
  /// or has references.
  /// @param held  all references that the caller knows of, one entry each; their counts must match
  /// @errors ec::internal
  result<void> check() const;
  result<void> check(std::span<const page_id> held) const;

private:
  page_pool(std::byte* slab, std::size_t page_bytes, std::uint32_t pages);

  std::byte* slab_;
  std::size_t page_bytes_;
  std::uint64_t changes_ = 0;
  std::vector<std::uint32_t> references_; ///< [pages]
  std::vector<std::uint32_t> free_;       ///< stack, the page to hand out next at the end
};

} // namespace di::engine
