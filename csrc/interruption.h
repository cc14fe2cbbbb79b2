// Interrupts: signals whose handlers Python runs between two of its own steps, of which a long call has none.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>

#include "kernels.h"

constexpr double LONG_WORK = 2e6;  // nanoseconds, roughly, from which on interrupts are heard

namespace SOFTMAXIMA_ISA {

// A thread's own T. A handler of signals that calls a kernel has another one: the call that it interrupts is not done with the first.
template <class T>
T& own_of_thread() {
    static thread_local T own;
    if (!softmaxima_is_handling.load(std::memory_order_relaxed) || !softmaxima_is_main()) return own;
    static thread_local std::unique_ptr<T> other;
    if (!other) other = std::make_unique<T>();
    return *other;
}

struct Interrupted : std::exception {};  // thrown out of a task that takes long, to where tasks are shared out

// Whether a piece of work is to end before it is done, for all its threads. Python's main thread, if it is one of them, asks now and then.
class Halt {
   public:
    explicit Halt(bool is_long) : hears_(is_long && softmaxima_hears()) {}

    // Null where nobody asks.
    Halt* if_heard() { return hears_ ? this : nullptr; }

    bool is_due() {
        if (!hears_) return false;
        if (due_.load(std::memory_order_relaxed)) return true;
        if (!softmaxima_hears() || !softmaxima_heard()) return false;
        due_.store(true, std::memory_order_relaxed);
        return true;
    }

    [[gnu::noinline, gnu::cold]] void heed() {
        if (is_due()) throw Interrupted();
    }

    // Before a barrier of so many threads, whose arrivals are counted there: the one that asks does so until all have come.
    void wait(std::atomic<int>& arrived, int threads) {
        if (!hears_) return;
        const int all = (arrived.fetch_add(1) / threads + 1) * threads;
        while (softmaxima_hears() && arrived.load() < all && !is_due()) sched_yield();
    }

   private:
    const bool hears_;
    std::atomic<bool> due_{false};
};

// What a task says, or false where it is interrupted: no exception may leave the threads of a team.
template <class Task>
bool attempt(const Task& task) {
    try {
        return task();
    } catch (const Interrupted&) {
        return false;
    }
}

// An order that heeds interrupts, for algorithms that compare long.
template <class Before>
struct Heeding {
    Before before;
    Halt* halt;
    unsigned* compared;

    template <class A, class B>
    bool operator()(const A& a, const B& b) const {
        if (++*compared % 65536 == 0) halt->heed();
        return before(a, b);
    }
};

// body(order), which is `before` itself where nobody asks.
template <class Before, class Body>
void in_order(const Before& before, Halt* halt, const Body& body) {
    if (!halt) return body(before);
    unsigned compared = 0;
    body(Heeding<Before>{before, halt, &compared});
}

}  // namespace SOFTMAXIMA_ISA
