// Clients of a multilayer perceptron: SGD on the cross-entropy, client after client, whose parameters and momentum stay
// in the nearest cache. Each layer is a linear one, with a ReLU after all but the last.
#include "product.h"

#include <atomic>
#include <cmath>
#include <thread>
#include <vector>

namespace {

using V = Vector<kLanes>;
using Lanes = V::Lanes;

struct Step {  // m <- momentum m + g + decay w, then w <- w - rate m; rate < 0: the parameter stays as it is
  float rate, momentum, decay;
};

struct Layer {
  int64_t in, out, weight, bias;  // where its weight [out][in] and its bias [out] begin; bias < 0: none
  Step weight_step, bias_step;
};

inline Lanes stepped(Lanes& w, Lanes m, Lanes g, const Step& s, bool first) {
  g += s.decay * w;
  m = first || s.momentum == 0.0f ? g : s.momentum * m + g;
  w -= s.rate * m;
  return m;
}

// N vectors of a row of a weight, the last of `last` lanes: their gradient, sum over the batch of g[s] x[s], is used up in
// the registers.
template <int N>
inline void move_part(float* w, float* m, const float* g, const float* x, int64_t row, int64_t batch, int64_t last,
                      const Step& s, bool first) {
  Lanes sums[N] = {};
  for (int64_t b = 0; b < batch; ++b) {
    const float f = g[b * row];
    UNROLL for (int n = 0; n < N; ++n) sums[n] += f * V::load(x + b * row + n * kLanes);
  }
  const Some<kLanes> end(last);
  UNROLL for (int n = 0; n < N; ++n) {
    float *place = w + n * kLanes, *speed = m + n * kLanes;
    const bool part = n == N - 1 && end.n < kLanes;
    Lanes value = part ? end.load(place) : V::load(place);
    const Lanes before = first ? Lanes{} : part ? end.load(speed) : V::load(speed);
    const Lanes moved = stepped(value, before, sums[n], s, first);
    part ? end.store(speed, moved) : V::store(speed, moved);
    part ? end.store(place, value) : V::store(place, value);
  }
}

// At most N vectors.
template <int N>
void move_parts(float* w, float* m, const float* g, const float* x, int64_t row, int64_t batch, int64_t width,
                const Step& s, bool first) {
  if constexpr (N > 1) {
    if (width <= (N - 1) * kLanes) return move_parts<N - 1>(w, m, g, x, row, batch, width, s, first);
  }
  move_part<N>(w, m, g, x, row, batch, width - (N - 1) * kLanes, s, first);
}

struct Perceptron {
  const Layer* layers;
  int64_t count, batch;  // the largest batch
  int64_t lines;  // samples of a batch, rounded up to whole vectors
  int64_t widest = 0;

  Perceptron(const Layer* layers, int64_t count, int64_t batch)
      : layers(layers), count(count), batch(batch), lines(round_up(batch, kLanes)) {
    for (int64_t l = 0; l < count; ++l) widest = std::max({widest, layers[l].in, layers[l].out});
    widest = round_up(widest, kLanes);
  }

  // Scratch: activations of each layer by sample and by unit, and two gradients.
  int64_t numbers() const { return (count + 1) * (batch + lines) * widest + 2 * batch * widest; }
  float* by_sample(float* memory, int64_t l) const { return memory + l * (batch + lines) * widest; }  // [batch][widest]
  float* by_unit(float* memory, int64_t l) const { return by_sample(memory, l) + batch * widest; }  // [widest][lines]
  float* gradient(float* memory, int64_t i) const { return by_sample(memory, count + 1) + i * batch * widest; }

  // The input of layer l + 1 from its output by unit: bias, ReLU, and the same by sample.
  void activate(const Layer& layer, const float* w, float* memory, int64_t l, int64_t size) const {
    float *units = by_unit(memory, l + 1), *samples = by_sample(memory, l + 1);
    for (int64_t o = 0; o < layer.out; ++o) {
      const float b = layer.bias < 0 ? 0.0f : w[layer.bias + o];
      for (int64_t i = 0; i < lines; i += kLanes) {
        Lanes v = V::load(units + o * lines + i) + b;
        if (l + 1 < count) v = v > 0.0f ? v : Lanes{};
        V::store(units + o * lines + i, v);
      }
      for (int64_t s = 0; s < size; ++s) samples[s * widest + o] = units[o * lines + s];
    }
  }

  // The mean cross-entropy; writes its gradient by the logits.
  float loss(const float* logits, const int64_t* labels, float* g, int64_t classes, int64_t size) const {
    double total = 0.0;
    for (int64_t s = 0; s < size; ++s) {
      const float* z = logits + s * widest;
      float* gz = g + s * widest;
      float largest = z[0], sum = 0.0f;
      for (int64_t c = 1; c < classes; ++c) largest = std::max(largest, z[c]);
      for (int64_t c = 0; c < classes; ++c) sum += gz[c] = std::exp(z[c] - largest);
      for (int64_t c = 0; c < classes; ++c) gz[c] /= sum * size;
      gz[labels[s]] -= 1.0f / size;
      total += std::log(sum) - (z[labels[s]] - largest);
    }
    return static_cast<float>(total / size);
  }

  // A step on `size` samples, which are in by_sample(0); returns their loss.
  float step(float* w, float* m, float* memory, const int64_t* labels, int64_t size, bool first) const {
    turn_input(memory, size);
    for (int64_t l = 0; l < count; ++l) {
      const Layer& layer = layers[l];
      const float* x = by_unit(memory, l);
      for (int64_t i = 0; i < lines; i += product::kWidth) {
        product::panel<false>(w + layer.weight, 1, layer.in, x + i, lines, by_unit(memory, l + 1) + i, lines, layer.out,
                              std::min<int64_t>(product::kWidth, lines - i), layer.in);
      }
      activate(layer, w, memory, l, size);
    }
    float *g = gradient(memory, 0), *before = gradient(memory, 1);
    const float lost = loss(by_sample(memory, count), labels, g, layers[count - 1].out, size);
    for (int64_t l = count - 1; l >= 0; --l) {
      const Layer& layer = layers[l];
      if (moves_below(l)) {
        const int64_t width = round_up(layer.in, kLanes);
        for (int64_t i = 0; i < width; i += product::kWidth) {
          product::panel<false>(g, 1, widest, w + layer.weight + i, layer.in, before + i, widest, size,
                                std::min<int64_t>(product::kWidth, width - i), layer.out);
        }
      }
      move(layer, w, m, g, by_sample(memory, l), size, first);
      if (!moves_below(l)) break;
      const float* input = by_sample(memory, l);
      for (int64_t s = 0; s < size; ++s) {
        for (int64_t i = 0; i < layer.in; ++i) before[s * widest + i] = input[s * widest + i] > 0.0f ? before[s * widest + i] : 0.0f;
      }
      std::swap(g, before);
    }
    return lost;
  }

  bool moves_below(int64_t l) const {
    while (l-- > 0) {
      if (layers[l].weight_step.rate >= 0 || (layers[l].bias >= 0 && layers[l].bias_step.rate >= 0)) return true;
    }
    return false;
  }

  void turn_input(float* memory, int64_t size) const {
    const float* samples = by_sample(memory, 0);
    float* units = by_unit(memory, 0);
    for (int64_t i = 0; i < layers[0].in; ++i) {
      for (int64_t s = 0; s < size; ++s) units[i * lines + s] = samples[s * widest + i];
      for (int64_t s = size; s < lines; ++s) units[i * lines + s] = 0.0f;
    }
  }

  void move(const Layer& layer, float* w, float* m, const float* g, const float* x, int64_t size, bool first) const {
    constexpr int kMost = kRegisters == 32 ? 12 : 6;
    if (layer.weight_step.rate >= 0) {
      const int64_t vectors = parts(layer.in, kLanes), wide = parts(vectors, parts(vectors, kMost)) * kLanes;
      for (int64_t i = 0; i < layer.in; i += wide) {  // these columns of the batch stay in the nearest cache
        for (int64_t o = 0; o < layer.out; ++o) {
          const int64_t at = layer.weight + o * layer.in + i;
          move_parts<kMost>(w + at, m + at, g + o, x + i, widest, size, std::min(wide, layer.in - i), layer.weight_step,
                            first);
        }
      }
    }
    if (layer.bias >= 0 && layer.bias_step.rate >= 0) {
      for (int64_t o = 0; o < layer.out; ++o) {
        float sum = 0.0f;
        for (int64_t s = 0; s < size; ++s) sum += g[s * widest + o];
        float &value = w[layer.bias + o], &speed = m[layer.bias + o];
        sum += layer.bias_step.decay * value;
        speed = first || layer.bias_step.momentum == 0.0f ? sum : layer.bias_step.momentum * speed + sum;
        value -= layer.bias_step.rate * speed;
      }
    }
  }
};

}  // namespace

extern "C" int64_t mlp_numbers(const Layer* layers, int64_t count, int64_t batch) {
  return Perceptron(layers, count, batch).numbers();
}

// Trains `clients` clients, whose parameters are rows of w [clients][row], with kLanes numbers of memory after the last.
// start [row]: their first parameters; null: they stand in w.
// x [samples][in] and y [samples]: the samples of client after client, of which it has sizes[client].
// order: for each client and epoch, the positions of its samples in the order of training.
// scratch: for each thread, `row` numbers and kLanes for the momentum, and what mlp_numbers says.
// losses [clients]: the mean over the batches of the last epoch.
extern "C" void mlp_train(const Layer* layers, int64_t count, float* w, int64_t row, const float* start, float* scratch,
                          const float* x, const int64_t* y, const int64_t* sizes, const int64_t* order, float* losses,
                          int64_t clients, int64_t batch, int64_t epochs, int64_t threads) {
  const Perceptron net(layers, count, batch);
  const int64_t in = layers[0].in, each = row + kLanes + net.numbers();
  std::vector<int64_t> begins(clients);  // of each client's samples
  for (int64_t k = 1; k < clients; ++k) begins[k] = begins[k - 1] + sizes[k - 1];
  std::atomic<int64_t> next{0};
  const auto work = [&](int64_t thread) {
    float *momentum = scratch + thread * each, *memory = momentum + row + kLanes;
    std::memset(memory, 0, 4 * net.numbers());
    std::vector<int64_t> labels(batch);
    for (int64_t k = next++; k < clients; k = next++) {
      const float* samples = x + begins[k] * in;
      const int64_t *classes = y + begins[k], *at = order + begins[k] * epochs, n = sizes[k];
      float* mine = w + k * row;
      if (start) std::memcpy(mine, start, 4 * row);
      double total = 0.0;
      int64_t batches = 0;
      for (int64_t e = 0; e < epochs; ++e, at += n) {
        total = 0.0;
        batches = 0;
        for (int64_t begin = 0; begin < n; begin += batch, ++batches) {
          const int64_t size = std::min(batch, n - begin);
          for (int64_t s = 0; s < size; ++s) {
            std::memcpy(net.by_sample(memory, 0) + s * net.widest, samples + at[begin + s] * in, 4 * in);
            labels[s] = classes[at[begin + s]];
          }
          total += net.step(mine, momentum, memory, labels.data(), size, e == 0 && begin == 0);
        }
      }
      losses[k] = static_cast<float>(total / std::max<int64_t>(1, batches));
    }
  };
  std::vector<std::thread> others;  // they end with this call: a process with threads cannot fork workers safely
  for (int64_t t = 1; t < std::min(threads, clients); ++t) others.emplace_back(work, t);
  work(0);
  for (std::thread& other : others) other.join();
}
