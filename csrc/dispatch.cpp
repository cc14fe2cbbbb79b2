// Which of its variants a kernel runs: the one for the best instruction set that this processor has. And what it asks of Python.

#include <pthread.h>
#include <time.h>

#include <cstdlib>
#include <cstring>

#include "kernels.h"
#include "pages.h"

namespace {

struct Choice {
    const char* name;
    int level;
};

#define SOFTMAXIMA_TEXT_OF(name) #name
#define SOFTMAXIMA_TEXT(name) SOFTMAXIMA_TEXT_OF(name)

int level_of(const char* name) noexcept { return std::strcmp(name, "v4") == 0 ? 4 : std::strcmp(name, "v3") == 0 ? 3 : 0; }

// That of this processor: v4, v3 or the baseline.
Choice best() noexcept {
#ifdef __x86_64__
    __builtin_cpu_init();
    const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (v4) return {"v4", 4};
    if (v3) return {"v3", 3};
#endif
    return {"baseline", 0};
}

// SOFTMAXIMA_ISA, where it is set, names the most that may be used: v4, v3 or baseline.
Choice allowed() noexcept {
    const char* most = std::getenv("SOFTMAXIMA_ISA");
    const Choice found = best();
    if (!most) return found;
    const int level = level_of(most);
    return level >= found.level ? found : level == 3 ? Choice{"v3", 3} : Choice{"baseline", 0};
}

// Of a library of all, what is allowed; of a library of one, that, or none where it is more than is allowed.
Choice choose() noexcept {
    const Choice found = allowed();
#ifdef SOFTMAXIMA_X86
    return found;
#else
    const char* one = SOFTMAXIMA_TEXT(SOFTMAXIMA_ISA);
    const int level = level_of(one);
    return level <= found.level ? Choice{one, level} : Choice{"", -1};
#endif
}

const Choice chosen = choose();

// Python's main thread, which runs handlers of signals, and functions of Python, whose headers are not needed: PyGILState_Ensure and
// _Release, PyErr_CheckSignals, _Fetch and _Restore.
struct Python {
    pthread_t thread;
    int (*ensure)();
    void (*release)(int);
    int (*check)();
    void (*fetch)(void**, void**, void**);
    void (*restore)(void*, void*, void*);
};

Python python = {};
void* raised[3] = {};  // by a handler of signals: an error's kind, itself and its traceback

constexpr int64_t PAUSE = 50'000'000;  // nanoseconds between two questions, for the interpreter's lock must be had for each
int64_t next = 0;

int64_t now() {
#ifdef CLOCK_MONOTONIC_COARSE
    constexpr clockid_t clock = CLOCK_MONOTONIC_COARSE;  // read in a tenth of the time
#else
    constexpr clockid_t clock = CLOCK_MONOTONIC;
#endif
    timespec read;
    clock_gettime(clock, &read);
    return int64_t(read.tv_sec) * 1'000'000'000 + read.tv_nsec;
}

}  // namespace

std::atomic<bool> softmaxima_is_handling{false};

bool softmaxima_is_main() { return python.check && pthread_equal(python.thread, pthread_self()); }

bool softmaxima_hears() { return softmaxima_is_main() && !softmaxima_is_handling; }

bool softmaxima_heard() {
    if (raised[0]) return true;
    if (now() < next) return false;
    const int lock = python.ensure();
    softmaxima_is_handling = true;
    const bool has_raised = python.check();
    softmaxima_is_handling = false;
    if (has_raised) python.fetch(&raised[0], &raised[1], &raised[2]);
    python.release(lock);
    next = now() + PAUSE;
    return raised[0];
}

// Before any call that is to hear interrupts, and in the child of a fork. There a thread that forked beside the main one is the main one
// now, and nothing is left of what that was at.
SOFTMAXIMA_EXPORT void softmaxima_listen(const Python* it) {
    if (!softmaxima_is_main()) {
        softmaxima_is_handling = false;
        raised[0] = raised[1] = raised[2] = nullptr;
    }
    python = *it;
}

// After a call that failed, under the interpreter's lock: raises what a handler raised, if one did.
SOFTMAXIMA_EXPORT void softmaxima_raise() {
    if (!softmaxima_hears() || !raised[0]) return;
    python.restore(raised[0], raised[1], raised[2]);
    raised[0] = raised[1] = raised[2] = nullptr;
}

const int softmaxima_level = chosen.level;

#ifdef SOFTMAXIMA_COLLECTED
#undef SOFTMAXIMA_KERNEL
#ifdef SOFTMAXIMA_X86
#define SOFTMAXIMA_KERNEL(name, kind)       \
    namespace baseline {                    \
    int name(const Softmaxima##kind* call); \
    }                                       \
    namespace v3 {                          \
    int name(const Softmaxima##kind* call); \
    }                                       \
    namespace v4 {                          \
    int name(const Softmaxima##kind* call); \
    }                                       \
    SOFTMAXIMA_EXPORT_KERNEL(name, kind, softmaxima_level == 4 ? v4::name : softmaxima_level == 3 ? v3::name : baseline::name)
#else
#define SOFTMAXIMA_KERNEL(name, kind)       \
    namespace SOFTMAXIMA_ISA {              \
    int name(const Softmaxima##kind* call); \
    }                                       \
    SOFTMAXIMA_EXPORT_KERNEL(name, kind, SOFTMAXIMA_ISA::name)
#endif
#include "kernels.inc"
#endif

SOFTMAXIMA_EXPORT const char* softmaxima_instruction_set() { return chosen.name; }

// The version of the interface: a library of another version is not loaded.
SOFTMAXIMA_EXPORT int softmaxima_interface() { return SOFTMAXIMA_INTERFACE; }

// For memory that others allocate.
SOFTMAXIMA_EXPORT void softmaxima_prefer_large_pages(void* data, size_t bytes) { prefer_large_pages(data, bytes); }
