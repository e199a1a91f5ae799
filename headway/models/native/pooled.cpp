// Backward pass of a convolution (stride 1, no padding) whose output goes into a 2x2 max pool, channels innermost.
//
// The pool passes on one of every four outputs of the convolution, so three quarters of their gradients are zero, and
// more if a ReLU follows. Only the others are added here, position by position; a dense backward pass adds all of them.
#include "vectors.h"

namespace {

constexpr int kSums = kRegisters == 32 ? 24 : 12;  // sums that stay in the registers beside their operands
constexpr int kNarrow = kLanes < 8 ? kLanes : 8;  // for short rows: where a wide vector would cross two cache lines
constexpr int kMostRows = 5, kMostVectors = 12;  // of a block of sums

struct Hit {  // a gradient that is not zero
  int32_t at;  // where the numbers start that it multiplies
  float g;
};

struct Sums {  // rows of `width` sums, to which rows of numbers are added
  float* sum;
  int64_t sum_stride;
  const float* x;
  int64_t x_stride;
  int64_t width;
};

// sum[k][..] += g * x[at + k][..] over all hits, for K rows of N vectors; Part: the last vector has fewer lanes
template <int L, int K, int N, bool Part>
void add(const Sums& s, const Hit* hits, int count) {
  using V = Vector<L>;
  const Some<L> last(s.width - (N - 1) * L);
  typename V::Lanes acc[K][N];
  UNROLL for (int k = 0; k < K; ++k) {
    UNROLL for (int v = 0; v < N; ++v) {
      const float* p = s.sum + k * s.sum_stride + v * L;
      acc[k][v] = Part && v == N - 1 ? last.load(p) : V::load(p);
    }
  }
  for (int i = 0; i < count; ++i) {
    UNROLL for (int k = 0; k < K; ++k) {
      const float* p = s.x + hits[i].at + k * s.x_stride;
      UNROLL for (int v = 0; v < N; ++v, p += L) {
        acc[k][v] += hits[i].g * (Part && v == N - 1 ? last.load(p) : V::load(p));
      }
    }
  }
  UNROLL for (int k = 0; k < K; ++k) {
    UNROLL for (int v = 0; v < N; ++v) {
      float* p = s.sum + k * s.sum_stride + v * L;
      Part && v == N - 1 ? last.store(p, acc[k][v]) : V::store(p, acc[k][v]);
    }
  }
}

typedef void (*Add)(const Sums&, const Hit*, int);

// The function `add` for so many rows and vectors, at most K and N.
template <int L, int K, int N>
Add add_for(int64_t rows, int64_t vectors, bool part) {
  if constexpr (N > 1) {
    if (vectors < N) return add_for<L, std::min(kMostRows, kSums / (N - 1)), N - 1>(rows, vectors, part);
  }
  if constexpr (K > 1) {
    if (rows < K) return add_for<L, K - 1, N>(rows, vectors, part);
  }
  return part ? add<L, K, N, true> : add<L, K, N, false>;
}

// Splits `rows` rows of `length` sums into blocks that fit the registers: then(add, row, column, width) for each.
template <int L, class Then>
void blocks_of(int64_t rows, int64_t length, Then then) {
  const int64_t vectors = parts(length, L), wide = parts(vectors, parts(vectors, kMostVectors));
  const int64_t most = std::min<int64_t>(kMostRows, kSums / wide), high = parts(rows, parts(rows, most));
  for (int64_t row = 0; row < rows; row += high) {
    for (int64_t column = 0; column < length; column += wide * L) {
      const int64_t width = std::min(wide * L, length - column);
      const int64_t here = std::min(high, rows - row);
      const Add add = add_for<L, kSums / kMostVectors, kMostVectors>(here, parts(width, L), width % L);
      then(add, row, column, width);
    }
  }
}

template <class Then>
void blocks(int64_t rows, int64_t length, Then then) {
  length <= 2 * kNarrow ? blocks_of<kNarrow>(rows, length, then) : blocks_of<kLanes>(rows, length, then);
}

}  // namespace

// x, gx    [batch][height][width][in]      the input and its gradient; gx may be null, and starts at zero
// w, gw    [out][k_high][k_wide][in]       the weight and its gradient; gw starts at zero
// gy       [batch][rows][columns][out]     gradient of the pool's output
// where    [batch][rows][columns][out]     the convolution's output that the pool chose: row * across + column
// group    how many images are done at once
// scratch  hits [out][group * rows * columns] by filter and [group * rows * columns][out] by place, the numbers of the
//          former [out], where each of four places ends in the latter [group * rows * columns][4]
extern "C" void pooled_backward(const float* x, const float* w, const float* gy, const int64_t* where, float* gx,
                                float* gw, void* scratch, int64_t batch, int64_t height, int64_t width, int64_t in,
                                int64_t out, int64_t k_high, int64_t k_wide, int64_t rows, int64_t columns,
                                int64_t group) {
  const int64_t cells = rows * columns, most = group * cells, across = width - k_wide + 1;
  const int64_t one_image = height * width * in, one_row = width * in, length = k_wide * in;
  Hit* by_filter = static_cast<Hit*>(scratch);
  Hit* by_place = by_filter + out * most;
  int32_t* counts = reinterpret_cast<int32_t*>(by_place + out * most);
  int32_t* ends = counts + out;
  for (int64_t b = 0; b < batch; b += group) {
    const int64_t here = std::min(group, batch - b) * cells;
    std::memset(counts, 0, 4 * out);
    for (int64_t c = 0; c < here; ++c) {
      const int64_t cell = c % cells, row = 2 * (cell / columns), column = 2 * (cell % columns);
      const int64_t first = row * across + column, corner = c / cells * one_image + (row * width + column) * in;
      const int64_t at[4] = {corner, corner + in, corner + one_row, corner + one_row + in};
      const float* g = gy + (b * cells + c) * out;
      const int64_t* chosen = where + (b * cells + c) * out;
      auto place = [&](int64_t o) {  // in the window: 0, 1, 2 or 3
        const int64_t d = chosen[o] - first, down = d >= across;
        return 2 * down + d - down * across;
      };
      for (int64_t o = 0; o < out; ++o) {  // without branches, which could not be predicted
        by_filter[o * most + counts[o]] = {static_cast<int32_t>(at[place(o)]), g[o]};
        counts[o] += g[o] != 0.0f;
      }
      if (!gx) continue;
      int32_t sizes[5] = {}, next[5] = {};  // by place; the last has the gradients that are zero
      for (int64_t o = 0; o < out; ++o) ++sizes[g[o] != 0.0f ? place(o) : 4];
      for (int p = 0; p < 4; ++p) next[p + 1] = ends[4 * c + p] = next[p] + sizes[p];
      for (int64_t o = 0; o < out; ++o) {
        by_place[c * out + next[g[o] != 0.0f ? place(o) : 4]++] = {static_cast<int32_t>(o * k_high * length), g[o]};
      }
    }
    const float* image = x + b * one_image;
    for (int64_t o = 0; o < out; ++o) {
      blocks(k_high, length, [&](Add add, int64_t i, int64_t j, int64_t wide) {
        const Sums sums = {gw + (o * k_high + i) * length + j, length, image + i * one_row + j, one_row, wide};
        add(sums, by_filter + o * most, counts[o]);
      });
    }
    if (!gx) continue;
    blocks(k_high, length, [&](Add add, int64_t i, int64_t j, int64_t wide) {
      for (int64_t c = 0; c < here; ++c) {
        const int64_t cell = c % cells;
        float* corner = gx + (b + c / cells) * one_image + (2 * (cell / columns) + i) * one_row + j;
        for (int p = 0, start = 0; p < 4; ++p) {
          float* sum = corner + p / 2 * one_row + (2 * (cell % columns) + p % 2) * in;
          const int end = ends[4 * c + p];
          const Sums sums = {sum, one_row, w + i * length + j, length, wide};
          if (end > start) add(sums, by_place + c * out + start, end - start);
          start = end;
        }
      }
    });
  }
}
