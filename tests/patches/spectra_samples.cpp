// SPDX-License-Identifier: Apache-2.0
#include <shard/comm_counter.h>
#include <shard/launch.h>
#include <shard/primitives.h>
#include <support/samples.h>
#include <torch/torch.h>

namespace shard::testing {
namespace {

namespace fft = torch::fft;
using at::Tensor;
using Tensors = std::vector<Tensor>;
using Function = std::function<Tensor(const Tensor&)>;

Tensor field(std::vector<int64_t> sizes) { return torch::randn(sizes, at::kDouble); }
Tensor waves(std::vector<int64_t> sizes) { return torch::randn(sizes, at::kComplexDouble); }

/// Two transpositions each way, of complex numbers: twice the bytes of a real input. A line is
/// turned three times and moved to whole rows and back; one of a prime number of points is as long
/// as four.
Check transposed(const Tensor& x, int64_t dim) {
  Check check{.traffic = 6};
  if (x.numel() == x.size(dim)) check.traffic = 100;
  return check;
}

/// Real and imaginary parts of a spectrum.
Sample spectrum(const std::string& name, const Tensor& x, int64_t dim, const Function& f) {
  return {name,
          {sharded(x, dim)},
          [f](const Tensors& t) { return torch::view_as_real(f(t[0]).resolve_conj()); },
          transposed(x, dim)};
}
Sample real(const std::string& name, const Tensor& x, int64_t dim, const Function& f) {
  return {name, {sharded(x, dim)}, [f](const Tensors& t) { return f(t[0]); }, transposed(x, dim)};
}

/// The spectral convolution of a Fourier neural operator: a few modes mix channels.
Tensor spectral_convolution(const Tensor& x, const Tensor& weight, int64_t modes) {
  const Tensor spectrum = fft::rfft2(x);
  Tensor out = torch::zeros_like(spectrum);
  using torch::indexing::Slice;
  const auto low = {torch::indexing::TensorIndex(Slice()), torch::indexing::TensorIndex(Slice()),
                    torch::indexing::TensorIndex(Slice(0, modes)),
                    torch::indexing::TensorIndex(Slice(0, modes))};
  out.index_put_(
      low, torch::einsum("bixy,ioxy->boxy", {spectrum.index(low), torch::view_as_complex(weight)}));
  return fft::irfft2(out, at::IntArrayRef{x.size(2), x.size(3)});
}

/// The mixer of an adaptive Fourier neural operator: a small network on every mode.
Tensor spectral_mixer(const Tensor& x, const Tensor& weight) {
  const Tensor spectrum = fft::rfft2(x, {}, {1, 2}, "ortho");
  const Tensor re = torch::relu(torch::matmul(torch::real(spectrum), weight));
  const Tensor im = torch::softshrink(torch::matmul(torch::imag(spectrum), weight), 0.01);
  return fft::irfft2(torch::complex(re, im), at::IntArrayRef{x.size(1), x.size(2)}, {1, 2},
                     "ortho") +
         x;
}

std::vector<Sample> cases() {
  torch::manual_seed(40);
  return {
      spectrum("fft_along_the_sharded_dim", waves({3, 11, 4}), 1,
               [](const Tensor& x) { return fft::fft(x, {}, 1); }),
      spectrum("fft_along_another_dim", waves({3, 11, 4}), 1,
               [](const Tensor& x) { return fft::fft(x, {}, 2); }),
      spectrum("fft_of_one_dim", waves({13}), 0, [](const Tensor& x) { return fft::fft(x); }),
      spectrum("fft_of_a_line", waves({36}), 0, [](const Tensor& x) { return fft::fft(x); }),
      spectrum("ifft_of_a_row_that_is_a_line", waves({1, 40}), 1,
               [](const Tensor& x) {
                 return fft::ifft2(x, {}, {0, 1}, "ortho");
               }),
      spectrum("rfft_of_a_line_of_a_prime_number_of_points", field({23}), 0,
               [](const Tensor& x) { return fft::rfft(x, {}, -1, "forward"); }),
      spectrum("rfft2_of_a_column_that_is_a_line", field({30, 1}), 0,
               [](const Tensor& x) { return fft::rfft2(x); }),
      real("irfft_of_a_line", waves({13}), 0, [](const Tensor& x) { return fft::irfft(x); }),
      real("irfft_of_a_line_to_an_odd_number", waves({13}), 0,
           [](const Tensor& x) { return fft::irfft(x, 25); }),
      real("irfft2_of_a_column_that_is_a_line", waves({12, 1}), 0,
           [](const Tensor& x) {
             return fft::irfft2(x, at::IntArrayRef{12, 1});
           }),
      spectrum("ifft_normalized_by_the_root", waves({2, 8}), 1,
               [](const Tensor& x) { return fft::ifft(x, {}, -1, "ortho"); }),
      spectrum("fft_of_more_points", waves({3, 7}), 1,
               [](const Tensor& x) { return fft::fft(x, 10, 1); }),
      spectrum("fft2_cut_in_rows", waves({2, 9, 8}), 1,
               [](const Tensor& x) { return fft::fft2(x); }),
      spectrum("fft2_cut_in_columns", waves({2, 9, 8}), 2,
               [](const Tensor& x) { return fft::fft2(x); }),
      spectrum("fft2_cut_in_the_batch", waves({5, 4, 6}), 0,
               [](const Tensor& x) { return fft::fft2(x); }),
      spectrum("fftn_of_all_dims", waves({5, 4, 7}), 1,
               [](const Tensor& x) { return fft::fftn(x); }),
      spectrum("ifftn_normalized_forward", waves({2, 5, 4, 7}), 2,
               [](const Tensor& x) {
                 return fft::ifftn(x, {}, {1, 2, 3}, "forward");
               }),
      spectrum("fft_of_a_channels_last_image",
               waves({2, 3, 8, 5}).contiguous(at::MemoryFormat::ChannelsLast), 2,
               [](const Tensor& x) { return fft::fft2(x); }),
      spectrum("fft_of_a_transposed_field", waves({4, 3, 9}).transpose(0, 2), 0,
               [](const Tensor& x) {
                 return fft::fft2(x, {}, {0, 1});
               }),
      spectrum("rfft_along_the_sharded_dim", field({3, 11, 2}), 1,
               [](const Tensor& x) { return fft::rfft(x, {}, 1); }),
      spectrum("rfft_of_one_dim", field({12}), 0, [](const Tensor& x) { return fft::rfft(x); }),
      spectrum("rfft2_cut_in_rows", field({2, 11, 6}), 1,
               [](const Tensor& x) { return fft::rfft2(x); }),
      spectrum("rfft2_cut_in_columns", field({2, 6, 11}), 2,
               [](const Tensor& x) { return fft::rfft2(x); }),
      spectrum("rfftn_cut_in_the_last_of_all_dims", field({5, 4, 9}), 2,
               [](const Tensor& x) { return fft::rfftn(x); }),
      spectrum("rfftn_cut_in_the_middle", field({5, 7, 4}), 1,
               [](const Tensor& x) { return fft::rfftn(x); }),
      spectrum("fft_of_a_real_field", field({2, 7, 4}), 1,
               [](const Tensor& x) { return fft::fft2(x); }),
      spectrum("fft_of_a_pending_sum", field({3, 6, 4}), 0,
               [](const Tensor& x) { return fft::fft2(x.sum(0)); }),
      real("irfft_along_the_sharded_dim", waves({3, 7, 2}), 1,
           [](const Tensor& x) { return fft::irfft(x, 13, 1); }),
      real("irfft2_cut_in_rows", waves({2, 9, 5}), 1,
           [](const Tensor& x) {
             return fft::irfft2(x, at::IntArrayRef{9, 8});
           }),
      real("irfft2_cut_in_columns", waves({2, 9, 5}), 2,
           [](const Tensor& x) {
             return fft::irfft2(x, at::IntArrayRef{9, 9});
           }),
      real("irfft2_of_all_dims_cut_in_rows", waves({9, 5}), 0,
           [](const Tensor& x) { return fft::irfft2(x); }),
      real("irfftn_cut_in_the_first_dim", waves({5, 3, 4}), 0,
           [](const Tensor& x) { return fft::irfftn(x); }),
      real("irfftn_cut_in_the_middle", waves({5, 7, 4}), 1,
           [](const Tensor& x) { return fft::irfftn(x); }),
      real("hfft_along_the_sharded_dim", waves({2, 7}), 1,
           [](const Tensor& x) { return fft::hfft(x, {}, 1); }),
      spectrum("ihfft_along_the_sharded_dim", field({2, 7}), 1,
               [](const Tensor& x) { return fft::ihfft(x, {}, 1); }),
      spectrum("fftshift", waves({2, 7, 4}), 1,
               [](const Tensor& x) {
                 return fft::fftshift(fft::fft2(x), {{1, 2}});
               }),
      real("power_spectrum", field({2, 11, 6}), 1,
           [](const Tensor& x) { return fft::rfft2(x).abs().square(); }),
      real("there_and_back", field({2, 11, 6}), 1,
           [](const Tensor& x) {
             return fft::irfft2(fft::rfft2(x) * 2, at::IntArrayRef{11, 6});
           }),
      {"spectral_convolution_of_a_neural_operator",
       {sharded(field({2, 3, 11, 8}), 2), weight(field({3, 3, 3, 3, 2}))},
       [](const Tensors& t) { return spectral_convolution(t[0], t[1], 3); },
       Check{.traffic = 6}},
      {"mixer_of_an_adaptive_neural_operator",
       {sharded(field({2, 9, 8, 4}), 1), weight(field({4, 4}))},
       [](const Tensors& t) { return spectral_mixer(t[0], t[1]); },
       Check{.traffic = 6}},
  };
}

SHARD_SAMPLES(Spectra, cases());

/// Some dims of a small field, cut along any.
Sample random_sample(Random& r) {
  const auto sizes = r.sizes(r.integer(1, 4), 1, 8);
  const auto last = static_cast<int64_t>(sizes.size()) - 1;
  std::vector<int64_t> dims;
  for (int64_t d = 0; d <= last; ++d) {
    if (r.coin()) dims.push_back(d);
  }
  if (dims.empty()) dims.push_back(r.integer(0, last));
  const std::string norm = r.coin() ? "ortho" : "backward";
  const int64_t cut = r.integer(0, last);
  const Tensor complex = torch::complex(r.tensor(sizes), r.tensor(sizes));
  switch (r.integer(0, 3)) {
    case 0:
      return spectrum("rfftn", r.tensor(sizes), cut,
                      [=](const Tensor& x) { return fft::rfftn(x, {}, dims, norm); });
    case 1:
      return real("irfftn", complex, cut, [=](const Tensor& x) {
        std::vector<int64_t> points;
        for (const int64_t dim : dims) points.push_back(x.size(dim) + 1);
        return fft::irfftn(x, points, dims, norm);
      });
    case 2:
      return spectrum("ifftn", complex, cut,
                      [=](const Tensor& x) { return fft::ifftn(x, {}, dims, norm); });
    default:
      return spectrum("fftn", complex, cut,
                      [=](const Tensor& x) { return fft::fftn(x, {}, dims, norm); });
  }
}

SHARD_RANDOM_SAMPLES(RandomSpectra, random_sample);

TEST(SpectraCommunication, ThereAndBackTakesTwoTranspositionsAndLiesAsBefore) {
  for (const auto& [cut, sizes] : std::vector<std::pair<int64_t, std::vector<int64_t>>>{
           {1, {2, 12, 8}}, {2, {2, 12, 8}}, {2, {2, 3, 12, 8}}, {3, {1, 6, 9, 12}}}) {
    run_ranks(3, [&, dim = cut, shape = sizes](World& world) {
      const auto x = scatter_tensor(waves(shape), 0, world.mesh(), {Shard(dim)});
      const CommCounter counter;
      const Tensor y = fft::ifftn(fft::fftn(x, {}, {1, 2}), {}, {1, 2});
      EXPECT_LE(counter.calls(), 2) << counter.table();
      EXPECT_EQ(ShardTensor(y).placements(), ShardTensor(x).placements());
      EXPECT_TRUE(same(spec_of(y), spec_of(x)));
    });
  }
}

TEST(SpectraCommunication, TheSpectrumOfRealRowsIsCutInColumns) {
  run_ranks(2, [](World& world) {
    const auto x = scatter_tensor(field({1, 8, 10}), 0, world.mesh(), {Shard(1)});
    const CommCounter counter;
    const Tensor y = fft::rfft2(x);
    EXPECT_EQ(spec_of(y)->placement(), Shard(2));
    EXPECT_EQ(counter.calls(), 1) << counter.table();
    const Tensor back = fft::irfft2(y, at::IntArrayRef{8, 10});
    EXPECT_EQ(counter.calls(), 2) << counter.table();
    EXPECT_TRUE(same(spec_of(back), spec_of(x)));
  });
}

}  // namespace
}  // namespace shard::testing
