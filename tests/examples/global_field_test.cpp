// SPDX-License-Identifier: Apache-2.0
// The main example as its users start it, on a small synthetic globe.
#include <c10/util/StringUtil.h>
#include <gmock/gmock.h>
#include <shard/atomic_file.h>
#include <shard/cuda.h>
#include <shard/hdf5.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "comm/mpi_session.h"
#include "io/fixtures/png_reader.h"
#include "io/fixtures/temporary_folder.h"
#include "program.h"
#include "support/subprocess.h"
#include "synthetic_globe.h"

namespace {

using shard::io::testing::files_in;
using shard::io::testing::text_of;
using shard::testing::occurrences;
using shard::testing::Outcome;
using shard::testing::Program;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class GlobalFieldTest : public shard::io::testing::TemporaryFolder {
 protected:
  void SetUp() override {
    if (!shard::io::has_hdf5()) GTEST_SKIP() << "this build has no HDF5";
    std::filesystem::create_directory(data());
    global_field::testing::write_synthetic_globe(data());
  }
  std::string data() const { return path("data"); }
  std::string output() const { return path("out"); }

  /// 36 x 72 points, width 4, few steps; more arguments follow (a repeated flag is an error).
  std::vector<std::string> arguments(const std::vector<std::string>& more) const {
    std::vector<std::string> all = {"--data",   data(), "--output", output(),
                                    "--reduce", "60",   "--width",  "4"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Outcome run(const std::vector<std::string>& more) const {
    return shard::testing::run_program("global_field", arguments(more), folder());
  }
  /// As MPI processes; stdout and stderr in one.
  shard::testing::Finished run_mpi(int processes, const std::vector<std::string>& more) const {
    std::string command = c10::str("OMP_NUM_THREADS=1 scripts/mpirun.sh ", processes, " ");
    command += shard::testing::program_path("global_field");
    for (const std::string& argument : arguments(more)) command += " " + argument;
    return shard::testing::run_command(command);
  }
  /// The program may not write files of more than so many kilobytes.
  Outcome run_with_small_disk(int kilobytes, const std::vector<std::string>& more) const {
    std::vector<std::string> words = {
        "-c", "trap '' XFSZ; ulimit -f " + std::to_string(kilobytes) + "; exec \"$@\"", "bash",
        shard::testing::program_path("global_field")};
    for (const std::string& argument : arguments(more)) words.push_back(argument);
    return shard::testing::run_program("/bin/bash", words, folder());
  }
  /// Runs; expects failure with one line on stderr, which is returned, and no results.
  std::string refusal(const std::vector<std::string>& more) const {
    const Outcome outcome = run(more);
    EXPECT_NE(outcome.exit_code, 0);
    EXPECT_EQ(outcome.error_lines(), 1) << outcome.errors;
    return outcome.errors;
  }
};

TEST_F(GlobalFieldTest, TrainsOnTwoRanksAndEqualsPlainLibTorch) {
  const Outcome outcome = run({"--ranks", "2", "--steps", "20", "--verify"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.errors << outcome.output;
  EXPECT_EQ(outcome.errors, "");
  EXPECT_THAT(outcome.output, HasSubstr("step   20/20"));
  EXPECT_THAT(outcome.output, ContainsRegex("pooled +[0-9.]+ +[0-9.]+ +[0-9.]+"));
  EXPECT_THAT(outcome.output, HasSubstr("verify: 48 tensors equal"));
  EXPECT_THAT(files_in(output()),
              ElementsAre("checkpoint.pt", "global_field.png", "scores.json", "trace.csv"));
  EXPECT_EQ(shard::io::testing::read_png(output() + "/global_field.png").size(0), 3 * 36 + 2 * 8);
}

TEST_F(GlobalFieldTest, EqualsPlainLibTorchOnUnevenShards) {
  EXPECT_EQ(run({"--ranks", "3", "--split", "20,11,5", "--steps", "3", "--verify"}).exit_code, 0);
  EXPECT_EQ(run({"--ranks", "3", "--split", "35,0,1", "--steps", "3", "--verify"}).exit_code, 0);
}

TEST_F(GlobalFieldTest, EqualsPlainLibTorchInFloat64) {
  const Outcome outcome =
      run({"--ranks", "2", "--steps", "2", "--verify", "--precision", "float64"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.errors << outcome.output;
}

TEST_F(GlobalFieldTest, EqualsPlainLibTorchCutInRowsAndColumns) {
  const Outcome outcome = run({"--domain", "2x2", "--steps", "3", "--verify"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.errors << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("rows 18 18 x columns 36 36"));
  EXPECT_EQ(
      run({"--domain", "1x3", "--steps", "2", "--verify", "--precision", "float64"}).exit_code, 0);
}

TEST_F(GlobalFieldTest, ABrokenHaloIsNoticed) {
  const Outcome outcome = run({"--ranks", "2", "--steps", "2", "--verify", "--break-halo"});
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_EQ(outcome.error_lines(), 1) << outcome.errors;
  EXPECT_THAT(outcome.errors, HasSubstr("tensors differ from plain LibTorch"));
}

TEST_F(GlobalFieldTest, MoreRanksThanRowsLeaveSomeIdle) {
  const Outcome outcome =
      shard::testing::run_program("global_field",
                                  {"--data", data(), "--output", output(), "--reduce", "240",
                                   "--width", "4", "--ranks", "11", "--steps", "3", "--verify"},
                                  folder());
  EXPECT_EQ(outcome.exit_code, 0) << outcome.errors << outcome.output;
  EXPECT_EQ(outcome.error_lines(), 1) << "one warning: " << outcome.errors;
  EXPECT_THAT(outcome.errors, HasSubstr("9 rows on 11 ranks: 2 ranks are idle"));
}

TEST_F(GlobalFieldTest, UnderMpirunEqualsPlainLibTorchAndPrintsLines) {
  if (!shard::has_mpi() || !shard::testing::has_mpirun()) GTEST_SKIP() << "no MPI here";
  const auto job = run_mpi(2, {"--steps", "12", "--verify"});
  EXPECT_EQ(job.code, 0) << job.output;
  EXPECT_EQ(occurrences(job.output, "options {"), 1) << job.output;
  EXPECT_THAT(job.output, HasSubstr(R"("ranks":0,)"));
  EXPECT_THAT(job.output, HasSubstr("step   10/12"));
  EXPECT_THAT(job.output, Not(HasSubstr("step   11/12")));
  EXPECT_THAT(job.output, Not(HasSubstr("\r"))) << "mpirun's pseudo-terminal is no terminal";
  EXPECT_THAT(job.output, HasSubstr("verify: 48 tensors equal"));
}

TEST_F(GlobalFieldTest, UnderMpirunCutInRowsAndColumns) {
  if (!shard::has_mpi() || !shard::testing::has_mpirun()) GTEST_SKIP() << "no MPI here";
  const auto job = run_mpi(4, {"--domain", "2x2", "--steps", "3", "--verify"});
  EXPECT_EQ(job.code, 0) << job.output;
  EXPECT_THAT(job.output, HasSubstr("rows 18 18 x columns 36 36"));
  EXPECT_THAT(job.output, HasSubstr("verify: 48 tensors equal"));
}

TEST_F(GlobalFieldTest, TheConfigurationIsPrintedOnceWithTheNumberOfRanks) {
  const Outcome outcome = run({"--domain", "2x1", "--steps", "1"});
  EXPECT_EQ(occurrences(outcome.output, "options {"), 1) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr(R"("ranks":2,)"));
}

TEST_F(GlobalFieldTest, TheResultDoesNotDependOnTheNumberOfRanks) {
  ASSERT_EQ(run({"--ranks", "1", "--steps", "4", "--precision", "float64"}).exit_code, 0);
  const nlohmann::json one = nlohmann::json::parse(text_of(output() + "/scores.json"));
  ASSERT_EQ(run({"--ranks", "4", "--steps", "4", "--precision", "float64"}).exit_code, 0);
  const nlohmann::json four = nlohmann::json::parse(text_of(output() + "/scores.json"));
  for (size_t month = 0; month < one.size(); ++month) {
    EXPECT_NEAR(four[month]["model"], one[month]["model"].get<double>(), 1e-9);
  }
}

TEST_F(GlobalFieldTest, AfterAnInterruptResumeContinuesExactly) {
  const std::vector<std::string> job = {"--ranks", "2", "--steps", "150", "--checkpoint-every",
                                        "0"};
  ASSERT_EQ(run(job).exit_code, 0);
  const std::string uninterrupted = text_of(output() + "/trace.csv");
  std::filesystem::remove_all(output());

  Program program("global_field", arguments(job), folder());
  ASSERT_TRUE(program.wait_for_output("step   10/150"));
  program.interrupt();
  const Outcome stopped = program.wait();
  ASSERT_EQ(stopped.exit_code, 130) << stopped.errors;
  EXPECT_EQ(stopped.error_lines(), 1) << stopped.errors;
  EXPECT_THAT(stopped.errors, HasSubstr("Continue with --resume."));
  EXPECT_THAT(files_in(output()), ElementsAre("checkpoint.pt"));

  std::vector<std::string> resumed = job;
  resumed.emplace_back("--resume");
  const Outcome outcome = run(resumed);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.errors;
  EXPECT_THAT(outcome.output, HasSubstr("continuing after step "));
  EXPECT_EQ(text_of(output() + "/trace.csv"), uninterrupted);
}

TEST_F(GlobalFieldTest, NotATerminalALineEveryTenStepsAndQuietNone) {
  const Outcome lines = run({"--ranks", "2", "--steps", "12"});
  EXPECT_THAT(lines.output, HasSubstr("step   10/12"));
  EXPECT_THAT(lines.output, HasSubstr("step   12/12"));
  EXPECT_THAT(lines.output, Not(HasSubstr("step   11/12")));
  EXPECT_THAT(run({"--ranks", "2", "--steps", "12", "--quiet"}).output, Not(HasSubstr("step   ")));
}

TEST_F(GlobalFieldTest, TheProgressLineTellsLossTimeTrafficAndMemory) {
  EXPECT_THAT(run({"--ranks", "2", "--steps", "10"}).output,
              ContainsRegex("\nstep   10/10  loss [0-9]+\\.[0-9]+  [0-9]+\\.[0-9]+ s/step  "
                            "halo 0\\.[0-9]*[1-9][0-9]* MB/step  peak [1-9][0-9]* MB/rank\n"));
}

TEST_F(GlobalFieldTest, RefusesBadOptionsInOneLine) {
  EXPECT_THAT(refusal({"--ranks", "2", "--stpes", "3"}), HasSubstr("Did you mean '--steps'?"));
  EXPECT_THAT(refusal({"--ranks", "2", "--split", "30,7"}), HasSubstr("add up to 36 rows"));
  EXPECT_THAT(refusal({"--ranks", "2", "--split", "30,5,1"}), HasSubstr("expected 2 sizes"));
  EXPECT_THAT(refusal({"--domain", "2by2"}), HasSubstr("ROWSxCOLUMNS"));
  EXPECT_THAT(refusal({"--domain", "2x2", "--ranks", "3"}), HasSubstr("as many as --domain has"));
  EXPECT_THAT(refusal({"--config", path("no.json")}), HasSubstr("No such file"));
  EXPECT_THAT(refusal({"--resume"}), HasSubstr("checkpoint.pt"));
}

TEST_F(GlobalFieldTest, RefusesADeviceThatIsNotThereBeforeItWorks) {
  if (shard::cuda_is_available()) GTEST_SKIP() << "there is a CUDA device";
  EXPECT_THAT(refusal({"--ranks", "2", "--device", "cuda"}),
              HasSubstr("[launch] device: got cuda; expected cpu"));
  EXPECT_FALSE(std::filesystem::exists(output()));
}

TEST_F(GlobalFieldTest, RefusesBadFilesInOneLine) {
  const std::string turbidity = data() + "/LinkeTurbidities.h5";
  std::filesystem::resize_file(turbidity, std::filesystem::file_size(turbidity) / 2);
  EXPECT_THAT(refusal({"--ranks", "2"}), HasSubstr("truncated file"));
  shard::io::write_file_atomically(turbidity, "turbid");
  EXPECT_THAT(refusal({"--ranks", "2"}), HasSubstr("not an HDF5 file"));
  std::filesystem::remove(turbidity);
  EXPECT_THAT(refusal({"--ranks", "2"}), HasSubstr("no file"));
  std::filesystem::copy_file(data() + "/Altitude.h5", turbidity);
  EXPECT_THAT(refusal({"--ranks", "2"}), HasSubstr("no dataset 'LinkeTurbidity'"));
}

TEST_F(GlobalFieldTest, RefusesADamagedOrForeignCheckpoint) {
  ASSERT_EQ(run({"--ranks", "2", "--steps", "2"}).exit_code, 0);
  EXPECT_THAT(refusal({"--ranks", "2", "--steps", "3", "--resume"}),
              HasSubstr("--steps: got 3; the checkpoint was made with 2"));
  const std::string checkpoint = output() + "/checkpoint.pt";
  std::filesystem::resize_file(checkpoint, std::filesystem::file_size(checkpoint) / 2);
  EXPECT_THAT(refusal({"--ranks", "2", "--steps", "2", "--resume"}), HasSubstr("is damaged"));
}

TEST_F(GlobalFieldTest, AnOutputFolderThatCannotBeWrittenIsFoundOutFirst) {
  shard::io::write_file_atomically(output(), "a file, not a folder");
  EXPECT_THAT(refusal({"--ranks", "2"}), HasSubstr("cannot create folder"));
}

TEST_F(GlobalFieldTest, AFullDiskIsOneLineAndLeavesNoHalfACheckpoint) {
  const Outcome outcome = run_with_small_disk(16, {"--ranks", "2", "--steps", "2"});
  EXPECT_EQ(outcome.exit_code, 1) << outcome.output;
  EXPECT_EQ(outcome.error_lines(), 1) << outcome.errors;
  EXPECT_THAT(outcome.errors, HasSubstr("checkpoint.pt': got File too large"));
  EXPECT_THAT(files_in(output()), IsEmpty());
}

}  // namespace
