// SPDX-License-Identifier: Apache-2.0
// AtomicFile: a file that appears under its name only when it is complete. Bytes go to a temporary
// name in the same folder; commit() flushes them to the disk and renames. Without commit() the
// temporary file is removed and whatever had the name before is untouched.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace shard::io {

class AtomicFile {
 public:
  /// Creates `<path>.<process id>.tmp`. Errors (here and below): FileError.
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, size_t size);
  /// Flushes, renames to the final name and flushes the folder. Writing afterwards is an error.
  void commit();

  const std::string& temporary_path() const { return temporary_; }

 private:
  [[noreturn]] void fail(const char* what) const;
  std::string path_;
  std::string temporary_;
  int descriptor_ = -1;
};

/// The whole file at once.
void write_file_atomically(const std::string& path, std::string_view bytes);

/// Makes sure that `folder` exists and that files can be written into it, so that a job finds out
/// before it works rather than after. Errors: FileError.
void require_writable_folder(const std::string& folder);

}  // namespace shard::io
