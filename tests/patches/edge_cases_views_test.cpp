// SPDX-License-Identifier: Apache-2.0
// Views, slices and rearrangements of the sharded dim: rows 107 to 124, 127, 129, 139, 140, 144 and
// 212 of the peer's table.
#include <torch/types.h>
#include <torch/utils.h>

#include "patches/edge_cases_peer_rows.h"

namespace shard::testing::edge_cases {
namespace {

using at::Tensor;
using torch::indexing::Ellipsis;
using torch::indexing::Slice;

Tensor image() { return d({2, 4, 16, 6}); }
Tensor points() { return d({2, 16, 6}); }

std::vector<PeersRow> reshapes() {
  torch::manual_seed(301);
  return {
      {107, square_of("twice_and_plus", points(), 1, [](const Tensor& t) { return t * 2 + t; })},
      {109, square_of("permute_contiguous_view", d({2, 3, 16, 4}), 2,
                      [](const Tensor& t) {
                        return t.permute({0, 2, 3, 1}).contiguous().view({2, 16, 12});
                      })},
      {110, square_of("flatten_one_sample", d({1, 4, 16, 6}), 2,
                      [](const Tensor& t) { return t.flatten(2); })},
      {111, square_of("merge_of_lines_that_are_cut", d({2, 24}), 1,
                      [](const Tensor& t) { return t.reshape({-1}); })},
      {112, square_of("merge_of_batch_and_sequence", d({2, 32, 4}), 1,
                      [](const Tensor& t) {
                        return t.reshape({-1, 4});
                      })},
      {114, square_of("split_whose_pieces_do_not_divide", d({18, 4}), 0,
                      [](const Tensor& t) {
                        return t.view({6, 3, 4});
                      })},
      {115, square_of("split_with_boundaries_inside", d({24}), 0,
                      [](const Tensor& t) {
                        return t.view({3, 8});
                      })},
      {116, square_of("squeeze_and_unsqueeze", d({2, 1, 16}), 2,
                      [](const Tensor& t) { return t.squeeze(1).unsqueeze(-1).unsqueeze(0); })},
      {140, square_of("transpose", points(), 1, [](const Tensor& t) { return t.transpose(1, 2); })},
  };
}
SHARD_SAMPLE_TESTS(PeersReshapes, of_rows(reshapes()));

std::vector<PeersRow> parts() {
  torch::manual_seed(302);
  return {
      {117, square_of("one_of_the_sharded_dim", image(), 2,
                      [](const Tensor& t) {
                        return t.index({Slice(), Slice(), 3});
                      })},
      {119, square_of("last_of_another_dim", image(), 2,
                      [](const Tensor& t) {
                        return t.index({Slice(), -1});
                      })},
      {120, square_of("first_of_the_last_dim", points(), 1,
                      [](const Tensor& t) { return t.select(-1, 0); })},
      {121, square_of("without_the_ends", image(), 2,
                      [](const Tensor& t) {
                        return t.index({Slice(), Slice(), Slice(1, -1)});
                      })},
      {124, square_of("first_columns", points(), 1,
                      [](const Tensor& t) {
                        return t.index({Ellipsis, Slice(0, 3)});
                      })},
      {144, square_of("lower_triangle", d({16, 16}), 0, [](const Tensor& t) { return t.tril(); })},
  };
}
SHARD_SAMPLE_TESTS(PeersParts, of_rows(parts()));

std::vector<PeersRow> rearranged() {
  torch::manual_seed(303);
  return {
      {127, square_of("flip", image(), 2, [](const Tensor& t) { return t.flip(2); })},
      {129, square_of("roll", image(), 2, [](const Tensor& t) { return t.roll(3, 2); })},
      {139, square_of("repeat", points(), 1,
                      [](const Tensor& t) {
                        return t.repeat({1, 2, 1});
                      })},
  };
}
SHARD_SAMPLE_TESTS(PeersRearranged, of_rows(rearranged()));

std::vector<PeersRow> chunks() {
  torch::manual_seed(304);
  return {{212, square_of("without_the_ends", d({2, 4, 17, 6}), 2, [](const Tensor& t) {
             return t.index({Slice(), Slice(), Slice(1, -1)});
           })}};
}
SHARD_SAMPLE_TESTS(PeersChunkedParts, of_rows_in_chunks(chunks()));

}  // namespace
}  // namespace shard::testing::edge_cases
