// log_mean_exp: log((1/n) Σ exp(z_i)) = M + log(Σ exp(z_i − M)) − log n, z = x/τ, M the largest z, all in double.
//
// Where the mean of exp(z_i − M) is above 1/2, its logarithm is log1p((1/n) Σ expm1(z_i − M)): there the two logarithms may cancel.

#include "columns.h"
#include "near_zero.h"

namespace SOFTMAXIMA_ISA {
namespace {

constexpr double FLAT = -0x1.62e42fefa39efp-1;  // log(1/2)
constexpr double NEAR_ZERO = 1;                 // of narrower results, only those below keep digits that cancel
constexpr double SMALL = 0.25;                  // of results in double, those below are of terms with more digits than a double has

// A logarithm in two terms.
template <class W>
LogSum split(double maximum, W log) {
    const double near = double(log);
    return {maximum, near, near - near == 0 ? double(log - W(near)) : 0.0};
}

// log of the mean of exp(z − M), of terms in long double: log1p of that of expm1 where `flat`.
template <class T>
[[gnu::noinline]] LogSum mean_of_gaps(const Row<T>& row, double maximum, int64_t count, bool flat) {
    using W = long double;
    W sum = 0;
    for (int64_t i = 0; i < row.n; ++i) {
        const W gap = (W(row.score(i)) - W(maximum)) / W(row.tau);
        if (row.allowed(i)) sum += flat ? std::expm1(gap) : std::exp(gap);
    }
    return split<W>(maximum, flat ? std::log1p(sum / W(count)) : std::log(sum / W(count)));
}

// What `result` should be less log n, and with the digits that cancel then.
template <class T>
double mean_of(const Row<T>& row, const LogSum& result, Scratch<compute_t<T>>& scratch) {
    using W = std::conditional_t<sizeof(T) == sizeof(double), long double, double>;
    constexpr int64_t PART = 512;
    int64_t count = row.mask ? 0 : row.n;
    for (int64_t i = 0; row.mask && i < row.n; ++i) count += row.mask[i] != 0;
    if (count == 0) return NOTHING;
    const W below = (W(result.log_sum) - std::log(W(count))) + W(result.lost);
    const double value = split<W>(result.maximum, below).value(row.tau);
    if (std::fabs(result.maximum) == -NOTHING) return value;
    const bool flat = below > FLAT;
    if (sizeof(T) == sizeof(double) && std::fabs(value) < SMALL) return mean_of_gaps(row, result.maximum, count, flat).value(row.tau);
    if (!flat || (sizeof(T) < sizeof(double) && std::fabs(value) >= NEAR_ZERO)) return value;
    Sum excess;
    double x[PART];
    for (int64_t i = 0; i < row.n; i += PART) {
        const int64_t length = minimum(PART, row.n - i);
        row.wide(i, length, scratch, x);
        const uint8_t* mask = row.mask ? row.mask + i : nullptr;
        double sum = 0, rounded = 0;
        if (mask) {
            for (int64_t j = 0; j < length; ++j) x[j] = mask[j] ? x[j] : result.maximum;  // a term of 0
        }
#pragma omp simd reduction(+ : sum, rounded)
        for (int64_t j = 0; j < length; ++j) {
            double low;
            const double z = gap(x[j], result.maximum, row.tau, row.scale, low);
            add_exactly(expm1(z, low), sum, rounded);
        }
        excess.add({sum, rounded});
    }
    return split<W>(result.maximum, std::log1p((W(excess.high) + W(excess.low)) / W(count))).value(row.tau);
}

template <class T>
struct LogMeanExp : LogSumExp<T, double> {
    using typename LogSumExp<T, double>::Part;
    using C = compute_t<T>;
    T* out;
    double *maxima, *log_sums;  // of LSE; may be null

    bool scan(const Row<T>& row, int64_t begin, int64_t end, Part& part, Scratch<C>&) const {
        Scratch<double>& terms = Scratch<double>::of_this_thread();
        part.sum = {};
        for (int64_t i = begin; i < end; i += BLOCK) {
            const int64_t length = minimum(BLOCK, end - i);
            part.sum.template add<false>(row.template scores<false, double>(i, length, terms), length, nullptr, row.tau != 1.0);
        }
        return true;
    }

    bool finish(const Row<T>& row, Part* parts, int count, Scratch<C>& scratch) const {
        put(row, LogSumExp<T, double>::result(row, ExpSum<double>::of(parts, count), Digits::value), scratch);
        return true;
    }

    bool emit(const Row<T>&, int64_t, int64_t, Part&, Scratch<C>&) const { return true; }

    void put(const Row<T>& row, const LogSum& result, Scratch<C>& scratch) const {
        narrow(mean_of(row, result, scratch), out[row.index]);
        keep(row.index, result.maximum, result.log_sum + result.lost);
    }

    void keep(int64_t index, double maximum, double log_sum) const {
        if (!maxima) return;
        maxima[index] = maximum;
        log_sums[index] = log_sum;
    }

    // The same for short rows of float or less, as columns.
    bool put_columns(Columns<C>& columns, const SoftmaximaRows& rows, int64_t first, Scratch<C>& scratch) const {
        constexpr int64_t WIDTH = Columns<C>::WIDTH;
        const Exponential<double> exponential(Origin<double>{});
        const double log_count = std::log(double(columns.n()));
        alignas(LINE) double tops[WIDTH], sums[WIDTH] = {}, values[WIDTH];
        alignas(LINE) C buffer[WIDTH];
        columns.find_top(false);
        for (int64_t j = 0; j < WIDTH; ++j) tops[j] = double(columns.top[j]);
        for (int64_t i = 0; i < columns.n(); ++i) {
            const C* x = columns.raw(i, false, buffer);
#pragma omp simd
            for (int64_t j = 0; j < WIDTH; ++j) sums[j] += exponential(gap(x[j], tops[j], columns.scale[j]));
        }
#pragma omp simd
        for (int64_t j = 0; j < WIDTH; ++j) {
            sums[j] = log(sums[j]);
            values[j] = tops[j] / columns.tau[j] + (sums[j] - log_count);
        }
        for (int64_t j = 0; j < columns.width(); ++j) {
            const bool is_finite = std::fabs(tops[j]) < -NOTHING;
            if (!is_finite || (std::fabs(values[j]) < NEAR_ZERO && sums[j] - log_count > FLAT)) {
                Row<T> row = row_of<T>(rows, first + j, nullptr);
                if (is_finite) {
                    put(row, {tops[j], sums[j], 0}, scratch);
                } else if (!whole_row(*this, row, scratch)) {
                    return false;
                }
                continue;
            }
            narrow(values[j], out[first + j]);
            keep(first + j, tops[j], sums[j]);
        }
        return true;
    }
};

template <class T>
bool log_mean_exp(const SoftmaximaForward* call, T*) {
    const SoftmaximaRows& rows = call->rows;
    LogMeanExp<T> kernel;
    kernel.out = static_cast<T*>(call->out);
    kernel.maxima = call->states;
    kernel.log_sums = call->states ? call->states + rows.outer * rows.inner : nullptr;
    if constexpr (sizeof(T) < sizeof(double)) {
        if (are_short(rows) && !rows.mask) {
            return for_each_short_rows<T>(rows, static_cast<T*>(nullptr), 1.0,
                                          [&](auto& columns, auto*, int64_t, int64_t first, Scratch<compute_t<T>>& scratch) {
                                              return kernel.put_columns(columns, rows, first, scratch);
                                          });
        }
    }
    return for_each_row<T>(rows, nullptr, kernel, 0.7);
}

}  // namespace

int log_mean_exp(const SoftmaximaForward* call) {
    return with_dtype(call->rows.dtype, [=](auto* type) { return log_mean_exp(call, type); });
}

}  // namespace SOFTMAXIMA_ISA

SOFTMAXIMA_KERNEL(log_mean_exp, Forward)
