// The exported functions: each calls the kernel built for the best instruction set that this processor has.

#include <cstdlib>
#include <cstring>

#include "kernels.h"

#define SOFTMAXIMA_DECLARE_SET(isa)               \
    namespace isa {                               \
    SOFTMAXIMA_KERNELS(SOFTMAXIMA_DECLARE_KERNEL) \
    }                                             \
    static const SoftmaximaKernels isa##_kernels = {SOFTMAXIMA_KERNELS(SOFTMAXIMA_##isa)};
#define SOFTMAXIMA_DECLARE_KERNEL(name, kind) int name(const Softmaxima##kind*);
#define SOFTMAXIMA_baseline(name, kind) baseline::name,
#define SOFTMAXIMA_v3(name, kind) v3::name,
#define SOFTMAXIMA_v4(name, kind) v4::name,

SOFTMAXIMA_DECLARE_SET(baseline)
#ifdef SOFTMAXIMA_X86
SOFTMAXIMA_DECLARE_SET(v3)
SOFTMAXIMA_DECLARE_SET(v4)
#endif

namespace {

struct Choice {
    const char* name;
    const SoftmaximaKernels* kernels;
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
    if (v4 && any) return {"v4", &v4_kernels};
    if (v3 && (any || !std::strcmp(most, "v3"))) return {"v3", &v3_kernels};
#endif
    return {"baseline", &baseline_kernels};
}

const Choice chosen = choose();

}  // namespace

#define SOFTMAXIMA_EXPORT(name, kind) \
    extern "C" __attribute__((visibility("default"))) int softmaxima_##name(const Softmaxima##kind* call) { return chosen.kernels->name(call); }

SOFTMAXIMA_KERNELS(SOFTMAXIMA_EXPORT)

extern "C" __attribute__((visibility("default"))) const char* softmaxima_instruction_set() { return chosen.name; }

// The version of the interface: a library of another version is not loaded.
extern "C" __attribute__((visibility("default"))) int softmaxima_interface() { return SOFTMAXIMA_INTERFACE; }
