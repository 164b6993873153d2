// SPDX-License-Identifier: Apache-2.0
// global_field: trains a U-Net on one global geophysical field that is cut over several ranks.
//
// Build:  make build/bin/global_field
// Run:    build/bin/global_field --ranks 2 --verify
//         build/bin/global_field --ranks 3 --split 301,150,89 --steps 300
//         build/bin/global_field --config my.json --reduce 2
//         build/bin/global_field --domain 2x2
//         make mpirun N=2 APP="build/bin/global_field --steps 30"
//
// The job: from the atmospheric turbidity of three months, the altitude and the latitude predict
// the turbidity of the next month, as a correction to the last one, for the whole globe at once.
// Nine target months train, February, June and October are held out. Model, loss and optimizer are
// plain LibTorch; the rows of inputs and targets are cut over the ranks, and every rank reads its
// own rows only.
#include <shard/atomic_file.h>
#include <shard/error.h>
#include <shard/launch.h>
#include <shard/parameters.h>

#include <cstdio>
#include <exception>

#include "checkpoint.h"
#include "interrupt.h"
#include "lossy_mesh.h"
#include "model.h"
#include "picture.h"
#include "progress.h"
#include "report.h"
#include "sharded_field.h"
#include "training.h"
#include "verify.h"

namespace global_field {
namespace {

/// Says what is going to happen, and finds out now whether results can be written. Rank 0 alone.
/// The printed configuration starts the same job again (mpirun counts its ranks itself).
void announce(Options options, const shard::World& world) {
  if (world.launcher() == shard::Launcher::Threads) options.ranks = world.size();
  std::printf("options %s\n", to_json(options).c_str());
  shard::io::require_writable_folder(options.output);
}

/// Steps until the end or until somebody is interrupted; checkpoints on the way.
void train(const Options& options, const shard::World& world, Training& training,
           const ShardedField& field) {
  Progress progress(options, world, training.steps_done());
  while (!training.is_finished()) {
    progress.begin_step();
    const double loss = training.step(field.sample(training.next_month()));
    const bool interrupted = progress.end_step(training.steps_done(), loss);
    const int64_t every = options.checkpoint_every;
    const bool due = training.is_finished() || (every > 0 && training.steps_done() % every == 0);
    if (due || interrupted) save_checkpoint(options, training, world.comm());
    if (!interrupted || training.is_finished()) continue;
    progress.finish();
    shard::raise<shard::Error>("global_field", "interrupted after step ", training.steps_done(),
                               " of ", options.steps, "; the checkpoint is '",
                               options.checkpoint_path(), "'. Continue with --resume.");
  }
  progress.finish();
}

void run(const Options& options, shard::World& world) {
  // 1. Say what is going to happen, with the number of ranks that launch found.
  if (world.is_root()) announce(options, world);

  // 2. Cut the rows of the globe over the ranks; every rank reads its own.
  const FieldOptions data = field_options(options);
  const shard::DeviceMesh domain = make_domain(options, world);
  const shard::Partition rows = cut_rows(data, options.split, domain);
  const ShardedField field(data, domain, rows);

  // 3. A plain model with the same weights everywhere.
  UNet model = make_model(options);
  shard::broadcast_parameters(*model, domain);

  // 4. Train it, from the start or from a checkpoint.
  Training training(options, model);
  if (options.resume) load_checkpoint(options, training, world.comm());
  train(options, world, training, field);

  // 5. Judge it on the months that it never had to predict.
  const std::vector<Score> scores = evaluate(model, field);
  write_picture(options.output + "/global_field.png", model, field, kHeldOutMonths.front());
  if (world.is_root()) {
    write_report(options, scores, training.losses);
    std::printf("%s", score_table(scores).c_str());
    std::printf("results are in '%s'\n", options.output.c_str());
  }

  // 6. Compare one more step with plain LibTorch.
  if (options.verify && options.break_halo) {
    verify(options, model, ShardedField(data, lossy_mesh(domain), rows));
  } else if (options.verify) {
    verify(options, model, field);
  }
}

}  // namespace
}  // namespace global_field

int main(int argc, char** argv) {
  global_field::CommandLine command;
  std::exception_ptr refused;
  try {
    command = global_field::parse_command_line(argc, argv);
  } catch (...) {
    refused = std::current_exception();  // thrown again by the ranks, so that it is printed once
  }
  if (!command.help.empty()) {
    std::printf("%s", command.help.c_str());
    return 0;
  }
  global_field::catch_interrupts();
  shard::LaunchOptions launch;
  if (command.options.ranks > 0) launch.ranks = static_cast<int>(command.options.ranks);
  const auto shape = command.options.domain_shape();
  launch.default_ranks = shape.rows > 0 ? static_cast<int>(shape.rows * shape.columns) : 2;
  launch.seed = static_cast<uint64_t>(command.options.seed);
  launch.device = torch::Device(command.options.device);
  const int exit_code = shard::launch(
      argc, argv,
      [&](shard::World& world) {
        if (refused) std::rethrow_exception(refused);
        global_field::run(command.options, world);
      },
      launch);
  return exit_code != 0 && global_field::is_interrupted() ? global_field::kInterruptedExitCode
                                                          : exit_code;
}
