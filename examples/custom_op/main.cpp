// SPDX-License-Identifier: Apache-2.0
// custom_op: an op of one's own that is no stencil: the signed distance of points to a closed
// surface of triangles (negative inside). Here are the op in LibTorch's dispatcher, a patch that
// makes its one expensive part hold on shards, and the tests: against a cube's formula, and on
// every kind of shard.
//   Run: build/bin/custom_op
#include <shard/handlers.h>
#include <shard/shard.h>
#include <shard/testing.h>
#include <shard/window_patch.h>
#include <torch/library.h>
#include <torch/types.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <numbers>

namespace {

using at::Tensor;

// ---- The op. Which triangle is nearest, and whether a point is inside, has no derivative: these
// are found by loops over plain numbers. The distance then follows from LibTorch's ops, and so do
// its gradients with respect to points and corners.

using Point = std::array<double, 3>;
Point operator-(const Point& a, const Point& b) { return {a[0] - b[0], a[1] - b[1], a[2] - b[2]}; }
double dot(const Point& a, const Point& b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }
Point cross(const Point& a, const Point& b) {
  return {a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]};
}
using Triangle = std::array<Point, 3>;

/// Weights of the corners in the point of a triangle that is nearest to p. Ericson, Real-Time
/// Collision Detection (2005), section 5.1.5.
Point nearest_weights(const Triangle& t, const Point& p) {
  const Point ab = t[1] - t[0];
  const Point ac = t[2] - t[0];
  const double d1 = dot(ab, p - t[0]), d2 = dot(ac, p - t[0]);
  if (d1 <= 0 && d2 <= 0) return {1, 0, 0};
  const double d3 = dot(ab, p - t[1]), d4 = dot(ac, p - t[1]);
  if (d3 >= 0 && d4 <= d3) return {0, 1, 0};
  const double d5 = dot(ab, p - t[2]), d6 = dot(ac, p - t[2]);
  if (d6 >= 0 && d5 <= d6) return {0, 0, 1};
  const double vc = d1 * d4 - d3 * d2;
  if (vc <= 0 && d1 >= 0 && d3 <= 0) return {1 - d1 / (d1 - d3), d1 / (d1 - d3), 0};
  const double vb = d5 * d2 - d1 * d6;
  if (vb <= 0 && d2 >= 0 && d6 <= 0) return {1 - d2 / (d2 - d6), 0, d2 / (d2 - d6)};
  const double va = d3 * d6 - d5 * d4;
  if (va <= 0 && d4 >= d3 && d5 >= d6) {
    const double w = (d4 - d3) / ((d4 - d3) + (d5 - d6));
    return {0, 1 - w, w};
  }
  const double sum = va + vb + vc;
  return {va / sum, vb / sum, vc / sum};
}

/// The share of all directions from p in which the triangle lies, positive from inside. Van
/// Oosterom and Strackee, IEEE Trans. Biomed. Eng. 30 (1983). Over a closed surface: 1 inside, 0
/// outside.
double winding(const Triangle& t, const Point& p) {
  const Point a = t[0] - p, b = t[1] - p, c = t[2] - p;
  const double la = std::sqrt(dot(a, a)), lb = std::sqrt(dot(b, b)), lc = std::sqrt(dot(c, c));
  const double volume = dot(a, cross(b, c));
  const double angle =
      std::atan2(volume, la * lb * lc + dot(a, b) * lc + dot(b, c) * la + dot(c, a) * lb);
  return angle / (2 * std::numbers::pi);
}

/// What triangles say about queries: the nearest one (of equal ones the first), the weights of its
/// corners in the nearest point, and the sum of their windings.
using Nearest =
    std::tuple<Tensor, Tensor, Tensor, Tensor>;  // squared distance, face, weights, winding

/// triangles (F, 3, 3), queries (Q, 3).
Nearest nearest_triangle(const Tensor& triangles, const Tensor& queries) {
  const Tensor corners = triangles.to(at::kDouble).contiguous();
  const Tensor points = queries.to(at::kDouble).contiguous();
  const int64_t count = points.size(0);
  const Tensor squared = torch::full({count}, INFINITY, points.options());
  const Tensor face = torch::zeros({count}, points.options().dtype(at::kLong));
  const Tensor weights = torch::zeros({count, 3}, points.options());
  const Tensor windings = torch::zeros({count}, points.options());
  const auto* t = reinterpret_cast<const Triangle*>(corners.const_data_ptr<double>());
  const auto* p = reinterpret_cast<const Point*>(points.const_data_ptr<double>());
  auto* best = squared.mutable_data_ptr<double>();
  for (int64_t q = 0; q < count; ++q) {
    for (int64_t f = 0; f < corners.size(0); ++f) {
      const Point w = nearest_weights(t[f], p[q]);
      Point offset = p[q];
      for (size_t i = 0; i < 9; ++i) offset[i % 3] -= w[i / 3] * t[f][i / 3][i % 3];
      windings.mutable_data_ptr<double>()[q] += winding(t[f], p[q]);
      if (dot(offset, offset) >= best[q]) continue;
      best[q] = dot(offset, offset);
      face.mutable_data_ptr<int64_t>()[q] = f;
      reinterpret_cast<Point*>(weights.mutable_data_ptr<double>())[q] = w;
    }
  }
  return {squared, face, weights.to(queries.scalar_type()), windings};
}

Nearest call_nearest_triangle(const Tensor& triangles, const Tensor& queries) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mylib::nearest_triangle", "")
                             .typed<Nearest(const Tensor&, const Tensor&)>();
  return op.call(triangles, queries);
}

/// vertices (V, 3), faces (F, 3) of three vertices each, seen counterclockwise from outside;
/// queries (Q, 3) -> (Q). The nearest point moves with the query along the surface only, so its
/// weights count as constants in the first derivatives.
Tensor signed_distance(const Tensor& vertices, const Tensor& faces, const Tensor& queries) {
  const Tensor triangles = at::index(vertices.detach(), {faces});
  const auto [squared, face, weights, windings] =
      call_nearest_triangle(triangles, queries.detach());
  const Tensor corners = at::index(vertices, {faces.index_select(0, face)});
  const Tensor nearest = (corners * weights.unsqueeze(2)).sum(1);
  const Tensor sign = 1 - 2 * (windings > 0.5).to(queries.scalar_type());
  return sign * (queries - nearest).norm(2, {1}, false);
}

TORCH_LIBRARY(mylib, m) {
  m.def("nearest_triangle(Tensor triangles, Tensor queries) -> (Tensor, Tensor, Tensor, Tensor)");
  m.impl("nearest_triangle", c10::DispatchKey::CompositeExplicitAutograd, nearest_triangle);
  m.def("signed_distance(Tensor vertices, Tensor faces, Tensor queries) -> Tensor",
        signed_distance);
}

Tensor call_signed_distance(const Tensor& vertices, const Tensor& faces, const Tensor& queries) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mylib::signed_distance", "")
                             .typed<Tensor(const Tensor&, const Tensor&, const Tensor&)>();
  return op.call(vertices, faces, queries);
}

// ---- The patch, of nearest_triangle only: the rest is made of ops that hold on shards already.
// Each rank keeps its queries; the triangles of all ranks come by, one rank's at a time.

Nearest nearer(const Nearest& a, const Nearest& b) {
  const auto& [squared_a, face_a, weights_a, winding_a] = a;
  const auto& [squared_b, face_b, weights_b, winding_b] = b;
  const Tensor is_b =
      (squared_b < squared_a).logical_or((squared_b == squared_a) & (face_b < face_a));
  return {at::where(is_b, squared_b, squared_a), at::where(is_b, face_b, face_a),
          at::where(is_b.unsqueeze(1), weights_b, weights_a), winding_a + winding_b};
}

/// Of the queries (local) among all triangles, of which this rank holds its shard.
Nearest among_all(const shard::ShardedInput& triangles, const Tensor& queries) {
  const auto& comm = triangles.mesh.comm();
  const int ranks = comm.size();
  Tensor held = shard::raw_local(triangles.tensor);
  Nearest found;
  for (int step = 0; step < ranks; ++step) {
    const int owner = (comm.rank() - step + ranks) % ranks;
    auto among = call_nearest_triangle(held, queries);
    std::get<1>(among) = std::get<1>(among) + triangles.spec->offset(owner);
    found = step == 0 ? among : nearer(found, among);
    if (step + 1 == ranks) break;
    const int before = (comm.rank() - 1 + ranks) % ranks;
    const Tensor next =
        shard::empty_of_shape(held, triangles.spec->local_shape((owner - 1 + ranks) % ranks));
    comm.exchange({{(comm.rank() + 1) % ranks, held}}, {{before, next}});
    held = next;
  }
  return found;
}

shard::ShardedInput cut_along_rows(const Tensor& x, const shard::DeviceMesh& mesh) {
  auto input = shard::sharded_input(shard::promote(x, mesh));
  if (input.dim <= 0) return input;
  return shard::sharded_input(
      shard::redistribute(input.tensor, input.spec->with(shard::Shard(0), x.sizes())));
}

Nearest nearest_triangle_of_shards(const Tensor& triangles, const Tensor& queries) {
  const auto& mesh = shard::mesh_of(shard::is_shard_tensor(queries) ? queries : triangles);
  const auto surface = cut_along_rows(triangles, mesh);
  auto points = cut_along_rows(queries, mesh);
  const bool were_whole = points.dim < 0 && surface.dim == 0;
  if (were_whole) {  // every rank has them all: it takes a part of them
    points = shard::sharded_input(
        shard::redistribute(points.tensor, points.spec->with(shard::Shard(0), queries.sizes())));
  }
  const Tensor own = shard::raw_local(points.tensor);
  const auto found = surface.dim == 0
                         ? among_all(surface, own)
                         : call_nearest_triangle(shard::raw_local(surface.tensor), own);
  const auto wrap = [&](const Tensor& local) {
    auto sizes = local.sizes().vec();
    sizes[0] = queries.size(0);
    const auto& spec = points.spec;
    const Tensor y =
        shard::from_local(local, mesh, spec->with(spec->placement(), sizes, spec->partition()));
    return were_whole ? shard::redistribute(y, shard::spec_of(y)->replicated()) : y;
  };
  const auto& [squared, face, weights, windings] = found;
  return {wrap(squared), wrap(face), wrap(weights), wrap(windings)};
}

// ---- The tests.

struct Surface {
  Tensor vertices, faces;
};

/// |x|, |y|, |z| <= 1: eight corners, two triangles a side.
Surface cube() {
  const Tensor bits = torch::arange(8).unsqueeze(1).bitwise_right_shift(torch::arange(3));
  const Tensor faces = torch::tensor({0, 2, 1, 1, 2, 3, 4, 5, 6, 5, 7, 6, 0, 1, 4, 1, 5, 4,
                                      2, 6, 3, 3, 6, 7, 0, 4, 2, 2, 4, 6, 1, 3, 5, 3, 7, 5});
  return {bits.bitwise_and(1).to(at::kDouble) * 2 - 1, faces.view({12, 3})};
}

double cube_error(const Tensor& queries) {
  const auto [vertices, faces] = cube();
  const Tensor beyond = queries.abs() - 1;
  const Tensor exact = beyond.clamp_min(0).norm(2, {1}, false) + beyond.amax({1}).clamp_max(0);
  return (call_signed_distance(vertices, faces, queries) - exact).abs().max().item<double>();
}

shard::testing::Report on_shards() {
  using namespace shard::testing;
  const auto [vertices, faces] = cube();
  const Tensor queries = torch::randn({9, 3}, at::kDouble) * 1.5;
  const auto f = [](const std::vector<Tensor>& t) {
    return call_signed_distance(t[0], t[1], t[2]);
  };
  Check check{.traffic = 60};  // the mesh goes around, and it is larger than these few queries
  check.double_backward = false;
  const auto few = [&](const std::vector<Tensor>& t) {  // a named size: not run on larger copies
    return f({t[0], t[1], t[2].view({9, 3})});
  };
  return conformance(
      "mylib::signed_distance",
      {{"cut queries", {weight(vertices), constant(faces), sharded(queries, 0)}, f, check},
       {"cut mesh", {sharded(vertices, 0), constant(faces, 0), weight(queries)}, f, check},
       {"cut faces", {weight(vertices), constant(faces, 0), weight(queries)}, f, check},
       {"all cut", {sharded(vertices, 0), constant(faces, 0), sharded(queries, 0)}, few, check}});
}

}  // namespace

int main() {
  const auto registration =
      shard::register_named_function_handler("mylib::nearest_triangle", nearest_triangle_of_shards);
  torch::manual_seed(1);
  const double error = cube_error(torch::randn({1000, 3}, at::kDouble) * 1.5);
  std::printf("distance to a cube: off by %.1e at most\n", error);
  const auto report = on_shards();
  std::printf("mylib::signed_distance: %s", report.text().c_str());
  return report.ok() && error < 1e-12 ? 0 : 1;
}
