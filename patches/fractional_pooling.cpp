// SPDX-License-Identifier: Apache-2.0
// Fractional max pooling over a tensor sharded in space, channels or batch. Random numbers, one a
// plane and dim, place the windows; by less than a row, so that which rows a rank needs follows
// from sizes. LibTorch's op pools the other dims; the rows of each plane's windows are selected
// here.
#include <ATen/native/FractionalMaxPooling.h>
#include <ATen/ops/div.h>
#include <ATen/ops/fractional_max_pool2d.h>
#include <ATen/ops/fractional_max_pool3d.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <shard/window_patch.h>

#include <algorithm>

namespace shard {
namespace {

using at::IntArrayRef;
using at::Tensor;

/// Windows along the sharded dim.
struct FractionalWindows {
  int64_t n, out, kernel;

  /// Where the windows of outputs can lie, whatever the random number.
  Rows rows_of(const Rows& outputs) const {
    if (outputs.size() == 0) return {0, 0};
    const int64_t last = n - kernel;
    Rows rows{n, 0};
    for (int64_t o = outputs.begin; o < outputs.end; ++o) {
      const int64_t place = o + 1 < out ? o * last / (out - 1) : last;
      const int64_t slack = o + 1 < out ? 1 : 0;  // of rounding; and a row of the random number
      rows.begin = std::min(rows.begin, std::max<int64_t>(place - slack, 0));
      rows.end = std::max(rows.end, std::min(place + 2 * slack, last) + kernel);
    }
    return rows;
  }
  /// The first rows of the windows of `outputs`, per plane: (planes..., outputs), on the CPU.
  Tensor starts(const Tensor& samples, const Rows& outputs) const {
    std::vector<int64_t> values;
    const Tensor flat = samples.flatten().cpu();
    for (int64_t plane = 0; plane < flat.numel(); ++plane) {
      const auto all = samples.scalar_type() == at::kDouble ? starts_of(flat[plane].item<double>())
                                                            : starts_of(flat[plane].item<float>());
      values.insert(values.end(), all.begin() + outputs.begin, all.begin() + outputs.end);
    }
    auto shape = samples.sizes().vec();
    shape.push_back(outputs.size());
    return at::tensor(values, samples.options().dtype(at::kLong).device(at::kCPU)).view(shape);
  }

 private:
  template <class Real>
  std::vector<int64_t> starts_of(Real sample) const {
    return at::native::generate_intervals<Real>(sample, n, out, kernel);
  }
};

template <class Op>
struct FractionalPooling {
  ShardedInput input;
  std::vector<int64_t> kernel, size;
  Tensor samples;  ///< (batch, channels, spatial), whole

  /// Two dims: the last one's numbers come first.
  int64_t sample_of(int64_t spatial) const { return kernel.size() == 2 ? 1 - spatial : spatial; }
  std::tuple<Tensor, Tensor> call(const Tensor& x, IntArrayRef kernels, IntArrayRef sizes,
                                  const Tensor& numbers) const {
    return Op::call(x, kernels, sizes, numbers);
  }

  std::tuple<Tensor, Tensor> on_own_rows() const {
    const auto rows = own_rows(input);
    Tensor numbers = samples;
    const int64_t shift = input.tensor.dim() == static_cast<int64_t>(kernel.size()) + 1 ? 1 : 0;
    if (input.dim >= 0 && input.spatial < 0 && input.mesh.size() > 1) {
      const int64_t begin = rows.is_dummy ? 0 : rows.first;
      numbers = numbers.narrow(input.dim + shift, begin, rows.rows.size(input.dim));
    }
    const auto [y, indices] = call(rows.rows, kernel, size, numbers);
    if (input.spatial >= 0) {  // one rank
      const Partition all{y.size(input.dim)};
      return {from_window(y, input, all), from_window(indices, input, all)};
    }
    return {from_rows(y, input, rows), from_rows(indices, input, rows)};
  }

  std::tuple<Tensor, Tensor> across_ranks() const {
    const auto entry = static_cast<size_t>(input.spatial);
    const FractionalWindows windows{input.tensor.size(input.dim), size[entry], kernel[entry]};
    const int64_t least = windows.out + windows.kernel - (kernel.size() == 3 ? 0 : 1);
    check<SpecMismatch>(windows.kernel > 0 && windows.out > 0 && least <= windows.n, Op::name,
                        "got ", windows.n, " rows along dim ", input.dim, " to pool to ",
                        windows.out, " by windows of ", windows.kernel, "; expected at least ",
                        least, " rows. Use a smaller window or output.");
    const auto& owned = input.spec->partition();
    const auto output = partition_outputs(owned, windows.out, [&](int64_t row) {
      return (row * windows.out + windows.n - 1) / windows.n;
    });
    std::vector<Rows> outputs;
    std::vector<std::vector<Rows>> wanted;
    for (const int64_t rows : output) {
      const int64_t begin = outputs.empty() ? 0 : outputs.back().end;
      outputs.push_back({begin, begin + rows});
      wanted.push_back({windows.rows_of(outputs.back())});
    }
    const auto plan = make_halo_plan(input.dim, owned, wanted);
    const int64_t rank = input.mesh.rank();
    const auto halo = exchange_halo(to_local(input.tensor), plan, input.mesh);
    const auto mine = static_cast<size_t>(rank);
    const Tensor rows = assemble(halo, plan, rank, 0, outputs[mine].size() == 0 ? 1 : 0);
    const auto pooled = pool_rows(rows, windows, outputs[mine], wanted[mine][0].begin);
    return {from_window(pooled.values, input, output), from_window(pooled.indices, input, output)};
  }

 private:
  /// LibTorch's op on three dims wants more rows than windows of one row: every second one.
  Tensor spaced_rows(const Tensor& rows) const {
    const int64_t n = rows.size(input.dim);
    std::vector<int64_t> sources;
    for (int64_t row = 0; row < std::max<int64_t>(2 * n - 1, 2); ++row) sources.push_back(row / 2);
    return rows.index_select(input.dim, at::tensor(sources, rows.options().dtype(at::kLong)));
  }
  Maxima pool_rows(const Tensor& rows, const FractionalWindows& windows, const Rows& out,
                   int64_t first) const {
    const int64_t sample = sample_of(input.spatial);
    Tensor numbers = samples.clone();  // windows of one row, one after another: no random number
    numbers.select(-1, sample).zero_();
    const int64_t n = rows.size(input.dim);
    const Tensor spaced = kernel.size() == 3 ? spaced_rows(rows) : rows;
    const auto [values, local] = call(spaced, with_entry(kernel, input.spatial, 1),
                                      with_entry(size, input.spatial, n), numbers);
    const Tensor indices = global_indices(
        local, input.tensor, input.dim, spaced.size(input.dim), [&](const Tensor& row) {
          return (kernel.size() == 3 ? at::div(row, 2, "floor") : row) + first;
        });
    Tensor starts = windows.starts(samples.select(-1, sample), out).to(samples.device()) - first;
    if (input.tensor.dim() == static_cast<int64_t>(kernel.size()) + 1) starts = starts.squeeze(0);
    for (int64_t dim = starts.dim() - 1; dim < input.dim; ++dim) starts = starts.unsqueeze(-2);
    while (starts.dim() < values.dim()) starts = starts.unsqueeze(-1);
    Shape shape(values.sizes().begin(), values.sizes().end());
    shape[static_cast<size_t>(input.dim)] = out.size();
    Maxima result;
    for (int64_t row = 0; row < windows.kernel; ++row) {
      const Tensor source = (starts + row).expand(shape);
      const Maxima next{values.gather(input.dim, source), indices.gather(input.dim, source)};
      result = result.values.defined() ? larger(result, next) : next;
    }
    return result;
  }
};

template <class Op, int64_t dims>
std::tuple<Tensor, Tensor> fractional_max_pool(const Tensor& x, IntArrayRef kernel,
                                               IntArrayRef size, const Tensor& samples) {
  const auto& mesh = mesh_of(is_shard_tensor(x) ? x : samples);
  const Tensor numbers = is_shard_tensor(samples) ? ShardTensor(samples).full() : samples;
  const FractionalPooling<Op> pooling{
      window_input(Op::name, promote(x, mesh), dims, /*channels_are_local=*/true),
      expanded(Op::name, kernel, dims, 1), expanded(Op::name, size, dims, 1), numbers.detach()};
  return pooling.input.is_cut() ? pooling.across_ranks() : pooling.on_own_rows();
}

}  // namespace

SHARD_PATCH(fractional_pooling) {
  const auto add = [](PatchRegistrar::Listing listing) {
    listing.shards("batch", "channels", "spatial");
  };
  namespace ops = at::_ops;
  add(patch.function<ops::fractional_max_pool2d>(
      fractional_max_pool<ops::fractional_max_pool2d, 2>));
  add(patch.function<ops::fractional_max_pool3d>(
      fractional_max_pool<ops::fractional_max_pool3d, 3>));
}

}  // namespace shard
