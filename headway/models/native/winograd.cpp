// Convolutions of stride 1 by Winograd's algorithm, channels innermost: fewer multiplications than the definition.
//
// The output is computed in tiles of M x M. With A = M + R - 1 for a filter of R x R, a tile is
//     Y = At [sum over channels of (G w Gt) * (Bt d B)] A        (* by element)
// where d is the tile's input, A x A. So a tile takes A * A multiplications per channel and filter instead of
// M * M * R * R: 36 instead of 144 for M = 4, R = 3. The gradients are the same algorithm turned round: that of the input
// is a convolution with the turned filter, that of the filter is
//     gw = Gt [sum over tiles of (A gy At) * (Bt d B)] G.
// The matrices belong to the points 0, p, -p, q, -q and infinity with p = 2/3 and q = 3/2, which round about as little as
// the definition does; the usual 1 and 2 round twice as much. Pairs p, -p share their even and odd parts, and p q = 1.
#include "product.h"

namespace {

using V = Vector<kLanes>;
using Lanes = V::Lanes;
using product::kWidth;

constexpr float p = 2.0f / 3.0f, q = 1.5f, p2 = p * p, q2 = q * q, p3 = p2 * p, q3 = q2 * q, s2 = p2 + q2;

// ---- the matrices, applied to one row or column
template <int A>
INLINE void from_input(Lanes* d) {  // d <- Bt d
  if constexpr (A == 6) {
    const Lanes first = d[0] - s2 * d[2] + d[4], last = d[1] - s2 * d[3] + d[5];
    const Lanes even_p = d[4] - q2 * d[2], odd_p = p * (d[3] - q2 * d[1]);
    const Lanes even_q = d[4] - p2 * d[2], odd_q = q * (d[3] - p2 * d[1]);
    d[0] = first;
    d[1] = even_p + odd_p;
    d[2] = even_p - odd_p;
    d[3] = even_q + odd_q;
    d[4] = even_q - odd_q;
    d[5] = last;
  } else {  // points 0, 1, -1, infinity
    const Lanes first = d[0] - d[2], plus = d[1] + d[2], minus = d[2] - d[1], last = d[3] - d[1];
    d[0] = first;
    d[1] = plus;
    d[2] = minus;
    d[3] = last;
  }
}

template <int M, int A>
INLINE void to_output(const Lanes* m, Lanes* y) {  // y = At m
  if constexpr (A == 6) {
    const Lanes even_p = m[1] + m[2], odd_p = m[1] - m[2], even_q = m[3] + m[4], odd_q = m[3] - m[4];
    y[0] = m[0] + even_p + even_q;
    y[1] = p * odd_p + q * odd_q;
    if constexpr (M == 4) {
      y[2] = p2 * even_p + q2 * even_q;
      y[3] = p3 * odd_p + q3 * odd_q;
    }
    y[M - 1] += m[5];
  } else {
    y[0] = m[0] + m[1] + m[2];
    y[1] = m[1] - m[2] + m[3];
  }
}

template <int M, int A>
INLINE void from_output(const Lanes* y, Lanes* m) {  // m = A y
  if constexpr (A == 6) {
    Lanes even_p = y[0], even_q = y[0], odd_p = p * y[1], odd_q = q * y[1];
    if constexpr (M == 4) {
      even_p += p2 * y[2];
      even_q += q2 * y[2];
      odd_p += p3 * y[3];
      odd_q += q3 * y[3];
    }
    m[1] = even_p + odd_p;
    m[2] = even_p - odd_p;
    m[3] = even_q + odd_q;
    m[4] = even_q - odd_q;
  } else {
    m[1] = y[0] + y[1];
    m[2] = y[0] - y[1];
  }
  m[0] = y[0];
  m[A - 1] = y[M - 1];
}

template <int A, int R>
struct Filter {  // G: row i holds the powers of point i, divided by the product of its distances to the others
  float g[A][R] = {};
  constexpr Filter() {
    const float at_p = 1.0f / (2 * p2 * (p2 - q2)), at_q = 1.0f / (2 * q2 * (q2 - p2));
    const float points[5] = {0, A == 6 ? p : 1, A == 6 ? -p : -1, q, -q};
    const float over[5] = {1, A == 6 ? at_p : 0.5f, A == 6 ? at_p : 0.5f, at_q, at_q};
    for (int i = 0; i + 1 < A; ++i) {
      float power = over[i];
      for (int j = 0; j < R; ++j, power *= points[i]) g[i][j] = power;
    }
    g[A - 1][R - 1] = 1.0f;
  }
};

// to[j][i] = from[i][j], in squares that stay in the nearest cache
inline void turn(const float* from, int64_t from_row, float* to, int64_t to_row, int64_t rows, int64_t columns) {
  for (int64_t first = 0; first < rows; first += kLanes) {
    for (int64_t left = 0; left < columns; left += kLanes) {
      const int64_t below = std::min(rows, first + kLanes), right = std::min(columns, left + kLanes);
      for (int64_t i = first; i < below; ++i) {
        for (int64_t j = left; j < right; ++j) to[j * to_row + i] = from[i * from_row + j];
      }
    }
  }
}

struct Sizes {
  int64_t batch, high, wide, in, out, pad;
};

template <int M, int R>
struct Winograd {
  static constexpr int A = M + R - 1, kPoints = A * A;
  static constexpr Filter<A, R> kFilter = {};
  const Sizes s;
  const int64_t out_high, out_wide, down, across, tiles;  // the output, and how many tiles cover it
  const int64_t in_row, out_row;  // channels and filters, rounded up to whole vectors

  explicit Winograd(const Sizes& s)
      : s(s), out_high(s.high + 2 * s.pad - R + 1), out_wide(s.wide + 2 * s.pad - R + 1), down(parts(out_high, M)),
        across(parts(out_wide, M)), tiles(s.batch * down * across), in_row(round_up(s.in, kLanes)),
        out_row(round_up(s.out, kLanes)) {}

  struct Tile {
    int64_t image, y, x;  // the first row and column of its output
  };
  Tile tile(int64_t t) const {
    const int64_t inside = t % (down * across);
    return {t / (down * across), inside / across * M, inside % across * M};
  }

  // G w Gt of filters k to k + width, for every channel: [point][channel][width]. w is [out][R][R][in].
  // `turned`: the filters of the input's gradient, turned by 180 degrees; w is [in][R][R][out], with in and out of the
  // gradient's convolution. lines: R * R * in * kLanes numbers.
  void read_filters(const float* w, float* u, float* lines, int64_t k, int64_t width, bool turned) const {
    const int64_t length = R * R * s.in;
    for (int64_t end = k + width; k < end; k += kLanes, u += kLanes) {
      const Some<kLanes> here(s.out - k);
      if (!turned) {
        if (here.n < kLanes) std::memset(lines, 0, 4 * length * kLanes);
        turn(w + k * length, length, lines, kLanes, here.n, length);
      }
      for (int64_t c = 0; c < s.in; ++c) {
        Lanes rows[A][R];
        UNROLL for (int j = 0; j < R; ++j) {
          Lanes column[R];
          UNROLL for (int i = 0; i < R; ++i) {
            column[i] = turned ? here.load(w + ((c * R + R - 1 - i) * R + R - 1 - j) * s.out + k)
                               : V::load(lines + ((i * R + j) * s.in + c) * kLanes);
          }
          UNROLL for (int i = 0; i < A; ++i) {
            rows[i][j] = kFilter.g[i][0] * column[0];
            UNROLL for (int l = 1; l < R; ++l) rows[i][j] += kFilter.g[i][l] * column[l];
          }
        }
        UNROLL for (int i = 0; i < A; ++i) {
          UNROLL for (int j = 0; j < A; ++j) {
            Lanes v = kFilter.g[j][0] * rows[i][0];
            UNROLL for (int l = 1; l < R; ++l) v += kFilter.g[j][l] * rows[i][l];
            V::store(u + ((i * A + j) * s.in + c) * width, v);
          }
        }
      }
    }
  }

  // Gt g G for filters k to k + width, from sums [point][channel][width] into gw [out][R][R][in]
  void write_filters(const float* g, float* gw, float* lines, int64_t k, int64_t width) const {
    const int64_t length = R * R * s.in;
    for (int64_t end = std::min(k + width, s.out); k < end; k += kLanes, g += kLanes) {
      for (int64_t c = 0; c < s.in; ++c) {
        Lanes rows[R][A];
        UNROLL for (int j = 0; j < A; ++j) {
          Lanes column[A];
          UNROLL for (int i = 0; i < A; ++i) column[i] = V::load(g + ((i * A + j) * s.in + c) * width);
          UNROLL for (int i = 0; i < R; ++i) {
            rows[i][j] = kFilter.g[0][i] * column[0];
            UNROLL for (int l = 1; l < A; ++l) rows[i][j] += kFilter.g[l][i] * column[l];
          }
        }
        UNROLL for (int i = 0; i < R; ++i) {
          UNROLL for (int j = 0; j < R; ++j) {
            Lanes v = kFilter.g[0][j] * rows[i][0];
            UNROLL for (int l = 1; l < A; ++l) v += kFilter.g[l][j] * rows[i][l];
            V::store(lines + ((i * R + j) * s.in + c) * kLanes, v);
          }
        }
      }
      turn(lines, kLanes, gw + k * length, length, length, std::min<int64_t>(kLanes, s.out - k));
    }
  }

  // Bt d B of a tile, for every channel, into row `row` of each point's matrix [group][in_row]
  void read_input(const float* x, const float* zeros, float* v, int64_t t, int64_t plane) const {
    const Tile at = tile(t);
    const float* places[A][A];  // outside of the image: zeros
    for (int i = 0; i < A; ++i) {
      for (int j = 0; j < A; ++j) {
        const int64_t row = at.y - s.pad + i, column = at.x - s.pad + j;
        const bool inside = row >= 0 && row < s.high && column >= 0 && column < s.wide;
        places[i][j] = inside ? x + ((at.image * s.high + row) * s.wide + column) * s.in : zeros;
      }
    }
    for (int64_t c = 0; c < s.in; c += kLanes, v += kLanes) {
      const Some<kLanes> last(s.in - c);
      Lanes d[A][A];
      UNROLL for (int j = 0; j < A; ++j) {
        Lanes column[A];
        UNROLL for (int i = 0; i < A; ++i) {
          const float* from = places[i][j] + c;
          column[i] = last.n == kLanes ? V::load(from) : last.load(from);
        }
        from_input<A>(column);
        UNROLL for (int i = 0; i < A; ++i) d[i][j] = column[i];
      }
      UNROLL for (int i = 0; i < A; ++i) {
        from_input<A>(d[i]);
        UNROLL for (int j = 0; j < A; ++j) V::store(v + (i * A + j) * plane, d[i][j]);
      }
    }
  }

  // A gy At of a tile, for every filter
  void read_output(const float* gy, const float* zeros, float* z, int64_t t, int64_t plane) const {
    const Tile at = tile(t);
    const float* places[M][M];
    for (int i = 0; i < M; ++i) {
      for (int j = 0; j < M; ++j) {
        const bool inside = at.y + i < out_high && at.x + j < out_wide;
        places[i][j] = inside ? gy + ((at.image * out_high + at.y + i) * out_wide + at.x + j) * s.out : zeros;
      }
    }
    for (int64_t k = 0; k < s.out; k += kLanes, z += kLanes) {
      const Some<kLanes> last(s.out - k);
      Lanes d[A][M];
      UNROLL for (int j = 0; j < M; ++j) {
        Lanes column[M], made[A];
        UNROLL for (int i = 0; i < M; ++i) {
          const float* from = places[i][j] + k;
          column[i] = last.n == kLanes ? V::load(from) : last.load(from);
        }
        from_output<M, A>(column, made);
        UNROLL for (int i = 0; i < A; ++i) d[i][j] = made[i];
      }
      UNROLL for (int i = 0; i < A; ++i) {
        Lanes made[A];
        from_output<M, A>(d[i], made);
        UNROLL for (int j = 0; j < A; ++j) V::store(z + (i * A + j) * plane, made[j]);
      }
    }
  }

  // At m A of a tile, with the bias, into the output
  void write_output(const float* m, const float* bias, float* y, int64_t t, int64_t plane) const {
    const Tile at = tile(t);
    const int64_t rows = std::min<int64_t>(M, out_high - at.y), columns = std::min<int64_t>(M, out_wide - at.x);
    float* to = y + ((at.image * out_high + at.y) * out_wide + at.x) * s.out;
    for (int64_t k = 0; k < s.out; k += kLanes, m += kLanes, to += kLanes) {
      const Some<kLanes> last(s.out - k);
      const Lanes b = bias ? last.load(bias + k) : Lanes{};
      Lanes d[M][A];
      UNROLL for (int j = 0; j < A; ++j) {
        Lanes column[A], made[M];
        UNROLL for (int i = 0; i < A; ++i) column[i] = V::load(m + (i * A + j) * plane);
        to_output<M, A>(column, made);
        UNROLL for (int i = 0; i < M; ++i) d[i][j] = made[i];
      }
      UNROLL for (int i = 0; i < M; ++i) {
        Lanes made[M];
        to_output<M, A>(d[i], made);
        if (i >= rows) break;
        UNROLL for (int j = 0; j < M; ++j) {
          if (j >= columns) break;
          float* place = to + (i * out_wide + j) * s.out;
          last.n == kLanes ? V::store(place, made[j] + b) : last.store(place, made[j] + b);
        }
      }
    }
  }

  // How a call divides its scratch memory. Planes are a little apart: with sizes that are powers of two, the same place
  // of all points would fall into one set of the cache.
  struct Scratch {
    int64_t in_plane, out_plane;
    float *v, *m, *lines, *zeros, *panels;  // tiles of input and output by point, filters by line, zeros, filters by point
  };
  int64_t numbers(int64_t group) const {
    const int64_t widest = std::max(in_row, out_row);
    return kPoints * (group * (in_row + out_row) + 2 * kLanes + s.in * out_row) + R * R * s.in * kLanes + widest;
  }
  Scratch divided(float* memory, int64_t group) const {
    Scratch d = {group * in_row + kLanes, group * out_row + kLanes, memory};
    d.m = d.v + kPoints * d.in_plane;
    d.lines = d.m + kPoints * d.out_plane;
    d.zeros = d.lines + R * R * s.in * kLanes;
    d.panels = d.zeros + std::max(in_row, out_row);
    std::memset(d.zeros, 0, 4 * std::max(in_row, out_row));
    return d;
  }

  // `group` tiles at a time. Filters are transformed where the first tiles need them, and kept for the others.
  void forward(const float* x, const float* w, const float* bias, float* y, float* memory, int64_t group,
               bool turned) const {
    const Scratch d = divided(memory, group);
    for (int64_t first = 0; first < tiles; first += group) {
      const int64_t count = std::min(group, tiles - first);
      for (int64_t t = 0; t < count; ++t) read_input(x, d.zeros, d.v + t * in_row, first + t, d.in_plane);
      for (int64_t k = 0; k < out_row; k += kWidth) {
        const int64_t width = std::min<int64_t>(kWidth, out_row - k);
        float* u = d.panels + (tiles > group ? kPoints * s.in * k : 0);
        if (first == 0) read_filters(w, u, d.lines, k, width, turned);
        for (int e = 0; e < kPoints; ++e) {
          product::panel<false>(d.v + e * d.in_plane, 1, in_row, u + e * s.in * width, width, d.m + e * d.out_plane + k,
                                out_row, count, width, s.in);
        }
      }
      for (int64_t t = 0; t < count; ++t) write_output(d.m + t * out_row, bias, y, first + t, d.out_plane);
    }
  }

  void gradient(const float* x, const float* gy, float* gw, float* memory, int64_t group) const {
    const Scratch d = divided(memory, group);
    for (int64_t first = 0; first < tiles; first += group) {
      const int64_t count = std::min(group, tiles - first);
      for (int64_t t = 0; t < count; ++t) read_input(x, d.zeros, d.v + t * in_row, first + t, d.in_plane);
      for (int64_t t = 0; t < count; ++t) read_output(gy, d.zeros, d.m + t * out_row, first + t, d.out_plane);
      for (int64_t k = 0; k < out_row; k += kWidth) {
        const int64_t width = std::min<int64_t>(kWidth, out_row - k);
        float* g = d.panels + (tiles > group ? kPoints * s.in * k : 0);
        for (int e = 0; e < kPoints; ++e) {
          const float *a = d.v + e * d.in_plane, *b = d.m + e * d.out_plane + k;
          float* c = g + e * s.in * width;
          if (first) product::panel<true>(a, in_row, 1, b, out_row, c, width, s.in, width, count);
          if (!first) product::panel<false>(a, in_row, 1, b, out_row, c, width, s.in, width, count);
        }
        if (first + group >= tiles) write_filters(g, gw, d.lines, k, width);
      }
    }
  }
};

template <class Then>
void with(int64_t m, int64_t r, const Sizes& s, Then then) {
  if (m == 4 && r == 3) then(Winograd<4, 3>(s));
  if (m == 2 && r == 3) then(Winograd<2, 3>(s));
  if (m == 2 && r == 5) then(Winograd<2, 5>(s));
}

}  // namespace

// x [batch][high][wide][in], w [out][r][r][in], y [batch][...][out]; m: the side of a tile; memory: see winograd_numbers.
// Turned: the gradient of the input, with gy as x, the gradient's channels as in and out, and w [in][r][r][out].
extern "C" void winograd_forward(const float* x, const float* w, const float* bias, float* y, float* memory, int64_t m,
                                 int64_t r, int64_t batch, int64_t high, int64_t wide, int64_t in, int64_t out,
                                 int64_t pad, int64_t group, int64_t turned) {
  with(m, r, {batch, high, wide, in, out, pad}, [&](const auto& c) { c.forward(x, w, bias, y, memory, group, turned); });
}

// gw [out][r][r][in]
extern "C" void winograd_gradient(const float* x, const float* gy, float* gw, float* memory, int64_t m, int64_t r,
                                  int64_t batch, int64_t high, int64_t wide, int64_t in, int64_t out, int64_t pad,
                                  int64_t group) {
  with(m, r, {batch, high, wide, in, out, pad}, [&](const auto& c) { c.gradient(x, gy, gw, memory, group); });
}

// How many numbers of scratch memory both need.
extern "C" int64_t winograd_numbers(int64_t m, int64_t r, int64_t in, int64_t out, int64_t group) {
  int64_t numbers = 0;
  with(m, r, {1, r, r, in, out, 0}, [&](const auto& c) { numbers = c.numbers(group); });
  return numbers;
}
