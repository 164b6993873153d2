// SPDX-License-Identifier: Apache-2.0
// Thread ranks against their bars: the barrier, and all_reduce of 4 MB against MPI_Allreduce of the
// same machine, which this program measures by starting itself under mpirun. Wall time of rank 0.
#include <shard/communicator.h>
#include <shard/launch.h>
#include <torch/types.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "bench.h"

#ifdef SHARD_BENCH_MPI
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
#endif

namespace {

constexpr int64_t kElements = 1 << 20;  // 4 MB of float
constexpr int kCalls = 20;
constexpr int kBlocks = 15;

/// Microseconds a call: the median over blocks, measured on every rank.
template <class Call>
double median_us(int blocks, int calls, const Call& call) {
  call();
  std::vector<double> times;
  for (int b = 0; b < blocks; ++b) {
    const double begin = bench::wall_us();
    for (int i = 0; i < calls; ++i) call();
    times.push_back((bench::wall_us() - begin) / calls);
  }
  return bench::median(std::move(times));
}

template <class Body>
double on_threads(int ranks, const Body& body) {
  double us = 0;
  shard::run_ranks(ranks, [&](shard::World& world) {
    const double mine = body(world.comm());
    if (world.is_root()) us = mine;
  });
  return us;
}

double barrier_us(int ranks) {
  return on_threads(ranks, [](const shard::Communicator& comm) {
    return median_us(31, 2000, [&] { comm.barrier(); });
  });
}

double thread_all_reduce_us(int ranks) {
  return on_threads(ranks, [](const shard::Communicator& comm) {
    torch::Tensor tensor = torch::zeros({kElements});
    return median_us(kBlocks, kCalls, [&] { comm.all_reduce(tensor); });
  });
}

#ifdef SHARD_BENCH_MPI
/// What a rank of `mpirun comm_bench --mpi` does: rank 0 prints the time of one MPI_Allreduce.
int measure_mpi() {
  MPI_Init(nullptr, nullptr);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const torch::Tensor in = torch::zeros({kElements});
  const torch::Tensor out = torch::empty({kElements});
  const double us = median_us(kBlocks, kCalls, [&] {
    MPI_Allreduce(in.const_data_ptr(), out.mutable_data_ptr(), static_cast<int>(kElements),
                  MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  });
  if (rank == 0) std::printf("mpi_us %.3f\n", us);
  MPI_Finalize();
  return 0;
}

std::optional<double> mpi_all_reduce_us(const std::string& program, int ranks) {
  setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
  setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 1);
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", 1);
  const std::string command =
      "mpirun -n " + std::to_string(ranks) + " " + program + " --mpi 2>/dev/null";
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return std::nullopt;
  std::optional<double> us;
  std::array<char, 256> line{};
  while (std::fgets(line.data(), line.size(), pipe) != nullptr) {
    if (std::strncmp(line.data(), "mpi_us ", 7) == 0) us = std::atof(line.data() + 7);
  }
  pclose(pipe);
  return us;
}
#else
int measure_mpi() { return 1; }
std::optional<double> mpi_all_reduce_us(const std::string& /*program*/, int /*ranks*/) {
  return std::nullopt;
}
#endif

bool all_reduce_against_mpi(const std::string& program) {
  constexpr int kRanks = 2;
  constexpr int kRounds = 3;
  std::vector<double> threads;
  std::vector<double> mpi;
  for (int i = 0; i < kRounds; ++i) {
    threads.push_back(thread_all_reduce_us(kRanks));
    const auto us = mpi_all_reduce_us(program, kRanks);
    if (!us) {
      std::printf(
          "{\"bench\": \"comm\", \"case\": \"all_reduce 4 MB\", \"skipped\": \"no MPI\"}\n");
      return true;
    }
    mpi.push_back(*us);
  }
  const bench::Pair pair{bench::median(threads), bench::median(mpi)};
  return bench::report("comm", "all_reduce 4 MB", kRanks, pair, "MPI_Allreduce", pair.ref / 3);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--mpi") == 0) return measure_mpi();
  bool ok = bench::report("comm", "barrier", 2, {barrier_us(2), 0}, "none", 1);
  ok &= bench::report("comm", "barrier", 4, {barrier_us(4), 0}, "none", 5);
  ok &= all_reduce_against_mpi(argv[0]);
  return ok ? 0 : 1;
}
