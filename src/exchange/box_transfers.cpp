// SPDX-License-Identifier: Apache-2.0
#include "exchange/box_transfers.h"

#include <shard/primitives.h>

#include <functional>
#include <map>

namespace shard {
namespace {

/// What a shell holds along one dim: rows of one owner.
struct Piece {
  int64_t owner;  ///< place along the dim
  Extent owned;
  Extent wanted;
};

/// NOTE [Shells]: the owner's rows only, what others own, or all that is wanted.
enum class Part : uint8_t { Own, Halo, Wanted };
Part part_in_shell(size_t dim, size_t shell) {
  if (dim == shell) return Part::Halo;
  return dim < shell ? Part::Own : Part::Wanted;
}

std::vector<Piece> pieces_of(const HaloPlan& plan, int64_t place, Part part) {
  const int64_t size = plan.owned[static_cast<size_t>(place)];
  if (part == Part::Own) return {{place, {0, size}, {0, size}}};
  std::vector<Piece> pieces;
  int64_t at = 0;
  for (const auto& segment : plan.segments[static_cast<size_t>(place)]) {
    if (part == Part::Halo && segment.owner == place) continue;
    const int64_t begin = segment.begin - offset_of(plan.owned, segment.owner);
    pieces.push_back({segment.owner, {begin, segment.size()}, {at, segment.size()}});
    at += segment.size();
  }
  return pieces;
}

using Places = std::vector<int64_t>;

/// Who is where.
class Ranks {
 public:
  explicit Ranks(const BoxPlan& plan) : plan_(plan) {
    for (int64_t rank = 0; plan.dims.size() > 1 && rank < plan.ranks(); ++rank) {
      ranks_[places_of(rank)] = rank;
    }
  }
  Places places_of(int64_t rank) const {
    Places result;
    for (size_t d = 0; d < plan_.dims.size(); ++d) result.push_back(plan_.place(d, rank));
    return result;
  }
  int64_t rank_at(const Places& places) const {
    return places.size() == 1 ? places[0] : ranks_.at(places);
  }

 private:
  const BoxPlan& plan_;
  std::map<Places, int64_t> ranks_;
};

/// Calls `visit` with every combination of one piece a dim.
void for_each_box(const std::vector<std::vector<Piece>>& dims, std::vector<Piece>& box,
                  const std::function<void(const std::vector<Piece>&)>& visit) {
  if (box.size() == dims.size()) return visit(box);
  for (const Piece& piece : dims[box.size()]) {
    if (piece.owned.size == 0) continue;
    box.push_back(piece);
    for_each_box(dims, box, visit);
    box.pop_back();
  }
}

std::vector<Transfer> incoming_of(const BoxPlan& plan, const Ranks& ranks, int64_t rank) {
  const Places own = ranks.places_of(rank);
  std::vector<Transfer> transfers;
  for (size_t shell = 0; shell < plan.dims.size(); ++shell) {
    std::vector<std::vector<Piece>> dims;
    for (size_t d = 0; d < plan.dims.size(); ++d) {
      dims.push_back(pieces_of(plan.dims[d], own[d], part_in_shell(d, shell)));
    }
    std::vector<Piece> start;
    for_each_box(dims, start, [&](const std::vector<Piece>& box) {
      Transfer transfer{0, shell, {}, {}};
      Places owner;
      for (const Piece& piece : box) {
        owner.push_back(piece.owner);
        transfer.owned.push_back(piece.owned);
        transfer.wanted.push_back(piece.wanted);
      }
      transfer.peer = ranks.rank_at(owner);
      transfers.push_back(std::move(transfer));
    });
  }
  return transfers;
}

}  // namespace

std::vector<Transfer> incoming(const BoxPlan& plan, int64_t rank) {
  return incoming_of(plan, Ranks(plan), rank);
}

std::vector<Transfer> outgoing(const BoxPlan& plan, int64_t rank) {
  const Ranks ranks(plan);
  std::vector<Transfer> transfers;
  for (int64_t peer = 0; peer < plan.ranks(); ++peer) {
    if (peer == rank) continue;
    for (auto& transfer : incoming_of(plan, ranks, peer)) {
      if (transfer.peer != rank) continue;
      transfer.peer = peer;
      transfers.push_back(std::move(transfer));
    }
  }
  return transfers;
}

at::Tensor part_of(at::Tensor tensor, const BoxPlan& plan, const std::vector<Extent>& extents) {
  for (size_t d = 0; d < extents.size(); ++d) {
    const int64_t dim = plan.dims[d].dim;
    if (extents[d].size == tensor.size(dim)) continue;
    tensor = tensor.narrow(dim, extents[d].begin, extents[d].size);
  }
  return tensor;
}

at::Tensor empty_box(const at::Tensor& like, const BoxPlan& plan,
                     const std::vector<int64_t>& sizes) {
  Shape shape(like.sizes().begin(), like.sizes().end());
  for (size_t d = 0; d < sizes.size(); ++d) {
    shape[static_cast<size_t>(plan.dims[d].dim)] = sizes[d];
  }
  return empty_of_shape(like, shape);
}

std::vector<int64_t> shell_sizes(const BoxPlan& plan, int64_t rank, size_t shell) {
  std::vector<int64_t> sizes;
  for (size_t d = 0; d < plan.dims.size(); ++d) {
    int64_t size = 0;
    const int64_t place = plan.place(d, rank);
    for (const Piece& piece : pieces_of(plan.dims[d], place, part_in_shell(d, shell))) {
      size += piece.wanted.size;
    }
    sizes.push_back(size);
  }
  return sizes;
}

}  // namespace shard
