// SPDX-License-Identifier: Apache-2.0
#include "sharded_field.h"

#include <shard/error.h>
#include <shard/log.h>
#include <shard/tensor.h>

#include <algorithm>
#include <numeric>

namespace global_field {
namespace {

/// This rank's part of a cut.
Span part(const shard::Partition& pieces, int64_t place) {
  const int64_t begin = shard::offset_of(pieces, place);
  return {begin, begin + pieces[static_cast<size_t>(place)]};
}

}  // namespace

ShardedField::ShardedField(const FieldOptions& options, shard::DeviceMesh domain,
                           shard::Partition rows)
    : domain_(std::move(domain)),
      rows_(std::move(rows)),
      columns_(shard::even_partition(GlobalField::columns(options), domain_.size("columns"))),
      local_(options, part(rows_, domain_.coordinate("rows")),
             part(columns_, domain_.coordinate("columns"))) {}

Sample ShardedField::sample(int64_t target_month) const {
  const Sample local = local_.sample(target_month);
  return {shard(local.input), shard(local.target)};
}

torch::Tensor ShardedField::shard(const torch::Tensor& local) const {
  return shard::from_local(local, domain_, {shard::Shard(2), shard::Shard(3)}, {rows_, columns_});
}

shard::DeviceMesh make_domain(const Options& options, shard::World& world) {
  const auto shape = options.domain_shape();
  return world.mesh({{"rows", shape.rows > 0 ? shape.rows : -1}, {"columns", shape.columns}});
}

shard::Partition cut_rows(const FieldOptions& options, const std::vector<int64_t>& split,
                          const shard::DeviceMesh& domain) {
  const int64_t rows = GlobalField::rows(options);
  if (split.empty()) {
    shard::Partition even = shard::even_partition(rows, domain.size("rows"));
    const auto idle = std::count(even.begin(), even.end(), 0);
    if (idle > 0 && domain.rank() == 0) {
      shard::log(shard::LogLevel::Warning, rows, " rows on ", domain.size(),
                 " ranks: ", idle * domain.size("columns"), " ranks are idle. Use at most ", rows,
                 " ranks or a smaller --reduce.");
    }
    return even;
  }
  const bool fits = static_cast<int64_t>(split.size()) == domain.size("rows") &&
                    std::all_of(split.begin(), split.end(), [](int64_t n) { return n >= 0; }) &&
                    std::accumulate(split.begin(), split.end(), int64_t{0}) == rows;
  shard::check<shard::ConfigError>(
      fits, "options", "--split: got ", split, "; expected ", domain.size("rows"),
      " sizes, one a rank along the rows, that add up to ", rows, " rows.");
  return split;
}

}  // namespace global_field
