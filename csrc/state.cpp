// The monoid (M, m, r) of logsumexp from one read of a row: the largest score, how many there are of it, and log(m + r).

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

    bool finish(const Row<T>& row, Part* parts, int count, Scratch<C>&) const {
        Part whole = parts[0];
        for (int i = 1; i < count; ++i)
            if (parts[i].highest >= whole.highest) include(whole, parts[i].highest, parts[i].count);
        const double top = double(whole.highest);
        const LogSum result = LogSumExp<T, double>::result(row, ExpSum<double>::of(parts, count), true);
        const double value = result.log_sum + result.lost;
        const bool is_number = value == value;
        call->values[row.index] = value;
        call->maxima[row.index] = is_number ? top : value;
        call->counts[row.index] = is_number && top != NOTHING ? whole.count : 0;
        return true;
    }

    bool emit(const Row<T>&, int64_t, int64_t, Part&, Scratch<C>&) const { return true; }

   private:
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
        return for_each_row<T>(call->rows, nullptr, kernel, 0.7);
    });
}

}  // namespace SOFTMAXIMA_ISA

SOFTMAXIMA_KERNEL(logsumexp_state, State)
