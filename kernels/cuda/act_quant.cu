// SPDX-License-Identifier: Apache-2.0
// Activation quantisation on the device: a warp per group of 32 values.
#include "kernels/cuda/act_quant.hpp"
#include "kernels/cuda/cuda.hpp"

#include <cuda_runtime.h>

namespace di::kernels::cuda {
namespace {

constexpr int block_threads = 256;

/// x [rows, dim] bf16, codes [rows, dim], scales [rows, dim / 32], all dense.
__global__ void act_quant_kernel(const std::uint16_t* x, std::int64_t groups, std::uint8_t* codes,
                                 std::uint8_t* scales) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * block_threads + threadIdx.x;
  const std::int64_t group = at / warp_lanes;
  if (group >= groups) // whole warps only
    return;
  float maximum = lane_magnitude(x[at]);
  for (int step = warp_lanes / 2; step > 0; step /= 2)
    maximum = joined(maximum, __shfl_xor_sync(0xffffffffU, maximum, step));
  const std::uint8_t scale = group_scale(maximum);
  codes[at] = lane_code(x[at], scale);
  if (at % warp_lanes == 0)
    scales[group] = scale;
}

/// Device memory that is given back at the end of the scope.
class device_buffer {
public:
  explicit device_buffer(std::size_t bytes) : good_(cudaMalloc(&data_, bytes) == cudaSuccess) {}
  ~device_buffer() { cudaFree(data_); }
  device_buffer(const device_buffer&) = delete;
  device_buffer& operator=(const device_buffer&) = delete;

  bool good() const { return good_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

private:
  void* data_ = nullptr;
  bool good_;
};

} // namespace

bool compiled() {
  return true;
}

bool available() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
}

status act_quant(const bf16* x, std::int64_t x_stride, std::int64_t rows, std::int64_t dim,
                 std::uint8_t* codes, std::int64_t codes_stride, std::uint8_t* scales,
                 std::int64_t scales_stride) {
  if (rows < 0 || dim < 1 || dim % warp_lanes != 0
      || (rows > 1 && (x_stride < dim || codes_stride < dim || scales_stride < dim / warp_lanes)))
    return status::bad_shape;
  if (!available())
    return status::unsupported;
  if (rows == 0)
    return status::ok;
  const std::int64_t groups = rows * dim / warp_lanes;
  const auto n = static_cast<std::size_t>(rows), width = static_cast<std::size_t>(dim);
  const std::size_t group_width = width / warp_lanes;
  const device_buffer in(n * width * sizeof(bf16)), out(n * width), scale(n * group_width);
  if (!in.good() || !out.good() || !scale.good())
    return status::unsupported;
  const auto pitch = [](std::int64_t stride, std::size_t least) {
    return stride > static_cast<std::int64_t>(least) ? static_cast<std::size_t>(stride) : least;
  };
  bool good =
      cudaMemcpy2D(in.as<bf16>(), width * sizeof(bf16), x, pitch(x_stride, width) * sizeof(bf16),
                   width * sizeof(bf16), n, cudaMemcpyHostToDevice)
      == cudaSuccess;
  const std::int64_t blocks = (groups * warp_lanes + block_threads - 1) / block_threads;
  act_quant_kernel<<<static_cast<unsigned>(blocks), block_threads>>>(
      in.as<std::uint16_t>(), groups, out.as<std::uint8_t>(), scale.as<std::uint8_t>());
  good = good && cudaGetLastError() == cudaSuccess
         && cudaMemcpy2D(codes, pitch(codes_stride, width), out.as<std::uint8_t>(), width, width, n,
                         cudaMemcpyDeviceToHost)
                == cudaSuccess
         && cudaMemcpy2D(scales, pitch(scales_stride, group_width), scale.as<std::uint8_t>(),
                         group_width, group_width, n, cudaMemcpyDeviceToHost)
                == cudaSuccess;
  return good ? status::ok : status::unsupported;
}

} // namespace di::kernels::cuda
