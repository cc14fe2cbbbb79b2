// Which of its variants a kernel runs: the one for the best instruction set that this processor has.

#include <cstdlib>
#include <cstring>

#include "kernels.h"
#include "pages.h"

namespace {

struct Choice {
    const char* name;
    int level;
};

// SOFTMAXIMA_ISA, where it is set, names the most that may be used: v4, v3 or baseline.
Choice choose() noexcept {
#ifdef SOFTMAXIMA_X86
    const char* most = std::getenv("SOFTMAXIMA_ISA");
    const bool any = !most || !std::strcmp(most, "v4");
    __builtin_cpu_init();
    const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (v4 && any) return {"v4", 4};
    if (v3 && (any || !std::strcmp(most, "v3"))) return {"v3", 3};
#endif
    return {"baseline", 0};
}

const Choice chosen = choose();

}  // namespace

const int softmaxima_level = chosen.level;

SOFTMAXIMA_EXPORT const char* softmaxima_instruction_set() { return chosen.name; }

// The version of the interface: a library of another version is not loaded.
SOFTMAXIMA_EXPORT int softmaxima_interface() { return SOFTMAXIMA_INTERFACE; }

// For memory that others allocate.
SOFTMAXIMA_EXPORT void softmaxima_prefer_large_pages(void* data, size_t bytes) { prefer_large_pages(data, bytes); }
