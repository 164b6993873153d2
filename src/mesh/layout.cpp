// SPDX-License-Identifier: Apache-2.0
#include "mesh/layout.h"

#include <shard/error.h>

#include <algorithm>
#include <mutex>

namespace shard {
namespace {

std::string text_of(const std::vector<MeshDim>& dims) {
  std::string text = "(";
  for (const MeshDim& dim : dims) {
    text += c10::str(text.size() > 1 ? ", " : "", "'", dim.name, "': ", dim.size);
  }
  return text + ")";
}

void check_names(const std::vector<MeshDim>& dims) {
  check<ConfigError>(!dims.empty(), "mesh",
                     "dims: got none; expected at least one. Pass {{\"domain\", -1}}.");
  for (size_t i = 0; i < dims.size(); ++i) {
    check<ConfigError>(!dims[i].name.empty(), "mesh", "dim ", i,
                       ": got an empty name; expected one. Name every mesh dim.");
    for (size_t j = 0; j < i; ++j) {
      check<ConfigError>(dims[i].name != dims[j].name, "mesh", "dims: got '", dims[i].name,
                         "' twice; expected different names. Rename one of them.");
    }
  }
}

}  // namespace

std::vector<MeshDim> resolve_dims(std::vector<MeshDim> dims, int64_t ranks) {
  check_names(dims);
  MeshDim* open = nullptr;
  int64_t product = 1;
  for (MeshDim& dim : dims) {
    check<ConfigError>(dim.size >= 1 || dim.size == -1, "mesh", "size of '", dim.name, "': got ",
                       dim.size, "; expected at least 1, or -1 for whatever is left. Change it.");
    check<ConfigError>(dim.size != -1 || open == nullptr, "mesh", "sizes: got -1 for '",
                       open != nullptr ? open->name : "", "' and '", dim.name,
                       "'; expected one -1 at most. Give one of them a size.");
    if (dim.size == -1) {
      open = &dim;
    } else {
      product *= dim.size;
    }
  }
  const std::string given = text_of(dims);
  if (open != nullptr && ranks % product == 0) {
    open->size = ranks / product;
    product = ranks;
  }
  check<ConfigError>(
      product == ranks, "mesh", "shape ", given, ": got ", product,
      open != nullptr ? " ranks beside the -1; expected a divisor of " : " ranks; expected ", ranks,
      ", the ranks there are. Change the sizes or start another number of ",
      "ranks (--ranks N, mpirun -n N).");
  return dims;
}

std::shared_ptr<const MeshLayout> intern(MeshLayout layout) {
  static std::mutex mutex;
  static std::vector<std::weak_ptr<const MeshLayout>> known;
  const std::lock_guard lock(mutex);
  std::erase_if(known, [](const auto& entry) { return entry.expired(); });
  for (const auto& entry : known) {
    if (auto shared = entry.lock(); shared && *shared == layout) return shared;
  }
  auto shared = std::make_shared<const MeshLayout>(std::move(layout));
  known.push_back(shared);
  return shared;
}

int64_t MeshLayout::dim_index(const std::string& name) const {
  const auto found =
      std::find_if(dims.begin(), dims.end(), [&](const MeshDim& dim) { return dim.name == name; });
  check<ConfigError>(found != dims.end(), "mesh", "dim: got '", name, "'; expected one of ",
                     text_of(dims), ". Use a name that the mesh was made with.");
  return found - dims.begin();
}

bool MeshLayout::operator==(const MeshLayout& other) const {
  if (this == &other) return true;
  const auto is_same = [](const MeshDim& a, const MeshDim& b) {
    return a.name == b.name && a.size == b.size;
  };
  return world_ranks == other.world_ranks &&
         std::equal(dims.begin(), dims.end(), other.dims.begin(), other.dims.end(), is_same);
}

std::ostream& operator<<(std::ostream& out, const MeshLayout& layout) {
  return out << text_of(layout.dims);
}

}  // namespace shard
