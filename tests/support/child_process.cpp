#include "tests/support/child_process.h"

#include <array>
#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/error.h"

namespace sluice::test {
namespace {

std::array<int, 2> make_pipe() {
  std::array<int, 2> ends{};
  SLUICE_CHECK(::pipe2(ends.data(), O_CLOEXEC) == 0);
  return ends;
}

// True while the pipe is open.
bool drain(int& pipe, std::string& text) {
  char piece[4096];
  const ssize_t count = ::read(pipe, piece, sizeof piece);
  if (count > 0) {
    text.append(piece, static_cast<size_t>(count));
    return true;
  }
  ::close(pipe);
  pipe = -1;
  return false;
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& arguments,
                           const std::function<bool()>& before_exec) {
  const auto in = make_pipe(), out = make_pipe(), err = make_pipe();
  std::vector<char*> pointers;
  for (const std::string& argument : arguments) pointers.push_back(const_cast<char*>(argument.c_str()));
  pointers.push_back(nullptr);
  pid_ = ::fork();
  SLUICE_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    ::dup2(in[0], STDIN_FILENO);
    ::dup2(out[1], STDOUT_FILENO);
    ::dup2(err[1], STDERR_FILENO);
    if (before_exec && !before_exec()) ::_exit(120);
    ::execv(pointers[0], pointers.data());
    ::_exit(127);
  }
  ::close(in[0]), ::close(out[1]), ::close(err[1]);
  in_ = in[1], out_ = out[0], err_ = err[0];
}

ChildProcess::~ChildProcess() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  for (const int pipe : {in_, out_, err_}) {
    if (pipe >= 0) ::close(pipe);
  }
}

// False when both pipes are closed.
bool ChildProcess::read_some() {
  std::array<pollfd, 2> pipes{pollfd{out_, POLLIN, 0}, pollfd{err_, POLLIN, 0}};
  if (out_ < 0 && err_ < 0) return false;
  if (::poll(pipes.data(), pipes.size(), -1) < 0) return true;  // EINTR
  if (pipes[0].revents != 0) drain(out_, out_text_);
  if (pipes[1].revents != 0) drain(err_, err_text_);
  return true;
}

bool ChildProcess::wait_for_error_text(const std::string& text) {
  while (err_text_.find(text) == std::string::npos) {
    if (!read_some()) return false;
  }
  return true;
}

void ChildProcess::send_signal(int number) {
  ::kill(pid_, number);
}

Outcome ChildProcess::finish(const std::string& input) {
  if (!input.empty()) SLUICE_CHECK(::write(in_, input.data(), input.size()) == std::ssize(input));
  ::close(in_);
  in_ = -1;
  while (read_some()) {
  }
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), out_text_, err_text_};
}

std::string program_path(const std::string& name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
}

}  // namespace sluice::test
