// softmax, elastic softmax, rectified softmax, log_softmax and logsumexp, with what is kept of it, and its derivative.

#include "lines.h"

namespace SOFTMAXIMA_ISA {
namespace {

template <class T>
struct LogSumExpValue : LogSumExp<T> {
    using typename LogSumExp<T>::Part;
    using C = compute_t<T>;
    T* out;
    double *maxima, *log_sums;  // may be null

    bool finish(const Row<T>& row, Part* parts, int count, Scratch<C>&) const {
        const LogSum result = LogSumExp<T>::result(row, ExpSum<C>::of(parts, count), Digits::value);
        narrow(result.value(row.tau), out[row.index]);
        if (maxima) {
            maxima[row.index] = result.maximum;
            log_sums[row.index] = result.log_sum + result.lost;
        }
        return true;
    }

    bool emit(const Row<T>&, int64_t, int64_t, Part&, Scratch<C>&) const { return true; }
};

template <class T>
struct Rest : LogSumExp<T> {
    using typename LogSumExp<T>::Part;
    using C = compute_t<T>;
    double *maxima, *rests;

    bool finish(const Row<T>& row, Part* parts, int count, Scratch<C>&) const {
        const LogSum result = LogSumExp<T>::result(row, ExpSum<C>::of(parts, count), Digits::rest);
        maxima[row.index] = result.maximum;
        rests[row.index] = expm1(result.log_sum, result.lost);
        return true;
    }

    bool emit(const Row<T>&, int64_t, int64_t, Part&, Scratch<C>&) const { return true; }
};

template <class T>
struct LogSoftmax : LogSumExp<T> {
    using typename LogSumExp<T>::Part;
    using C = compute_t<T>;

    bool finish(const Row<T>& row, Part* parts, int count, Scratch<C>&) const {
        const auto sum = ExpSum<C>::of(parts, count);
        LogSum result = LogSumExp<T>::result(row, sum, Digits::log_sum);
        if (result.maximum == NOTHING) result.maximum = 0;  // −∞ − 0 is −∞, and −∞ − (−∞) is not
        if (result.maximum == -NOTHING) result.log_sum = std::numeric_limits<double>::quiet_NaN();
        for (int i = 0; i < count; ++i) parts[i].result = result;
        return true;
    }

    bool emit(const Row<T>& row, int64_t begin, int64_t end, Part& part, Scratch<C>& scratch) const {
        const double top = part.result.maximum, log_sum = part.result.log_sum, tau = row.tau, scale = row.scale;
        const C maximum = C(top), less = C(log_sum);
        for (int64_t i = begin; i < end; i += BLOCK) {
            const int64_t length = minimum(BLOCK, end - i);
            const C* values = row.raw(i, length, scratch.high);
            T* to = row.out + i;
            if (tau == 1.0) {  // two numbers that are not positive: no digits cancel
                for (int64_t j = 0; j < length; ++j) narrow((values[j] - maximum) - less, to[j]);
            } else {
                for (int64_t j = 0; j < length; ++j) narrow(gap(values[j], top, scale) - log_sum, to[j]);
            }
        }
        return true;
    }
};

template <class Pointer>
using element = std::remove_pointer_t<Pointer>;

// body(columns, out, step, index, scratch) for rows that are worked on as columns, and the kernel for all others.
template <class T, class Kernel, class Body>
bool for_each_row_or_column(const SoftmaximaRows& rows, T* out, const Kernel& kernel, double nanoseconds, const Body& body) {
    if (rows.inner > 1) return for_each_columns<T>(rows, out, 1.5 * nanoseconds, body);
    if (are_lines<compute_t<T>>(rows)) return for_each_lines<T>(rows, out, nanoseconds, body);
    if (are_short(rows)) return for_each_short_rows<T>(rows, out, nanoseconds, body);
    return for_each_contiguous_row<T>(rows, out, kernel, nanoseconds);
}

template <class T, Kind kind>
bool forward(const SoftmaximaForward* call, T*) {
    const SoftmaximaRows& rows = call->rows;
    T* results = static_cast<T*>(call->out);
    const auto by_column = [&](auto& columns, auto* out, int64_t step, int64_t, Scratch<compute_t<T>>&) {
        columns.template softmax<kind>(out, step);
        return true;
    };
    return for_each_row_or_column<T>(rows, results, Softmax<T, kind>{}, 1.0, by_column);
}

template <class T>
bool forward_log_softmax(const SoftmaximaForward* call, T*) {
    T* results = static_cast<T*>(call->out);
    const auto by_column = [](auto& columns, auto* out, int64_t step, int64_t, Scratch<compute_t<T>>& scratch) {
        return columns.log_softmax(out, step, scratch);
    };
    return for_each_row_or_column<T>(call->rows, results, LogSoftmax<T>{}, 1.0, by_column);
}

template <class T>
bool forward_logsumexp(const SoftmaximaForward* call, T*) {
    LogSumExpValue<T> kernel;
    kernel.out = static_cast<T*>(call->out);
    kernel.maxima = call->states;
    kernel.log_sums = call->states ? call->states + call->rows.outer * call->rows.inner : nullptr;
    const auto by_column = [&](auto& columns, auto*, int64_t, int64_t index, Scratch<compute_t<T>>& scratch) {
        if (!columns.logsumexp(kernel.out + index, scratch)) return false;
        if (kernel.maxima) columns.keep_state(kernel.maxima + index, kernel.log_sums + index);
        return true;
    };
    return for_each_row_or_column<T>(call->rows, nullptr, kernel, 0.7, by_column);
}

template <class T>
bool forward_rest(const SoftmaximaForward* call, T*) {
    Rest<T> kernel;
    kernel.maxima = call->states;
    kernel.rests = call->states + call->rows.outer * call->rows.inner;
    const auto by_column = [&](auto& columns, auto*, int64_t, int64_t index, Scratch<compute_t<T>>& scratch) {
        return columns.rests(kernel.maxima + index, kernel.rests + index, scratch);
    };
    return for_each_row_or_column<T>(call->rows, nullptr, kernel, 0.7, by_column);
}

// exp(above − log_sum), in double with the digits that the difference loses.
template <class C>
double risen(double above, double log_sum) {
    if (sizeof(C) < sizeof(double)) return std::exp(above - log_sum);
    Sum height{above};
    height.add(-log_sum);
    return exp_of(height);
}

// ∂LSE/∂x = softmax(x/τ)/τ, times g.
template <class T>
bool logsumexp_backward(const SoftmaximaBackward* call, T*) {
    using C = compute_t<T>;
    const SoftmaximaRows& rows = call->rows;
    const T* g = static_cast<const T*>(call->g);
    const double *maxima = call->states, *log_sums = call->states + rows.outer * rows.inner;
    return for_each_whole_row<T>(rows, nullptr, 0, call->out, 1.0, [=](Row<T> row, const T* const*, Scratch<C>& scratch) {
        constexpr double infinity = std::numeric_limits<double>::infinity();
        const double maximum = maxima[row.index], log_sum = log_sums[row.index];
        const double upstream = bounded<double>(double(widen(g[row.index])) / row.tau);
        if (std::fabs(maximum) == infinity && log_sum == log_sum) {  // of −∞ alone none has a share, and of +∞ nobody can say which
            for (int64_t i = 0; i < row.n; ++i) narrow(maximum < 0 ? 0.0 : std::numeric_limits<double>::quiet_NaN(), row.out[i]);
            return true;
        }
        row.anchor_at(maximum);
        const double top = maximum - row.anchor;
        const Origin<C> origin = Origin<C>::at(C(top));
        const double probability = std::exp(-log_sum);
        const Ratio<C> ratio(upstream * risen<C>(origin.above(top), log_sum), 1.0);
        const Largest<C> largest = probability < 0.5 ? Largest<C>{} : Largest<C>{C(weigh(row, C(maximum), origin)), C(upstream * probability)};
        for (int64_t i = 0; i < row.n; i += BLOCK) {
            const int64_t length = minimum(BLOCK, row.n - i);
            emit_exp(row.scores(i, length, scratch), length, origin, ratio, row.out + i, largest);
        }
        return true;
    });
}

}  // namespace

int softmax(const SoftmaximaForward* call) {
    return with_dtype(call->rows.dtype, [=](auto type) { return forward<element<decltype(type)>, Kind::softmax>(call, type); });
}

int elastic_softmax(const SoftmaximaForward* call) {
    return with_dtype(call->rows.dtype, [=](auto type) { return forward<element<decltype(type)>, Kind::elastic>(call, type); });
}

int rectified_softmax(const SoftmaximaForward* call) {
    return with_dtype(call->rows.dtype, [=](auto type) { return forward<element<decltype(type)>, Kind::rectified>(call, type); });
}

int log_softmax(const SoftmaximaForward* call) {
    return with_dtype(call->rows.dtype, [=](auto type) { return forward_log_softmax(call, type); });
}

int logsumexp(const SoftmaximaForward* call) {
    return with_dtype(call->rows.dtype, [=](auto type) { return forward_logsumexp(call, type); });
}

int logsumexp_rest(const SoftmaximaForward* call) {
    return with_dtype(call->rows.dtype, [=](auto type) { return forward_rest<element<decltype(type)>>(call, type); });
}

int logsumexp_backward(const SoftmaximaBackward* call) {
    return with_dtype(call->rows.dtype, [=](auto type) { return logsumexp_backward(call, type); });
}

}  // namespace SOFTMAXIMA_ISA

SOFTMAXIMA_KERNEL(softmax, Forward)
SOFTMAXIMA_KERNEL(elastic_softmax, Forward)
SOFTMAXIMA_KERNEL(rectified_softmax, Forward)
SOFTMAXIMA_KERNEL(log_softmax, Forward)
SOFTMAXIMA_KERNEL(logsumexp, Forward)
SOFTMAXIMA_KERNEL(logsumexp_rest, Forward)
SOFTMAXIMA_KERNEL(logsumexp_backward, Backward)
