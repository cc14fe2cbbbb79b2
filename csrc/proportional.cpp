// p = f(z) / Σf, z = x/τ, θ = (which f): 0 sigmoid, 1 square, 2 softplus as torch has it, z itself above 20, 3 exp, 4 relu; and its
// derivative f'(z) / Σf ⊙ (g − ⟨p, g⟩) / τ. In C; in double for a row where f may overflow or vanish in it; and without a factor that
// all f of a row share where that is out of range.

#include <algorithm>

#include "exponential.h"

namespace SOFTMAXIMA_ISA {
namespace {

constexpr int64_t STEP = 256;
constexpr double MODERATE = 40;  // |z| up to which exp(z) is a normal number in float, and 1 + exp(−|z|) is more than 1 in double

// Σf between these loses nothing that shows: what vanished has a probability of less than 1e-30, or in double than 1e-288.
template <class C>
constexpr double LEAST = sizeof(C) == sizeof(double) ? 0x1p-64 : 0x1p-24;
template <class C>
constexpr double MOST = sizeof(C) == sizeof(double) ? 0x1p1000 : 0x1p120;

// exp(z + low), of the whole range in double, and of moderate numbers in float.
template <class W>
[[gnu::always_inline]] inline W exponential(W z, W low) {
    if constexpr (sizeof(W) == sizeof(double)) {
        return exp(z) * (1 + low);
    } else {
        return Exponential<W>(Origin<W>{})(z, low);
    }
}

// e^{−|z + low|}
template <class W>
[[gnu::always_inline]] inline W decay(W z, W low) {
    return exponential(z < 0 ? z : -z, z < 0 ? low : -low);
}

// Each f of z + low with its slope. `LARGE` is the |z| up to which f is a number of float; without what the f of a row share it is
// `Remote` of scores that `take_out` has moved or scaled, if it tells that there is such a factor.

struct Exp {
    using Remote = Exp;
    static constexpr double LARGE = MODERATE;

    template <class W>
    [[gnu::always_inline]] static inline W value(W z, W low) {
        return exponential(z, low);
    }

    template <class W>
    [[gnu::always_inline]] static inline W slope(W z, W low) {
        return exponential(z, low);
    }

    // e^z = e^{top} e^{z − top}
    template <class T>
    static bool take_out(Row<T>& row, Scratch<compute_t<T>>& scratch) {
        const double top = row.largest(0, row.n, scratch);
        if (std::fabs(top) == -NOTHING) return false;
        row.anchor = top;
        return true;
    }

    // Where f is e^z to all digits.
    template <class T>
    static bool take_out_below(Row<T>& row, Scratch<compute_t<T>>& scratch) {
        return row.largest(0, row.n, scratch) * row.scale < -MODERATE && take_out(row, scratch);
    }
};

struct Sigmoid {
    using Remote = Exp;
    static constexpr double LARGE = MODERATE;

    template <class W>
    [[gnu::always_inline]] static inline W value(W z, W low) {
        return 1 / (1 + exponential(-z, -low));
    }

    template <class W>
    [[gnu::always_inline]] static inline W slope(W z, W low) {
        const W e = decay(z, low), whole = 1 + e;
        return e / (whole * whole);
    }

    template <class T>
    static bool take_out(Row<T>& row, Scratch<compute_t<T>>& scratch) {
        return Exp::take_out_below(row, scratch);
    }
};

struct Softplus {
    using Remote = Exp;
    static constexpr double LARGE = MODERATE;
    static constexpr int LINEAR = 20;

    template <class W>
    [[gnu::always_inline]] static inline W value(W z, W low) {
        const W e = decay(z, low), whole = 1 + e;
        const W lost = (e - (whole - 1)) / whole;  // log(1 + e) = log(whole) + lost
        const W above = z < 0 ? W(0) : z;
        return z > LINEAR ? z : above + (log_of_normal(whole) + lost);
    }

    template <class W>
    [[gnu::always_inline]] static inline W slope(W z, W low) {
        return z > LINEAR ? W(1) : Sigmoid::value(z, low);
    }

    template <class T>
    static bool take_out(Row<T>& row, Scratch<compute_t<T>>& scratch) {
        return Exp::take_out_below(row, scratch);
    }
};

// Scores over a power of 2 about the largest that has an f, |x| of a square and x of relu: of those a power of z has only lost a factor,
// as it loses τ.
template <class T, class Size>
bool take_out_power(Row<T>& row, const Size& size) {
    double largest = 0;
    for (int64_t i = 0; i < row.n; ++i) {
        const double x = row.score(i);
        largest = x != NOTHING && size(x) > largest ? size(x) : largest;
    }
    if (largest == 0 || largest == -NOTHING) return false;
    const int exponent = std::ilogb(largest);
    row.tau = std::ldexp(1.0, exponent < -1022 ? -1022 : exponent);
    row.scale = 1 / row.tau;
    return true;
}

struct Square {
    using Remote = Square;
    static constexpr double LARGE = 0x1p50;

    template <class W>
    [[gnu::always_inline]] static inline W value(W z, W low) {
        return z * (z + 2 * low);
    }

    template <class W>
    [[gnu::always_inline]] static inline W slope(W z, W) {
        return 2 * z;
    }

    template <class T>
    static bool take_out(Row<T>& row, Scratch<compute_t<T>>&) {
        return take_out_power(row, [](double x) { return std::fabs(x); });
    }
};

struct Relu {
    using Remote = Relu;
    static constexpr double LARGE = 0x1p100;

    template <class W>
    [[gnu::always_inline]] static inline W value(W z, W) {
        return z > 0 ? z : z == z ? W(0) : z;
    }

    template <class W>
    [[gnu::always_inline]] static inline W slope(W z, W) {
        return z > 0 ? W(1) : W(0);
    }

    template <class T>
    static bool take_out(Row<T>& row, Scratch<compute_t<T>>&) {
        return take_out_power(row, [](double x) { return x; });
    }
};

// f of a block; `largest` is raised to the largest |z|.
template <class F, bool Low, class W>
[[gnu::noinline]] void values_of(Scores<W> z, int64_t length, W* f, W& largest) {
    W most = 0;
    const W *high = z.high, *low = z.low;
#pragma omp simd reduction(max : most)
    for (int64_t j = 0; j < length; ++j) {
        const bool masked = high[j] == -std::numeric_limits<W>::infinity();
        const W own = masked ? W(0) : high[j], size = own < 0 ? -own : own;
        f[j] = masked ? W(0) : F::value(own, Low ? low[j] : W(0));
        most = size > most ? size : most;
    }
    largest = most > largest ? most : largest;
}

// The sum of a block: of floats in so many lanes that few are added to each.
[[gnu::always_inline]] inline Sum total_of(const float* f, int64_t length) {
    constexpr int64_t lanes = 32;
    float sums[lanes] = {}, total = 0;
    int64_t i = 0;
    for (; i + lanes <= length; i += lanes)
        for (int64_t j = 0; j < lanes; ++j) sums[j] += f[i + j];
    for (int64_t j = 0; i < length; ++i, ++j) sums[j] += f[i];
#pragma omp simd reduction(+ : total)
    for (int64_t j = 0; j < lanes; ++j) total += sums[j];
    return {double(total), 0};
}

[[gnu::always_inline]] inline Sum total_of(const double* f, int64_t length) {
    double sum = 0, lost = 0;
#pragma omp simd reduction(+ : sum, lost)
    for (int64_t j = 0; j < length; ++j) add_exactly(f[j], sum, lost);
    return {sum, lost};
}

// f' of a block.
template <class F, bool Low, class W>
[[gnu::noinline]] void slopes_of(Scores<W> z, int64_t length, W* values) {
    for (int64_t j = 0; j < length; ++j) {
        const bool masked = z.high[j] == -std::numeric_limits<W>::infinity();
        values[j] = masked ? W(0) : F::slope(masked ? W(0) : z.high[j], Low ? z.low[j] : W(0));
    }
}

template <class T, class Function>
struct Proportional {
    using C = compute_t<T>;
    using Remote = typename Function::Remote;
    static constexpr bool anchored = false;
    static constexpr bool keeps = sizeof(T) == sizeof(C);  // f in the place of the results, until Σf is known

    enum class Range { ordinary, wide, remote };

    struct Part {
        double mass;
        C largest;  // |z|
        Range range;
        double anchor, tau;  // of a remote row
    };

    static bool is_ordinary(double largest, double mass) {
        return (sizeof(C) == sizeof(double) || largest <= Function::LARGE) && mass >= LEAST<C> && mass <= MOST<C>;
    }

    // z of up to STEP scores in W, and what rounding took from it.
    template <class W>
    static Scores<W> scores(const Row<T>& row, int64_t begin, int64_t length, Scratch<C>& scratch, W* high, W* low) {
        const C* values = row.raw(begin, length, scratch.high);
        if constexpr (std::is_same_v<W, C>) {
            if (row.tau == 1.0 && row.anchor == 0) return {values, nullptr};
            const Tempered<C> z{row.anchor, row.tau, row.scale};
            for (int64_t j = 0; j < length; ++j) z(values[j], high[j], low[j]);
            return {high, low};
        } else {
            for (int64_t j = 0; j < length; ++j) high[j] = gap(values[j], row.anchor, row.scale);
            return {high, nullptr};
        }
    }

    // f of up to STEP scores.
    template <class W, class F>
    static void evaluate(const Row<T>& row, int64_t begin, int64_t length, Scratch<C>& scratch, W* f, W& largest) {
        W high[STEP], low[STEP];
        const Scores<W> z = scores(row, begin, length, scratch, high, low);
        z.low ? values_of<F, true>(z, length, f, largest) : values_of<F, false>(z, length, f, largest);
    }

    // Σf of a part, f in `kept` where it is not null.
    template <class W, class F>
    static double sum(const Row<T>& row, int64_t begin, int64_t end, Scratch<C>& scratch, W* kept, W& largest) {
        W values[STEP];
        Sum mass;
        largest = 0;
        for (int64_t i = begin; i < end; i += STEP) {
            const int64_t length = minimum(STEP, end - i);
            W* f = kept ? kept + (i - begin) : values;
            evaluate<W, F>(row, i, length, scratch, f, largest);
            mass.add(total_of(f, length));
        }
        return mass.value();
    }

    bool scan(const Row<T>& row, int64_t begin, int64_t end, Part& part, Scratch<C>& scratch) const {
        C* kept = nullptr;
        if constexpr (keeps) kept = row.out + begin;
        part.mass = sum<C, Function>(row, begin, end, scratch, kept, part.largest);
        return true;
    }

    bool finish(const Row<T>& row, Part* parts, int count, Scratch<C>& scratch) const {
        double largest = 0;
        Part whole = {0, 0, Range::ordinary, row.anchor, row.tau};
        for (int i = 0; i < count; ++i) {
            whole.mass += parts[i].mass;
            largest = double(parts[i].largest) > largest ? double(parts[i].largest) : largest;
        }
        if (!is_ordinary(largest, whole.mass)) {
            Row<T> own = row;
            const bool is_remote = Function::take_out(own, scratch);
            whole.range = is_remote ? Range::remote : Range::wide;
            whole.anchor = own.anchor;
            whole.tau = own.tau;
            whole.mass =
                is_remote ? sum<double, Remote>(own, 0, row.n, scratch, nullptr, largest) : sum<double, Function>(own, 0, row.n, scratch, nullptr, largest);
        }
        if (largest == -NOTHING) whole.mass = std::numeric_limits<double>::quiet_NaN();  // as every map, also where f is bounded
        for (int i = 0; i < count; ++i) parts[i] = whole;
        return true;
    }

    // The row of which a part states the mass.
    static Row<T> measured(Row<T> row, const Part& part) {
        if (part.range == Range::remote) {
            row.anchor = part.anchor;
            row.scale = row.tau == part.tau ? row.scale : 1 / part.tau;
            row.tau = part.tau;
        }
        return row;
    }

    bool emit(const Row<T>& row, int64_t begin, int64_t end, Part& part, Scratch<C>& scratch) const {
        const double mass = part.mass == 0 ? 1.0 : part.mass;  // a row without mass is one of zeros
        if (part.range != Range::ordinary) {
            const Row<T> own = measured(row, part);
            double values[STEP], unused = 0;
            for (int64_t i = begin; i < end; i += STEP) {
                const int64_t length = minimum(STEP, end - i);
                part.range == Range::remote ? evaluate<double, Remote>(own, i, length, scratch, values, unused)
                                            : evaluate<double, Function>(own, i, length, scratch, values, unused);
                T* to = row.out + i;
                for (int64_t j = 0; j < length; ++j) narrow(values[j] / mass, to[j]);
            }
            return true;
        }
        const Ratio<C> ratio(1.0, mass);
        if constexpr (keeps) {
            for (int64_t i = begin; i < end; ++i) row.out[i] = ratio(row.out[i]);
        } else {
            C values[STEP], unused = 0;
            for (int64_t i = begin; i < end; i += STEP) {
                const int64_t length = minimum(STEP, end - i);
                evaluate<C, Function>(row, i, length, scratch, values, unused);
                T* to = row.out + i;
                for (int64_t j = 0; j < length; ++j) narrow(ratio(values[j]), to[j]);
            }
        }
        return true;
    }

    // ∂⟨g, p⟩/∂x
    bool pull(const Row<T>& row, const Upstream<T>& g, Scratch<C>& scratch) const {
        Part part;
        if (!scan(row, 0, row.n, part, scratch) || !finish(row, &part, 1, scratch)) return false;
        const Row<T> own = measured(row, part);
        switch (part.range) {
            case Range::ordinary: slopes<C, Function, keeps>(own, g, part.mass, scratch); break;
            case Range::wide: slopes<double, Function, false>(own, g, part.mass, scratch); break;
            case Range::remote: slopes<double, Remote, false>(own, g, part.mass, scratch); break;
        }
        return true;
    }

    // weight · g, 0 where the weight is, and where it is in T and g is no number.
    static double product(double weight, double g) {
        T rounded;
        narrow(weight, rounded);
        return weight == 0 || (widen(rounded) == 0 && !(std::fabs(g) < -NOTHING)) ? 0.0 : weight * g;
    }

    // Where `kept`, f is in the place of the results. Again for `any` g: where f or its slope is 0 it is not read.
    template <class W, class F, bool kept, bool any = false>
    static void slopes(const Row<T>& row, const Upstream<T>& g, double mass, Scratch<C>& scratch) {
        const double whole = mass == 0 ? 1.0 : mass, shrink = any ? shrinking<C>(g, row.n) : 1.0;
        W high[STEP], low[STEP], values[STEP];
        C upstream_buffer[STEP];
        double moved = 0;  // Σ f g
        int64_t most = -1;
        const auto read = [&](int64_t i, int64_t length) {
            W unused = 0;
            if constexpr (kept) return static_cast<const W*>(row.out + i);
            evaluate<W, F>(row, i, length, scratch, values, unused);
            return static_cast<const W*>(values);
        };
        for (int64_t i = 0; i < row.n; i += STEP) {
            const int64_t length = minimum(STEP, row.n - i);
            const W* f = read(i, length);
            const W largest = highest(f, length);
            if (double(largest) > MOST_P * whole) most = i + (std::find(f, f + length, largest) - f);
            const C* upstream = g.read(i, length, upstream_buffer);
            double part = 0;
            if constexpr (any) {
                for (int64_t j = 0; j < length; ++j) part += product(double(f[j]) / whole, double(upstream[j]) * shrink);
            } else {
#pragma omp simd reduction(+ : part)
                for (int64_t j = 0; j < length; ++j) part += double(f[j]) * double(upstream[j]);
            }
            moved += part;
        }
        const double mean = any ? moved : moved / whole, scale = row.scale / whole;
        if (!any && !(std::fabs(mean) < MODERATE_MEAN<double>)) return slopes<W, F, false, true>(row, g, mass, scratch);
        double others = 0;  // Σ f (g_k − g)/Σf, of the f_k that is most of its row
        for (int64_t i = 0; most >= 0 && i < row.n; i += STEP) {
            const int64_t length = minimum(STEP, row.n - i);
            const W* f = read(i, length);
            for (int64_t j = 0; j < length; ++j) others += i + j == most ? 0.0 : product(double(f[j]) / whole, (double(g[most]) - double(g[i + j])) * shrink);
        }
        for (int64_t i = 0; i < row.n; i += STEP) {
            const int64_t length = minimum(STEP, row.n - i);
            const Scores<W> z = scores(row, i, length, scratch, high, low);
            z.low ? slopes_of<F, true>(z, length, values) : slopes_of<F, false>(z, length, values);
            const C* upstream = g.read(i, length, upstream_buffer);
            T* to = row.out + i;
            if constexpr (any) {
                for (int64_t j = 0; j < length; ++j)
                    put_any(product(double(values[j]) / whole, double(upstream[j]) * shrink - mean) * row.scale / shrink, to[j]);
            } else {
                for (int64_t j = 0; j < length; ++j) put(double(values[j]) * ((double(upstream[j]) - mean) * scale), to[j]);
            }
            if (most >= i && most < i + length) put_any(product(double(values[most - i]) / whole, others) * row.scale / shrink, row.out[most]);
        }
    }

    // Rows of few scores beside one another, f of all of them at once; one that this does not do for is left to itself.
    static constexpr int64_t SHORT = 128;

    static bool are_short(const SoftmaximaRows& rows) {
        return keeps && rows.inner == 1 && rows.n > 0 && rows.n <= SHORT && rows.stride == rows.n && !rows.mask && !rows.taus && rows.tau == 1;
    }

    // body(row, whether its f are in the place of the results, scratch)
    template <class Body>
    static bool for_each_short_row(const SoftmaximaRows& rows, void* out, double nanoseconds, const Body& body) {
        const int64_t n = rows.n, together = BLOCK / n;
        const Team team = team_size(rows.threads, nanoseconds * double(rows.outer) * double(n));
        return share_out<C>((rows.outer + together - 1) / together, team, [&](int64_t task, Scratch<C>& scratch) {
            const int64_t first = task * together, count = minimum(together, rows.outer - first);
            Row<T> row = row_of<T>(rows, first, out);
            row.n = count * n;
            C largest = 0;
            if constexpr (keeps)
                for (int64_t i = 0; i < row.n; i += STEP) evaluate<C, Function>(row, i, minimum(STEP, row.n - i), scratch, row.out + i, largest);
            bool done = true;
            for (int64_t k = 0; k < count; ++k) done = body(row_of<T>(rows, first + k, out), double(largest) <= Function::LARGE, scratch) && done;
            return done;
        });
    }

    static double total(const Row<T>& row) {
        if constexpr (keeps) return total_of(row.out, row.n).value();
        return 0;
    }
};

// body(Function) for the f that all rows share.
template <class Body>
bool with_function(const SoftmaximaRows& rows, const Body& body) {
    const double which = *rows.theta;
    return which == 0 ? body(Sigmoid{}) : which == 1 ? body(Square{}) : which == 2 ? body(Softplus{}) : which == 3 ? body(Exp{}) : body(Relu{});
}

}  // namespace

int proportional(const SoftmaximaForward* call) {
    return with_dtype(call->rows.dtype, [=](auto type) {
        using T = std::remove_pointer_t<decltype(type)>;
        return with_function(call->rows, [=](auto f) {
            using Map = Proportional<T, decltype(f)>;
            if (!Map::are_short(call->rows)) return for_each_row<T>(call->rows, call->out, Map{}, 0.5);
            return Map::for_each_short_row(call->rows, call->out, 0.5, [](const Row<T>& row, bool moderate, Scratch<compute_t<T>>& scratch) {
                const double mass = moderate ? Map::total(row) : 0.0;
                if (!Map::is_ordinary(0, mass)) return whole_row(Map{}, row, scratch);
                const Ratio<compute_t<T>> ratio(1.0, mass);
                T* out = row.out;
                for (int64_t j = 0; j < row.n; ++j) narrow(ratio(widen(out[j])), out[j]);
                return true;
            });
        });
    });
}

int proportional_backward(const SoftmaximaBackward* call) {
    return with_dtype(call->rows.dtype, [=](auto type) {
        using T = std::remove_pointer_t<decltype(type)>;
        const T* inputs[] = {dense_upstream<T>(call)};
        return with_function(call->rows, [=](auto f) {
            using Map = Proportional<T, decltype(f)>;
            if (Map::are_short(call->rows)) {
                const T* dense = inputs[0];
                return Map::for_each_short_row(call->rows, call->out, 1.0, [=](const Row<T>& row, bool moderate, Scratch<compute_t<T>>& scratch) {
                    const Upstream<T> g(call, row.index, dense ? dense + row.index * row.n : nullptr);
                    if (g.left_out()) return fill_with_zeros(row);
                    const double mass = moderate ? Map::total(row) : 0.0;
                    if (!Map::is_ordinary(0, mass)) return Map{}.pull(row, g, scratch);
                    Map::template slopes<compute_t<T>, decltype(f), Map::keeps>(row, g, mass, scratch);
                    return true;
                });
            }
            return for_each_whole_row<T>(call->rows, inputs, 1, call->out, 1.0,
                                         [=](const Row<T>& row, const T* const* others, Scratch<compute_t<T>>& scratch) {
                                             const Upstream<T> g(call, row.index, others[0]);
                                             return g.left_out() ? fill_with_zeros(row) : Map{}.pull(row, g, scratch);
                                         });
        });
    });
}

}  // namespace SOFTMAXIMA_ISA

SOFTMAXIMA_KERNEL(proportional, Forward)
SOFTMAXIMA_KERNEL(proportional_backward, Backward)
