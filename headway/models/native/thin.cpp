// A linear layer for batches of a few samples, for which a general matrix product spends its time rearranging the
// weight. Here the weight is read once, in memory order, and its gradient is written once.
#include <cstdint>

namespace {

constexpr int64_t kLanes = 16;
constexpr int kAtOnce = 5;  // rows and samples per block: 25 sums, which with their operands fill 32 registers
typedef float Lanes __attribute__((vector_size(4 * kLanes), aligned(4)));

inline Lanes load(const float* p) { return *reinterpret_cast<const Lanes*>(p); }

inline void store(float* p, Lanes v) { *reinterpret_cast<Lanes*>(p) = v; }

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
    for (int s = 0; s < S; ++s) sample[s] = load(x + s * in + k);
    for (int r = 0; r < R; ++r) {
      const Lanes row = load(w + r * in + k);
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

template <int R>
void rows(const float* x, const float* w, const float* b, float* y, int64_t batch, int64_t in, int64_t out) {
  int64_t s = 0;
  for (; s + kAtOnce <= batch; s += kAtOnce) products<R, kAtOnce>(x + s * in, w, b, y + s * out, in, out);
  for (; s < batch; ++s) products<R, 1>(x + s * in, w, b, y + s * out, in, out);
}

// gw[r][k ..] = sum_s gy[s][r] x[s][k ..] for R rows and 16 V numbers of each
template <int R, int V>
inline void outer(const float* x, const float* gy, float* gw, int64_t batch, int64_t in, int64_t out) {
  Lanes acc[R][V] = {};
  for (int64_t s = 0; s < batch; ++s) {
    Lanes sample[V];
    for (int v = 0; v < V; ++v) sample[v] = load(x + s * in + v * kLanes);
    for (int r = 0; r < R; ++r) {
      const float g = gy[s * out + r];
      for (int v = 0; v < V; ++v) acc[r][v] += g * sample[v];
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) store(gw + r * in + v * kLanes, acc[r][v]);
  }
}

template <int R>
void outer_rows(const float* x, const float* gy, float* gw, int64_t batch, int64_t in, int64_t out) {
  int64_t k = 0;
  for (; k + kAtOnce * kLanes <= in; k += kAtOnce * kLanes) outer<R, kAtOnce>(x + k, gy, gw + k, batch, in, out);
  for (; k + kLanes <= in; k += kLanes) outer<R, 1>(x + k, gy, gw + k, batch, in, out);
  for (; k < in; ++k) {
    for (int r = 0; r < R; ++r) {
      float sum = 0.0f;
      for (int64_t s = 0; s < batch; ++s) sum += gy[s * out + r] * x[s * in + k];
      gw[r * in + k] = sum;
    }
  }
}

}  // namespace

// x [batch][in], w [out][in], b [out] or null -> y [batch][out] = x w^T + b
extern "C" void thin_forward(const float* x, const float* w, const float* b, float* y, int64_t batch, int64_t in,
                             int64_t out) {
  int64_t o = 0;
  for (; o + kAtOnce <= out; o += kAtOnce) rows<kAtOnce>(x, w + o * in, b ? b + o : b, y + o, batch, in, out);
  for (; o < out; ++o) rows<1>(x, w + o * in, b ? b + o : b, y + o, batch, in, out);
}

// x [batch][in], gy [batch][out] -> gw [out][in] = gy^T x
extern "C" void thin_weight(const float* x, const float* gy, float* gw, int64_t batch, int64_t in, int64_t out) {
  int64_t o = 0;
  for (; o + kAtOnce <= out; o += kAtOnce) outer_rows<kAtOnce>(x, gy + o, gw + o * in, batch, in, out);
  for (; o < out; ++o) outer_rows<1>(x, gy + o, gw + o * in, batch, in, out);
}
