// SPDX-License-Identifier: Apache-2.0
#include "support/collective_cases.h"

#include <gtest/gtest.h>
#include <shard/comm_counter.h>
#include <shard/error.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "support/ordered_reduction.h"

namespace shard::testing {
namespace {

using torch::Tensor;
using torch::indexing::Slice;

/// What rank `rank` contributes: the same on every rank that asks.
Tensor contribution(int rank, at::IntArrayRef sizes, at::ScalarType dtype) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(1000 + rank));
  const Tensor values = at::randn(sizes, generator, torch::kDouble) * 3;
  return dtype == torch::kBool ? values > 0 : values.to(dtype);
}

std::vector<Tensor> contributions(const Communicator& comm, at::IntArrayRef sizes,
                                  at::ScalarType dtype) {
  std::vector<Tensor> all;
  for (int r = 0; r < comm.size(); ++r) all.push_back(contribution(r, sizes, dtype));
  return all;
}

/// A tensor of these sizes that is spread over memory.
Tensor strided(at::IntArrayRef sizes, at::ScalarType dtype = torch::kFloat) {
  std::vector<int64_t> doubled;
  for (const int64_t size : sizes) doubled.push_back(2 * size);
  Tensor tensor = torch::full(doubled, 7, dtype);
  for (size_t d = 0; d < sizes.size(); ++d) {
    tensor = tensor.slice(static_cast<int64_t>(d), 0, doubled[d], 2);
  }
  return tensor;
}

#define EXPECT_SAME(a, b) EXPECT_TRUE(at::equal((a), (b))) << (a) << "\n" << (b)

// 2500 doubles and 5000 floats exceed the size up to which all_reduce gathers everything.
const std::vector<int64_t> kCounts{0, 1, 2, 5, 129, 5003};

void reduce_every_dtype(const Communicator& comm) {
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16,
                           torch::kComplexFloat, torch::kComplexDouble, torch::kLong, torch::kInt,
                           torch::kShort, torch::kChar, torch::kByte, torch::kBool}) {
    for (const int64_t count : kCounts) {
      Tensor tensor = contribution(comm.rank(), {count}, dtype);
      comm.all_reduce(tensor);
      EXPECT_SAME(tensor, reduced_in_rank_order(contributions(comm, {count}, dtype), ReduceOp::Sum))
          << dtype << " of " << count;
    }
  }
}

/// Many blocks on every rank, the last one short.
void reduce_a_long_tensor(const Communicator& comm) {
  const std::vector<int64_t> sizes{100003};
  Tensor tensor = contribution(comm.rank(), sizes, torch::kFloat);
  comm.all_reduce(tensor);
  EXPECT_TRUE(at::equal(
      tensor, reduced_in_rank_order(contributions(comm, sizes, torch::kFloat), ReduceOp::Sum)));
}

void reduce_with_every_op(const Communicator& comm) {
  for (const auto op : {ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Max, ReduceOp::Min}) {
    for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kLong}) {
      if (op == ReduceOp::Avg && dtype == torch::kLong) continue;
      for (const int64_t count : kCounts) {
        Tensor tensor = contribution(comm.rank(), {count}, dtype);
        comm.all_reduce(tensor, op);
        EXPECT_SAME(tensor, reduced_in_rank_order(contributions(comm, {count}, dtype), op))
            << dtype << ", " << name_of(op);
      }
    }
  }
}

void refuse_undefined_reductions(const Communicator& comm) {
  if (comm.size() == 1) return;
  Tensor integers = torch::ones({3}, torch::kLong);
  EXPECT_THROW(comm.all_reduce(integers, ReduceOp::Avg), CommError);
  Tensor complex = torch::ones({3}, torch::kComplexFloat);
  EXPECT_THROW(comm.all_reduce(complex, ReduceOp::Max), CommError);
}

void propagate_nan_in_max_and_min(const Communicator& comm) {
  for (const auto op : {ReduceOp::Max, ReduceOp::Min}) {
    Tensor tensor = torch::ones({3});
    if (comm.rank() == comm.size() - 1) tensor[1] = NAN;
    comm.all_reduce(tensor, op);
    EXPECT_TRUE(tensor[1].isnan().item<bool>());
    EXPECT_EQ(tensor[0].item<float>(), 1);
  }
}

void reduce_strided_tensors(const Communicator& comm) {
  for (const int64_t rows : {3, 70}) {
    const std::vector<int64_t> sizes{rows, 9, 11};
    Tensor tensor = strided(sizes);
    tensor.copy_(contribution(comm.rank(), sizes, torch::kFloat));
    comm.all_reduce(tensor);
    const auto all = contributions(comm, sizes, torch::kFloat);
    EXPECT_SAME(tensor, reduced_in_rank_order(all, ReduceOp::Sum));
    // Ranks whose strides differ add element by element all the same.
    Tensor other = contribution(comm.rank(), sizes, torch::kFloat);
    if (comm.rank() % 2 == 1) other = other.transpose(0, 2).contiguous().transpose(0, 2);
    comm.all_reduce(other);
    EXPECT_SAME(other, reduced_in_rank_order(all, ReduceOp::Sum));
  }
}

void gather_uneven_pieces(const Communicator& comm) {
  const auto rows = [](int rank) { return int64_t{(rank * 5) % 7}; };  // 0 on rank 0
  int64_t total = 0;
  for (int r = 0; r < comm.size(); ++r) total += rows(r);
  for (const int64_t width : {3, 3000}) {
    Tensor whole = torch::zeros({total, width});
    std::vector<Tensor> outputs;
    std::vector<Tensor> expected;
    for (int r = 0, at = 0; r < comm.size(); at += static_cast<int>(rows(r)), ++r) {
      outputs.push_back(whole.narrow(0, at, rows(r)));
      expected.push_back(contribution(r, {rows(r), width}, torch::kFloat));
    }
    comm.all_gather_v(expected[static_cast<size_t>(comm.rank())], outputs);
    EXPECT_SAME(whole, torch::cat(expected));
  }
}

void gather_along_a_strided_dim(const Communicator& comm) {
  Tensor whole = torch::zeros({5, comm.size() * 2});
  std::vector<Tensor> outputs;
  std::vector<Tensor> expected;
  for (int r = 0; r < comm.size(); ++r) {
    outputs.push_back(whole.narrow(1, 2 * r, 2));
    expected.push_back(contribution(r, {5, 2}, torch::kFloat));
  }
  comm.all_gather_v(
      outputs[static_cast<size_t>(comm.rank())].copy_(expected[static_cast<size_t>(comm.rank())]),
      outputs);
  EXPECT_SAME(whole, torch::cat(expected, 1));
}

void reduce_and_scatter_uneven_pieces(const Communicator& comm) {
  for (const int64_t width : {2, 4000}) {
    std::vector<Tensor> mine;
    std::vector<Tensor> for_me;
    for (int r = 0; r < comm.size(); ++r) {
      mine.push_back(strided({r, width}, torch::kBFloat16));
      mine.back().copy_(contribution(10 * comm.rank() + r, {r, width}, torch::kBFloat16));
      for_me.push_back(contribution(10 * r + comm.rank(), {comm.rank(), width}, torch::kBFloat16));
    }
    Tensor output = strided({comm.rank(), width}, torch::kBFloat16);
    comm.reduce_scatter_v(mine, output);
    EXPECT_SAME(output, reduced_in_rank_order(for_me, ReduceOp::Sum));
  }
}

void swap_uneven_pieces(const Communicator& comm) {
  const auto rows = [](int from, int to) { return int64_t{(3 * from + to) % 4}; };
  for (const int64_t width : {3, 5000}) {
    std::vector<Tensor> sends;
    std::vector<Tensor> receives;
    for (int r = 0; r < comm.size(); ++r) {
      sends.push_back(
          contribution(10 * comm.rank() + r, {rows(comm.rank(), r), width}, torch::kDouble));
      receives.push_back(strided({rows(r, comm.rank()), width}, torch::kDouble));
    }
    comm.all_to_all_v(sends, receives);
    for (int r = 0; r < comm.size(); ++r) {
      EXPECT_SAME(
          receives[static_cast<size_t>(r)],
          contribution(10 * r + comm.rank(), {rows(r, comm.rank()), width}, torch::kDouble));
    }
  }
}

void broadcast_from_every_root(const Communicator& comm) {
  for (int root = 0; root < comm.size(); ++root) {
    for (const int64_t count : kCounts) {
      Tensor tensor = strided({count, 2});
      if (comm.rank() == root) tensor.copy_(contribution(root, {count, 2}, torch::kFloat));
      comm.broadcast(tensor, root);
      EXPECT_SAME(tensor, contribution(root, {count, 2}, torch::kFloat));
    }
  }
}

void scatter_from_every_root(const Communicator& comm) {
  for (int root = 0; root < comm.size(); ++root) {
    const auto rows = [&](int rank) { return int64_t{(rank + root) % 3}; };
    std::vector<Tensor> pieces;
    for (int r = 0; comm.rank() == root && r < comm.size(); ++r) {
      pieces.push_back(contribution(r, {rows(r), 2000}, torch::kFloat));
    }
    Tensor output = strided({rows(comm.rank()), 2000});
    comm.scatter_v(pieces, output, root);
    EXPECT_SAME(output, contribution(comm.rank(), {rows(comm.rank()), 2000}, torch::kFloat));
  }
}

void exchange_with_neighbours(const Communicator& comm) {
  for (const int64_t width : {4, 6000}) {
    const Tensor own = contribution(comm.rank(), {6, width}, torch::kFloat);
    Tensor before = torch::zeros({2, width});
    Tensor after = strided({2, width});
    std::vector<Message> sends;
    std::vector<Message> receives;
    if (comm.rank() > 0) {
      sends.push_back({comm.rank() - 1, own.narrow(0, 0, 2)});
      receives.push_back({comm.rank() - 1, before});
    }
    if (comm.rank() + 1 < comm.size()) {
      sends.push_back({comm.rank() + 1, own.narrow(0, 4, 2)});
      receives.push_back({comm.rank() + 1, after});
    }
    comm.exchange(sends, receives);
    if (comm.rank() > 0) {
      const Tensor theirs = contribution(comm.rank() - 1, {6, width}, torch::kFloat);
      EXPECT_SAME(before, theirs.narrow(0, 4, 2));
    }
    if (comm.rank() + 1 < comm.size()) {
      const Tensor theirs = contribution(comm.rank() + 1, {6, width}, torch::kFloat);
      EXPECT_SAME(after, theirs.narrow(0, 0, 2));
    }
  }
}

// On a ring of two both neighbours are the same rank, on a ring of one the rank itself: messages of
// a pair are matched in the order in which they are listed.
void exchange_around_a_ring(const Communicator& comm) {
  const int next = (comm.rank() + 1) % comm.size();
  const int last = (comm.rank() + comm.size() - 1) % comm.size();
  for (const int64_t width : {5, 4000}) {
    const Tensor own = contribution(comm.rank(), {2, width}, torch::kFloat);
    Tensor from_last = torch::zeros({width});
    Tensor from_next = torch::zeros({width});
    comm.exchange({{next, own[1]}, {last, own[0]}}, {{last, from_last}, {next, from_next}});
    EXPECT_SAME(from_last, contribution(last, {2, width}, torch::kFloat)[1]);
    EXPECT_SAME(from_next, contribution(next, {2, width}, torch::kFloat)[0]);
  }
}

// Ranks that have nothing to say run ahead of those that have.
void exchange_between_some_ranks(const Communicator& comm) {
  const bool is_talking = comm.size() > 1 && comm.rank() < 2;
  for (int i = 0; i < 50; ++i) {
    Tensor received = torch::zeros({3});
    std::vector<Message> sends;
    std::vector<Message> receives;
    if (is_talking)
      sends.push_back({1 - comm.rank(), torch::full({3}, i + comm.rank(), torch::kFloat)});
    if (is_talking) receives.push_back({1 - comm.rank(), received});
    comm.exchange(sends, receives);
    if (is_talking) {
      EXPECT_SAME(received, torch::full({3}, i + 1 - comm.rank(), torch::kFloat));
    }
  }
  comm.barrier();
}

void exchange_empty_messages(const Communicator& comm) {
  const int next = (comm.rank() + 1) % comm.size();
  const int last = (comm.rank() + comm.size() - 1) % comm.size();
  Tensor empty = torch::zeros({0, 3});
  comm.exchange({{next, torch::ones({0, 3})}}, {{last, empty}});
  comm.exchange({}, {});
}

void gather_byte_strings(const Communicator& comm) {
  const auto text = [](int rank) { return std::string(static_cast<size_t>(rank) * 4000, 'a'); };
  const auto all = comm.all_gather_bytes(text(comm.rank()));
  ASSERT_EQ(all.size(), static_cast<size_t>(comm.size()));
  for (int r = 0; r < comm.size(); ++r) EXPECT_EQ(all[static_cast<size_t>(r)], text(r));
}

void split_into_groups(const Communicator& comm) {
  const int parity = comm.rank() % 2;
  const Communicator group = comm.split(parity, -comm.rank(), "group");  // highest rank first
  EXPECT_EQ(group.size(), (comm.size() + 1 - parity) / 2);
  EXPECT_EQ(group.rank(), group.size() - 1 - comm.rank() / 2);
  Tensor tensor = torch::full({3000}, comm.rank(), torch::kFloat);
  group.all_reduce(tensor);
  int sum = 0;
  for (int r = parity; r < comm.size(); r += 2) sum += r;
  EXPECT_SAME(tensor, torch::full({3000}, sum, torch::kFloat));
  const Communicator alone = group.split(group.rank(), 0, "alone");
  EXPECT_EQ(alone.size(), 1);
  // Groups of one parent and the parent itself do not disturb each other.
  Tensor whole = torch::ones({4});
  comm.all_reduce(whole);
  EXPECT_SAME(whole, torch::full({4}, comm.size(), torch::kFloat));
}

void count_what_the_transport_moves(const Communicator& comm) {
  comm.barrier();
  const int64_t before = comm.bytes_sent();
  comm.barrier();
  const CommCounter counter;
  reduce_every_dtype(comm);
  gather_uneven_pieces(comm);
  reduce_and_scatter_uneven_pieces(comm);
  swap_uneven_pieces(comm);
  broadcast_from_every_root(comm);
  scatter_from_every_root(comm);
  exchange_with_neighbours(comm);
  exchange_around_a_ring(comm);
  gather_byte_strings(comm);
  comm.barrier();
  EXPECT_EQ(comm.bytes_sent() - before, counter.bytes());
  if (comm.size() > 1) {
    EXPECT_GT(counter.bytes(), 0);
  }
}

void bump_versions_of_what_is_written(const Communicator& comm) {
  Tensor reduced = torch::ones({3});
  Tensor received = torch::ones({3});
  const Tensor sent = torch::ones({3});
  const auto versions = [&] {
    return std::vector<int64_t>{reduced._version(), received._version(), sent._version()};
  };
  const auto before = versions();
  comm.all_reduce(reduced);
  const int next = (comm.rank() + 1) % comm.size();
  const int last = (comm.rank() + comm.size() - 1) % comm.size();
  comm.exchange({{next, sent}}, {{last, received}});
  const auto after = versions();
  if (comm.size() > 1) {
    EXPECT_GT(after[0], before[0]);
  }
  EXPECT_GT(after[1], before[1]);
  EXPECT_EQ(after[2], before[2]);
}

void work_in_every_autograd_mode(const Communicator& comm) {
  const auto reduce = [&] {
    Tensor tensor = contribution(comm.rank(), {5}, torch::kFloat);
    comm.all_reduce(tensor);
    EXPECT_SAME(tensor,
                reduced_in_rank_order(contributions(comm, {5}, torch::kFloat), ReduceOp::Sum));
  };
  reduce();
  {
    const torch::NoGradGuard no_grad;
    reduce();
  }
  const torch::InferenceMode inference;
  reduce();
}

}  // namespace

const std::vector<CollectiveCase>& collective_cases() {
  static const std::vector<CollectiveCase> cases{
      {"reduce_every_dtype", reduce_every_dtype},
      {"reduce_a_long_tensor", reduce_a_long_tensor},
      {"reduce_with_every_op", reduce_with_every_op},
      {"refuse_undefined_reductions", refuse_undefined_reductions},
      {"propagate_nan_in_max_and_min", propagate_nan_in_max_and_min},
      {"reduce_strided_tensors", reduce_strided_tensors},
      {"gather_uneven_pieces", gather_uneven_pieces},
      {"gather_along_a_strided_dim", gather_along_a_strided_dim},
      {"reduce_and_scatter_uneven_pieces", reduce_and_scatter_uneven_pieces},
      {"swap_uneven_pieces", swap_uneven_pieces},
      {"broadcast_from_every_root", broadcast_from_every_root},
      {"scatter_from_every_root", scatter_from_every_root},
      {"exchange_with_neighbours", exchange_with_neighbours},
      {"exchange_around_a_ring", exchange_around_a_ring},
      {"exchange_between_some_ranks", exchange_between_some_ranks},
      {"exchange_empty_messages", exchange_empty_messages},
      {"gather_byte_strings", gather_byte_strings},
      {"split_into_groups", split_into_groups},
      {"count_what_the_transport_moves", count_what_the_transport_moves},
      {"bump_versions_of_what_is_written", bump_versions_of_what_is_written},
      {"work_in_every_autograd_mode", work_in_every_autograd_mode},
  };
  return cases;
}

}  // namespace shard::testing
