// SPDX-License-Identifier: Apache-2.0
// DI_KERNEL_INLINE: forced inline, and under nvcc for host and device alike.
//
// Files compiled for different instruction sets share these functions; forced inlining keeps a copy
// made for one set from being linked into another.
#pragma once

#if defined(__CUDACC__)
#define DI_KERNEL_INLINE __host__ __device__ __forceinline__
#else
#define DI_KERNEL_INLINE __attribute__((always_inline)) inline
#endif
