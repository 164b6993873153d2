// SPDX-License-Identifier: Apache-2.0
#include "picture.h"

#include <shard/png.h>
#include <shard/tensor.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>

#include "colours.h"

namespace global_field {
namespace {

using torch::Tensor;

constexpr int64_t kMaxWidth = 1080;
constexpr int64_t kPanels = 3;
constexpr double kLowest = 1, kHighest = 6;  ///< turbidity at the ends of the colour map
constexpr double kErrorRange = 1;            ///< error at the ends of its colour map
constexpr int64_t kLegendColumns = 24;

/// Every stride-th point of a global grid, so that the picture has at most kMaxWidth columns.
struct Sampling {
  int64_t stride, rows, columns;  // rows, columns: of one panel
};

Sampling sampling_of(const Tensor& field) {
  const int64_t stride = (field.size(3) + kMaxWidth - 1) / kMaxWidth;
  return {stride, (field.size(2) + stride - 1) / stride, (field.size(3) + stride - 1) / stride};
}

/// Picture rows whose points lie in [begin, begin + count) of the grid.
int64_t first_picture_row(int64_t begin, int64_t stride) { return (begin + stride - 1) / stride; }

/// (panels, picture rows of this rank, columns, 3) uint8.
Tensor paint(const Tensor& truth, const Tensor& prediction, int64_t begin, int64_t stride) {
  const int64_t offset = first_picture_row(begin, stride) * stride - begin;
  const auto thin = [&](const Tensor& x) {
    using torch::indexing::Slice;
    return x[0][0].index({Slice(offset, torch::indexing::None, stride),
                          Slice(torch::indexing::None, torch::indexing::None, stride)});
  };
  const auto turbidity = [&](const Tensor& x) {
    return ((x * kUnit + kOffset) - kLowest) / (kHighest - kLowest);
  };
  const Tensor error = (prediction - truth) * (kUnit / (2 * kErrorRange)) + 0.5;
  return torch::stack({sequential_colours(thin(turbidity(truth))),
                       sequential_colours(thin(turbidity(prediction))),
                       diverging_colours(thin(error))});
}

/// The painted rows of all ranks, one below the other, on rank 0; undefined elsewhere.
Tensor gather_rows(const Tensor& mine, const shard::Partition& cut, const shard::Communicator& comm,
                   const Sampling& sampling) {
  if (comm.rank() != 0) {
    comm.exchange({{0, mine}}, {});
    return {};
  }
  std::vector<Tensor> bands;
  std::vector<shard::Message> receives;
  for (int rank = 0; rank < comm.size(); ++rank) {
    const int64_t begin = shard::offset_of(cut, rank);
    const int64_t end = begin + cut[static_cast<size_t>(rank)];
    const int64_t rows =
        first_picture_row(end, sampling.stride) - first_picture_row(begin, sampling.stride);
    bands.push_back(torch::empty({kPanels, rows, sampling.columns, 3}, torch::kByte));
    receives.push_back({rank, bands.back()});
  }
  comm.exchange({{0, mine}}, receives);
  return torch::cat(bands, 1);
}

/// Black dashed lines between the parts: along the first row, or column, of every one but the
/// first.
void draw_borders(Tensor& panels, int64_t dim, const shard::Partition& cut, int64_t stride) {
  const int64_t across = 3 - dim;
  for (size_t place = 1; place < cut.size(); ++place) {
    const int64_t begin = shard::offset_of(cut, static_cast<int64_t>(place));
    const int64_t line = first_picture_row(begin, stride);
    if (line <= 0 || line >= panels.size(dim)) continue;
    for (int64_t dash = 0; dash + 4 <= panels.size(across); dash += 8) {
      panels.narrow(dim, line, 1).narrow(across, dash, 4).fill_(0);
    }
  }
}

/// Panels one below the other with a white gap, and each one's colour map at its right.
Tensor compose(const Tensor& panels) {
  const int64_t rows = panels.size(1);
  const Tensor ramp = torch::linspace(1, 0, rows).unsqueeze(1).expand({rows, kLegendColumns});
  const auto gap = [](int64_t height, int64_t width) {
    return torch::full({height, width, 3}, 255, torch::kByte);
  };
  std::vector<Tensor> parts;
  for (int64_t panel = 0; panel < kPanels; ++panel) {
    const Tensor legend = panel == 2 ? diverging_colours(ramp) : sequential_colours(ramp);
    parts.push_back(torch::cat({panels[panel], gap(rows, 8), legend}, 1));
    if (panel + 1 < kPanels) parts.push_back(gap(8, parts.front().size(1)));
  }
  return torch::cat(parts, 0);
}

}  // namespace

void write_picture(const std::string& path, UNet& model, const ShardedField& field, int64_t month) {
  const torch::NoGradGuard no_grad;
  const Sample sample = field.sample(month);
  // Bands of whole rows, over all ranks.
  const auto bands = [](const Tensor& x) {
    return shard::ShardTensor(x).redistribute({shard::Shard(2), shard::Shard(2)});
  };
  const shard::ShardTensor truth = bands(sample.target);
  const shard::ShardTensor prediction = bands(model->forward(sample.input));
  const shard::Partition cut = truth.partition(2);
  const shard::Communicator& comm = field.domain().comm();
  const Sampling sampling = sampling_of(sample.target);
  const Tensor mine = paint(truth.local().to(torch::kCPU), prediction.local().to(torch::kCPU),
                            shard::offset_of(cut, comm.rank()), sampling.stride);
  Tensor panels = gather_rows(mine.contiguous(), cut, comm, sampling);
  if (!panels.defined()) return;
  draw_borders(panels, 1, field.rows(), sampling.stride);
  draw_borders(panels, 2, field.columns(), sampling.stride);
  shard::io::write_png(path, compose(panels).contiguous());
}

}  // namespace global_field
