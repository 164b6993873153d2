// SPDX-License-Identifier: Apache-2.0
// The Fourier neural operator learns the global field, the real one where it lies in data/, on
// shards as on the whole globe.
#include <fno/fno.h>
#include <global_field/dataset.h>
#include <gtest/gtest.h>
#include <shard/hdf5.h>
#include <shard/launch.h>
#include <torch/torch.h>

#include <filesystem>

#include "io/fixtures/temporary_folder.h"
#include "support/training_check.h"
#include "synthetic_globe.h"

namespace {

using shard::testing::sharded;
using Tensors = std::vector<at::Tensor>;

class FnoOnTheGlobalField : public shard::io::testing::TemporaryFolder,
                            public ::testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    if (!shard::io::has_hdf5()) GTEST_SKIP() << "this build has no HDF5";
    options_.dtype = torch::kFloat64;
    options_.reduce = 60;  // 36 x 72
    if (std::filesystem::exists(options_.folder + "/LinkeTurbidities.h5")) return;
    global_field::testing::write_synthetic_globe(folder());
    options_.folder = folder();
  }
  shard::testing::Training training() const {
    const auto sample = global_field::GlobalField(options_).sample(3);
    const auto make = [] {
      fno::Fno net(global_field::kInputChannels, 1, 6, 6, 6, 2);
      net->to(torch::kFloat64);
      return shard::testing::Trainee{net->parameters(), [net](const Tensors& t) mutable {
                                       return torch::mse_loss(net->forward(t[0]), t[1]);
                                     }};
    };
    return {"fno", make, {sharded(sample.input, 2), sharded(sample.target, 2)}, 0.05};
  }
  global_field::FieldOptions options_;
};

TEST_P(FnoOnTheGlobalField, TrainsLikePlainLibTorch) {
  const auto on_the_field = training();
  shard::run_ranks(GetParam(), [&](shard::World& world) {
    shard::testing::expect_training_equals_plain(on_the_field, world);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, FnoOnTheGlobalField, ::testing::Values(1, 2, 3, 4),
                         [](const auto& info) { return std::to_string(info.param); });

}  // namespace
