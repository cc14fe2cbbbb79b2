// Interrupts: signals whose handlers Python runs between two of its own steps, of which a long call has none.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "kernels.h"

constexpr double LONG_WORK = 2e6;  // nanoseconds, roughly, from which on interrupts are heard

namespace SOFTMAXIMA_ISA {

// A thread's own T. A handler of signals that calls a kernel has another one: the call that it interrupts is not done with the first.
template <class T>
T& own_of_thread() {
    static thread_local T own;
    if (!softmaxima_is_handling) return own;
    static thread_local std::unique_ptr<T> other;
    if (!other) other = std::make_unique<T>();
    return *other;
}

// Whether a piece of work is to end before it is done, for all its threads. One of them, as a rule the first, asks Python now and then.
class Halt {
   public:
    // Of so many tasks, alike; the clock is read for some 256 of them.
    explicit Halt(bool is_long, int64_t count = 1) : hears_(is_long && softmaxima_hears()), every_(1 + count / 256) {
        if (hears_) next_ = softmaxima_clock() + PAUSE;
    }

    bool is_due() {
        if (!hears_) return false;
        if (due_.load(std::memory_order_relaxed)) return true;
        if (!softmaxima_hears() || softmaxima_clock() < next_) return false;
        if (softmaxima_heard()) due_.store(true, std::memory_order_relaxed);
        next_ = softmaxima_clock() + PAUSE;
        return due_.load(std::memory_order_relaxed);
    }

    // Before a thread's task of this number, counted by itself.
    bool is_due_at(int64_t task) { return hears_ && (due_.load(std::memory_order_relaxed) || (task % every_ == 0 && is_due())); }

    // After its last task, for so many threads: that which asks does so until all come.
    void wait(int threads) {
        if (!hears_) return;
        ready_.fetch_add(1);
        while (softmaxima_hears() && ready_.load() < threads && !is_due()) sched_yield();
    }

   private:
    static constexpr int64_t PAUSE = 50'000'000;  // between two questions, for the interpreter's lock must be had for each

    const bool hears_;
    const int64_t every_;
    int64_t next_ = 0;  // of the thread that asks
    std::atomic<bool> due_{false};
    std::atomic<int> ready_{0};
};

}  // namespace SOFTMAXIMA_ISA
