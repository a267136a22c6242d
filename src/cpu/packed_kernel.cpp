// SPDX-License-Identifier: Apache-2.0
// packed_kernel.h per SIMD target; the body is packed_kernel-inl.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/packed_kernel.cpp"
#include "cpu/targets.h"  // before Highway

#include <hwy/foreach_target.h>

#include <type_traits>

#include "base/check.h"
#include "base/float16.h"
#include "cpu/packed_kernel.h"
#include "cpu/simd-inl.h"
#include "cpu/vnni.h"

HWY_BEFORE_NAMESPACE();
namespace kv2::cpu::HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR  // the build's baseline: make_cpu_backend refuses to run on it
void CodeQueries(const TileView&, const Int2Layout&, const CodedQueries&) {
  KV2_CHECK(false, "no SIMD target");
}
void AttendPacked(const TileView&, const CodedQueries&, const PackedPages&, const Int2Layout&,
                  const Partial&) {
  KV2_CHECK(false, "no SIMD target");
}
#else
#define KV2_VNNI 0
#include "cpu/packed_kernel-inl.h"
#undef KV2_VNNI
#endif
}  // namespace kv2::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_TARGET == HWY_AVX3
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
namespace kv2::cpu::HWY_NAMESPACE::vnni {
#define KV2_VNNI 1
#include "cpu/packed_kernel-inl.h"
#undef KV2_VNNI
}  // namespace kv2::cpu::HWY_NAMESPACE::vnni
HWY_POP_ATTRIBUTES
#endif

#if HWY_ONCE
namespace kv2::cpu {

HWY_EXPORT(CodeQueries);
HWY_EXPORT(AttendPacked);

void code_queries(const TileView& tile, const Int2Layout& layout, const CodedQueries& to) {
  HWY_DYNAMIC_DISPATCH(CodeQueries)(tile, layout, to);
}

void attend_packed(const TileView& tile, const CodedQueries& queries, const PackedPages& pages,
                   const Int2Layout& layout, const Partial& partial) {
#if HWY_TARGETS & HWY_AVX3
  if (use_vnni()) return N_AVX3::vnni::AttendPacked(tile, queries, pages, layout, partial);
#endif
  HWY_DYNAMIC_DISPATCH(AttendPacked)(tile, queries, pages, layout, partial);
}

}  // namespace kv2::cpu
#endif
