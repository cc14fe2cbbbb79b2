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
        const auto sum = ExpSum<C>::of(parts, count);
        const double value = LogSumExp<T>::result(row, sum, false).value(row.scale);
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
        const auto sum = ExpSum<C>::of(parts, count);
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
            for (int64_t j = 0; j < length; ++j) narrow((double(values[j]) - top) * scale - log_sum, to[j]);
        }
        return true;
    }
};

template <class Pointer>
using element = std::remove_pointer_t<Pointer>;

// [outer, n, inner]: rows that lie beside one another, a few of them at a time, as they are.
template <class T>
struct Columns {
    using C = compute_t<T>;
    static constexpr int64_t WIDTH = 256 / sizeof(C);
    static constexpr int64_t SUMMED = 2;                // rows whose sum is taken in C
    static constexpr int64_t CACHED = int64_t(1) << 17;  // bytes of exponentials that rest in the second-level cache

    const SoftmaximaForward* call;
    int64_t o, first, width;
    C high[WIDTH], low[WIDTH], top[WIDTH] /* of x */, shift[WIDTH], power[WIDTH], magic[WIDTH], floor[WIDTH];
    double scale[WIDTH], mass[WIDTH];
    bool scaled;

    int64_t offset(int64_t i) const { return (o * call->rows.n + i) * call->rows.inner + first; }

    Columns(const SoftmaximaForward* call_, int64_t o_, int64_t first_)
        : call(call_), o(o_), first(first_), width(minimum(WIDTH, call_->rows.inner - first_)) {
        const SoftmaximaRows& rows = call->rows;
        scaled = rows.taus || rows.scale != 1.0;
        for (int64_t j = 0; j < width; ++j) scale[j] = rows.taus ? 1.0 / rows.taus[o * rows.inner + first + j] : rows.scale;
    }

    // x of the rows' i-th scores, −∞ where it does not count.
    void load_raw(int64_t i, bool rectified) {
        const SoftmaximaRows& rows = call->rows;
        const T* x = static_cast<const T*>(rows.x) + offset(i);
        constexpr C nothing = -std::numeric_limits<C>::infinity();
        for (int64_t j = 0; j < width; ++j) high[j] = widen(x[j]);
        if (rows.mask) {
            const int64_t size = rows.n * rows.inner;
            const uint8_t* mask = rows.mask + (rows.blocks ? rows.blocks[o] : o * size) + i * rows.inner + first;
            for (int64_t j = 0; j < width; ++j) high[j] = mask[j] ? high[j] : nothing;
        }
        if (rectified)
            for (int64_t j = 0; j < width; ++j) high[j] = high[j] < 0 ? nothing : high[j];
    }

    // Their z.
    void load(int64_t i, bool rectified) {
        load_raw(i, rectified);
        if (!scaled) return;
        for (int64_t j = 0; j < width; ++j) {
            const double z = double(high[j]) * scale[j];
            high[j] = C(z);
            const double rest = z - double(high[j]);
            low[j] = rest == rest ? C(rest) : C(0);  // −∞ − (−∞)
        }
    }

    template <bool Low>
    void exponentials(C* e) const {
        for (int64_t j = 0; j < width; ++j) e[j] = Exponential<C>::evaluate(high[j], Low ? low[j] : C(0), shift[j], magic[j], floor[j]);
    }

    void exponentials(C* e) const { scaled ? exponentials<true>(e) : exponentials<false>(e); }

    // Σ exp(z) of each row, and its terms into `kept` [n, inner] where there is one.
    void sum(bool rectified, C* kept) {
        const int64_t n = call->rows.n;
        for (int64_t j = 0; j < width; ++j) top[j] = -std::numeric_limits<C>::infinity();
        for (int64_t i = 0; i < n; ++i) {
            load_raw(i, rectified);
            for (int64_t j = 0; j < width; ++j) top[j] = high[j] > top[j] ? high[j] : top[j];
        }
        C part[WIDTH] = {}, e[WIDTH];
        double lost[WIDTH] = {};
        for (int64_t j = 0; j < width; ++j) {
            const Origin<C> origin = Origin<C>::at(C(double(top[j]) * scale[j]));
            const Exponential<C> exp(origin);
            shift[j] = origin.shift;
            power[j] = origin.power;
            magic[j] = exp.magic;
            floor[j] = exp.floor;
            mass[j] = 0;
        }
        for (int64_t i = 0; i < n; ++i) {
            load(i, rectified);
            C* to = kept ? kept + i * call->rows.inner : e;
            exponentials(to);
            for (int64_t j = 0; j < width; ++j) part[j] += to[j];
            if (i % SUMMED == SUMMED - 1 || i == n - 1)
                for (int64_t j = 0; j < width; ++j) {
                    add_exactly(double(part[j]), mass[j], lost[j]);
                    part[j] = 0;
                }
        }
        for (int64_t j = 0; j < width; ++j) mass[j] += lost[j];
    }

    void softmax(Kind kind) {
        const SoftmaximaRows& rows = call->rows;
        T* out = static_cast<T*>(call->out) + offset(0);
        const bool keep = sizeof(T) == sizeof(C) && rows.n * WIDTH * int64_t(sizeof(C)) <= CACHED;
        sum(kind == Kind::rectified, keep ? reinterpret_cast<C*>(out) : nullptr);
        C ratio[WIDTH], rest[WIDTH], e[WIDTH];
        for (int64_t j = 0; j < width; ++j) {
            if (kind == Kind::elastic) mass[j] += std::exp(theta(j) - origin(j).value());
            const double inverse = mass[j] == 0 ? 0.0 : 1 / mass[j];
            ratio[j] = C(inverse);
            rest[j] = C(inverse - double(ratio[j]));
        }
        for (int64_t i = 0; i < rows.n; ++i) {
            T* to = out + i * rows.inner;
            const C* from = e;
            if (keep) {
                from = reinterpret_cast<const C*>(to);
            } else {
                load(i, kind == Kind::rectified);
                exponentials(e);
            }
            if (sizeof(C) == sizeof(double) || kind == Kind::elastic) {  // whose ratio may be too small for a float
                for (int64_t j = 0; j < width; ++j) narrow(mass[j] == 0 ? 0.0 : double(from[j]) / mass[j], to[j]);
            } else {
                for (int64_t j = 0; j < width; ++j) narrow(from[j] * ratio[j] + from[j] * rest[j], to[j]);
            }
        }
        for (int64_t j = 0; kind == Kind::rectified && j < width; ++j)
            if (mass[j] == 0 && theta(j) != 0) uniform(j);
    }

    Origin<C> origin(int64_t j) const { return {shift[j], power[j]}; }

    double theta(int64_t j) const {
        return call->rows.thetas ? call->rows.thetas[o * call->rows.inner + first + j] : call->rows.theta;
    }

    // A row without a score that counts: the same for every allowed one.
    void uniform(int64_t j) {
        T* out = static_cast<T*>(call->out) + offset(0) + j;
        int64_t allowed = 0;
        for (int pass = 0; pass < 2; ++pass)
            for (int64_t i = 0; i < call->rows.n; ++i) {
                load(i, false);
                const bool counts = double(high[j]) > NOTHING;
                if (pass == 0) allowed += counts;
                if (pass == 1) narrow(counts ? 1.0 / double(allowed) : 0.0, out[i * call->rows.inner]);
            }
    }

    // LSE of each row; a row whose digits need care is copied to where it is contiguous.
    bool log_sums(bool exact, LogSum* results, Scratch<C>& scratch) {
        const SoftmaximaRows& rows = call->rows;
        sum(false, nullptr);
        for (int64_t j = 0; j < width; ++j) {
            const double maximum = double(top[j]);
            ExpSum<C> sum;
            sum.maximum = C(maximum * scale[j]);
            sum.origin = origin(j);
            sum.total = {mass[j], 0};
            results[j] = sum.log_sum(maximum, scale[j]);
            const double value = results[j].value(scale[j]);
            if (std::fabs(value) >= 2.0 && std::fabs(value) < std::numeric_limits<double>::infinity() && !(exact && results[j].log_sum < NEAR<C>)) continue;
            char* memory = scratch.tile.at_least(rows.n * int64_t(sizeof(T) + 1));
            if (!memory) return false;
            T* x = reinterpret_cast<T*>(memory);
            uint8_t* mask = reinterpret_cast<uint8_t*>(x + rows.n);
            to_rows(static_cast<const T*>(rows.x) + offset(0) + j, rows.n, rows.inner, 1, x);
            if (rows.mask) to_rows(rows.mask + (rows.blocks ? rows.blocks[o] : o * rows.n * rows.inner) + first + j, rows.n, rows.inner, 1, mask);
            Row<T> row = {};
            row.x = x;
            row.mask = rows.mask ? mask : nullptr;
            row.n = rows.n;
            row.tau = rows.taus ? rows.taus[o * rows.inner + first + j] : rows.tau;
            row.scale = scale[j];
            results[j] = LogSumExp<T>::result(row, sum, exact);
        }
        return true;
    }

    bool logsumexp(Scratch<C>& scratch) {
        LogSum results[WIDTH];
        if (!log_sums(false, results, scratch)) return false;
        for (int64_t j = 0; j < width; ++j) {
            const int64_t index = o * call->rows.inner + first + j;
            const double value = results[j].value(scale[j]);
            narrow(value, static_cast<T*>(call->out)[index]);
            if (call->values) call->values[index] = value;
        }
        return true;
    }

    bool log_softmax(Scratch<C>& scratch) {
        LogSum results[WIDTH];
        if (!log_sums(true, results, scratch)) return false;
        double maximum[WIDTH], log_sum[WIDTH];
        for (int64_t j = 0; j < width; ++j) {
            maximum[j] = results[j].maximum == NOTHING ? 0.0 : results[j].maximum;
            log_sum[j] = results[j].log_sum;
        }
        for (int64_t i = 0; i < call->rows.n; ++i) {
            load_raw(i, false);
            T* to = static_cast<T*>(call->out) + offset(i);
            for (int64_t j = 0; j < width; ++j) narrow((double(high[j]) - maximum[j]) * scale[j] - log_sum[j], to[j]);
        }
        return true;
    }
};

// body(columns, scratch) for all of them.
template <class T, class Body>
bool for_each_columns(const SoftmaximaForward* call, const Body& body) {
    using C = compute_t<T>;
    const SoftmaximaRows& rows = call->rows;
    const int64_t tiles = (rows.inner + Columns<T>::WIDTH - 1) / Columns<T>::WIDTH;
    const int team = team_size(rows.threads, 1.5 * double(rows.outer) * double(rows.n) * double(rows.inner));
    return share_out<C>(rows.outer * tiles, team, [&](int64_t task, Scratch<C>& scratch) {
        Columns<T> columns(call, task / tiles, task % tiles * Columns<T>::WIDTH);
        return body(columns, scratch);
    });
}

template <class T, Kind kind>
bool forward(const SoftmaximaForward* call, T*) {
    if (call->rows.inner > 1)
        return for_each_columns<T>(call, [](Columns<T>& columns, auto&) {
            columns.softmax(kind);
            return true;
        });
    return for_each_row<T>(call->rows, call->out, Softmax<T, kind>{}, 1.0);
}

template <class T>
bool forward_log_softmax(const SoftmaximaForward* call, T*) {
    if (call->rows.inner > 1)
        return for_each_columns<T>(call, [](Columns<T>& columns, auto& scratch) { return columns.log_softmax(scratch); });
    return for_each_row<T>(call->rows, call->out, LogSoftmax<T>{}, 1.0);
}

template <class T>
bool forward_logsumexp(const SoftmaximaForward* call, T*) {
    if (call->rows.inner > 1)
        return for_each_columns<T>(call, [](Columns<T>& columns, auto& scratch) { return columns.logsumexp(scratch); });
    LogSumExpValue<T> kernel;
    kernel.out = static_cast<T*>(call->out);
    kernel.values = call->values;
    return for_each_row<T>(call->rows, nullptr, kernel, 0.7);
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

int logsumexp_backward(const SoftmaximaBackward* call) {
    return with_dtype(call->rows.dtype, [=](auto type) { return logsumexp_backward(call, type); });
}

}  // namespace SOFTMAXIMA_ISA
