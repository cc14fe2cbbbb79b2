// The monoid (M, m, r) of logsumexp from one read of a row: the largest score, how many there are of it, and log(m + r).

#include "columns.h"

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

    // Short rows of float or less, as columns.
    bool put_columns(Columns<C>& columns, const SoftmaximaRows& rows, int64_t first, Scratch<C>& scratch) const {
        constexpr int64_t WIDTH = Columns<C>::WIDTH;
        const Exponential<double> exponential(Origin<double>{});
        alignas(LINE) double tops[WIDTH], rest[WIDTH] = {}, lost[WIDTH] = {}, values[WIDTH];
        alignas(LINE) C counts[WIDTH] = {}, buffer[WIDTH];
        columns.find_top(false);
        for (int64_t j = 0; j < WIDTH; ++j) tops[j] = double(columns.top[j]);
        for (int64_t i = 0; i < columns.n(); ++i) {
            const C* x = columns.raw(i, false, buffer);
#pragma omp simd
            for (int64_t j = 0; j < WIDTH; ++j) {
                const double z = gap(x[j], tops[j], columns.scale[j]), e = exponential(z);
                add_exactly(z == 0 ? 0.0 : e, rest[j], lost[j]);
            }
#pragma omp simd
            for (int64_t j = 0; j < WIDTH; ++j) counts[j] += x[j] == columns.top[j] ? C(1) : C(0);
        }
#pragma omp simd
        for (int64_t j = 0; j < WIDTH; ++j) {
            const double m = double(counts[j]), share = (rest[j] + lost[j]) / m, sum = 1 + share, taken = sum - 1;
            values[j] = log(m) + (log(sum) + ((1 - (sum - taken)) + (share - taken)) / sum);
        }
        for (int64_t j = 0; j < columns.width(); ++j) {
            if (std::fabs(tops[j]) == -NOTHING) {
                if (!whole_row(*this, row_of<T>(rows, first + j, nullptr), scratch)) return false;
            } else {
                put(first + j, values[j], tops[j], int64_t(counts[j]));
            }
        }
        return true;
    }

    bool finish(const Row<T>& row, Part* parts, int count, Scratch<C>&) const {
        Part whole = parts[0];
        for (int i = 1; i < count; ++i)
            if (parts[i].highest >= whole.highest) include(whole, parts[i].highest, parts[i].count);
        const double top = double(whole.highest);
        const LogSum result = LogSumExp<T, double>::result(row, ExpSum<double>::of(parts, count), true);
        put(row.index, result.log_sum + result.lost, top, whole.count);
        return true;
    }

    bool emit(const Row<T>&, int64_t, int64_t, Part&, Scratch<C>&) const { return true; }

   private:
    void put(int64_t index, double value, double top, int64_t count) const {
        const bool is_number = value == value;
        call->values[index] = value;
        call->maxima[index] = is_number ? top : value;
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
            if (are_short(call->rows)) {
                const auto by_column = [&](auto& columns, auto*, int64_t, int64_t first, Scratch<compute_t<T>>& scratch) {
                    return kernel.put_columns(columns, call->rows, first, scratch);
                };
                return for_each_short_rows<T>(call->rows, static_cast<T*>(nullptr), 1.0, by_column);
            }
        }
        return for_each_row<T>(call->rows, nullptr, kernel, 0.7);
    });
}

}  // namespace SOFTMAXIMA_ISA

SOFTMAXIMA_KERNEL(logsumexp_state, State)
