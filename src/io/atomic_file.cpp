// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <shard/atomic_file.h>
#include <shard/error.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

namespace shard::io {
namespace {

const char* advice(int code) {
  switch (code) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return "Free some space or write to another folder.";
    case EACCES:
    case EPERM:
    case EROFS:
      return "Change the folder's permissions or write to another one.";
    case ENOENT:
    case ENOTDIR:
      return "Create the folder first.";
    default:
      return "Check the disk or write to another folder.";
  }
}

std::string folder_of(const std::string& path) {
  const auto folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

/// A rename is on the disk only when its folder is; folders that cannot be opened are left to the
/// system.
void flush_folder(const std::string& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);
  ::close(descriptor);
}

}  // namespace

AtomicFile::AtomicFile(std::string path)
    : path_(std::move(path)), temporary_(path_ + "." + std::to_string(::getpid()) + ".tmp") {
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail("cannot create");
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::write(const void* data, size_t size) {
  check<FileError>(descriptor_ >= 0, "file", "'", path_, "' is already committed");
  const char* next = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = ::write(descriptor_, next, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("cannot write");
    next += written;
    size -= static_cast<size_t>(written);
  }
}

void AtomicFile::commit() {
  check<FileError>(descriptor_ >= 0, "file", "'", path_, "' is already committed");
  if (::fsync(descriptor_) != 0 && errno != EINVAL) fail("cannot flush");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot rename to");
  const int descriptor = descriptor_;
  descriptor_ = -1;
  check<FileError>(::close(descriptor) == 0, "file", "cannot close '", path_, "': got ",
                   std::strerror(errno), ". ", advice(errno));
  flush_folder(folder_of(path_));
}

void AtomicFile::fail(const char* what) const {
  const int code = errno;
  raise<FileError>("file", what, " '", path_, "': got ", std::strerror(code),
                   "; nothing was changed. ", advice(code));
}

void write_file_atomically(const std::string& path, std::string_view bytes) {
  AtomicFile file(path);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

void require_writable_folder(const std::string& folder) {
  std::error_code code;
  std::filesystem::create_directories(folder, code);
  check<FileError>(std::filesystem::is_directory(folder), "file", "cannot create folder '", folder,
                   "': got ", code ? code.message() : "a file of that name", ". ",
                   advice(code ? code.value() : ENOTDIR));
  AtomicFile probe(folder + "/.write-test");
  probe.write("shard", 5);
}

}  // namespace shard::io
