// SPDX-License-Identifier: Apache-2.0
// Starts a program of build/bin and collects what it prints.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace shard::testing {

struct Outcome {
  int exit_code = -1;
  std::string output;  ///< stdout
  std::string errors;  ///< stderr
  int error_lines() const;
};

/// The path of `name`, a file beside the test's own executable.
std::string program_path(const std::string& name);

class Program {
 public:
  /// Starts `name`, a program beside the test's own executable or an absolute path. Its outputs go
  /// to files in `folder`.
  Program(const std::string& name, const std::vector<std::string>& arguments,
          const std::string& folder);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  /// Waits until stdout contains `text`; false when the program ended without it.
  bool wait_for_output(const std::string& text);
  void interrupt() const;
  Outcome wait();

 private:
  bool has_ended();
  std::string folder_;
  pid_t process_ = 0;
  int status_ = 0;
  bool ended_ = false;
};

inline Outcome run_program(const std::string& name, const std::vector<std::string>& arguments,
                           const std::string& folder) {
  return Program(name, arguments, folder).wait();
}

}  // namespace shard::testing
