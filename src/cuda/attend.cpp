// SPDX-License-Identifier: Apache-2.0
// Which head dims this build has attention kernels for, and the way to them. head_dims.def is made by CMake
// of KV2_CUDA_HEAD_DIMS: KV2_HEAD_DIM(64) and so on.
#include <algorithm>

#include "base/check.h"
#include "cuda/attend_launch.h"
#include "cuda/attend_plan.h"
#include "cuda/channel_order.h"
#include "cuda/fragment.h"
#include "cuda/prefill_hopper.h"

namespace kv2::cuda {

std::span<const int> attend_head_dims() {
  static constexpr int kDims[] = {
#define KV2_HEAD_DIM(d) d,
#include "cuda/head_dims.def"
#undef KV2_HEAD_DIM
  };
  return kDims;
}

bool attend_has(int head_dim, int group) {
  if (!fragments_packed(head_dim, group)) return false;
  for (const int d : attend_head_dims())
    if (d == head_dim) return true;
  return false;
}

bool attend_channels_has(int head_dim) {
  const auto dims = attend_head_dims();
  return fragments_channels(head_dim) && std::find(dims.begin(), dims.end(), head_dim) != dims.end();
}

namespace {

template <int D>
void launch_prompts(const AttendArgs& args, cudaStream_t stream) {
#ifdef KV2_CUDA_HOPPER
  if (args.prefill_kernel == PrefillKernel::Hopper) return launch_prefill_hopper(args, stream);
#endif
  launch_prefill_for<D>(args, stream);
}

}  // namespace

void launch_attend(const AttendArgs& args, int pairs, cudaStream_t stream) {
  switch (args.head_dim) {
#define KV2_HEAD_DIM(d)                                              \
  case d:                                                            \
    if (args.n_tiles > 0) launch_attend_for<d>(args, pairs, stream); \
    if (args.n_prefill_blocks > 0) launch_prompts<d>(args, stream);  \
    return;
#include "cuda/head_dims.def"
#undef KV2_HEAD_DIM
    default:
      KV2_CHECK(false, "no attention kernel for head_dim {}", args.head_dim);
  }
}

void launch_attend_channels(const AttendArgs& args, int pairs, cudaStream_t stream) {
  switch (args.head_dim) {
#define KV2_HEAD_DIM(d) \
  case d:               \
    return launch_attend_channels_for<d>(args, pairs, stream);
#include "cuda/channel_head_dims.def"
#undef KV2_HEAD_DIM
    default:
      KV2_CHECK(false, "no attention kernel for keys per channel and head_dim {}", args.head_dim);
  }
}

PrefillKernel prefill_kernel_for(int head_dim, int group, float soft_cap) {
  if (!attend_has(head_dim, group) || soft_cap > 0) return PrefillKernel::None;
  int device = 0, shared_bytes = 0, major = 0, minor = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return PrefillKernel::None;
  cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
#ifdef KV2_CUDA_HOPPER
  if (head_dim == kHopperHeadDim && major == 9 && minor == 0) return PrefillKernel::Hopper;
#endif
  switch (head_dim) {
#define KV2_HEAD_DIM(d)                                                                           \
  case d:                                                                                         \
    return prefill_shared_bytes<d>() <= static_cast<size_t>(shared_bytes) ? PrefillKernel::Packed \
                                                                          : PrefillKernel::None;
#include "cuda/head_dims.def"
#undef KV2_HEAD_DIM
    default:
      return PrefillKernel::None;
  }
}

}  // namespace kv2::cuda
