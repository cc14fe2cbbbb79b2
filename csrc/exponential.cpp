// softmax, elastic softmax, rectified softmax, log_softmax and logsumexp, and the derivative of logsumexp.

#include "exponential.h"

namespace SOFTMAXIMA_ISA {
namespace {

template <class T>
struct LogSumExpValue : LogSumExp<T> {
    using typename LogSumExp<T>::Part;
    using C = compute_t<T>;
    T* out;
    double* values;

    bool finish(const Row<T>& row, Part* parts, int count, Scratch<C>&) const {
        ExpSum<C> sum;
        for (int i = 0; i < count; ++i) sum.merge(parts[i].sum);
        const double value = LogSumExp<T>::result(row, sum, false).value();
        narrow(value, out[row.index]);
        if (values) values[row.index] = value;
        return true;
    }

    bool emit(const Row<T>&, int64_t, int64_t, Part&, Scratch<C>&) const { return true; }
};

template <class T>
struct LogSoftmax : LogSumExp<T> {
    using typename LogSumExp<T>::Part;
    using C = compute_t<T>;

    bool finish(const Row<T>& row, Part* parts, int count, Scratch<C>&) const {
        ExpSum<C> sum;
        for (int i = 0; i < count; ++i) sum.merge(parts[i].sum);
        LogSum result = LogSumExp<T>::result(row, sum, true);
        if (result.maximum == NOTHING) result.maximum = 0;  // −∞ − 0 is −∞, and −∞ − (−∞) is not
        for (int i = 0; i < count; ++i) parts[i].result = result;
        return true;
    }

    bool emit(const Row<T>& row, int64_t begin, int64_t end, Part& part, Scratch<C>& scratch) const {
        const double top = part.result.maximum, log_sum = part.result.log_sum, scale = row.scale;
        for (int64_t i = begin; i < end; i += BLOCK) {
            const int64_t length = minimum(BLOCK, end - i);
            const C* values = row.raw(i, length, scratch.high);
            T* to = row.out + i;
            for (int64_t j = 0; j < length; ++j) narrow((double(values[j]) * scale - top) - log_sum, to[j]);
        }
        return true;
    }
};

template <class T, Kind kind>
bool forward(const SoftmaximaForward* call, T*) {
    return for_each_row<T>(call->rows, call->out, Softmax<T, kind>{}, 1.0);
}

// ∂LSE/∂x = softmax(x/τ)/τ, times g.
template <class T>
bool logsumexp_backward(const SoftmaximaBackward* call, T*) {
    using C = compute_t<T>;
    const SoftmaximaRows& rows = call->rows;
    const T* g = static_cast<const T*>(call->g);
    const double* values = call->values;
    return for_each_whole_row<T>(rows, nullptr, 0, call->out, 1.0, [=](const Row<T>& row, const T* const*, Scratch<C>& scratch) {
        constexpr double infinity = std::numeric_limits<double>::infinity();
        const double value = values[row.index], upstream = double(widen(g[row.index])) * row.scale;
        if (value == infinity || value == NOTHING) {  // several +∞ have equal shares, and −∞ none
            int64_t shares = 0;
            for (int64_t i = 0; i < row.n; ++i) shares += row.score(i) == infinity;
            for (int64_t i = 0; i < row.n; ++i) narrow(row.score(i) == infinity ? upstream / double(shares) : 0.0, row.out[i]);
            return true;
        }
        const Origin<C> origin = Origin<C>::at(C(value));
        const Ratio<C> ratio(upstream * std::exp(origin.value() - value), 1.0);
        for (int64_t i = 0; i < row.n; i += BLOCK) {
            const int64_t length = minimum(BLOCK, row.n - i);
            emit_exp(row.scores(i, length, scratch), length, origin, ratio, row.out + i);
        }
        return true;
    });
}

}  // namespace

int softmax(const SoftmaximaForward* call) {
    return with_dtype(call->rows.dtype, [=](auto type) { return forward<std::remove_pointer_t<decltype(type)>, Kind::softmax>(call, type); });
}

int elastic_softmax(const SoftmaximaForward* call) {
    return with_dtype(call->rows.dtype, [=](auto type) { return forward<std::remove_pointer_t<decltype(type)>, Kind::elastic>(call, type); });
}

int rectified_softmax(const SoftmaximaForward* call) {
    return with_dtype(call->rows.dtype, [=](auto type) { return forward<std::remove_pointer_t<decltype(type)>, Kind::rectified>(call, type); });
}

int log_softmax(const SoftmaximaForward* call) {
    return with_dtype(call->rows.dtype, [=](auto type) {
        return for_each_row<std::remove_pointer_t<decltype(type)>>(call->rows, call->out, LogSoftmax<std::remove_pointer_t<decltype(type)>>{}, 1.0);
    });
}

int logsumexp(const SoftmaximaForward* call) {
    return with_dtype(call->rows.dtype, [=](auto type) {
        using T = std::remove_pointer_t<decltype(type)>;
        LogSumExpValue<T> kernel;
        kernel.out = static_cast<T*>(call->out);
        kernel.values = call->values;
        return for_each_row<T>(call->rows, nullptr, kernel, 0.7);
    });
}

int logsumexp_backward(const SoftmaximaBackward* call) {
    return with_dtype(call->rows.dtype, [=](auto type) { return logsumexp_backward(call, type); });
}

}  // namespace SOFTMAXIMA_ISA
