// SPDX-License-Identifier: Apache-2.0
// Weights as ranges of pages: madvise() and touching.
#include "engine/model/expert_pages.hpp"

#include "engine/model/checkpoint.hpp"
#include "engine/model/loaded_model.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <sys/mman.h>
#include <unistd.h>

namespace di::engine {

namespace {

struct byte_range {
  std::uintptr_t begin = 0;
  std::size_t size = 0;
};

std::size_t data_bytes(const kernels::weight& w) {
  const auto values = static_cast<std::size_t>(w.out * w.in);
  switch (w.kind) {
  case kernels::weight_kind::f32:
    return values * 4;
  case kernels::weight_kind::bf16:
    return values * 2;
  case kernels::weight_kind::fp8_tile32:
  case kernels::weight_kind::fp8_row32:
    return values;
  case kernels::weight_kind::fp4_row32:
    return values / 2;
  }
  return 0;
}

std::size_t scale_bytes(const kernels::weight& w) {
  if (!w.scale)
    return 0;
  const std::int64_t rows = w.kind == kernels::weight_kind::fp8_tile32 ? (w.out + 31) / 32 : w.out;
  return static_cast<std::size_t>(rows * ((w.in + 31) / 32));
}

class mapped_loader final : public expert_loader {
public:
  explicit mapped_loader(std::shared_ptr<const loaded_model> model)
      : model_{std::move(model)}, page_{static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE))} {}

  void announce(layer_id layer, expert_id expert) override {
    for (const byte_range& r : ranges(layer, expert))
      advise(r, MADV_WILLNEED, false);
  }

  std::size_t touch(layer_id layer, expert_id expert, std::size_t done,
                    std::size_t bytes_max) override {
    for (const byte_range& r : ranges(layer, expert)) {
      if (done >= r.size) {
        done -= r.size;
        continue;
      }
      const std::size_t size = std::min(bytes_max, r.size - done);
      const auto* bytes = reinterpret_cast<const volatile std::uint8_t*>(r.begin + done);
      std::uint8_t read = 0;
      for (std::size_t at = 0; at < size; at += page_)
        read = static_cast<std::uint8_t>(read ^ bytes[at]);
      (void)read;
      return size;
    }
    return 0;
  }

  void release(layer_id layer, expert_id expert) override {
    for (const byte_range& r : ranges(layer, expert))
      advise(r, MADV_DONTNEED, true);
  }

private:
  /// Only ranges in the mapped files: copies cannot be read again.
  std::array<byte_range, 6> ranges(layer_id layer, expert_id expert) const {
    std::array<byte_range, 6> out{};
    if (layer.v >= model_->layers().size())
      return out;
    const auto& experts = model_->layers()[layer.v].moe.experts;
    if (expert.v >= experts.size())
      return out;
    std::size_t n = 0;
    const expert_weights& e = experts[expert.v];
    for (const kernels::weight* w : {&e.w1, &e.w3, &e.w2}) {
      add(out[n++], w->data, data_bytes(*w));
      add(out[n++], w->scale, scale_bytes(*w));
    }
    return out;
  }
  void add(byte_range& r, const void* data, std::size_t size) const {
    if (size > 0 && model_->files().is_mapped(data, size))
      r = {reinterpret_cast<std::uintptr_t>(data), size};
  }
  /// @param inside  whole pages only, so that neighbours keep theirs
  void advise(const byte_range& r, int advice, bool inside) const {
    const std::uintptr_t up = inside ? page_ - 1 : 0;
    const std::uintptr_t begin = (r.begin + up) / page_ * page_;
    const std::uintptr_t end = (r.begin + r.size + (inside ? 0 : page_ - 1)) / page_ * page_;
    if (begin < end) // advice: a refusal changes nothing
      (void)::madvise(reinterpret_cast<void*>(begin), end - begin, advice);
  }

  std::shared_ptr<const loaded_model> model_;
  std::uintptr_t page_;
};

} // namespace

std::shared_ptr<expert_loader> own_expert_loader(std::shared_ptr<const loaded_model> model) {
  return std::make_shared<mapped_loader>(std::move(model));
}

} // namespace di::engine
