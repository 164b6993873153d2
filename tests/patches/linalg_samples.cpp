// SPDX-License-Identifier: Apache-2.0
#include <shard/error.h>
#include <shard/launch.h>
#include <shard/tensor.h>
#include <support/samples.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace shard::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor matrices() {
  return torch::randn({6, 3, 3}, at::kDouble) + 4 * torch::eye(3, at::kDouble);
}
at::Tensor symmetric() {
  const at::Tensor a = torch::randn({6, 3, 3}, at::kDouble);
  return a.matmul(a.mT()) + torch::eye(3, at::kDouble);
}
at::Tensor right() { return torch::randn({6, 3, 2}, at::kDouble); }

const Check kOnce{.ranks = {1, 2, 3}, .double_backward = false};
const Check kForward{.ranks = {1, 3}, .gradients = false, .double_backward = false};

Sample of(const std::string& name, const at::Tensor& a,
          const std::function<at::Tensor(const at::Tensor&)>& f, const Check& check = kOnce) {
  return {name, {sharded(a, 0)}, [f](const Tensors& t) { return f(t[0]); }, check};
}

std::vector<Sample> factorisations() {
  torch::manual_seed(330);
  using at::Tensor;
  return {
      of("inverse", matrices(), [](const Tensor& a) { return at::linalg_inv(a); }),
      of("determinant", matrices(), [](const Tensor& a) { return at::linalg_det(a); }),
      of("slogdet", matrices(), [](const Tensor& a) { return std::get<1>(at::linalg_slogdet(a)); }),
      of("cholesky_ex", symmetric(), [](const Tensor& a) { return at::linalg_cholesky(a); }),
      of("cholesky", symmetric(), [](const Tensor& a) { return at::cholesky(a); }),
      of(
          "cholesky_inverse", symmetric(),
          [](const Tensor& a) { return at::cholesky_inverse(at::linalg_cholesky(a)); }, kForward),
      of("qr", matrices(), [](const Tensor& a) { return std::get<1>(at::linalg_qr(a)).square(); }),
      of(
          "qr_without_q", matrices(),
          [](const Tensor& a) { return std::get<1>(at::linalg_qr(a, "r")).square(); }, kForward),
      of("svd", matrices(), [](const Tensor& a) { return std::get<1>(at::linalg_svd(a)); }),
      of("singular_values", matrices(), [](const Tensor& a) { return at::linalg_svdvals(a); }),
      of("eigh", symmetric(), [](const Tensor& a) { return std::get<0>(at::linalg_eigh(a)); }),
      of("eigvalsh", symmetric(), [](const Tensor& a) { return at::linalg_eigvalsh(a); }),
      of(
          "eig", symmetric(),
          [](const Tensor& a) { return at::real(std::get<0>(at::linalg_eig(a))); }, kForward),
      of(
          "eigvals", symmetric(), [](const Tensor& a) { return at::real(at::linalg_eigvals(a)); },
          kForward),
      of(
          "matrix_exp", matrices() * 0.1, [](const Tensor& a) { return at::linalg_matrix_exp(a); },
          kForward),
      of("pinv", matrices(), [](const Tensor& a) { return at::linalg_pinv(a); }),
      of("lu", matrices(), [](const Tensor& a) { return std::get<2>(at::linalg_lu(a)); }),
      of("lu_without_pivots", matrices(),
         [](const Tensor& a) { return std::get<2>(at::linalg_lu(a, /*pivot=*/true)); }),
      of("lu_unpack", matrices(),
         [](const Tensor& a) {
           const auto [lu, pivots] = at::linalg_lu_factor(a);
           return std::get<2>(at::lu_unpack(lu, pivots));
         }),
      of(
          "lu_unpack_pivots_only", matrices(),
          [](const Tensor& a) {
            const auto [lu, pivots] = at::linalg_lu_factor(a);
            return std::get<0>(at::lu_unpack(lu, pivots, /*unpack_data=*/false));
          },
          kForward),
      of(
          "ldl", symmetric(), [](const Tensor& a) { return std::get<0>(at::linalg_ldl_factor(a)); },
          kForward),
      of(
          "geqrf", matrices(), [](const Tensor& a) { return std::get<0>(at::geqrf(a)); }, kForward),
  };
}
SHARD_SAMPLES(LinalgFactorisations, factorisations());

std::vector<Sample> reflections() {
  torch::manual_seed(332);
  using at::Tensor;
  const auto [reflectors, tau] = at::geqrf(matrices());
  const auto product = [](const Tensors& t) {
    return at::linalg_householder_product(t[0], t[1]).square();
  };
  const auto times = [](const Tensors& t) { return at::ormqr(t[0], t[1], t[2]).square(); };
  const Check twice{.ranks = {1, 2, 3}};
  const Check moves{.ranks = {1, 2, 3}, .traffic = 8};
  return {
      {"householder_product", {sharded(reflectors, 0), sharded(tau, 0)}, product, twice},
      {"householder_product_of_cut_columns",
       {sharded(reflectors, 2), sharded(tau, 0)},
       product,
       moves},
      {"householder_product_with_whole_numbers",
       {sharded(reflectors, 0), weight(tau)},
       product,
       twice},
      {"householder_product_of_fewer_columns",
       {sharded(reflectors, 0), sharded(tau, 0)},
       [](const Tensors& t) {
         return at::linalg_householder_product(t[0].narrow(2, 0, 2), t[1].narrow(1, 0, 2));
       },
       twice},
      {"ormqr", {sharded(reflectors, 0), sharded(tau, 0), sharded(right(), 0)}, times, twice},
      {"ormqr_of_cut_rows", {weight(reflectors), weight(tau), sharded(right(), 1)}, times, moves},
      {"ormqr_transposed_from_the_right",
       {sharded(reflectors, 0), sharded(tau, 0), sharded(right().mT(), 0)},
       [](const Tensors& t) {
         return at::ormqr(t[0], t[1], t[2], /*left=*/false, /*transpose=*/true).square();
       },
       twice},
      {"ormqr_without_reflectors",
       {sharded(reflectors.narrow(2, 0, 0), 0), sharded(tau.narrow(1, 0, 0), 0),
        sharded(right(), 0)},
       times,
       twice},
  };
}
SHARD_SAMPLES(LinalgReflections, reflections());

/// Where both dims of a mesh cut, the second may see one row of a batch dim here and several there:
/// the matrices' cut moves to the same dim all the same.
std::vector<Sample> two_batch_dims() {
  torch::manual_seed(334);
  const at::Tensor a = torch::randn({3, 2, 3, 3}, at::kDouble) + 4 * torch::eye(3, at::kDouble);
  const at::Tensor b = torch::randn({4, 2, 3, 3}, at::kDouble) + 4 * torch::eye(3, at::kDouble);
  const Check twice{.ranks = {1, 3}, .traffic = 8};
  const auto inverse = [](const Tensors& t) { return at::linalg_inv(t[0]); };
  const auto product = [](const Tensors& t) {
    return at::linalg_householder_product(t[0], t[1]).square();
  };
  const auto [reflectors, tau] = at::geqrf(a);
  return {
      {"inverse_of_three_and_two", {sharded(a, 2)}, inverse, twice},
      {"inverse_of_four_and_two", {sharded(b, 0)}, inverse, twice},
      {"householder_product_of_three_and_two",
       {sharded(reflectors, 2), weight(tau)},
       product,
       twice},
  };
}
SHARD_SAMPLES(LinalgOfTwoBatchDims, two_batch_dims());

std::vector<Sample> solvers() {
  torch::manual_seed(331);
  const at::Tensor one = torch::randn({3, 3}, at::kDouble) + 4 * torch::eye(3, at::kDouble);
  return {
      {"solve",
       {sharded(matrices(), 0), weight(right())},
       [](const Tensors& t) { return at::linalg_solve(t[0], t[1]); },
       kOnce},
      {"solve_with_one_matrix",
       {weight(one), sharded(right(), 0)},
       [](const Tensors& t) { return at::linalg_solve(t[0], t[1]); },
       kOnce},
      {"solve_vectors",
       {sharded(matrices(), 0), sharded(torch::randn({6, 3}, at::kDouble), 0)},
       [](const Tensors& t) { return at::linalg_solve(t[0], t[1]); },
       kOnce},
      {"solve_triangular",
       {sharded(matrices(), 0), sharded(right(), 0)},
       [](const Tensors& t) { return at::linalg_solve_triangular(t[0], t[1], /*upper=*/true); },
       kOnce},
      {"triangular_solve",
       {sharded(right(), 0), weight(one)},
       [](const Tensors& t) { return std::get<0>(at::triangular_solve(t[0], t[1])); },
       kOnce},
      {"cholesky_solve",
       {sharded(right(), 0), constant(at::linalg_cholesky(symmetric()), 0)},
       [](const Tensors& t) { return at::cholesky_solve(t[0], t[1]); },
       kOnce},
      {"lu_solve",
       {sharded(matrices(), 0), sharded(right(), 0)},
       [](const Tensors& t) {
         const auto [lu, pivots] = at::linalg_lu_factor(t[0]);
         return at::linalg_lu_solve(lu, pivots, t[1]);
       },
       kOnce},
      {"ldl_solve",
       {constant(symmetric(), 0), constant(right(), 0)},
       [](const Tensors& t) {
         const auto [ld, pivots] = at::linalg_ldl_factor(t[0]);
         return at::linalg_ldl_solve(ld, pivots, t[1]);
       },
       kForward},
      {"least_squares",
       {sharded(torch::randn({6, 4, 3}, at::kDouble), 0),
        weight(torch::randn({6, 4, 2}, at::kDouble))},
       [](const Tensors& t) { return std::get<0>(at::linalg_lstsq(t[0], t[1])); },
       kOnce},
      {"least_squares_residuals",
       {sharded(torch::randn({6, 4, 3}, at::kDouble), 0),
        sharded(torch::randn({6, 4, 2}, at::kDouble), 0)},
       [](const Tensors& t) {
         return std::get<1>(at::linalg_lstsq(t[0], t[1], std::nullopt, "gels"));
       },
       kForward},
      with_costs(
          {"cut_matrices_move_to_the_batch",
           {sharded(matrices(), 1)},
           [](const Tensors& t) {  // named sizes: not to be enlarged to matrices of thousands
             return at::linalg_inv(t[0].view({6, 3, 3}));
           },
           kOnce},
          1.5),
  };
}
SHARD_SAMPLES(LinalgSolvers, solvers());

Sample random_sample(Random& r) {
  const int64_t n = r.integer(1, 4);
  const auto sizes = std::vector<int64_t>{r.integer(2, 6), r.integer(1, 3), n, n};
  const at::Tensor a = r.tensor(sizes) + 5 * torch::eye(n, at::kDouble);
  const bool inverts = r.coin();
  return {"random",
          {sharded(a, r.integer(0, 1))},
          [=](const Tensors& t) { return inverts ? at::linalg_inv(t[0]) : at::linalg_det(t[0]); },
          Check{.ranks = {1, 2, 3},
                .double_backward = false,
                .traffic = 2}};  // every rank reads all codes
}
SHARD_RANDOM_SAMPLES(RandomLinalg, random_sample);

TEST(Linalg, AMatrixWithoutBatchThatIsCutIsRefused) {
  run_ranks(2, [](World& world) {
    const auto a = scatter_tensor(torch::eye(4), 0, world.mesh(), {Shard(0)});
    EXPECT_THROW(at::linalg_inv(a), MissingShardPatch);
  });
}

/// An outer mesh dim leaves one matrix, two or none, which an inner one cuts.
TEST(Linalg, OfMatricesCutBelowAnUnevenBatch) {
  torch::manual_seed(12);
  const at::Tensor whole = matrices().slice(0, 0, 3);
  const at::Tensor want = at::linalg_inv(whole);
  run_ranks(4, [&](World& world) {
    const auto mesh = world.mesh({{"a", 2}, {"b", 2}});
    for (const Partition& batch : {Partition{1, 2}, Partition{3, 0}, Partition{0, 3}}) {
      const auto a = scatter_tensor(whole, 0, mesh, {Shard(0), Shard(1)},
                                    std::vector<Partition>{batch, {2, 1}});
      EXPECT_LE(relative_error(ShardTensor(at::linalg_inv(a)).full(), want), 1e-12) << batch;
    }
  });
}

TEST(Linalg, ASingularMatrixOfOneRankIsAnErrorOnAll) {
  run_ranks(2, [](World& world) {
    at::Tensor whole = torch::eye(3).repeat({4, 1, 1});
    whole[3].zero_();
    const auto a = scatter_tensor(whole, 0, world.mesh(), {Shard(0)});
    EXPECT_THROW(at::linalg_inv(a), c10::LinAlgError);
    EXPECT_EQ(at::linalg_det(a).sum().item<float>(), 3);  // the ranks go on
  });
}

}  // namespace
}  // namespace shard::testing
