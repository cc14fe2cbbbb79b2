// Weighted sums: log|S| and the sign of S = Σ b_i exp(z_i), z = x/τ, b of either sign: the monoid (M, m, r) with signs.
//
//   S = e^M (m + r),  M the largest score that has a weight,  m the weights of the scores equal to M,  r the other terms
//   ∂log|S|/∂x_i = b_i exp(z_i) / (τ S)
//
// Terms of either sign cancel, so that sums keep what their roundings lost. Of scores and weights narrower than double the terms are
// in float, as those of logsumexp, where that does not show: they do not cancel, and log|S| is not near 0.

#include "exponential.h"

namespace SOFTMAXIMA_ISA {
namespace {

constexpr int64_t PART = 512;                             // scores that are worked on at a time
constexpr double SMALLEST = 0x1p-100, LARGEST = 0x1p100;  // weights beside which no term that counts underflows
constexpr double UNDECIDED = 2;

constexpr float HEAVIEST = 0x1p30f;      // a weight with which terms in float do not overflow
constexpr double LIGHTEST = 0x1p-40;     // a sum beside which no term in float that underflows counts
constexpr double CANCELLED = 4.0 / 3.0;  // Σ|terms| / |S| from which on the terms' roundings show

// Weights as they lie, or what they are in double or float.
template <class To, class From>
const To* weights_as(const From* b, int64_t length, To* buffer) {
    if constexpr (std::is_same_v<To, From>) {
        return b;
    } else {
        for (int64_t i = 0; i < length; ++i) buffer[i] = To(widen(b[i]));
        return buffer;
    }
}

// The largest score that has a weight, and whether there is a score or weight for which this file has no answer.
[[gnu::noinline]] void look(const double* x, const double* b, int64_t length, double& top, int64_t& odd) {
    double highest = top;
    int64_t found = 0;
#pragma omp simd reduction(max : highest) reduction(| : found)
    for (int64_t i = 0; i < length; ++i) {
        const double size = std::fabs(b[i]), own = size == 0 ? NOTHING : x[i];
        const bool ordinary = size == 0 || (size >= SMALLEST && size <= LARGEST && x[i] < -NOTHING);
        found |= ordinary ? 0 : 1;
        highest = own > highest ? own : highest;
    }
    top = highest;
    odd |= found;
}

[[gnu::noinline]] void add_terms(const double* x, const double* b, int64_t length, double top, double tau, Sum& equal, Sum& rest) {
    const double scale = inverse(tau);
    double m = 0, m_lost = 0, r = 0, r_lost = 0;
#pragma omp simd reduction(+ : m, m_lost, r, r_lost)
    for (int64_t i = 0; i < length; ++i) {
        double lost;
        const double z = gap(x[i], top, tau, scale, lost), e = exp(b[i] == 0 ? NOTHING : z), term = b[i] * (e + e * lost);
        const bool largest = x[i] == top && b[i] != 0;
        add_exactly(largest ? b[i] : 0.0, m, m_lost);
        add_exactly(largest ? 0.0 : term, r, r_lost);
    }
    equal.add({m, m_lost});
    rest.add({r, r_lost});
}

// S as (log|S|, its sign).
struct Signed {
    LogSum log;
    double sign;
};

template <class T, class B>
Signed exact_sum(const Row<T>& row, const B* b, Scratch<compute_t<T>>& scratch) {
    double x[PART], buffer[PART];
    double top = NOTHING;
    int64_t odd = 0;
    const double* factors = buffer;
    for (int64_t i = 0; i < row.n; i += PART) {
        const int64_t length = minimum(PART, row.n - i);
        row.wide(i, length, scratch, x);
        factors = weights_as(b + i, length, buffer);
        look(x, factors, length, top, odd);
    }
    if (odd) return {{UNDECIDED, 0, 0}, UNDECIDED};
    if (top == NOTHING) return {{NOTHING, 0, 0}, 0};
    Sum equal, rest;
    for (int64_t i = 0; i < row.n; i += PART) {
        const int64_t length = minimum(PART, row.n - i);
        if (row.n > PART) {
            row.wide(i, length, scratch, x);
            factors = weights_as(b + i, length, buffer);
        }
        add_terms(x, factors, length, top, row.tau, equal, rest);
    }
    const double m = equal.value(), r = rest.value(), share = r / m;
    Sum total = equal;
    total.add(rest);
    const double sum = total.value();
    const double log = std::fabs(share) <= 0.5 ? std::log(std::fabs(m)) + std::log1p(share) : std::log(std::fabs(sum));
    return {{top, log, 0}, sum > 0 ? 1.0 : sum < 0 ? -1.0 : 0.0};
}

// Σ b exp(z − origin), Σ |b exp(z − origin)|, the largest z that has a weight and the largest |b|, of each lane.
struct Rough {
    static constexpr int64_t lanes = LANES<float>;
    alignas(LINE) double sums[lanes] = {}, sizes[lanes] = {};
    alignas(LINE) float tops[lanes], weights[lanes] = {};

    Rough() {
        for (float& top : tops) top = -std::numeric_limits<float>::infinity();
    }

    // Four lines of the cache.
    template <bool Low>
    [[gnu::always_inline]] inline void add(const float* high, const float* low, const float* b, const Exponential<float>& exp) {
#pragma omp simd
        for (int64_t a = 0; a < lanes; ++a) {
            float z[4], t[4], w[4];
            for (int k = 0; k < 4; ++k) {
                const int64_t i = a + k * lanes;
                z[k] = b[i] == 0 ? -std::numeric_limits<float>::infinity() : high[i];
                t[k] = b[i] * (Low ? exp(z[k], low[i]) : exp(z[k]));
                w[k] = std::fabs(b[i]);
            }
            const auto larger = [](float u, float v) __attribute__((always_inline)) { return u > v ? u : v; };
            tops[a] = larger(larger(larger(z[0], z[1]), larger(z[2], z[3])), tops[a]);
            weights[a] = larger(larger(larger(w[0], w[1]), larger(w[2], w[3])), weights[a]);
            sums[a] += double((t[0] + t[1]) + (t[2] + t[3]));
            sizes[a] += double((std::fabs(t[0]) + std::fabs(t[1])) + (std::fabs(t[2]) + std::fabs(t[3])));
        }
    }

    template <bool Low>
    [[gnu::noinline]] void add(const float* high, const float* low, const float* b, int64_t length, const Exponential<float>& exp) {
        constexpr int64_t step = 4 * lanes;
        int64_t i = 0;
        for (; i + step <= length; i += step) add<Low>(high + i, low + i, b + i, exp);
        if (i == length) return;
        alignas(LINE) float last[step] = {}, last_low[step] = {}, last_weights[step] = {};
        std::memcpy(last, high + i, size_t(length - i) * sizeof(float));
        if (Low) std::memcpy(last_low, low + i, size_t(length - i) * sizeof(float));
        std::memcpy(last_weights, b + i, size_t(length - i) * sizeof(float));
        add<Low>(last, last_low, last_weights, exp);
    }

    template <class T, class B>
    void add(const Row<T>& row, const B* b, Origin<float> origin, Scratch<float>& scratch) {
        const Exponential<float> exp(origin);
        alignas(LINE) float buffer[BLOCK];
        for (int64_t i = 0; i < row.n; i += BLOCK) {
            const int64_t length = minimum(BLOCK, row.n - i);
            const Scores<float> z = row.scores(i, length, scratch);
            const float* factors = weights_as(b + i, length, buffer);
            z.low ? add<true>(z.high, z.low, factors, length, exp) : add<false>(z.high, z.high, factors, length, exp);
        }
    }

    double sum = 0, size = 0;
    float top = -std::numeric_limits<float>::infinity(), weight = 0;

    void finish() {
#pragma omp simd reduction(+ : sum, size) reduction(max : top, weight)
        for (int64_t a = 0; a < lanes; ++a) {
            sum += sums[a];
            size += sizes[a];
            top = tops[a] > top ? tops[a] : top;
            weight = weights[a] > weight ? weights[a] : weight;
        }
    }
};

// The same with terms in float, and whether they are good enough.
template <class T, class B>
bool rough_sum(Row<T> row, const B* b, Scratch<float>& scratch, Signed& result) {
    double anchor = NOTHING;
    if (row.tau != 1.0) {  // z is relative to the largest x that has a weight
        for (int64_t i = 0; i < row.n; ++i) {
            const double own = widen(b[i]) == 0 ? NOTHING : row.score(i);
            anchor = own > anchor ? own : anchor;
        }
        row.anchor_at(anchor);
    }
    Rough total;
    total.add(row, b, {}, scratch);
    total.finish();
    if (!(std::fabs(total.top) < std::numeric_limits<float>::infinity())) return false;
    Origin<float> origin;
    if (total.top > HEADROOM<float> || total.top < -DEPTH<float>) {
        origin = Origin<float>::at(total.top);
        total = {};
        total.add(row, b, origin, scratch);
        total.finish();
    }
    const double sum = std::fabs(total.sum);
    if (!(total.size <= CANCELLED * sum && total.size >= LIGHTEST && total.weight <= HEAVIEST)) return false;
    const double top = row.tau == 1.0 ? double(total.top) : row.anchor, z = row.tau == 1.0 ? top : 0.0;
    result = {{top, std::log(sum) + origin.above(z), 0}, total.sum > 0 ? 1.0 : -1.0};
    return !LogSumExp<T>::is_near(result.log, row.tau, Digits::value);
}

template <class T, class B>
bool value(const SoftmaximaWeighted* call, const B* weights, T*) {
    using C = compute_t<T>;
    return for_each_whole_row<T>(call->rows, nullptr, 0, nullptr, 1.5, [=](const Row<T>& row, const T* const*, Scratch<C>& scratch) {
        const B* b = weights + row.index * call->distance;
        Signed sum;
        bool known = false;
        if constexpr (sizeof(B) < sizeof(double)) known = rough_sum(row, b, scratch, sum);
        if (!known) sum = exact_sum(row, b, scratch);
        call->values[row.index] = sum.log.maximum == NOTHING ? NOTHING : sum.log.value(row.tau);
        call->signs[row.index] = sum.sign;
        if (call->states) {
            call->states[row.index] = sum.log.maximum;
            call->states[call->rows.outer + row.index] = sum.log.log_sum;
        }
        return true;
    });
}

// g b exp(z)/(τS) of a row, exponentials in W.
template <class W>
struct Slope {
    Exponential<W> exp;
    W largest;             // the largest of them, and
    double share, factor;  // what it becomes, without its rounding, and what the others are multiplied by

    Slope(double z_top, double log_sum, double upstream) {
        const Origin<W> origin = Origin<W>::at(W(z_top));
        exp = Exponential<W>(origin);
        largest = exp(W(z_top));
        share = upstream * std::exp(-log_sum);
        factor = upstream * std::exp(origin.above(z_top) - log_sum);
    }

    template <class T, class B>
    [[gnu::noinline]] void emit(Scores<W> z, const B* b, int64_t length, T* out) const {
        const Slope own = *this;  // which no result can overwrite
        const auto put = [=](W e, double weight, T& to) __attribute__((always_inline)) {
            narrow(weight == 0 ? 0.0 : weight * (e == own.largest ? own.share : double(e) * own.factor), to);
        };
        if (z.low) {
            for (int64_t i = 0; i < length; ++i) put(own.exp(z.high[i], z.low[i]), double(widen(b[i])), out[i]);
        } else {
            for (int64_t i = 0; i < length; ++i) put(own.exp(z.high[i]), double(widen(b[i])), out[i]);
        }
    }
};

template <class B>
double heaviest(const B* b, int64_t length) {
    double most = 0;
#pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < length; ++i) {
        const double size = std::fabs(double(widen(b[i])));
        most = size > most ? size : most;
    }
    return most;
}

template <class T, class B>
bool derivative(const SoftmaximaWeighted* call, const B* weights, T*) {
    using C = compute_t<T>;
    const double *tops = call->states, *log_sums = call->states + call->rows.outer;
    return for_each_whole_row<T>(call->rows, nullptr, 0, call->out, 1.0, [=](Row<T> row, const T* const*, Scratch<C>& scratch) {
        const B* b = weights + row.index * call->distance;
        const double top = tops[row.index], log_sum = log_sums[row.index], sign = call->signs[row.index];
        if (sign == 0) {
            for (int64_t i = 0; i < row.n; ++i) narrow(0.0, row.out[i]);
            return true;
        }
        const double upstream = bounded<double>(call->g[row.index] * sign / row.tau);
        row.anchor_at(top);
        const Slope<C> slope(top - row.anchor, log_sum, upstream);
        const double limit = HEAVIEST * std::exp(log_sum);  // of a weight beside which a float that underflows does not count
        for (int64_t i = 0; i < row.n; i += BLOCK) {
            const int64_t length = minimum(BLOCK, row.n - i);
            if (sizeof(C) == sizeof(double) || heaviest(b + i, length) <= limit) {
                slope.emit(row.scores(i, length, scratch), b + i, length, row.out + i);
            } else {
                const Slope<double> wide(top - row.anchor, log_sum, upstream);
                wide.emit(row.template scores<false, double>(i, length, Scratch<double>::of_this_thread()), b + i, length, row.out + i);
            }
        }
        return true;
    });
}

template <class T, class B>
bool weighted(const SoftmaximaWeighted* call, const B* weights, T* type) {
    return call->g ? derivative(call, weights, type) : value(call, weights, type);
}

}  // namespace

int weighted(const SoftmaximaWeighted* call) {
    return with_dtype(call->rows.dtype, [=](auto* type) {
        return call->wide ? weighted(call, call->wide, type) : weighted(call, static_cast<const std::remove_pointer_t<decltype(type)>*>(call->weights), type);
    });
}

}  // namespace SOFTMAXIMA_ISA

SOFTMAXIMA_KERNEL(weighted, Weighted)
