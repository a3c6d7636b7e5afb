// SPDX-License-Identifier: Apache-2.0
// The page pool: bookkeeping over one anonymous mapping.
#include "engine/kv/page_pool.hpp"

#include <limits>
#include <sys/mman.h>

namespace di::engine {

result<std::unique_ptr<page_pool>> page_pool::create(std::size_t page_bytes, std::uint32_t pages) {
  if (page_bytes == 0 || pages == 0)
    return fail(ec::bad_argument, "a page pool needs pages: {} pages of {} bytes", pages,
                page_bytes);
  if (page_bytes > std::numeric_limits<std::size_t>::max() / 2 / pages - 64)
    return fail(ec::limit_exceeded, "a page pool of {} pages of {} bytes is beyond any memory",
                pages, page_bytes);
  page_bytes = (page_bytes + 63) / 64 * 64;
  void* slab = ::mmap(nullptr, page_bytes * pages, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (slab == MAP_FAILED)
    return fail(ec::limit_exceeded, "cannot reserve {} pages of {} bytes for KV", pages,
                page_bytes);
  return std::unique_ptr<page_pool>{
      new page_pool{static_cast<std::byte*>(slab), page_bytes, pages}};
}

page_pool::page_pool(std::byte* slab, std::size_t page_bytes, std::uint32_t pages)
    : slab_{slab}, page_bytes_{page_bytes}, references_(pages, 0), free_(pages) {
  for (std::uint32_t i = 0; i < pages; ++i)
    free_[i] = pages - 1 - i;
}

page_pool::~page_pool() {
  ::munmap(slab_, page_bytes_ * references_.size());
}

result<page_id> page_pool::acquire() {
  if (free_.empty())
    return fail(ec::kv_exhausted, "all {} KV pages are in use", references_.size());
  const std::uint32_t page = free_.back();
  free_.pop_back();
  references_[page] = 1;
  ++changes_;
  return page_id{page};
}

void page_pool::share(page_id page) {
  DI_CHECK(page.v < references_.size() && references_[page.v] > 0);
  ++references_[page.v];
  ++changes_;
}

void page_pool::release(page_id page) {
  DI_CHECK(page.v < references_.size() && references_[page.v] > 0);
  ++changes_;
  if (--references_[page.v] == 0)
    free_.push_back(page.v);
}

std::byte* page_pool::data(page_id page) {
  DI_CHECK(page.v < references_.size() && references_[page.v] > 0);
  return slab_ + page_bytes_ * page.v;
}

const std::byte* page_pool::data(page_id page) const {
  DI_CHECK(page.v < references_.size() && references_[page.v] > 0);
  return slab_ + page_bytes_ * page.v;
}

std::uint32_t page_pool::references(page_id page) const {
  DI_CHECK(page.v < references_.size());
  return references_[page.v];
}

result<void> page_pool::check() const {
  std::vector<bool> listed(references_.size(), false);
  for (const std::uint32_t page : free_) {
    if (page >= references_.size() || listed[page])
      return fail(ec::internal, "free list names page {} of {} wrongly or twice", page,
                  references_.size());
    if (references_[page] != 0)
      return fail(ec::internal, "page {} is free and has {} references", page, references_[page]);
    listed[page] = true;
  }
  for (std::size_t page = 0; page < references_.size(); ++page)
    if (!listed[page] && references_[page] == 0)
      return fail(ec::internal, "page {} is lost: no reference and not on the free list", page);
  return {};
}

result<void> page_pool::check(std::span<const page_id> held) const {
  DI_TRY_VOID(check());
  std::vector<std::uint32_t> counts(references_.size(), 0);
  for (const page_id page : held) {
    if (page.v >= counts.size())
      return fail(ec::internal, "page {} of {} does not exist", page.v, counts.size());
    ++counts[page.v];
  }
  for (std::size_t page = 0; page < counts.size(); ++page)
    if (counts[page] != references_[page])
      return fail(ec::internal, "page {} has {} references, {} holders are known", page,
                  references_[page], counts[page]);
  return {};
}

} // namespace di::engine
