// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <shard/atomic_file.h>
#include <shard/error.h>
#include <shard/json_file.h>

#include <nlohmann/json.hpp>

#include "io/fixtures/temporary_folder.h"

namespace shard::io {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

class JsonFileTest : public testing::TemporaryFolder {};

TEST_F(JsonFileTest, ReadsObjectsWithComments) {
  write_file_atomically(path("a.json"), "{\"steps\": 3} // three\n");
  EXPECT_EQ(read_json_file(path("a.json")).at("steps"), 3);
}

TEST_F(JsonFileTest, NamesLineAndColumnOfASyntaxError) {
  write_file_atomically(path("a.json"), "{\n  \"steps\": 3,\n  oops\n}");
  EXPECT_THAT(error_of<ConfigError>([&] { read_json_file(path("a.json")); }),
              HasSubstr("line 3, column 3"));
}

TEST_F(JsonFileTest, NamesAMissingFileAndAFolder) {
  EXPECT_THAT(error_of<FileError>([&] { read_json_file(path("no.json")); }),
              HasSubstr("No such file or directory"));
  EXPECT_THAT(error_of<FileError>([&] { read_json_file(folder()); }), HasSubstr("got a folder"));
}

TEST_F(JsonFileTest, SuggestsTheNearestKnownKey) {
  const nlohmann::json object = {{"wdith", 3}};
  const std::vector<std::string> known = {"width", "steps"};
  EXPECT_THAT(error_of<ConfigError>([&] { require_known_keys(object, known, "here"); }),
              HasSubstr("[here] unknown key 'wdith'. Did you mean 'width'?"));
  EXPECT_EQ(nearest_word("temperature", known), "");
}

}  // namespace
}  // namespace shard::io
