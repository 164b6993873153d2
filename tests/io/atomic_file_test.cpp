// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <shard/atomic_file.h>
#include <shard/error.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>

#include "io/fixtures/temporary_folder.h"

namespace shard::io {
namespace {

using testing::error_of;
using testing::files_in;
using ::testing::HasSubstr;
using testing::text_of;

class AtomicFileTest : public testing::TemporaryFolder {};

TEST_F(AtomicFileTest, AppearsWhenCommitted) {
  AtomicFile file(path("a.txt"));
  file.write("complete", 8);
  EXPECT_FALSE(std::filesystem::exists(path("a.txt")));
  file.commit();
  EXPECT_EQ(text_of(path("a.txt")), "complete");
  EXPECT_EQ(files_in(folder()), std::vector<std::string>{"a.txt"});
}

TEST_F(AtomicFileTest, LeavesTheOldFileWhenNotCommitted) {
  write_file_atomically(path("a.txt"), "old");
  {
    AtomicFile file(path("a.txt"));
    file.write("new", 3);
  }
  EXPECT_EQ(text_of(path("a.txt")), "old");
  EXPECT_EQ(files_in(folder()), std::vector<std::string>{"a.txt"});
}

TEST_F(AtomicFileTest, NamesAMissingFolder) {
  const std::string error =
      error_of<FileError>([&] { write_file_atomically(path("no/a.txt"), "x"); });
  EXPECT_THAT(error, HasSubstr("No such file or directory"));
  EXPECT_THAT(error, HasSubstr("Create the folder first."));
}

/// While alive, files of this process may not grow beyond `bytes`: what a full disk looks like to
/// write().
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST_F(AtomicFileTest, KeepsTheOldFileWhenTheDiskIsFull) {
  write_file_atomically(path("a.txt"), "old");
  const std::string large(1 << 16, 'x');
  std::string error;
  {
    const FileSizeLimit full(1 << 12);
    error = error_of<FileError>([&] { write_file_atomically(path("a.txt"), large); });
  }
  EXPECT_THAT(error, HasSubstr("Free some space or write to another folder."));
  EXPECT_EQ(text_of(path("a.txt")), "old");
  EXPECT_EQ(files_in(folder()), std::vector<std::string>{"a.txt"});
}

TEST_F(AtomicFileTest, FindsOutBeforehandThatAFolderCannotBeUsed) {
  require_writable_folder(path("new/deep"));
  EXPECT_TRUE(std::filesystem::is_directory(path("new/deep")));
  EXPECT_TRUE(files_in(path("new/deep")).empty());

  write_file_atomically(path("file"), "x");
  EXPECT_THAT(error_of<FileError>([&] { require_writable_folder(path("file")); }),
              HasSubstr("cannot create folder"));
}

}  // namespace
}  // namespace shard::io
