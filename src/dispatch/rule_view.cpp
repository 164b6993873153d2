// SPDX-License-Identifier: Apache-2.0
// NOTE [Views across a sharded dim]
// Input and output dims fall into the smallest groups of equal product. Where the sharded dim is
// the outermost one of its group that is larger than 1, a shard is a contiguous range of the group,
// and if the pieces are whole rows of the group's outermost output dim, the view is local.
// Otherwise the input moves: to the outermost dim of the group, or to boundaries on whole rows.
// Groups are those of the whole tensor: NOTE [Calls of inner levels].
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/ops/_reshape_alias.h>
#include <c10/util/strides.h>
#include <shard/outermost.h>
#include <shard/primitives.h>
#include <shard/rule.h>

#include <algorithm>
#include <numeric>

namespace shard {
namespace {

struct Group {
  size_t in_end = 0, in_begin = 0, out_begin = 0, out_end = 0;
};

/// Grows the smaller side until both products agree; false when they do not, or are zero.
bool close_group(Group& group, c10::IntArrayRef in, c10::IntArrayRef out) {
  int64_t in_product = in[group.in_end++];
  int64_t out_product = group.out_end < out.size() ? out[group.out_end++] : 1;
  while (in_product != out_product) {
    if (in_product == 0 || out_product == 0) return false;
    if (in_product < out_product && group.in_end < in.size()) {
      in_product *= in[group.in_end++];
    } else if (group.out_end < out.size()) {
      out_product *= out[group.out_end++];
    } else {
      return false;
    }
  }
  return in_product != 0;
}

/// The group of `dim`, from the first dims on; none when a size of zero comes before.
std::optional<Group> group_from_the_front(size_t dim, c10::IntArrayRef in, c10::IntArrayRef out) {
  Group group;
  do {
    group.in_begin = group.in_end;
    group.out_begin = group.out_end;
    if (!close_group(group, in, out)) return std::nullopt;
  } while (dim >= group.in_end);
  // Ones that follow belong to the group as well: (6) -> (6, 1).
  while (group.out_end < out.size() && out[group.out_end] == 1 &&
         (group.in_end >= in.size() || in[group.in_end] != 1)) {
    ++group.out_end;
  }
  return group;
}

std::vector<int64_t> reversed(c10::IntArrayRef sizes) { return {sizes.rbegin(), sizes.rend()}; }

/// The group of `dim`; none where sizes of zero leave it open how the dims match. An inner level
/// has such sizes at the places without rows, and must decide there as at the others: what stands
/// behind the zero is matched from the last dims on.
std::optional<Group> group_of(size_t dim, c10::IntArrayRef in, c10::IntArrayRef out) {
  if (const auto group = group_from_the_front(dim, in, out)) return group;
  const auto found = group_from_the_front(in.size() - 1 - dim, reversed(in), reversed(out));
  if (!found) return std::nullopt;
  return Group{.in_end = in.size() - found->in_begin,
               .in_begin = in.size() - found->in_end,
               .out_begin = out.size() - found->out_end,
               .out_end = out.size() - found->out_begin};
}

int64_t product(c10::IntArrayRef sizes, size_t begin, size_t end) {
  int64_t result = 1;
  for (size_t i = begin; i < end; ++i) result *= sizes[i];
  return result;
}

/// The nearest multiple of `step`, at most `n` (itself a multiple).
int64_t rounded(int64_t row, int64_t step, int64_t n) {
  return std::min((row + step / 2) / step * step, n);
}

/// The pieces with boundaries on multiples of `step` rows, moved as little as possible.
Partition rounded(const Partition& partition, int64_t step) {
  const auto ranks = static_cast<int64_t>(partition.size());
  const int64_t n = offset_of(partition, ranks);
  Partition result = partition;
  for (int64_t i = 0; i < ranks; ++i) {
    result[static_cast<size_t>(i)] =
        rounded(offset_of(partition, i + 1), step, n) - rounded(offset_of(partition, i), step, n);
  }
  return result;
}

size_t first_larger_than_one(c10::IntArrayRef sizes, size_t begin, size_t end) {
  while (begin + 1 < end && sizes[begin] == 1) ++begin;
  return begin;
}

/// The plan of a level for the view from `in` to `out` of the tensor above all levels.
ViewPlan plan_level(const ShardTensorSpec& spec, c10::IntArrayRef in, c10::IntArrayRef out) {
  if (spec.ranks() == 1) return {Layout(spec), {}};  // the whole tensor, whatever its placement
  const auto dim = static_cast<size_t>(spec.shard_dim());
  const auto found = group_of(dim, in, out);
  if (!found) return {};
  const Group group = *found;
  const int64_t elements = product(in, group.in_begin, group.in_end);
  if (elements == 0 || group.out_begin == group.out_end) return {};
  const auto in_group = [&](c10::IntArrayRef shape) {
    return shape.slice(group.in_begin, group.in_end - group.in_begin);
  };
  // A level above cuts the group as well, and takes its outermost dim.
  if (in_group(spec.global_shape()) != in_group(in)) return {};
  // A cut dim of size 1 counts as outermost: all its group lies on one rank.
  const bool is_outermost = product(in, group.in_begin, dim) == 1;
  const size_t in_dim =
      is_outermost ? dim : first_larger_than_one(in, group.in_begin, group.in_end);
  const size_t out_dim = in[in_dim] == 1
                             ? group.out_begin
                             : first_larger_than_one(out, group.out_begin, group.out_end);
  const int64_t in_row = product(in, in_dim + 1, group.in_end);
  const int64_t out_row = product(out, out_dim + 1, group.out_end);
  ViewPlan plan;
  plan.input = Layout(Shard(static_cast<int64_t>(in_dim)),
                      is_outermost ? spec.partition() : even_partition(in[in_dim], spec.ranks()));
  plan.input.partition = rounded(plan.input.partition, std::lcm(in_row, out_row) / in_row);
  plan.output = Layout(Shard(static_cast<int64_t>(out_dim)), plan.input.partition);
  for (auto& size : plan.output.partition) size = size * in_row / out_row;
  return plan;
}

/// `reshape` of a local; a level inside stays the same op.
at::Tensor reshaped(const at::Tensor& local, const std::vector<int64_t>& sizes) {
  if (!is_shard_tensor(local)) return local.reshape(sizes);
  const auto strides = at::detail::computeStride(local.sizes(), local.strides(), sizes);
  if (strides) return at::_reshape_alias(local, sizes, *strides);
  return at::_reshape_alias(local, sizes, c10::contiguous_strides(sizes));
}

}  // namespace

ViewPlan plan_view(const ShardTensorSpec& spec, c10::IntArrayRef sizes) {
  return plan_level(spec, spec.global_shape(), sizes);
}

Rule reshape_alias() {  // (self, sizes, strides): the strides are those of the wrapper
  return [view = view_as_sizes()](const OpCall& call) {
    auto decision = view(call);
    decision->local = [](c10::ArrayRef<c10::IValue> arguments) {
      return std::vector<c10::IValue>{
          reshaped(arguments[0].toTensor(), arguments[1].toIntVector())};
    };
    return decision;
  };
}

Rule view_as_sizes() {
  return [](const OpCall& call) -> std::optional<Decision> {
    const auto& input = call.tensor(0);
    const auto sizes = at::infer_size(call.integers(1), input.tensor.numel());
    ViewPlan plan{input.layout(), input.layout()};
    if (input.is_shard()) {
      const OpCall& whole = outermost_call(call);
      const auto& tensor = whole.tensor(0).tensor;
      plan = plan_level(*input.spec, tensor.sizes(),
                        at::infer_size(whole.integers(1), tensor.numel()));
    }
    Decision decision;
    decision.inputs.push_back(plan.input);
    decision.outputs.push_back(plan.output);
    decision.arguments.emplace_back(1, local_sizes(sizes, plan.output, call.mesh().rank()));
    return decision;
  };
}

}  // namespace shard
