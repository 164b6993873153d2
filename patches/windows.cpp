// SPDX-License-Identifier: Apache-2.0
// Tensor.unfold: windows of rows along one dim, the place in the window as a new last dim. Along
// the cut dim the windows are cut (NOTE [Where output rows live]): their owner gets the rows of
// others that they cover, and the gradient sends back what it has for these. Where that would be
// most rows, the cut moves to another dim first.
#include <ATen/ops/unfold_backward.h>
#include <shard/exchange.h>
#include <shard/outermost.h>
#include <shard/patch.h>

#include <algorithm>

namespace shard {
namespace {

using at::Tensor;
using c10::IValue;

/// Windows along `dim` of a tensor of global `sizes`.
struct Windows {
  std::vector<int64_t> sizes;
  int64_t dim, size, step;

  int64_t rows() const { return sizes[static_cast<size_t>(dim)]; }
  /// LibTorch's kernels would find it in the parts of some ranks only.
  void check_fit(const OpCall& call) const {
    check<SpecMismatch>(size >= 0 && size <= rows() && step > 0, call.name(), "got windows of ",
                        size, " rows every ", step, " along dim ", dim, " of ",
                        c10::IntArrayRef(sizes), "; expected 0 <= size <= ", rows(),
                        " and a step above 0.");
  }
};

/// The windows over a cut dim.
struct CutWindows {
  Windows windows;
  Layout rows, result;
  std::vector<WindowPart> parts;  ///< of every rank
  HaloPlan plan;

  CutWindows(const Windows& windows, const Layout& rows)
      : windows(windows), rows(rows), result(rows) {
    const Window window{.kernel = windows.size, .stride = windows.step};
    parts = window_parts(window, rows.partition);
    plan = plan_halo(windows.dim, rows.partition, parts);
    result.partition = window.output_partition(rows.partition);
  }
  int64_t count(int64_t rank) const { return result.partition[static_cast<size_t>(rank)]; }
  const Rows& wanted(int64_t rank) const { return parts[static_cast<size_t>(rank)].in; }
  Rows owned(int64_t rank) const {
    const int64_t begin = offset_of(rows.partition, rank);
    return {begin, begin + rows.partition[static_cast<size_t>(rank)]};
  }
  /// What `rank` wants of `owner`'s rows, which may be none.
  Rows shared(int64_t rank, int64_t owner) const {
    const Rows own = owned(owner);
    const int64_t begin = std::clamp(wanted(rank).begin, own.begin, own.end);
    return {begin, std::clamp(wanted(rank).end, begin, own.end)};
  }
  int64_t largest_halo() const {
    int64_t largest = 0;
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      largest = std::max(largest, plan.halo_rows(static_cast<int64_t>(rank)));
    }
    return largest;
  }
};

/// What a copy of windows may hold for every row: a move of the cut needs no copy.
constexpr int64_t kMostCopies = 4;

/// Whether every rank would get less than its share of the rows and copy them a few times, or no
/// other dim can be cut for all ranks. The latter is asked of the whole tensor: NOTE [Calls of
/// inner levels].
bool stays_cut(const OpCall& call, const CutWindows& cut, const Layout& elsewhere) {
  const auto ranks = static_cast<int64_t>(cut.rows.partition.size());
  const bool is_cheap = cut.largest_halo() * ranks < cut.windows.rows() &&
                        cut.windows.size <= kMostCopies * cut.windows.step;
  if (is_cheap || !cut.plan.communicates() || !elsewhere.is_shard()) return true;
  const auto whole = outermost_call(call).tensor(0).sizes();
  return whole[static_cast<size_t>(elsewhere.dim())] < ranks;
}

// ---- the windows

/// LibTorch's kernel refuses to make none.
Tensor local_windows(const Tensor& rows, const Windows& windows, bool is_idle) {
  if (!is_idle) return rows.unfold(windows.dim, windows.size, windows.step);
  auto sizes = rows.sizes().vec();
  sizes[static_cast<size_t>(windows.dim)] = 0;
  sizes.push_back(windows.size);
  return rows.narrow(windows.dim, 0, 0).unsqueeze(-1).expand(sizes);
}

Decision over_cut_rows(const OpCall& call, const CutWindows& cut) {
  Decision decision;
  decision.inputs.push_back(cut.rows);
  decision.outputs.push_back(cut.result);
  decision.is_copy = cut.plan.communicates();
  decision.local = [cut, mesh = call.mesh()](c10::ArrayRef<IValue> arguments) {
    const Tensor own = arguments[0].toTensor();
    const Tensor rows = assemble(exchange_halo(own, cut.plan, mesh), cut.plan, mesh.rank());
    const Tensor windows = local_windows(rows, cut.windows, cut.count(mesh.rank()) == 0);
    // Strides of overlapping windows tell no order of dims that would be the same on all ranks.
    return std::vector<IValue>{cut.plan.communicates() ? windows.contiguous() : windows};
  };
  return decision;
}

Decision alike(const Layout& layout) {
  Decision decision;
  decision.inputs.push_back(layout);
  decision.outputs.push_back(layout);
  return decision;
}

std::optional<Decision> unfold(const OpCall& call) {
  const auto& input = call.tensor(0);
  if (input.ndim() == 0 || !input.is_shard()) return alike(input.layout());
  const int64_t dim = call.dim(1, input.ndim());
  if (input.shard_dim() != dim) return alike(input.layout());
  const Windows windows{input.sizes().vec(), dim, call.integer(2), call.integer(3)};
  windows.check_fit(call);
  const CutWindows cut(windows, input.layout());
  const Layout elsewhere = cut_elsewhere(call, input.sizes(), {dim});
  return stays_cut(call, cut, elsewhere) ? over_cut_rows(call, cut) : alike(elsewhere);
}

/// The op that copies what the view would show.
std::optional<Decision> unfold_copy(const OpCall& call) {
  auto decision = unfold(call);
  if (!decision->local) return decision;
  decision->is_copy = false;
  decision->local = [view = decision->local](c10::ArrayRef<IValue> arguments) {
    return std::vector<IValue>{view(arguments)[0].toTensor().clone(at::MemoryFormat::Contiguous)};
  };
  return decision;
}

// ---- their gradient

/// What every rank has for the rows it wants, brought to their owners and added up: first what the
/// owner has, then the others' in rank order.
Tensor return_rows(const Tensor& wanted, const CutWindows& cut, const DeviceMesh& mesh) {
  const int64_t rank = mesh.rank();
  const Tensor own = fill_rows(wanted, cut.windows.dim, cut.owned(rank).size());
  const auto part = [&](const Tensor& all, const Rows& of, const Rows& rows) {
    return all.narrow(cut.windows.dim, rows.begin - of.begin, rows.size());
  };
  std::vector<Message> sends;
  std::vector<Message> receives;
  std::vector<Tensor> targets;
  for (int64_t peer = 0; peer < mesh.size(); ++peer) {
    const Rows sent = cut.shared(rank, peer);
    const Rows received = cut.shared(peer, rank);
    if (sent.size() > 0) {
      const Tensor rows = part(wanted, cut.wanted(rank), sent);
      if (peer == rank) {
        part(own, cut.owned(rank), sent).add_(rows);
      } else {
        sends.push_back({static_cast<int>(peer), rows});
      }
    }
    if (peer != rank && received.size() > 0) {
      targets.push_back(part(own, cut.owned(rank), received));
      receives.push_back(
          {static_cast<int>(peer), fill_rows(wanted, cut.windows.dim, received.size())});
    }
  }
  if (cut.plan.communicates()) mesh.comm().exchange(sends, receives);
  for (size_t i = 0; i < targets.size(); ++i) targets[i].add_(receives[i].tensor);
  return own;
}

/// What this rank's windows have for the rows that they cover. A rank without windows has a dummy
/// one, as LibTorch's kernel refuses none.
Tensor covered_rows(const Tensor& gradient, const CutWindows& cut, int64_t rank) {
  const auto& [sizes, dim, size, step] = cut.windows;
  const bool is_idle = cut.count(rank) == 0;
  const Tensor windows = is_idle ? fill_rows(gradient, dim, 1) : gradient;
  auto covered = windows.sizes().vec();
  covered.pop_back();
  covered[static_cast<size_t>(dim)] = is_idle ? size : cut.wanted(rank).size();
  const Tensor rows = at::unfold_backward(windows, covered, dim, size, step);
  return is_idle ? rows.narrow(dim, 0, 0) : rows;
}

Decision into_cut_rows(const OpCall& call, const CutWindows& cut) {
  Decision decision;
  decision.inputs.push_back(cut.result);
  decision.outputs.push_back(cut.rows);
  decision.local = [cut, mesh = call.mesh()](c10::ArrayRef<IValue> arguments) {
    const Tensor rows = covered_rows(arguments[0].toTensor(), cut, mesh.rank());
    return std::vector<IValue>{return_rows(rows, cut, mesh)};
  };
  return decision;
}

/// How the tensor lies of which a gradient for the windows arrives. Unless that gradient is cut
/// along a dim of its own, the tensor may have been cut along the windows.
Layout layout_of_unfolded(const OpCall& call, const std::vector<int64_t>& sizes, int64_t dim) {
  const auto& gradient = call.tensor(0);
  const auto ndim = static_cast<int64_t>(sizes.size());
  const bool is_along_windows = gradient.shard_dim() == dim || gradient.shard_dim() == ndim;
  if (gradient.is_shard() && !is_along_windows) return gradient.layout();
  const auto remembered = remembered_layout(call.mesh(), sizes);
  if (remembered && remembered->is_shard() && remembered->dim() == dim) return *remembered;
  if (gradient.shard_dim() == ndim) return cut_elsewhere(call, sizes, {dim});
  if (!gradient.is_shard()) return {};
  return {Shard(dim), even_partition(sizes[static_cast<size_t>(dim)], call.mesh().size())};
}

/// unfold_backward(gradient, input_sizes, dim, size, step)
std::optional<Decision> unfold_backward(const OpCall& call) {
  const auto sizes = call.integers(1);
  const auto ndim = static_cast<int64_t>(sizes.size());
  const int64_t dim = call.dim(2, std::max<int64_t>(ndim, 1));
  Layout layout = layout_of_unfolded(call, sizes, dim);
  if (ndim > 0 && layout.is_shard() && layout.dim() == dim) {
    const Windows windows{sizes, dim, call.integer(3), call.integer(4)};
    windows.check_fit(call);
    const CutWindows cut(windows, layout);
    layout = cut_elsewhere(call, sizes, {dim});
    if (stays_cut(call, cut, layout)) return into_cut_rows(call, cut);
  }
  auto decision = alike(layout);
  decision.arguments.emplace_back(1, local_sizes(sizes, layout, call.mesh().rank()));
  return decision;
}

}  // namespace

SHARD_PATCH(windows) {
  const char* const note =
      "along the cut dim windows are cut and rows travel between neighbours (a copy); where that "
      "would be most rows, one all-to-all to another dim";
  patch.remembering_rule("aten::unfold", unfold).shards("any dim").notes(note);
  patch.remembering_rule("aten::unfold_copy", unfold_copy).shards("any dim").notes(note);
  patch.sized_rule("aten::unfold_backward", unfold_backward).shards("any dim");
}

}  // namespace shard
