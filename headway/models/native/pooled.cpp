// Backward pass of a convolution (stride 1, no padding) whose output goes into a 2x2 max pool, channels innermost.
//
// The pool passes on one of every four outputs of the convolution, so three quarters of their gradients are zero, and
// more if a ReLU follows. Only the others are added here, position by position; a dense backward pass adds all of them.
#include <cstdint>
#include <cstring>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace {

constexpr int kLanes = 16;
typedef float Lanes __attribute__((vector_size(4 * kLanes), aligned(4)));

inline Lanes load(const float* p) { return *reinterpret_cast<const Lanes*>(p); }
inline void store(float* p, Lanes v) { *reinterpret_cast<Lanes*>(p) = v; }

// The first n lanes; no memory after them is accessed.
inline Lanes load_some(const float* p, int n) {
#if defined(__AVX512F__)
  return (Lanes)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p);
#else
  Lanes v = {};
  std::memcpy(&v, p, 4 * n);
  return v;
#endif
}

struct Hit {  // a gradient that is not zero
  int32_t at;  // where its patch of the image starts
  float g;
};

// sum[0 .. 16 N) += g * x[at .. at + 16 N) over all hits
template <int N>
inline void add_patches(float* sum, const float* x, const Hit* hits, int count) {
  Lanes acc[N];
  for (int v = 0; v < N; ++v) acc[v] = load(sum + v * kLanes);
  for (int i = 0; i < count; ++i) {
    const float* p = x + hits[i].at;
    for (int v = 0; v < N; ++v) acc[v] += hits[i].g * load(p + v * kLanes);
  }
  for (int v = 0; v < N; ++v) store(sum + v * kLanes, acc[v]);
}

void add_row(float* sum, const float* x, int64_t length, const Hit* hits, int count) {
  int64_t at = 0;
  for (; at + 10 * kLanes <= length; at += 10 * kLanes) add_patches<10>(sum + at, x + at, hits, count);
  for (; at + 4 * kLanes <= length; at += 4 * kLanes) add_patches<4>(sum + at, x + at, hits, count);
  for (; at + kLanes <= length; at += kLanes) add_patches<1>(sum + at, x + at, hits, count);
  if (at < length) {
    const int rest = static_cast<int>(length - at);
    Lanes acc = load_some(sum + at, rest);
    for (int i = 0; i < count; ++i) acc += hits[i].g * load_some(x + hits[i].at + at, rest);
    std::memcpy(sum + at, &acc, 4 * rest);
  }
}

// into += g * from
inline void add_scaled(float* into, const float* from, float g, int64_t length) {
  int64_t at = 0;
  for (; at + kLanes <= length; at += kLanes) store(into + at, load(into + at) + g * load(from + at));
  for (; at < length; ++at) into[at] += g * from[at];
}

}  // namespace

// x, gx    [batch][height][width][in]      the input and its gradient; gx may be null, and starts at zero
// w, gw    [out][k_high][k_wide][in]       the weight and its gradient; gw starts at zero
// gy       [batch][rows][columns][out]     gradient of the pool's output
// where    [batch][rows][columns][out]     the convolution's output that the pool chose: row * across + column
// scratch  [out][rows * columns] hits, and [out] numbers of hits
extern "C" void pooled_backward(const float* x, const float* w, const float* gy, const int64_t* where, float* gx,
                                float* gw, void* scratch, int64_t batch, int64_t height, int64_t width, int64_t in,
                                int64_t out, int64_t k_high, int64_t k_wide, int64_t rows, int64_t columns) {
  const int64_t cells = rows * columns, across = width - k_wide + 1;
  const int64_t one_image = height * width * in, one_row = width * in, length = k_wide * in;
  Hit* hits = static_cast<Hit*>(scratch);
  int32_t* counts = reinterpret_cast<int32_t*>(hits + out * cells);
  for (int64_t b = 0; b < batch; ++b, gy += cells * out, where += cells * out) {
    std::memset(counts, 0, 4 * out);
    for (int64_t c = 0; c < cells; ++c) {
      const int64_t row = 2 * (c / columns), column = 2 * (c % columns), first = row * across + column;
      for (int64_t o = 0; o < out; ++o) {
        const float g = gy[c * out + o];
        if (g == 0.0f) continue;
        const int64_t d = where[c * out + o] - first, down = d >= across;  // 0, 1, across or across + 1
        const int64_t at = (row + down) * width + column + d - down * across;
        hits[o * cells + counts[o]++] = {static_cast<int32_t>(at * in), g};
      }
    }
    const float* image = x + b * one_image;
    for (int64_t o = 0; o < out; ++o) {
      const Hit* mine = hits + o * cells;
      for (int64_t i = 0; i < k_high; ++i) {
        add_row(gw + (o * k_high + i) * length, image + i * one_row, length, mine, counts[o]);
      }
      for (int32_t n = 0; gx && n < counts[o]; ++n) {
        for (int64_t i = 0; i < k_high; ++i) {
          add_scaled(gx + b * one_image + mine[n].at + i * one_row, w + (o * k_high + i) * length, mine[n].g, length);
        }
      }
    }
  }
}
