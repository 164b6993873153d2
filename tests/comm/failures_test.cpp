// SPDX-License-Identifier: Apache-2.0
// Every rank either succeeds or raises, and nobody hangs: on thread ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <shard/error.h>
#include <shard/launch.h>
#include <torch/types.h>

#include <future>
#include <thread>

namespace shard::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::Each;
using ::testing::HasSubstr;

/// Runs `body` on `ranks` ranks and returns what each raised ("" for none), and its type's name.
struct Raised {
  std::vector<std::string> texts;
  std::vector<std::string> types;
};

template <class E>
bool note(const char* name, const std::exception_ptr& error, std::string& type, std::string& text) {
  try {
    std::rethrow_exception(error);
  } catch (const E& e) {
    type = name;
    text = e.what();
    return true;
  } catch (...) {
    return false;
  }
}

Raised raised_by(int ranks, const RankFunction& body, LaunchOptions options = {}) {
  Raised raised{std::vector<std::string>(static_cast<size_t>(ranks)),
                std::vector<std::string>(static_cast<size_t>(ranks))};
  const auto watched = [&](World& world) {
    const auto rank = static_cast<size_t>(world.rank());
    try {
      body(world);
    } catch (...) {
      const auto error = std::current_exception();
      auto& type = raised.types[rank];
      auto& text = raised.texts[rank];
      note<CommTimeout>("CommTimeout", error, type, text) ||
          note<CommMismatch>("CommMismatch", error, type, text) ||
          note<PeerFailed>("PeerFailed", error, type, text) ||
          note<std::exception>("other", error, type, text);
      throw;
    }
  };
  try {
    run_ranks(ranks, watched, options);
  } catch (const std::exception&) {
  }
  return raised;
}

std::string first_error(int ranks, const RankFunction& body, LaunchOptions options = {}) {
  try {
    run_ranks(ranks, body, options);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

TEST(ThreadFailures, AThrowingRankEndsTheWaitsOfItsPeers) {
  const auto raised = raised_by(4, [](World& world) {
    if (world.rank() == 2) throw std::runtime_error("boom");
    world.comm().barrier();
  });
  EXPECT_EQ(raised.types[2], "other");
  for (const size_t rank : {0u, 1u, 3u}) {
    EXPECT_EQ(raised.types[rank], "PeerFailed");
    EXPECT_EQ(raised.texts[rank], "[barrier] rank 2 failed: boom");
  }
}

TEST(ThreadFailures, TheFirstFailingRanksOwnErrorIsRethrown) {
  EXPECT_EQ(first_error(3,
                        [](World& world) {
                          if (world.rank() == 1) throw std::runtime_error("boom");
                          world.comm().barrier();
                        }),
            "boom");
}

TEST(ThreadFailures, AFailureReachesRanksThatWaitInAnotherCommunicator) {
  const auto raised = raised_by(4, [](World& world) {
    const DeviceMesh mesh = world.mesh({{"ddp", 2}, {"domain", 2}});
    world.comm().barrier();
    if (world.rank() == 3) throw std::runtime_error("boom");
    mesh.comm("domain").barrier();
    if (world.rank() < 2) {  // whose peers have failed in a group that these ranks are not in
      mesh.comm("ddp").barrier();
    }
  });
  for (const size_t rank : {0u, 1u, 2u}) EXPECT_EQ(raised.types[rank], "PeerFailed");
}

TEST(ThreadFailures, AfterAFailureEveryOperationRaises) {
  const auto raised = raised_by(2, [](World& world) {
    const Communicator group = world.comm().split(0, world.rank(), "group");
    if (world.rank() == 1) world.comm().poison("asked to");
    EXPECT_THROW(world.comm().barrier(), PeerFailed);
    EXPECT_THROW(world.comm().exchange({}, {}), PeerFailed);
    EXPECT_THROW(group.all_gather_bytes("x"), PeerFailed);
    world.comm().split(0, 0, "another");
  });
  EXPECT_THAT(raised.texts, Each(HasSubstr("rank 1 failed: asked to")));
}

TEST(ThreadFailures, ARankThatReturnsEarlyIsNamed) {
  EXPECT_THAT(first_error(3,
                          [](World& world) {
                            if (world.rank() == 1) return;
                            world.comm().barrier();
                          }),
              HasSubstr("[barrier] rank 1 has returned from the rank function while rank"));
}

TEST(ThreadFailures, ARankThatReturnsBeforeAGroupsFirstOperationIsNamed) {
  const auto raised = raised_by(4, [](World& world) {
    const DeviceMesh mesh = world.mesh({{"ddp", 2}, {"domain", 2}});
    if (world.rank() == 3) return;
    if (world.rank() == 2) mesh.comm("domain").barrier();
  });
  EXPECT_EQ(raised.types[2], "PeerFailed");
  EXPECT_THAT(raised.texts[2], HasSubstr("rank 3 has returned from the rank function"));
}

TEST(ThreadFailures, RanksMayReturnAsSoonAsTheirPartIsDone) {
  run_ranks(4, [](World& world) {
    torch::Tensor tensor = torch::ones({10000});
    if (world.rank() < 2)
      world.comm().exchange({{1 - world.rank(), tensor}}, {{1 - world.rank(), tensor}});
  });
}

TEST(ThreadFailures, ATimeoutNamesWhoIsMissing) {
  std::promise<void> others_have_timed_out;
  LaunchOptions options;
  options.timeout = 50ms;
  const auto raised = raised_by(
      3,
      [&](World& world) {
        if (world.rank() == 1) others_have_timed_out.get_future().wait();
        try {
          world.comm().barrier();
        } catch (...) {
          if (world.rank() == 0) others_have_timed_out.set_value();
          throw;
        }
      },
      options);
  EXPECT_THAT(raised.types, Each("CommTimeout"));
  EXPECT_THAT(raised.texts, Each("[barrier] timed out after 0.05 s in operation 1: got ranks 0, 2; "
                                 "missing rank 1. See what the missing ranks do, or raise "
                                 "SHARD_TIMEOUT."));
}

TEST(ThreadFailures, ATimeoutPrintsTheLastCalls) {
  std::promise<void> rank_0_has_timed_out;
  LaunchOptions options;
  options.timeout = 50ms;
  ::testing::internal::CaptureStderr();
  raised_by(
      2,
      [&](World& world) {
        torch::Tensor tensor = torch::ones({4});
        world.comm().all_reduce(tensor);
        if (world.rank() == 1) return rank_0_has_timed_out.get_future().wait();
        try {
          world.comm().barrier();
        } catch (...) {
          rank_0_has_timed_out.set_value();
          throw;
        }
      },
      options);
  const std::string printed = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(printed, HasSubstr("[shard rank 0] error: timed out on 'world'"));
  EXPECT_THAT(printed, HasSubstr("call 1: all_reduce on 'world', 16 bytes of Float, done"));
  EXPECT_THAT(printed, HasSubstr("call 2: barrier on 'world', 0 bytes, waiting"));
}

TEST(ThreadFailures, RanksThatWaitForEachOtherOnTwoCommunicatorsAreToldAtOnce) {
  const auto raised = raised_by(2, [](World& world) {
    const Communicator first = world.comm().split(0, world.rank(), "first");
    const Communicator second = world.comm().split(0, world.rank(), "second");
    (world.rank() == 0 ? first : second).barrier();
    (world.rank() == 0 ? second : first).barrier();
  });
  EXPECT_THAT(raised.types, Each("CommMismatch"));
  EXPECT_THAT(raised.texts, Each(HasSubstr("[barrier] ranks wait for each other: got rank ")));
  EXPECT_THAT(raised.texts, Each(HasSubstr("in barrier (operation 1 of ranks 0, 1) for rank ")));
}

TEST(ThreadFailures, ACircleOfRanksOnAMeshIsFound) {
  const auto raised = raised_by(4, [](World& world) {
    const DeviceMesh mesh = world.mesh({{"a", 2}, {"b", 2}});
    torch::Tensor tensor = torch::ones({4});
    const bool a_first = world.rank() == 0 || world.rank() == 3;
    mesh.comm(a_first ? "a" : "b").all_reduce(tensor);
    mesh.comm(a_first ? "b" : "a").all_reduce(tensor);
  });
  EXPECT_THAT(raised.types, Each("CommMismatch"));
  EXPECT_THAT(raised.texts, Each(HasSubstr("ranks wait for each other")));
}

TEST(ThreadFailures, ALateRankIsNoDeadlock) {
  run_ranks(3, [](World& world) {
    if (world.rank() == 2) std::this_thread::sleep_for(500ms);
    const Communicator pair = world.comm().split(world.rank() / 2, world.rank(), "pair");
    if (world.rank() == 1) std::this_thread::sleep_for(500ms);
    pair.barrier();
    world.comm().barrier();
  });
}

// While a rank unwinds, a peer may still be copying from its tensor (run under ASan and TSan).
TEST(ThreadFailures, TensorsOfAFailingRankStayAlive) {
  for (int i = 0; i < 20; ++i) {
    const auto raised = raised_by(3, [](World& world) {
      const int rank = world.rank();
      if (rank == 2) throw std::runtime_error("boom");
      std::vector<Message> receives;
      torch::Tensor received = torch::empty({1 << 18});
      torch::Tensor never = torch::empty({1});
      receives.push_back({1 - rank, received});
      receives.push_back({2, never});
      world.comm().exchange({{1 - rank, torch::ones({1 << 18})}}, receives);
    });
    EXPECT_EQ(raised.types[0], "PeerFailed");
    EXPECT_EQ(raised.types[1], "PeerFailed");
  }
}

struct Disagreement {
  const char* name;
  RankFunction on_rank_1;
  RankFunction elsewhere;
  const char* text;
};
std::ostream& operator<<(std::ostream& out, const Disagreement& disagreement) {
  return out << disagreement.name;
}

torch::Tensor floats(int64_t n) { return torch::zeros({n}); }

void reduce(World& world, torch::Tensor tensor, ReduceOp op = ReduceOp::Sum) {
  world.comm().all_reduce(tensor, op);
}

void broadcast(World& world, int root) {
  torch::Tensor tensor = floats(4);
  world.comm().broadcast(tensor, root);
}

std::vector<torch::Tensor> three(int64_t n) { return {floats(n), floats(n), floats(n)}; }

const std::vector<Disagreement>& disagreements() {
  static const std::vector<Disagreement> all{
      {"Kind", [](World& w) { w.comm().barrier(); }, [](World& w) { reduce(w, floats(4)); },
       "got all_reduce (sum) of Float [4] on ranks 0, 2, barrier on rank 1; expected the same"},
      {"Size", [](World& w) { reduce(w, floats(3)); }, [](World& w) { reduce(w, floats(4)); },
       "got all_reduce (sum) of Float [3] on rank 1, all_reduce (sum) of Float [4] on ranks 0, 2"},
      {"LargeSize", [](World& w) { reduce(w, floats(9000)); },
       [](World& w) { reduce(w, floats(9001)); }, "Float [9000] on rank 1"},
      {"SmallAndLarge", [](World& w) { reduce(w, floats(9)); },
       [](World& w) { reduce(w, floats(9001)); }, "Float [9] on rank 1"},
      {"Dtype", [](World& w) { reduce(w, floats(4).to(torch::kDouble)); },
       [](World& w) { reduce(w, floats(4)); }, "Double [4] on rank 1"},
      {"Op", [](World& w) { reduce(w, floats(4), ReduceOp::Max); },
       [](World& w) { reduce(w, floats(4)); }, "all_reduce (max) of Float [4] on rank 1"},
      {"Root", [](World& w) { broadcast(w, 1); }, [](World& w) { broadcast(w, 0); },
       "broadcast of Float [4] from root 1 on rank 1"},
      {"GatheredPiece", [](World& w) { w.comm().all_gather_v(floats(3), three(2)); },
       [](World& w) { w.comm().all_gather_v(floats(2), three(2)); },
       "got Float [3] from rank 1; rank"},
      {"SentPiece", [](World& w) { w.comm().all_to_all_v(three(3), three(2)); },
       [](World& w) { w.comm().all_to_all_v(three(2), three(2)); },
       "got Float [3] from rank 1; rank"},
      {"ExchangeOrCollective", [](World& w) { w.comm().exchange({}, {}); },
       [](World& w) { w.comm().barrier(); }, "barrier on ranks 0, 2"},
      {"ExchangeOrCollectiveForThePeer", [](World& w) { w.comm().barrier(); },
       [](World& w) {
         if (w.rank() == 2) return w.comm().barrier();
         w.comm().exchange({}, {{1, floats(1)}});
       },
       "operation 1"},
      {"MessageNobodyTakes",
       [](World& w) {
         w.comm().exchange({{0, floats(1)}}, {});
       },
       [](World& w) {
         w.comm().exchange({}, {});
         w.comm().barrier();
       },
       "messages from rank 1 to rank 0 in operation 1: got 1 sent; expected 0"},
      {"MessageNobodySends",
       [](World& w) {
         w.comm().exchange({}, {{0, floats(1)}});
       },
       [](World& w) {
         w.comm().exchange({}, {});
         w.comm().barrier();
       },
       "messages from rank 0 to rank 1 in operation 1: got 0 sent; expected 1"},
      {"NumberOfMessages",
       [](World& w) {
         w.comm().exchange({{0, floats(1)}, {0, floats(1)}}, {});
       },
       [](World& w) {
         std::vector<Message> receives;
         if (w.rank() == 0) receives.push_back({1, floats(1)});
         w.comm().exchange({}, receives);
         w.comm().barrier();
       },
       "messages from rank 1 to rank 0 in operation 1: got 2 sent; expected 1"},
      {"MessageSize",
       [](World& w) {
         w.comm().exchange({{0, floats(2)}}, {});
       },
       [](World& w) {
         std::vector<Message> receives;
         if (w.rank() == 0) receives.push_back({1, floats(1)});
         w.comm().exchange({}, receives);
         w.comm().barrier();
       },
       "got Float [2] from rank 1; rank 0 expected Float [1]"},
  };
  return all;
}

class RanksThatDisagree : public ::testing::TestWithParam<Disagreement> {};

TEST_P(RanksThatDisagree, AllRaiseTheSameMismatch) {
  const auto raised = raised_by(3, [&](World& world) {
    (world.rank() == 1 ? GetParam().on_rank_1 : GetParam().elsewhere)(world);
    world.comm().barrier();  // whoever got through hears of it here
  });
  EXPECT_THAT(raised.types, Each("CommMismatch"));
  EXPECT_THAT(raised.texts, Each(raised.texts[0]));
  EXPECT_THAT(raised.texts[0], HasSubstr(GetParam().text));
}

INSTANTIATE_TEST_SUITE_P(Comm, RanksThatDisagree, ::testing::ValuesIn(disagreements()),
                         [](const auto& info) { return info.param.name; });

TEST(Communicator, RefusesWrongArgumentsBeforeAnyMessage) {
  run_ranks(2, [](World& world) {
    torch::Tensor tensor = floats(2);
    EXPECT_THROW(world.comm().broadcast(tensor, 2), CommError);
    EXPECT_THROW(world.comm().all_gather_v(tensor, {tensor}), CommError);
    EXPECT_THROW(world.comm().exchange({{5, tensor}}, {}), CommError);
    world.comm().barrier();
  });
}

}  // namespace
}  // namespace shard::testing
