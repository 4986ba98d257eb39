#pragma once

#include <mutex>

// Clang's thread safety analysis: https://clang.llvm.org/docs/ThreadSafetyAnalysis.html. GCC sees plain code.
#if defined(__clang__)
#define SLUICE_TSA(x) __attribute__((x))
#else
#define SLUICE_TSA(x)
#endif
#define GUARDED_BY(x) SLUICE_TSA(guarded_by(x))
#define REQUIRES(...) SLUICE_TSA(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) SLUICE_TSA(locks_excluded(__VA_ARGS__))

namespace sluice {

// std::mutex with the annotations that clang checks. Lock it with MutexLock.
class SLUICE_TSA(capability("mutex")) Mutex {
 public:
  void lock() SLUICE_TSA(acquire_capability()) { mutex_.lock(); }
  void unlock() SLUICE_TSA(release_capability()) { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

// Scoped lock; also a BasicLockable, so std::condition_variable_any can wait on it:
//   MutexLock lock(mutex_); while (!ready_) condition_.wait(lock);
class SLUICE_TSA(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) SLUICE_TSA(acquire_capability(mutex)) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() SLUICE_TSA(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;
  void lock() SLUICE_TSA(acquire_capability()) { mutex_.lock(); }
  void unlock() SLUICE_TSA(release_capability()) { mutex_.unlock(); }

 private:
  Mutex& mutex_;
};

}  // namespace sluice
