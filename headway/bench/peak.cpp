// Fused multiply-adds in registers and nothing else: the largest amount of arithmetic that a core can do.
#include <cstdint>

namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

// A multiply-add takes about four cycles and a core starts two to four per cycle, so 8 to 16 of them must be
// independent. They must fit into the registers, of which x86 has 16 before AVX-512 and others have 32.
#if (defined(__x86_64__) || defined(__i386__)) && !defined(__AVX512F__)
constexpr int kSums = 12;
#else
constexpr int kSums = 16;
#endif

typedef float Lanes __attribute__((vector_size(4 * kLanes)));

}  // namespace

// The number of multiply-adds per step.
extern "C" int64_t multiply_adds_per_step() { return kLanes * kSums; }

// Computes them and returns their number. Every lane computes s = s * 1 + 1 and so counts steps; floats count to 2^24.
extern "C" int64_t multiply_adds(int64_t steps) {
  volatile float zero = 0.0f, unit = 1.0f;  // volatile: a compiler that knew the values would remove the loop
  const Lanes one = Lanes{} + unit;
  Lanes sums[kSums];
  for (int v = 0; v < kSums; ++v) sums[v] = Lanes{} + zero;
  for (int64_t s = 0; s < steps; ++s) {
    for (int v = 0; v < kSums; ++v) sums[v] = sums[v] * one + one;
  }
  int64_t made = 0;
  for (int v = 0; v < kSums; ++v) {
    for (int i = 0; i < kLanes; ++i) made += static_cast<int64_t>(sums[v][i]);
  }
  return made;
}
