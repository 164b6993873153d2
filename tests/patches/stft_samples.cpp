// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/stft.h>
#include <ATen/ops/view_as_real.h>
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

Tensor d(const std::vector<int64_t>& sizes) { return torch::randn(sizes, at::kDouble); }

struct Frames {
  int64_t size, hop, window;
  bool is_centred = true;
  bool is_normalized = false;
  bool is_one_sided = true;
};

/// Real and imaginary parts of the spectra, squared.
Sample spectra(const std::string& name, const Tensor& signal, int64_t dim, const Frames& frames) {
  return {name, {sharded(signal, dim), weight(d({frames.window}))}, [=](const Tensors& t) {
            return at::view_as_real(at::stft(t[0], frames.size, frames.hop, frames.window, t[1],
                                             frames.is_centred, "reflect", frames.is_normalized,
                                             frames.is_one_sided, true))
                .square();
          }};
}

std::vector<Sample> samples() {
  torch::manual_seed(250);
  return {
      spectra("cut_batch", d({5, 24}), 0, {8, 4, 8}),
      spectra("cut_signal", d({2, 40}), 1, {8, 4, 8}),
      spectra("one_cut_signal", d({40}), 0, {8, 2, 8}),
      spectra("short_windows", d({2, 40}), 1, {8, 4, 5}),
      spectra("not_centred", d({2, 43}), 1, {6, 5, 6, false}),
      spectra("normalized_both_sides", d({2, 40}), 1, {8, 8, 8, true, true, false}),
      spectra("odd_frames", d({1, 31}), 1, {5, 3, 4}),
      spectra("non_contiguous", d({40, 2}).t(), 1, {8, 4, 8}),
      {"without_a_window",
       {sharded(d({2, 40}), 1)},
       [](const Tensors& t) {
         return at::view_as_real(at::stft(t[0], 8, 4, 6, {}, false, true, true)).square();
       }},
  };
}
SHARD_SAMPLES(Stft, samples());

}  // namespace
}  // namespace shard::testing
