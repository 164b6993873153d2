// SPDX-License-Identifier: Apache-2.0
#include <global_field/options.h>
#include <gmock/gmock.h>
#include <shard/atomic_file.h>
#include <shard/error.h>

#include <nlohmann/json.hpp>

#include "io/fixtures/temporary_folder.h"

namespace global_field {
namespace {

using shard::ConfigError;
using shard::io::testing::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class OptionsTest : public shard::io::testing::TemporaryFolder {
 protected:
  std::string config(const std::string& text) const {
    shard::io::write_file_atomically(path("config.json"), text);
    return path("config.json");
  }
};

CommandLine parse(std::vector<std::string> words) {
  words.insert(words.begin(), "global_field");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  return parse_command_line(static_cast<int>(argv.size()), argv.data());
}

std::string refusal(const std::vector<std::string>& words) {
  return error_of<ConfigError>([&] { parse(words); });
}

TEST_F(OptionsTest, HaveDefaults) {
  const Options options = parse({}).options;
  EXPECT_EQ(options.reduce, 4);
  EXPECT_EQ(options.steps, 30);
  EXPECT_GE(options.width, 16);
  EXPECT_TRUE(options.split.empty());
}

TEST_F(OptionsTest, FlagsWinOverTheFileAndTheFileOverDefaults) {
  const std::string file =
      config(R"({"steps": 7, "width": 32, "split": [3, 5], "verify": true, "lr": 1})");
  const Options options = parse({"--width", "20", "--config", file}).options;
  EXPECT_EQ(options.steps, 7);
  EXPECT_EQ(options.width, 20);
  EXPECT_THAT(options.split, ElementsAre(3, 5));
  EXPECT_TRUE(options.verify);
  EXPECT_EQ(options.learning_rate, 1.0);
}

TEST_F(OptionsTest, SplitIsAList) {
  EXPECT_THAT(parse({"--split", "301,150,89"}).options.split, ElementsAre(301, 150, 89));
}

TEST_F(OptionsTest, ThePrintedConfigurationIsAConfigFile) {
  const Options options = parse({"--steps", "9", "--split", "1,2", "--quiet"}).options;
  const Options again = parse({"--config", config(to_json(options))}).options;
  EXPECT_EQ(to_json(again), to_json(options));
}

TEST_F(OptionsTest, RefuseUnknownFlagsAndKeysWithASuggestion) {
  EXPECT_EQ(refusal({"--stpes", "3"}), "[options] unknown flag '--stpes'. Did you mean '--steps'?");
  EXPECT_THAT(refusal({"--config", config(R"({"stpes": 3})")}),
              HasSubstr("unknown key 'stpes'. Did you mean 'steps'?"));
}

TEST_F(OptionsTest, RefuseValuesOfTheWrongKind) {
  EXPECT_THAT(refusal({"--steps", "many"}), HasSubstr("many"));
  EXPECT_THAT(refusal({"--steps"}), HasSubstr("--steps"));
  EXPECT_THAT(refusal({"--config", config(R"({"steps": "many"})")}),
              HasSubstr(R"(key 'steps': got "many"; expected a value like 30)"));
  EXPECT_THAT(refusal({"--config", config(R"({"split": ["a"]})")}),
              HasSubstr("a list of integers"));
  EXPECT_THAT(refusal({"--config", config("[1]")}), HasSubstr("expected an object"));
}

TEST_F(OptionsTest, RefuseValuesOutOfRange) {
  EXPECT_THAT(refusal({"--reduce", "7"}), HasSubstr("a divisor of 2160"));
  EXPECT_THAT(refusal({"--width", "6"}), HasSubstr("a multiple of 4"));
  EXPECT_THAT(refusal({"--precision", "float16"}), HasSubstr("float32 or float64"));
  EXPECT_THAT(refusal({"--device", "abacus"}), HasSubstr("cpu or cuda"));
  EXPECT_THAT(refusal({"--steps", "-1"}), HasSubstr("0 or more"));
}

TEST_F(OptionsTest, HelpNamesEveryOption) {
  const std::string help = parse({"--help"}).help;
  EXPECT_THAT(help, HasSubstr("--config "));
  const auto options = nlohmann::json::parse(to_json(Options()));
  for (const auto& option : options.items()) {
    EXPECT_THAT(help, HasSubstr("--" + option.key() + " "));
  }
}

TEST_F(OptionsTest, ACheckpointFitsOnlyTheSameTraining) {
  const Options made_with = parse({"--width", "32", "--output", "a"}).options;
  require_same_training(parse({"--width", "32", "--output", "b", "--quiet"}).options,
                        to_json(made_with));
  EXPECT_THAT(
      error_of<ConfigError>([&] { require_same_training(parse({}).options, to_json(made_with)); }),
      HasSubstr("--width: got 16; the checkpoint was made with 32"));
}

}  // namespace
}  // namespace global_field
