// SPDX-License-Identifier: Apache-2.0
// Canonical head pages of keys per channel into the order of channel_order.h, in place.
#include "cuda/channel_order.h"
#include "cuda/kernels.h"

namespace kv2::cuda {
namespace {

constexpr int kPage = 64;

__global__ void order_channels_kernel(std::byte* packed, size_t page_bytes, const DemotePage* pages,
                                      PackedSide k, PackedSide v, int d) {
  extern __shared__ uint32_t canonical[];
  const bool is_v = blockIdx.z;
  const PackedSide& side = is_v ? v : k;
  auto* head =
      reinterpret_cast<uint32_t*>(packed + static_cast<size_t>(pages[blockIdx.x].packed) * page_bytes +
                                  side.begin + side.first_head + blockIdx.y * side.head_bytes);
  const int words = channel_head_bytes(d) / 4, codes = channel_codes_bytes(d) / 4;
  for (int i = threadIdx.x; i < words; i += blockDim.x) canonical[i] = head[i];
  __syncthreads();
  const auto* bytes = reinterpret_cast<const uint8_t*>(canonical);
  for (int word = threadIdx.x; word < codes; word += blockDim.x) {
    uint32_t out = 0;
    for (int f = 0; f < 4; f++)
      for (int byte = 0; byte < 4; byte++) {
        const CodeOf of = is_v ? channel_v_of(word, f, byte) : channel_k_of(word, f, byte);
        const int i = is_v ? of.token * d + of.channel : of.channel * kPage + of.token;
        out |= (static_cast<uint32_t>(bytes[i >> 2]) >> (2 * (i & 3)) & 3u) << (8 * byte + 2 * f);
      }
    head[word] = out;
  }
  const auto* params = reinterpret_cast<const uint16_t*>(canonical + codes);
  auto* to = reinterpret_cast<uint16_t*>(head + codes);
  for (int i = threadIdx.x; i < 4 * d; i += blockDim.x) to[channel_param_at(is_v, d, i)] = params[i];
}

}  // namespace

void launch_order_channels(std::byte* packed, size_t page_bytes, const DemotePage* pages, int n_pages,
                           const PackedSide& k, const PackedSide& v, int n_kv_heads, int head_dim,
                           cudaStream_t stream) {
  order_channels_kernel<<<dim3(n_pages, n_kv_heads, 2), 128, channel_head_bytes(head_dim), stream>>>(
      packed, page_bytes, pages, k, v, head_dim);
}

}  // namespace kv2::cuda
