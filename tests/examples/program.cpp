// SPDX-License-Identifier: Apache-2.0
#include "program.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace shard::testing {
namespace {

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// In the child: stdout or stderr into a file.
void redirect(int descriptor, const std::string& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  ::dup2(file, descriptor);
  ::close(file);
}

[[noreturn]] void become(const std::string& program, const std::vector<std::string>& arguments) {
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  ::execv(program.c_str(), argv.data());
  ::_exit(127);
}

}  // namespace

int Outcome::error_lines() const {
  return static_cast<int>(std::count(errors.begin(), errors.end(), '\n'));
}

std::string program_path(const std::string& name) {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / name).string();
}

Program::Program(const std::string& name, const std::vector<std::string>& arguments,
                 const std::string& folder)
    : folder_(folder) {
  const std::string program = program_path(name);
  // Nobody may take what an earlier program printed for this one's words.
  std::filesystem::remove(folder_ + "/stdout");
  std::filesystem::remove(folder_ + "/stderr");
  process_ = ::fork();
  if (process_ < 0) throw std::runtime_error("fork failed");
  if (process_ > 0) return;
  redirect(STDOUT_FILENO, folder_ + "/stdout");
  redirect(STDERR_FILENO, folder_ + "/stderr");
  become(program, arguments);
}

bool Program::has_ended() {
  if (!ended_) ended_ = ::waitpid(process_, &status_, WNOHANG) == process_;
  return ended_;
}

bool Program::wait_for_output(const std::string& text) {
  for (;;) {
    const bool ended = has_ended();
    if (text_of(folder_ + "/stdout").find(text) != std::string::npos) return true;
    if (ended) return false;
    ::usleep(2000);
  }
}

void Program::interrupt() const { ::kill(process_, SIGINT); }

Outcome Program::wait() {
  if (!ended_) ::waitpid(process_, &status_, 0);
  ended_ = true;
  const int code = WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  return {code, text_of(folder_ + "/stdout"), text_of(folder_ + "/stderr")};
}

}  // namespace shard::testing
