// SPDX-License-Identifier: Apache-2.0
// Short-time Fourier transforms: frames of the signal, weighted and transformed. LibTorch views
// the frames by strides, which a sharded tensor does not have; here they are unfolded: the frames
// of a signal that is cut are cut too.
#include <ATen/ops/_fft_c2c.h>
#include <ATen/ops/_fft_r2c.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/pad.h>
#include <ATen/ops/view_as_real.h>
#include <shard/patch.h>

#include <string_view>

namespace shard {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr const char* kOp = "aten::stft";

struct Frames {
  int64_t size, hop, window_size;

  Frames(int64_t n_fft, std::optional<int64_t> hop_length, std::optional<int64_t> win_length)
      : size(n_fft), hop(hop_length.value_or(n_fft / 4)), window_size(win_length.value_or(n_fft)) {}

  void check(const Tensor& signals, const OptionalTensor& window) const {
    const int64_t length = signals.size(-1);
    shard::check<SpecMismatch>(
        size > 0 && size <= length && hop > 0 && window_size > 0 && window_size <= size &&
            (!window || (window->dim() == 1 && window->size(0) == window_size)),
        kOp, "got frames of ", size, " values every ", hop, " with windows of ", window_size,
        " for signals of ", length,
        " values; expected 0 < window <= frame <= signal, a positive hop and a window of its "
        "length. Correct the sizes.");
  }
  /// As long as a frame; undefined where all weights are one.
  Tensor window(const OptionalTensor& given, const Tensor& like) const {
    if (window_size == size) return given.value_or(Tensor());
    const int64_t before = (size - window_size) / 2;
    const auto options = at::TensorOptions(like.scalar_type()).device(like.device());
    return at::constant_pad_nd(given ? *given : at::ones({window_size}, options),
                               {before, size - window_size - before});
  }
};

/// (batch, length) -> (batch, frequencies, frames)
Tensor transform(const Tensor& signals, const Frames& frames, const OptionalTensor& window,
                 bool normalized, std::optional<bool> one_sided) {
  constexpr int64_t kUnscaled = 0;
  constexpr int64_t kByRoot = 1;  // LibTorch's fft_norm_mode
  const int64_t scale = normalized ? kByRoot : kUnscaled;
  frames.check(signals, window);
  Tensor values = signals.unfold(1, frames.size, frames.hop);
  if (const Tensor weights = frames.window(window, signals); weights.defined()) {
    values = values * weights;
  }
  const bool is_one_sided = one_sided.value_or(!values.is_complex());
  check<SpecMismatch>(!values.is_complex() || !is_one_sided, kOp,
                      "got complex values for one side of the frequencies; expected real ones, or "
                      "onesided = false.");
  const Tensor spectra = values.is_complex() ? at::_fft_c2c(values, {2}, scale, true)
                                             : at::_fft_r2c(values, {2}, scale, is_one_sided);
  return spectra.transpose(1, 2);
}

Tensor centred_stft(const Tensor& signal, int64_t n_fft, std::optional<int64_t> hop_length,
                    std::optional<int64_t> win_length, const OptionalTensor& window, bool center,
                    std::string_view pad_mode, bool normalized, std::optional<bool> one_sided,
                    std::optional<bool> return_complex, std::optional<bool> align_to_window) {
  if (align_to_window.value_or(false)) refuse_op(kOp, "align_to_window", "frames from the begin");
  check<SpecMismatch>(signal.dim() == 1 || signal.dim() == 2, kOp, "got signals of ",
                      signal.sizes(), "; expected (length) or (batch, length).");
  const bool is_complex = signal.is_complex() || (window && window->is_complex());
  check<SpecMismatch>(return_complex || is_complex, kOp,
                      "got no return_complex; expected a choice for real signals.");
  Tensor signals = signal.dim() == 1 ? signal.unsqueeze(0) : signal;
  if (center) {
    const int64_t half = n_fft / 2;
    signals = at::pad(signals.unsqueeze(0), {half, half}, pad_mode).squeeze(0);
  }
  Tensor spectra =
      transform(signals, Frames(n_fft, hop_length, win_length), window, normalized, one_sided);
  if (signal.dim() == 1) spectra = spectra.squeeze(0);
  return return_complex.value_or(true) ? spectra : at::view_as_real(spectra);
}

Tensor stft(const Tensor& signal, int64_t n_fft, std::optional<int64_t> hop_length,
            std::optional<int64_t> win_length, const OptionalTensor& window, bool normalized,
            std::optional<bool> one_sided, std::optional<bool> return_complex,
            std::optional<bool> align_to_window) {
  return centred_stft(signal, n_fft, hop_length, win_length, window, false, "reflect", normalized,
                      one_sided, return_complex, align_to_window);
}

}  // namespace

SHARD_PATCH(stft) {
  patch.function<at::_ops::stft>(stft).shards("batch", "the signal");
  patch.function<at::_ops::stft_center>(centred_stft).shards("batch", "the signal");
}

}  // namespace shard
