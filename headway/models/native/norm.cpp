// Batch normalisation in training, with a sum and a ReLU after it, channels innermost: each pass over the numbers once.
//     y = relu((x - mean) / sqrt(var + eps) * w + b + other)
#include "vectors.h"

#include <cmath>

namespace {

constexpr int64_t kRows = 64;  // rows that are added in float before they go to a total in double


template <int L>
struct Norm {
  using V = Vector<L>;
  using Lanes = typename V::Lanes;

  // totals[0..C) += sum of f(row)[c], totals[C..2C) += sum of g(row)[c]; both(c, i) gives the two vectors of row i
  template <class Both>
  static void sums(int64_t rows, int64_t channels, double* totals, Both both) {
    std::fill(totals, totals + 2 * channels, 0.0);
    for (int64_t first = 0; first < rows; first += kRows) {
      const int64_t end = std::min(rows, first + kRows);
      for (int64_t c = 0; c < channels; c += L) {
        Lanes a[2] = {}, b[2] = {};  // two chains of additions, so that one need not wait for the other
        int64_t i = first;
        for (; i + 2 <= end; i += 2) {
          both(c, i, a[0], b[0]);
          both(c, i + 1, a[1], b[1]);
        }
        if (i < end) both(c, i, a[0], b[0]);
        a[0] += a[1];
        b[0] += b[1];
        for (int l = 0; l < L; ++l) {
          totals[c + l] += a[0][l];
          totals[channels + c + l] += b[0][l];
        }
      }
    }
  }

  // Statistics around the first row, so that a large mean does not cancel the variance.
  static void statistics(const float* x, float* mean, float* var, double* totals, int64_t rows, int64_t channels) {
    sums(rows, channels, totals, [&](int64_t c, int64_t i, Lanes& sum, Lanes& square) {
      const Lanes d = V::load(x + i * channels + c) - V::load(x + c);
      sum += d;
      square += d * d;
    });
    for (int64_t c = 0; c < channels; ++c) {
      const double m = totals[c] / rows;
      mean[c] = static_cast<float>(x[c] + m);
      var[c] = static_cast<float>(std::max(0.0, totals[channels + c] / rows - m * m));
    }
  }

  static Lanes positive(Lanes v) { return v > 0.0f ? v : Lanes{}; }

  template <bool Other, bool Relu>
  static void forward(const float* x, const float* other, const float* scale, const float* shift, float* y, int64_t rows,
                      int64_t channels) {
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t at = i * channels;
      for (int64_t c = 0; c < channels; c += L) {
        Lanes v = V::load(x + at + c) * V::load(scale + c) + V::load(shift + c);
        if (Other) v += V::load(other + at + c);
        V::store(y + at + c, Relu ? positive(v) : v);
      }
    }
  }

  // The gradient that reaches the normalisation: gy where the ReLU let its input through.
  template <bool Other, bool Relu>
  struct Through {
    const float *gy, *x, *y, *scale, *shift;
    Lanes operator()(int64_t at, int64_t c, Lanes value) const {
      const Lanes g = V::load(gy + at + c);
      if (!Relu) return g;
      const Lanes out = Other ? V::load(y + at + c) : value * V::load(scale + c) + V::load(shift + c);
      return out > 0.0f ? g : Lanes{};
    }
  };

  template <bool Other, bool Relu>
  static void backward(const float* gy, const float* x, const float* y, const float* scale, const float* shift,
                       const float* mean, const float* inverse, float* gx, float* gother, float* gw, float* gb,
                       float* factors, double* totals, int64_t rows, int64_t channels) {
    const Through<Other, Relu> through = {gy, x, y, scale, shift};
    sums(rows, channels, totals, [&](int64_t c, int64_t i, Lanes& sum, Lanes& product) {
      const Lanes value = V::load(x + i * channels + c), g = through(i * channels, c, value);
      sum += g;
      product += g * (value - V::load(mean + c));
    });
    float *slope = factors, *constant = factors + channels;  // gx = scale g + slope (x - mean) + constant
    for (int64_t c = 0; c < channels; ++c) {
      const double sum = totals[c], product = totals[channels + c] * inverse[c];
      gb[c] = static_cast<float>(sum);
      gw[c] = static_cast<float>(product);
      slope[c] = static_cast<float>(-static_cast<double>(scale[c]) * inverse[c] * product / rows);
      constant[c] = static_cast<float>(-scale[c] * sum / rows);
    }
    if (!gx) return;
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t at = i * channels;
      for (int64_t c = 0; c < channels; c += L) {
        const Lanes value = V::load(x + at + c), g = through(at, c, value);
        const Lanes centred = value - V::load(mean + c);
        V::store(gx + at + c, g * V::load(scale + c) + (centred * V::load(slope + c) + V::load(constant + c)));
        if (Other) V::store(gother + at + c, g);
      }
    }
  }
};

// The widest vectors of which the channels are a multiple; 0 if there are none.
int64_t width(int64_t channels) {
  for (int64_t lanes = kLanes; lanes >= 4; lanes /= 2) {
    if (channels % lanes == 0) return lanes;
  }
  return 0;
}

template <class Then>
void with_width(int64_t channels, Then then) {
  const int64_t lanes = width(channels);
  if constexpr (kLanes >= 16) {
    if (lanes == 16) return then(Norm<16>());
  }
  if constexpr (kLanes >= 8) {
    if (lanes == 8) return then(Norm<8>());
  }
  then(Norm<4>());
}

}  // namespace

// x, other, y [rows][channels]; mean, var, scale, shift, inverse, w, b [channels]; totals 2 * channels doubles.
// Writes mean and var (divided by rows), inverse = 1 / sqrt(var + eps), scale = w inverse, shift = b - mean scale, and y.
// w, b and other may be null.
extern "C" void norm_forward(const float* x, const float* other, const float* w, const float* b, float* y, float* mean,
                             float* var, float* inverse, float* scale, float* shift, double* totals, int64_t rows,
                             int64_t channels, double eps, int64_t relu) {
  with_width(channels, [&](auto norm) {
    using N = decltype(norm);
    N::statistics(x, mean, var, totals, rows, channels);
    for (int64_t c = 0; c < channels; ++c) {
      inverse[c] = static_cast<float>(1.0 / std::sqrt(static_cast<double>(var[c]) + eps));
      scale[c] = (w ? w[c] : 1.0f) * inverse[c];
      shift[c] = (b ? b[c] : 0.0f) - mean[c] * scale[c];
    }
    if (other && relu) N::template forward<true, true>(x, other, scale, shift, y, rows, channels);
    if (other && !relu) N::template forward<true, false>(x, other, scale, shift, y, rows, channels);
    if (!other && relu) N::template forward<false, true>(x, other, scale, shift, y, rows, channels);
    if (!other && !relu) N::template forward<false, false>(x, other, scale, shift, y, rows, channels);
  });
}

// gx, gother [rows][channels], gw, gb [channels]: gradients. y is read where `other` was added before a ReLU; then
// gother is written. factors: 2 * channels numbers. gx may be null.
extern "C" void norm_backward(const float* gy, const float* x, const float* y, const float* scale, const float* shift,
                              const float* mean, const float* inverse, float* gx, float* gother, float* gw, float* gb,
                              float* factors, double* totals, int64_t rows, int64_t channels, int64_t relu) {
  with_width(channels, [&](auto norm) {
    using N = decltype(norm);
    const auto run = [&](auto f) {
      f(gy, x, y, scale, shift, mean, inverse, gx, gother, gw, gb, factors, totals, rows, channels);
    };
    if (y && relu) run(N::template backward<true, true>);
    if (!y && relu) run(N::template backward<false, true>);
    if (!relu) run(N::template backward<false, false>);
  });
}
