// Products of small matrices: c (+)= a b, where a row of b is read as vectors and every number of a is multiplied with one.
#pragma once
#include "vectors.h"

namespace product {

using V = Vector<kLanes>;
// The widest block of sums that stays in the registers beside its operands: kVectors of b by kRows of a.
constexpr int kVectors = kRegisters == 32 ? 4 : 2;
constexpr int kWidth = kVectors * kLanes;  // b is stored in panels of so many columns

constexpr int rows_for(int vectors) { return std::min(vectors == 1 ? 12 : 8, (kRegisters - 2 - vectors) / vectors); }

// c[r][n] (+)= sum_d a[d * a_depth + r * a_row] b[d * b_row + n] for R rows and N vectors
template <int R, int N, bool Add>
inline void block(const float* a, int64_t a_depth, int64_t a_row, const float* b, int64_t b_row, float* c,
                  int64_t c_row, int64_t depth) {
  V::Lanes sums[R][N];
  UNROLL for (int r = 0; r < R; ++r) {
    UNROLL for (int n = 0; n < N; ++n) sums[r][n] = Add ? V::load(c + r * c_row + n * kLanes) : V::Lanes{};
  }
  for (int64_t d = 0; d < depth; ++d) {
    V::Lanes v[N];
    UNROLL for (int n = 0; n < N; ++n) v[n] = V::load(b + d * b_row + n * kLanes);
    UNROLL for (int r = 0; r < R; ++r) {
      const float s = a[d * a_depth + r * a_row];
      UNROLL for (int n = 0; n < N; ++n) sums[r][n] += s * v[n];
    }
  }
  UNROLL for (int r = 0; r < R; ++r) {
    UNROLL for (int n = 0; n < N; ++n) V::store(c + r * c_row + n * kLanes, sums[r][n]);
  }
}

// The same for any number of rows: R at once, then the rest at once.
template <int R, int N, bool Add>
void columns(const float* a, int64_t a_depth, int64_t a_row, const float* b, int64_t b_row, float* c, int64_t c_row,
             int64_t rows, int64_t depth) {
  int64_t r = 0;
  for (; r + R <= rows; r += R) {
    block<R, N, Add>(a + r * a_row, a_depth, a_row, b, b_row, c + r * c_row, c_row, depth);
  }
  if constexpr (R > 1) {
    if (r < rows) {
      columns<R - 1, N, Add>(a + r * a_row, a_depth, a_row, b, b_row, c + r * c_row, c_row, rows - r, depth);
    }
  }
}

// One panel of at most kWidth columns, a multiple of kLanes.
template <bool Add, int N = kVectors>
void panel(const float* a, int64_t a_depth, int64_t a_row, const float* b, int64_t b_row, float* c, int64_t c_row,
           int64_t rows, int64_t width, int64_t depth) {
  if constexpr (N > 1) {
    if (width < N * kLanes) {
      return panel<Add, N - 1>(a, a_depth, a_row, b, b_row, c, c_row, rows, width, depth);
    }
  }
  columns<rows_for(N), N, Add>(a, a_depth, a_row, b, b_row, c, c_row, rows, depth);
}

}  // namespace product
