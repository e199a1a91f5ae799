// Vectors of the width that the processor has, in the compiler's own types; loads and stores that stop early.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#if defined(__AVX__)
#include <immintrin.h>
#endif
#define UNROLL _Pragma("GCC unroll 36")  // otherwise sums of large blocks are kept in memory
#define INLINE inline __attribute__((always_inline))

#if defined(__AVX512F__)
constexpr int kLanes = 16, kRegisters = 32;
#elif defined(__AVX__)
constexpr int kLanes = 8, kRegisters = 16;
#elif defined(__aarch64__)
constexpr int kLanes = 4, kRegisters = 32;
#else
constexpr int kLanes = 4, kRegisters = 16;
#endif

template <int L>
struct Vector {
  typedef float Lanes __attribute__((vector_size(4 * L), aligned(4)));
  static Lanes load(const float* p) { return *reinterpret_cast<const Lanes*>(p); }
  static void store(float* p, Lanes v) { *reinterpret_cast<Lanes*>(p) = v; }
};

// The first n lanes of a vector; no memory after them is accessed.
template <int L>
struct Some {
  using Lanes = typename Vector<L>::Lanes;
  explicit Some(int64_t lanes) : n(static_cast<int>(std::min<int64_t>(lanes, L))) {}
#if defined(__AVX__)
  __m256i mask() const {  // for eight lanes
    alignas(32) static const int32_t bits[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bits + 8 - n));
  }
#endif
  Lanes load(const float* p) const {
#if defined(__AVX512F__)
    if constexpr (L == 16) return (Lanes)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p);
#endif
#if defined(__AVX__)
    if constexpr (L == 8) return (Lanes)_mm256_maskload_ps(p, mask());
#endif
    Lanes v = {};
    for (int i = 0; i < n; ++i) v[i] = p[i];
    return v;
  }
  void store(float* p, Lanes v) const {
#if defined(__AVX512F__)
    if constexpr (L == 16) return _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), (__m512)v);
#endif
#if defined(__AVX__)
    if constexpr (L == 8) return _mm256_maskstore_ps(p, mask(), (__m256)v);
#endif
    for (int i = 0; i < n; ++i) p[i] = v[i];
  }
  const int n;
};

inline int64_t parts(int64_t whole, int64_t most) { return (whole + most - 1) / most; }
inline int64_t round_up(int64_t n, int64_t to) { return parts(n, to) * to; }
