// sparsemax, entmax-1.5 and entmax-α.

#include "threshold_columns.h"
#include "threshold_lines.h"

namespace SOFTMAXIMA_ISA {
namespace {

template <class Family>
int forward(const SoftmaximaForward* call, double nanoseconds) {
    return with_dtype(call->rows.dtype, [=](auto type) {
        using T = std::remove_pointer_t<decltype(type)>;
        using C = compute_t<T>;
        T* results = static_cast<T*>(call->out);
        const auto body = [](auto& thresholds, C* out, int64_t step, Scratch<C>& scratch) {
            if (!thresholds.solve(scratch)) return false;
            constexpr int64_t WIDTH = std::decay_t<decltype(thresholds)>::WIDTH;
            double one[WIDTH];
            std::fill_n(one, WIDTH, 1.0);
            thresholds.emit(one, out, step);
            return true;
        };
        if constexpr (!Family::costly) {
            if (ThresholdColumns<C, Family>::suit(call->rows)) {
                return for_each_short_rows<T>(call->rows, results, nanoseconds, [=](auto& columns, C* out, int64_t step, int64_t, Scratch<C>& scratch) {
                    ThresholdColumns<C, Family> thresholds(columns);
                    return body(thresholds, out, step, scratch);
                });
            }
        }
        if (ThresholdLines<C, Family>::suit(call->rows)) {
            return for_each_lines<T>(call->rows, results, nanoseconds, [=](auto& lines, C* out, int64_t step, int64_t, Scratch<C>& scratch) {
                ThresholdLines<C, Family> thresholds(lines);
                return body(thresholds, out, step, scratch);
            });
        }
        return for_each_row<T>(call->rows, call->out, ThresholdMap<T, Family>{}, nanoseconds);
    });
}

}  // namespace

int sparsemax(const SoftmaximaForward* call) { return forward<Sparsemax>(call, 1.0); }

int entmax15(const SoftmaximaForward* call) { return forward<Entmax15>(call, 1.0); }

int entmax(const SoftmaximaForward* call) { return forward<Entmax>(call, 5.0); }

}  // namespace SOFTMAXIMA_ISA

SOFTMAXIMA_KERNEL(sparsemax, Forward)
SOFTMAXIMA_KERNEL(entmax15, Forward)
SOFTMAXIMA_KERNEL(entmax, Forward)
