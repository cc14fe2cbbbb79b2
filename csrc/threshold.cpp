// sparsemax, entmax-1.5 and entmax-α.

#include "threshold.h"

namespace SOFTMAXIMA_ISA {
namespace {

template <class Family>
int forward(const SoftmaximaForward* call, double nanoseconds) {
    return with_dtype(call->rows.dtype, [=](auto type) {
        using T = std::remove_pointer_t<decltype(type)>;
        return for_each_row<T>(call->rows, call->out, ThresholdMap<T, Family>{}, nanoseconds);
    });
}

}  // namespace

int sparsemax(const SoftmaximaForward* call) { return forward<Sparsemax>(call, 1.0); }

int entmax15(const SoftmaximaForward* call) { return forward<Entmax15>(call, 1.0); }

int entmax(const SoftmaximaForward* call) { return forward<Entmax>(call, 5.0); }

}  // namespace SOFTMAXIMA_ISA
