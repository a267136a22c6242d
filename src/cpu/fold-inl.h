// SPDX-License-Identifier: Apache-2.0
// Many vectors of 16 lanes folded to one number each, the largest or the sum, in one fixed tree: lanes (i, i
// + 8), then (i, i + 4), (i, i + 2), (i, i + 1), as sum_of_16 does. Folding one vector takes eight operations
// that wait for each other; sixteen at once take three each. Include inside a target's namespace.

struct LargestOf {
  HWY_INLINE HWY_ATTR Vec operator()(Vec a, Vec b) const { return hn::Max(a, b); }
  float operator()(float a, float b) const { return a > b ? a : b; }
};
struct SumOf {
  HWY_INLINE HWY_ATTR Vec operator()(Vec a, Vec b) const { return hn::Add(a, b); }
  float operator()(float a, float b) const { return a + b; }
};

#if HWY_TARGET == HWY_AVX3
/// [16][16] to [16]: out[i] = op of lanes[i], always (i, i + 8), then (i, i + 4), (i, i + 2), (i, i + 1).
template <class Op>
HWY_INLINE HWY_ATTR void fold_sixteen(const Op& op, const float* lanes, float* out) {
  const auto row = [lanes](int i) HWY_ATTR { return _mm512_load_ps(lanes + 16 * i); };
  const auto both = [&op](__m512 a, __m512 b) HWY_ATTR { return op(Vec{a}, Vec{b}).raw; };
  __m512 quads[4];
  for (int e = 0; e < 4; e++) {  // rows 4e … 4e+3, one to 128 bits
    const __m512 a = row(4 * e), b = row(4 * e + 1), c = row(4 * e + 2), d = row(4 * e + 3);
    const __m512 ab = both(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee)),
                 cd = both(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    quads[e] = both(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
  }
  __m512 pairs[2];
  for (int e = 0; e < 2; e++)
    pairs[e] = both(_mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(quads[2 * e]),
                                                        _mm512_castps_pd(quads[2 * e + 1]))),
                    _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(quads[2 * e]),
                                                        _mm512_castps_pd(quads[2 * e + 1]))));
  const __m512 by_lane = both(_mm512_shuffle_ps(pairs[0], pairs[1], 0x88),
                              _mm512_shuffle_ps(pairs[0], pairs[1], 0xdd));  // 4l + e is row 4e + l
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  _mm512_storeu_ps(out, _mm512_permutexvar_ps(order, by_lane));
}
#endif

/// lanes [n][16] to out [n], both with room for a multiple of 16 (anything may stand there).
template <class Op>
HWY_INLINE HWY_ATTR void fold_lanes(const float* lanes, int n, float* out) {
  const Op op;
#if HWY_TARGET == HWY_AVX3
  for (int i = 0; i < n; i += 16) fold_sixteen(op, lanes + 16 * i, out + i);
#else
  for (int i = 0; i < n; i++) {
    float a[8];
    for (int k = 0; k < 8; k++) a[k] = op(lanes[16 * i + k], lanes[16 * i + k + 8]);
    out[i] = op(op(op(a[0], a[4]), op(a[2], a[6])), op(op(a[1], a[5]), op(a[3], a[7])));
  }
#endif
}
