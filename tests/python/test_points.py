# SPDX-License-Identifier: Apache-2.0
"""Searches of neighbours on sharded points, judged by scipy's k-d tree."""
import numpy
import pytest
import torch
from scipy.spatial import cKDTree

import shardtensor as st

N, Q = 700, 300
CUTS = [(1, None), (2, None), (3, [1, 0, N - 1]), (4, [300, 1, 299, 100])]


def clouds(dims):
    random = numpy.random.default_rng(dims)
    return random.random((N, dims)), random.random((Q, dims))


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("ranks, partition", CUTS)
def test_the_nearest_points_are_scipys(on_ranks, dims, ranks, partition):
    points, queries = clouds(dims)
    distances, indices = cKDTree(points).query(queries, k=6)

    def check(world):
        cut = st.scatter_tensor(torch.from_numpy(points), 0, world.mesh(), st.Shard(0), partition)
        asked = st.scatter_tensor(torch.from_numpy(queries), 0, world.mesh(), st.Shard(0))
        found, far = torch.ops.shard.knn(cut, asked, 6)
        assert numpy.array_equal(st.full(found).numpy(), indices)
        assert numpy.allclose(st.full(far).numpy(), distances, rtol=1e-12, atol=0)

    on_ranks(ranks, check)


@pytest.mark.parametrize("ranks, partition", CUTS)
@pytest.mark.parametrize("radius", [0.0, 0.08, 0.3])
def test_pairs_within_a_radius_are_scipys(on_ranks, radius, ranks, partition):
    points, queries = clouds(3)
    queries[0] = points[5]  # at distance 0
    lists = cKDTree(points).query_ball_point(queries, radius)
    want = {(query, point) for query, near in enumerate(lists) for point in near}
    assert want

    def check(world):
        cut = st.scatter_tensor(torch.from_numpy(points), 0, world.mesh(), st.Shard(0), partition)
        asked = st.scatter_tensor(torch.from_numpy(queries), 0, world.mesh(), st.Shard(0))
        pairs, far = torch.ops.shard.radius_pairs(cut, asked, radius)
        pairs, far = st.full(pairs).numpy(), st.full(far).numpy()
        assert {tuple(pair) for pair in pairs.T.tolist()} == want and pairs.shape[1] == len(want)
        apart = numpy.linalg.norm(queries[pairs[0]] - points[pairs[1]], axis=1)
        assert numpy.allclose(far, apart, rtol=1e-12, atol=0)

    on_ranks(ranks, check)


def test_the_radius_search_keeps_scipys_nearest(on_ranks):
    points, queries = clouds(3)
    distances, indices = cKDTree(points).query(queries, k=4, distance_upper_bound=0.1)
    is_found = numpy.isfinite(distances)
    assert is_found.any() and not is_found.all()

    def check(world):
        cut = st.scatter_tensor(torch.from_numpy(points), 0, world.mesh(), st.Shard(0), [0, 500, 200])
        asked = st.scatter_tensor(torch.from_numpy(queries), 0, world.mesh(), st.Shard(0), [299, 1, 0])
        found, far = torch.ops.shard.radius_search(cut, asked, 0.1, 4)
        assert numpy.array_equal(st.full(found).numpy(), numpy.where(is_found, indices, -1))
        assert numpy.allclose(st.full(far).numpy(), numpy.where(is_found, distances, 0), rtol=1e-12, atol=0)

    on_ranks(3, check)
