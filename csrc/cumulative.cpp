// logcumsumexp: y_k = LSE(x_1, …, x_k), and its derivative.
//
//   y_k = M + log(m + t),  t = R / exp(M),        M the maximum so far, m how many scores equal it, R = Σ_{x_i<M} exp(x_i)
//   ∂⟨g, y⟩/∂x_i = exp(x_i − y_i) · S_i,          S_i = g_i + S_{i+1} exp(y_i − y_{i+1})
//
// R is relative to an origin that follows M in steps of HEADROOM, and is kept with what its roundings lost: each term is rounded
// once, and the error does not grow with n. All is in double; a logarithm of m + t keeps its digits where t is small.

#include "exponential.h"

namespace SOFTMAXIMA_ISA {
namespace {

constexpr double INFINITE = -NOTHING;

// What is known of the scores so far, and of a block of them, a number a score.
struct Prefix {
    double maximum = NOTHING, count = 0;  // M, m
    double unit = 1;                      // exp(M), relative to the origin as R is
    double base = NOTHING;                // the maximum that the origin was chosen for
    Origin<double> origin;
    Sum rest;  // R

    // Moves the origin to a maximum that is far above it.
    void rise(double z) {
        const Origin<double> above = Origin<double>::at(z);
        const double factor = std::exp(origin.value() - above.value());
        if (maximum > NOTHING) rest = rest * factor;
        unit *= factor;
        base = z;
        origin = above;
    }

    void add(double z, double e) {
        if (z > maximum) {  // what was the maximum is of the rest from now on
            if (maximum > NOTHING) rest.add(count * unit);
            maximum = z;
            count = 1;
            unit = e;
        } else if (z == maximum) {
            count += 1;
        } else {
            rest.add(e);
        }
    }
};

constexpr int64_t PART = 256;  // scores that are worked on at a time

struct Block {
    alignas(LINE) double z[PART], maximum[PART], count[PART], unit[PART], rest[PART], y[PART];
};

[[gnu::noinline]] void exponentials(const double* z, int64_t length, Origin<double> origin, double* e) {
    const Exponential<double> exp(origin);
    for (int64_t i = 0; i < length; ++i) e[i] = exp(z[i]);
}

// M + log(m + t). What is lost of m + t is known, so that t shows beside m = 1 however small it is.
[[gnu::noinline]] void logarithms(Block& block, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
        const double m = block.count[i], t = block.rest[i] / block.unit[i];
        const double sum = m + t, added = sum - m;
        const double lost = (m - (sum - added)) + (t - added);
        block.y[i] = block.maximum[i] + (log_of_normal(sum) + lost / sum);
    }
}

// y of a row, a block at a time: then(begin, length, y).
template <class T, class Then>
void run(const Row<T>& row, Scratch<compute_t<T>>& scratch, const Then& then) {
    Block block;
    const double* z = block.z;
    Prefix prefix;
    double end = NOTHING;  // +∞ from the first +∞ on, NaN from the first NaN on
    for (int64_t begin = 0; begin < row.n; begin += PART) {
        const int64_t length = minimum(PART, row.n - begin);
        row.divided(begin, length, scratch, block.z);
        int64_t i = 0;
        for (; i < length && prefix.maximum == NOTHING && end == NOTHING && z[i] == NOTHING; ++i) block.y[i] = NOTHING;
        while (i < length && end == NOTHING && z[i] < INFINITE) {
            if (prefix.base == NOTHING || z[i] > prefix.base + HEADROOM<double>) prefix.rise(z[i]);
            const double limit = prefix.base + HEADROOM<double>;  // where the origin is of no more use
            const int64_t first = i;
            while (i < length && z[i] <= limit && z[i] < INFINITE) ++i;
            exponentials(z + first, i - first, prefix.origin, block.rest + first);
            for (int64_t j = first; j < i; ++j) {
                prefix.add(z[j], block.rest[j]);
                block.maximum[j] = prefix.maximum;
                block.count[j] = prefix.count;
                block.unit[j] = prefix.unit;
                block.rest[j] = prefix.rest.value();
            }
            logarithms(block, first, i);
        }
        for (; i < length; ++i) {
            end = z[i] != z[i] || end != end ? std::numeric_limits<double>::quiet_NaN() : INFINITE;
            block.y[i] = end;
        }
        then(begin, length, block.y);
    }
}

// Where the first of a row's scores lies in arrays [outer, n, inner], whose others are `inner` apart.
int64_t first_of(int64_t index, int64_t n, int64_t inner) { return index / inner * n * inner + index % inner; }

template <class T>
bool forward(const SoftmaximaForward* call, T*) {
    using C = compute_t<T>;
    const int64_t inner = call->rows.inner;
    return for_each_whole_row<T>(call->rows, nullptr, 0, call->out, 8.0, [=](const Row<T>& row, const T* const*, Scratch<C>& scratch) {
        double* wide = call->values ? call->values + first_of(row.index, row.n, inner) : nullptr;
        run(row, scratch, [&](int64_t begin, int64_t length, const double* y) {
            for (int64_t i = 0; i < length; ++i) narrow(y[i], row.out[begin + i]);
            for (int64_t i = 0; wide && i < length; ++i) wide[(begin + i) * inner] = y[i];
        });
        return true;
    });
}

template <class T>
bool backward(const SoftmaximaBackward* call, T*) {
    using C = compute_t<T>;
    const T* inputs[] = {static_cast<const T*>(call->g)};
    const int64_t inner = call->rows.inner;
    const auto body = [=](const Row<T>& row, const T* const* others, Scratch<C>& scratch) {
        const T* g = others[0];
        const double* y = call->values + first_of(row.index, row.n, inner);
        double z[PART], share[PART], factor[PART];
        double shares = 0, infinities = 0;  // Σ g_k/c_k over y_k = +∞, c_k how many +∞ there are up to k
        double sum = 0, later = INFINITE;   // S, and y, of the next score
        for (int64_t begin = 0; y[(row.n - 1) * inner] == INFINITE && begin < row.n; begin += PART) {
            const int64_t length = minimum(PART, row.n - begin);
            row.divided(begin, length, scratch, z);
            for (int64_t i = 0; i < length; ++i) infinities += z[i] == INFINITE;
        }
        for (int64_t begin = (row.n - 1) / PART * PART; begin >= 0; begin -= PART) {
            const int64_t length = minimum(PART, row.n - begin);
            row.divided(begin, length, scratch, z);
            for (int64_t i = 0; i < length; ++i) {
                const double own = y[(begin + i) * inner], next = i + 1 < length ? y[(begin + i + 1) * inner] : later;
                share[i] = exp(z[i] - own);
                factor[i] = exp(own - next);
            }
            later = y[begin * inner];
            for (int64_t i = length - 1; i >= 0; --i) {
                const double own = y[(begin + i) * inner], upstream = double(widen(g[begin + i]));
                double slope = 0;  // where nothing is summed yet
                if (own == INFINITE) {
                    shares += upstream / infinities;
                    slope = z[i] == INFINITE ? shares : 0.0;
                    infinities -= z[i] == INFINITE;
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
