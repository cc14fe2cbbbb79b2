// logcumsumexp: y_k = LSE(x_1, …, x_k), and its derivative.
//
//   y_k = M/τ + l,  l = log(m + t),  t = R / exp(M/τ),       M the maximum so far, m how many scores equal it, R = Σ_{x_i<M} exp(x_i/τ)
//   ∂⟨g, y⟩/∂x_i = exp(x_i/τ − y_i) · S_i/τ,                 S_i = g_i + S_{i+1} exp(y_i − y_{i+1})
//
// R is relative to exp(x/τ) of a base x that follows M in steps of HEADROOM, and is kept with what its roundings lost: each term is
// rounded once, and the error does not grow with n. All is in double; a logarithm of m + t keeps its digits where t is small. The
// derivative needs M and l: y has not the digits in which large scores differ.

#include "exponential.h"

namespace SOFTMAXIMA_ISA {
namespace {

constexpr double INFINITE = -NOTHING;

// The monoid (M, m, r) of logsumexp over the scores so far, and of a block of them, a number a score.
struct Prefix {
    double tau = 1, scale = 1;
    double maximum = NOTHING, count = 0;  // M, m
    double unit = 1;                      // exp(M/τ), relative to the base as R is
    double base = NOTHING;
    Sum rest;  // R

    // Moves the base to a maximum that is far above it.
    void rise(double x) {
        const double factor = std::exp(gap(base, x, scale));
        if (maximum > NOTHING) rest = rest * factor;
        unit *= factor;
        base = x;
    }

    void add(double x, double e) {
        if (x > maximum) {  // what was the maximum is of the rest from now on
            if (maximum > NOTHING) rest.add(count * unit);
            maximum = x;
            count = 1;
            unit = e;
        } else if (x == maximum) {
            count += 1;
        } else {
            rest.add(e);
        }
    }
};

constexpr int64_t PART = 256;  // scores that are worked on at a time

struct Block {
    alignas(LINE) double x[PART], maximum[PART], count[PART], unit[PART], rest[PART], log_sum[PART];
};

[[gnu::noinline]] void exponentials(const double* x, int64_t length, const Prefix& prefix, double* e) {
    const Exponential<double> exp(Origin<double>{});
    const Tempered<double> z = {prefix.base, prefix.tau, prefix.scale};
    for (int64_t i = 0; i < length; ++i) {
        double high, low;
        z(x[i], high, low);
        e[i] = exp(high, low);
    }
}

// log(m + t). What is lost of m + t is known, so that t shows beside m = 1 however small it is.
[[gnu::noinline]] void logarithms(Block& block, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
        const double m = block.count[i], t = block.rest[i] / block.unit[i];
        const double sum = m + t, added = sum - m;
        const double lost = (m - (sum - added)) + (t - added);
        block.log_sum[i] = log_of_normal(sum) + lost / sum;
    }
}

// M and l of a row, a block at a time: then(begin, length, block).
template <class T, class Then>
void run(const Row<T>& row, Scratch<compute_t<T>>& scratch, const Then& then) {
    Block block;
    const double* x = block.x;
    Prefix prefix;
    prefix.tau = row.tau;
    prefix.scale = row.scale;
    double end = NOTHING;  // +∞ from the first +∞ on, NaN from the first NaN on
    for (int64_t begin = 0; begin < row.n; begin += PART) {
        const int64_t length = minimum(PART, row.n - begin);
        row.wide(begin, length, scratch, block.x);
        int64_t i = 0;
        for (; i < length && prefix.maximum == NOTHING && end == NOTHING && x[i] == NOTHING; ++i) {
            block.maximum[i] = NOTHING;
            block.log_sum[i] = 0;
        }
        while (i < length && end == NOTHING && x[i] < INFINITE) {
            if (prefix.base == NOTHING || x[i] > prefix.base + HEADROOM<double> * row.tau) prefix.rise(x[i]);
            const double limit = prefix.base + HEADROOM<double> * row.tau;  // where the base is of no more use
            const int64_t first = i;
            while (i < length && x[i] <= limit && x[i] < INFINITE) ++i;
            exponentials(x + first, i - first, prefix, block.rest + first);
            for (int64_t j = first; j < i; ++j) {
                prefix.add(x[j], block.rest[j]);
                block.maximum[j] = prefix.maximum;
                block.count[j] = prefix.count;
                block.unit[j] = prefix.unit;
                block.rest[j] = prefix.rest.value();
            }
            logarithms(block, first, i);
        }
        for (; i < length; ++i) {
            end = x[i] != x[i] || end != end ? std::numeric_limits<double>::quiet_NaN() : INFINITE;
            block.maximum[i] = end;
            block.log_sum[i] = 0;
        }
        then(begin, length, block);
    }
}

// Where the first of a row's scores lies in arrays [outer, n, inner], whose others are `inner` apart.
int64_t first_of(int64_t index, int64_t n, int64_t inner) { return index / inner * n * inner + index % inner; }

template <class T>
bool forward(const SoftmaximaForward* call, T*) {
    using C = compute_t<T>;
    const int64_t inner = call->rows.inner, size = call->rows.outer * call->rows.n * inner;
    return for_each_whole_row<T>(call->rows, nullptr, 0, call->out, 8.0, [=](const Row<T>& row, const T* const*, Scratch<C>& scratch) {
        double* maxima = call->states ? call->states + first_of(row.index, row.n, inner) : nullptr;
        run(row, scratch, [&](int64_t begin, int64_t length, const Block& block) {
            for (int64_t i = 0; i < length; ++i) narrow(LogSum{block.maximum[i], block.log_sum[i], 0}.value(row.tau), row.out[begin + i]);
            for (int64_t i = 0; maxima && i < length; ++i) {
                maxima[(begin + i) * inner] = block.maximum[i];
                maxima[(begin + i) * inner + size] = block.log_sum[i];
            }
        });
        return true;
    });
}

template <class T>
bool backward(const SoftmaximaBackward* call, T*) {
    using C = compute_t<T>;
    const T* inputs[] = {static_cast<const T*>(call->g)};
    const int64_t inner = call->rows.inner, size = call->rows.outer * call->rows.n * inner;
    const auto body = [=](const Row<T>& row, const T* const* others, Scratch<C>& scratch) {
        const T* g = others[0];
        const double *maxima = call->states + first_of(row.index, row.n, inner), *log_sums = maxima + size;
        double x[PART], share[PART], factor[PART];
        double sum = 0;                                // S of the next score,
        double next_maximum = INFINITE, next_log = 0;  // and its M and l
        for (int64_t begin = (row.n - 1) / PART * PART; begin >= 0; begin -= PART) {
            const int64_t length = minimum(PART, row.n - begin);
            row.wide(begin, length, scratch, x);
            for (int64_t i = 0; i < length; ++i) {
                const int64_t place = (begin + i) * inner;
                const bool last = i + 1 == length;
                const double maximum = maxima[place], log_sum = log_sums[place];
                const double later = last ? next_maximum : maxima[place + inner], later_log = last ? next_log : log_sums[place + inner];
                double lost;
                const double z = gap(x[i], maximum, row.tau, row.scale, lost);
                share[i] = exp((z - log_sum) + lost);
                factor[i] = exp(gap(maximum, later, row.scale) + (log_sum - later_log));
            }
            next_maximum = maxima[begin * inner];
            next_log = log_sums[begin * inner];
            for (int64_t i = length - 1; i >= 0; --i) {
                const double own = maxima[(begin + i) * inner], upstream = double(widen(g[begin + i]));
                double slope = 0;       // where nothing is summed yet
                if (own == INFINITE) {  // whose shares nobody can say
                    if (upstream != 0) sum = std::numeric_limits<double>::quiet_NaN();
                    slope = sum;
                } else if (own != NOTHING) {
                    sum = upstream + sum * factor[i];
                    slope = share[i] * sum;
                }
                narrow(slope / row.tau, row.out[begin + i]);
            }
        }
        return true;
    };
    return for_each_whole_row<T>(call->rows, inputs, 1, call->out, 8.0, body);
}

}  // namespace

int logcumsumexp(const SoftmaximaForward* call) {
    return with_dtype(call->rows.dtype, [=](auto* type) { return forward(call, type); });
}

int logcumsumexp_backward(const SoftmaximaBackward* call) {
    return with_dtype(call->rows.dtype, [=](auto* type) { return backward(call, type); });
}

}  // namespace SOFTMAXIMA_ISA

SOFTMAXIMA_KERNEL(logcumsumexp, Forward)
SOFTMAXIMA_KERNEL(logcumsumexp_backward, Backward)
