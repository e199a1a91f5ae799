// A linear layer for batches of a few samples, for which a general matrix product spends its time rearranging the
// weight. Here the weight is read once, in memory order, and its gradient is written once.
#include "vectors.h"

namespace {

// The largest block: kRows rows of the weight by kAcross samples, or vectors of one. Its sums and their operands fill the
// registers.
constexpr int kRows = kRegisters == 32 ? 5 : 6, kAcross = kRegisters == 32 ? 5 : 2;
using V = Vector<kLanes>;
using Lanes = V::Lanes;

inline float total(Lanes v) {
  float sum = 0.0f;
  for (int i = 0; i < kLanes; ++i) sum += v[i];
  return sum;
}

// y[s][r] = <x_s, w_r> + b_r for S samples and R rows of the weight
template <int R, int S>
inline void products(const float* x, const float* w, const float* b, float* y, int64_t in, int64_t out) {
  Lanes acc[R][S] = {};
  int64_t k = 0;
  for (; k + kLanes <= in; k += kLanes) {
    Lanes sample[S];
    for (int s = 0; s < S; ++s) sample[s] = V::load(x + s * in + k);
    for (int r = 0; r < R; ++r) {
      const Lanes row = V::load(w + r * in + k);
      for (int s = 0; s < S; ++s) acc[r][s] += row * sample[s];
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int s = 0; s < S; ++s) {
      float sum = total(acc[r][s]);
      for (int64_t rest = k; rest < in; ++rest) sum += w[r * in + rest] * x[s * in + rest];
      y[s * out + r] = b ? sum + b[r] : sum;
    }
  }
}

// The same for all samples, S at once, then the rest at once.
template <int R, int S>
void rows(const float* x, const float* w, const float* b, float* y, int64_t batch, int64_t in, int64_t out) {
  int64_t s = 0;
  for (; s + S <= batch; s += S) products<R, S>(x + s * in, w, b, y + s * out, in, out);
  if constexpr (S > 1) {
    if (s < batch) rows<R, S - 1>(x + s * in, w, b, y + s * out, batch - s, in, out);
  }
}

// gw[r][k ..] = sum_s gy[s][r] x[s][k ..] for R rows and V vectors of each
template <int R, int V>
inline void outer(const float* x, const float* gy, float* gw, int64_t batch, int64_t in, int64_t out) {
  Lanes acc[R][V] = {};
  for (int64_t s = 0; s < batch; ++s) {
    Lanes sample[V];
    for (int v = 0; v < V; ++v) sample[v] = V::load(x + s * in + v * kLanes);
    for (int r = 0; r < R; ++r) {
      const float g = gy[s * out + r];
      for (int v = 0; v < V; ++v) acc[r][v] += g * sample[v];
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) V::store(gw + r * in + v * kLanes, acc[r][v]);
  }
}

template <int R>
void outer_rows(const float* x, const float* gy, float* gw, int64_t batch, int64_t in, int64_t out) {
  int64_t k = 0;
  for (; k + kAcross * kLanes <= in; k += kAcross * kLanes) outer<R, kAcross>(x + k, gy, gw + k, batch, in, out);
  for (; k + kLanes <= in; k += kLanes) outer<R, 1>(x + k, gy, gw + k, batch, in, out);
  for (; k < in; ++k) {
    for (int r = 0; r < R; ++r) {
      float sum = 0.0f;
      for (int64_t s = 0; s < batch; ++s) sum += gy[s * out + r] * x[s * in + k];
      gw[r * in + k] = sum;
    }
  }
}

// All rows of the weight, R at once, then the rest at once.
template <int R>
void forward(const float* x, const float* w, const float* b, float* y, int64_t batch, int64_t in, int64_t out,
             int64_t o) {
  for (; o + R <= out; o += R) rows<R, kAcross>(x, w + o * in, b ? b + o : b, y + o, batch, in, out);
  if constexpr (R > 1) {
    if (o < out) forward<R - 1>(x, w, b, y, batch, in, out, o);
  }
}

template <int R>
void weight(const float* x, const float* gy, float* gw, int64_t batch, int64_t in, int64_t out, int64_t o) {
  for (; o + R <= out; o += R) outer_rows<R>(x, gy + o, gw + o * in, batch, in, out);
  if constexpr (R > 1) {
    if (o < out) weight<R - 1>(x, gy, gw, batch, in, out, o);
  }
}

}  // namespace

// x [batch][in], w [out][in], b [out] or null -> y [batch][out] = x w^T + b
extern "C" void thin_forward(const float* x, const float* w, const float* b, float* y, int64_t batch, int64_t in,
                             int64_t out) {
  forward<kRows>(x, w, b, y, batch, in, out, 0);
}

// x [batch][in], gy [batch][out] -> gw [out][in] = gy^T x
extern "C" void thin_weight(const float* x, const float* gy, float* gw, int64_t batch, int64_t in, int64_t out) {
  weight<kRows>(x, gy, gw, batch, in, out, 0);
}
