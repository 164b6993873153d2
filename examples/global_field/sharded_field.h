// SPDX-License-Identifier: Apache-2.0
// The only file of the data path that knows of ranks: every rank reads its own part of the globe,
// and samples are sharded tensors over all of them.
#pragma once

#include <shard/launch.h>
#include <shard/mesh.h>
#include <shard/spec.h>

#include "dataset.h"
#include "options.h"

namespace global_field {

class ShardedField {
 public:
  /// `domain` is a mesh ("rows", "columns"); the ranks at place i of "rows" read rows[i] rows, and
  /// keep an even part of the columns. Errors: shard::FileError, shard::ConfigError (rows that do
  /// not fit).
  ShardedField(const FieldOptions& options, shard::DeviceMesh domain, shard::Partition rows);

  /// As GlobalField's, but cut over the ranks along rows and columns.
  Sample sample(int64_t target_month) const;
  torch::Tensor training_mean() const { return shard(local_.training_mean()); }

  const shard::DeviceMesh& domain() const { return domain_; }
  const shard::Partition& rows() const { return rows_; }
  const shard::Partition& columns() const { return columns_; }

 private:
  torch::Tensor shard(const torch::Tensor& local) const;
  shard::DeviceMesh domain_;
  shard::Partition rows_;
  shard::Partition columns_;
  GlobalField local_;
};

/// The mesh of all ranks: `shape.rows` x `shape.columns`. Collective over `world`.
shard::DeviceMesh make_domain(const Options& options, shard::World& world);
/// The rows of every place along the rows: `split` when given (checked), else even; warns once when
/// ranks stay idle.
shard::Partition cut_rows(const FieldOptions& options, const std::vector<int64_t>& split,
                          const shard::DeviceMesh& domain);

}  // namespace global_field
