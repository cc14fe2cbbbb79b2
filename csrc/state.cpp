// The monoid (M, m, r) of logsumexp from one read of a row: the largest score, how many there are of it, and r of the others.

#include "exponential.h"

namespace SOFTMAXIMA_ISA {
namespace {

// In double, whatever the dtype: a state is merged with others, and shown, in double.
template <class T>
struct State : LogSumExp<T, double> {
    using C = compute_t<T>;

    struct Part {
        ExpSum<double> sum;
        C highest;      // the largest x
        int64_t count;  // how many x are that
    };

    const SoftmaximaState* call;

    bool scan(const Row<T>& row, int64_t begin, int64_t end, Part& part, Scratch<C>& scratch) const {
        Scratch<double>& terms = Scratch<double>::of_this_thread();
        part = {{}, -std::numeric_limits<C>::infinity(), 0};
        for (int64_t i = begin; i < end; i += BLOCK) {
            const int64_t length = minimum(BLOCK, end - i);
            part.sum.template add<false>(row.template scores<false, double>(i, length, terms), length, nullptr, row.tau != 1.0);
            const C* values = row.raw(i, length, scratch.high);
            const C top = highest(values, length);
            // Few blocks of a row raise the maximum, and this one is still in cache.
            if (top >= part.highest) include(part, top, occurrences(values, length, top));
        }
        return true;
    }

    // A row of float or less, whose gaps in double are near enough.
    bool put_row(const Row<T>& row, Scratch<C>& scratch) const {
        const Exponential<double> exponential(Origin<double>{});
        Part part{{}, -std::numeric_limits<C>::infinity(), 0};
        for (int64_t i = 0; i < row.n; i += BLOCK) {
            const int64_t length = minimum(BLOCK, row.n - i);
            const C* x = row.raw(i, length, scratch.high);
            const C highest_x = highest(x, length);
            if (highest_x >= part.highest) include(part, highest_x, occurrences(x, length, highest_x));
        }
        const double top = double(part.highest);
        if (!(std::fabs(top) < -NOTHING)) return whole_row(*this, row, scratch);
        double rest = 0;
        for (int64_t i = 0; i < row.n; i += BLOCK) {
            const int64_t length = minimum(BLOCK, row.n - i);
            const C* x = row.raw(i, length, scratch.high);
#pragma omp simd reduction(+ : rest)
            for (int64_t j = 0; j < length; ++j) {
                const double e = exponential(gap(x[j], top, row.scale));
                rest += double(x[j]) == top ? 0.0 : e;
            }
        }
        put(row.index, rest, top, part.count);
        return true;
    }

    bool finish(const Row<T>& row, Part* parts, int count, Scratch<C>&) const {
        Part whole = parts[0];
        for (int i = 1; i < count; ++i)
            if (parts[i].highest >= whole.highest) include(whole, parts[i].highest, parts[i].count);
        const double top = double(whole.highest);
        const ExpSum<double> sum = ExpSum<double>::of(parts, count);
        const LogSum result = LogSumExp<T, double>::result(row, sum, Digits::log_sum);
        const double ties = double(whole.count);
        double rest = ties * std::expm1((result.log_sum - std::log(ties)) + result.lost);
        if (result.log_sum >= NEAR<double>) rest = sum.sum() * exp_of({sum.origin.above(top - row.anchor)}) - ties;  // of more digits
        put(row.index, std::fabs(top) == -NOTHING ? result.log_sum : rest > 0 ? rest : rest == rest ? 0.0 : rest, top, whole.count);
        return true;
    }

    bool emit(const Row<T>&, int64_t, int64_t, Part&, Scratch<C>&) const { return true; }

   private:
    void put(int64_t index, double rest, double top, int64_t count) const {
        const bool is_number = rest == rest;
        call->rests[index] = rest;
        call->maxima[index] = is_number ? top : rest;
        call->counts[index] = is_number && top != NOTHING ? count : 0;
    }

    static void include(Part& part, C top, int64_t count) {
        part.count = top == part.highest ? part.count + count : count;
        part.highest = top;
    }

    static int64_t occurrences(const C* values, int64_t length, C value) {
        int32_t count = 0;
        for (int64_t i = 0; i < length; ++i) count += values[i] == value;
        return count;
    }
};

}  // namespace

int logsumexp_state(const SoftmaximaState* call) {
    return with_dtype(call->rows.dtype, [=](auto* type) {
        using T = std::remove_pointer_t<decltype(type)>;
        State<T> kernel;
        kernel.call = call;
        if constexpr (sizeof(T) < sizeof(double)) {
            if (call->rows.inner == 1 && (call->rows.n < 16 * BLOCK || call->rows.outer >= 64)) {
                return for_each_whole_row<T>(call->rows, nullptr, 0, nullptr, 1.0,
                                             [&](const Row<T>& row, const T* const*, Scratch<compute_t<T>>& scratch) { return kernel.put_row(row, scratch); });
            }
        }
        return for_each_row<T>(call->rows, nullptr, kernel, 0.7);
    });
}

}  // namespace SOFTMAXIMA_ISA

SOFTMAXIMA_KERNEL(logsumexp_state, State)
