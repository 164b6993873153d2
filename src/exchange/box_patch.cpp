// SPDX-License-Identifier: Apache-2.0
#include <shard/box_patch.h>

#include <algorithm>
#include <numeric>

namespace shard {
namespace {

using at::Tensor;

std::vector<int64_t> dims_from(int64_t first, int64_t end) {
  std::vector<int64_t> dims(static_cast<size_t>(end - first));
  std::iota(dims.begin(), dims.end(), first);
  return dims;
}

std::vector<int64_t> cut_dims(const std::vector<Cut>& cuts) {
  std::vector<int64_t> dims;
  for (const Cut& cut : cuts) dims.push_back(cut.dim);
  return dims;
}

Tensor with_index(const Tensor& x, int64_t dim) { return join({x, fill_rows(x, dim, 1)}, dim); }

Tensor without_indices(Tensor y, const std::vector<int64_t>& dims) {
  for (const int64_t dim : dims) y = y.narrow(dim, 0, 0);
  return y;
}

}  // namespace

Partition CutParts::output() const {
  Partition result;
  for (const WindowPart& part : parts) result.push_back(part.out.size());
  return result;
}

CutParts window_cut(const Window& window, const Cut& cut) {
  return {window_parts(window, cut.owned), window.reach()};
}

bool LocalBox::is_dummy() const {
  return !made_up.empty() || std::any_of(parts.begin(), parts.end(), [](const WindowPart& part) {
    return part.out.size() == 0;
  });
}

BoxInput::BoxInput(const Tensor& x, const std::vector<int64_t>& dims)
    : bottom_(x), dims_(dims), shape_(x.sizes()), cuts_(bottom_.cuts_along(dims)) {
  mesh_ = bottom_.mesh_across(cut_dims(cuts_));
}

BoxInput::BoxInput(const ShardedInput& input)
    : BoxInput(input.tensor, dims_from(input.dim - input.spatial, input.tensor.dim())) {}

size_t BoxInput::entry(const Cut& cut) const {
  return static_cast<size_t>(std::find(dims_.begin(), dims_.end(), cut.dim) - dims_.begin());
}
int64_t BoxInput::size(const Cut& cut) const { return shape_[static_cast<size_t>(cut.dim)]; }
int64_t BoxInput::place(const Cut& cut) const {
  return cut.places[static_cast<size_t>(mesh_.rank())];
}
Rows BoxInput::own(const Cut& cut) const {
  const int64_t begin = offset_of(cut.owned, place(cut));
  return {begin, begin + cut.owned[static_cast<size_t>(place(cut))]};
}

std::vector<int64_t> BoxInput::with_entries(std::vector<int64_t> list, int64_t value) const {
  for (const Cut& cut : cuts_) list[entry(cut)] = value;
  return list;
}

std::vector<Tensor> BoxInput::weights(const std::vector<Tensor>& weights) const {
  return local_weights(bottom_.mesh_beside({}), weights);
}

BoxPlan BoxInput::plan(const std::vector<std::vector<std::vector<Rows>>>& wanted) const {
  BoxPlan plan;
  for (size_t i = 0; i < cuts_.size(); ++i) {
    plan.dims.push_back(make_halo_plan(cuts_[i].dim, cuts_[i].owned, wanted[i]));
    plan.places.push_back(cuts_[i].places);
  }
  return plan;
}

BoxPlan BoxInput::plan(const std::vector<CutParts>& cuts) const {
  std::vector<std::vector<std::vector<Rows>>> wanted;
  for (const CutParts& cut : cuts) {
    auto& of_places = wanted.emplace_back();
    for (const WindowPart& part : cut.parts) of_places.push_back({part.in});
  }
  return plan(wanted);
}

Tensor BoxInput::assemble(const BoxHalo& halo, const BoxPlan& plan, const Arrange& arrange) const {
  return assemble_box(halo, plan, mesh_.rank(), arrange);
}

Tensor BoxInput::arrange(const Tensor& shell, size_t dim, const BoxPlan& plan,
                         const Arrange& arrange) const {
  return arrange_shell(shell, dim, plan, mesh_.rank(), arrange);
}

LocalBox BoxInput::assemble(const BoxHalo& halo, const BoxPlan& plan,
                            const std::vector<CutParts>& cuts, const at::Scalar& fill) const {
  LocalBox box;
  for (size_t i = 0; i < cuts.size(); ++i) {
    auto part = cuts[i].parts[static_cast<size_t>(place(cuts_[i]))];
    if (part.out.size() == 0) part.after = cuts[i].dummy_rows;
    box.parts.push_back(part);
  }
  box.output = outputs(cuts);
  box.rows = assemble(halo, plan, padded_by(plan, box.parts, fill));
  box.made_up = empty_dims();
  for (const int64_t dim : box.made_up) box.rows = with_index(box.rows, dim);
  return box;
}

LocalBox BoxInput::fetch(const std::vector<CutParts>& cuts, const at::Scalar& fill) const {
  const BoxPlan needed = plan(cuts);
  return assemble(exchange(needed), needed, cuts, fill);
}

Tensor BoxInput::wrapped(const Tensor& y, const LocalBox& box) const {
  std::vector<int64_t> dropped = box.made_up;
  for (size_t i = 0; i < cuts_.size(); ++i) {
    if (box.parts[i].out.size() == 0) dropped.push_back(cuts_[i].dim);
  }
  return wrapped(without_indices(y, dropped), box.output);
}

Tensor BoxInput::wrapped(const Tensor& y, const std::vector<CutParts>& cuts) const {
  return wrapped(y, outputs(cuts));
}

Tensor BoxInput::wrapped(const Tensor& y, const std::map<int64_t, Partition>& output) const {
  return bottom_.wrapped(y, output);
}

std::map<int64_t, Partition> BoxInput::outputs(const std::vector<CutParts>& cuts) const {
  std::map<int64_t, Partition> result;
  for (size_t i = 0; i < cuts.size(); ++i) result[cuts_[i].dim] = cuts[i].output();
  return result;
}

std::vector<int64_t> BoxInput::empty_dims() const {
  const auto windowed = cut_dims(cuts_);
  std::vector<int64_t> dims;
  for (int64_t dim = 0; dim < local().dim(); ++dim) {
    const bool is_windowed = std::find(windowed.begin(), windowed.end(), dim) != windowed.end();
    if (!is_windowed && local().size(dim) == 0 && shape_[static_cast<size_t>(dim)] > 0) {
      dims.push_back(dim);
    }
  }
  return dims;
}

Arrange padded_by(const BoxPlan& plan, const std::vector<WindowPart>& parts,
                  const at::Scalar& fill) {
  return [&plan, &parts, fill](size_t i, std::vector<Tensor> pieces, const Tensor& like) {
    const int64_t dim = plan.dims[i].dim;
    // Rows of the exchange always take part, so that every rank's graph contains it. (Not
    // otherwise: an empty piece would cost a channels-last result its memory format.)
    if (pieces.empty()) pieces.push_back(like.narrow(dim, 0, 0));
    const WindowPart& part = parts[i];
    if (part.before) pieces.insert(pieces.begin(), fill_rows(like, dim, part.before, fill));
    if (part.after) pieces.push_back(fill_rows(like, dim, part.after, fill));
    return join(pieces, dim);
  };
}

Tensor with_made_up(const Tensor& x, const std::vector<int64_t>& dims,
                    const std::function<Tensor(const Tensor&)>& op) {
  Tensor rows = x;
  for (const int64_t dim : dims) rows = with_index(rows, dim);
  return without_indices(op(rows), dims);
}

}  // namespace shard
