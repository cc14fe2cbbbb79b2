// p = f(z) / Σf, z = x/τ, θ = (which f): 0 sigmoid, 1 square, 2 softplus as torch has it, z itself above 20; and its derivative
// f'(z) / Σf ⊙ (g − ⟨p, g⟩) / τ. In C, and in double for a row where f may overflow or vanish in it.

#include "exponential.h"

namespace SOFTMAXIMA_ISA {
namespace {

constexpr int64_t STEP = 256;
constexpr double MODERATE = 40;        // |z| up to which f is a normal number in float
constexpr double VANISHING = 0x1p-24;  // of Σf: above, what vanished in float has a probability of less than 1e-30

// Of the whole range in double, and of moderate numbers in float.
template <class W>
[[gnu::always_inline]] inline W exponential(W z) {
    if constexpr (sizeof(W) == sizeof(double)) {
        return exp(z);
    } else {
        return Exponential<W>(Origin<W>{})(z);
    }
}

// e^{−|z|}
template <class W>
[[gnu::always_inline]] inline W decay(W z) {
    return exponential(z < 0 ? z : -z);
}

struct Sigmoid {
    template <class W>
    [[gnu::always_inline]] static inline W value(W z) {
        return 1 / (1 + exponential(-z));
    }

    template <class W>
    [[gnu::always_inline]] static inline W slope(W z) {
        const W e = decay(z), whole = 1 + e;
        return e / (whole * whole);
    }
};

struct Square {
    template <class W>
    [[gnu::always_inline]] static inline W value(W z) {
        return z * z;
    }

    template <class W>
    [[gnu::always_inline]] static inline W slope(W z) {
        return 2 * z;
    }
};

struct Softplus {
    static constexpr int LINEAR = 20;

    template <class W>
    [[gnu::always_inline]] static inline W value(W z) {
        const W e = decay(z), whole = 1 + e;
        const W lost = (e - (whole - 1)) / whole;  // log(1 + e) = log(whole) + lost
        const W above = z < 0 ? W(0) : z;
        return z > LINEAR ? z : above + (log_of_normal(whole) + lost);
    }

    template <class W>
    [[gnu::always_inline]] static inline W slope(W z) {
        return z > LINEAR ? W(1) : Sigmoid::value(z);
    }
};

template <class T, class Function>
struct Proportional {
    using C = compute_t<T>;
    static constexpr bool anchored = false;
    static constexpr bool keeps = sizeof(T) == sizeof(C);  // f in the place of the results, until Σf is known

    struct Part {
        double mass;
        C largest;  // |z|
        bool wide;
    };

    // z of up to STEP scores in W.
    template <class W>
    static const W* scores(const Row<T>& row, int64_t begin, int64_t length, Scratch<C>& scratch, W* buffer) {
        const C* values = row.raw(begin, length, scratch.high);
        if constexpr (std::is_same_v<W, C>) {
            if (row.tau == 1.0) return values;
        }
        for (int64_t j = 0; j < length; ++j) buffer[j] = W(gap(values[j], 0.0, row.scale));
        return buffer;
    }

    // Σf of a part, f in `kept` where it is not null.
    template <class W>
    static double sum(const Row<T>& row, int64_t begin, int64_t end, Scratch<C>& scratch, W* kept, W& largest) {
        W buffer[STEP], values[STEP];
        double mass = 0;
        W most = 0;
        for (int64_t i = begin; i < end; i += STEP) {
            const int64_t length = minimum(STEP, end - i);
            const W* z = scores(row, i, length, scratch, buffer);
            W* f = kept ? kept + (i - begin) : values;
            W part = 0, high = 0;
#pragma omp simd reduction(+ : part) reduction(max : high)
            for (int64_t j = 0; j < length; ++j) {
                const bool masked = z[j] == -std::numeric_limits<W>::infinity();
                const W own = masked ? W(0) : z[j], size = own < 0 ? -own : own, value = masked ? W(0) : Function::value(own);
                f[j] = value;
                part += value;
                high = size > high ? size : high;
            }
            mass += double(part);
            most = high > most ? high : most;
        }
        largest = most;
        return mass;
    }

    bool scan(const Row<T>& row, int64_t begin, int64_t end, Part& part, Scratch<C>& scratch) const {
        C* kept = nullptr;
        if constexpr (keeps) kept = row.out + begin;
        part.mass = sum<C>(row, begin, end, scratch, kept, part.largest);
        return true;
    }

    bool finish(const Row<T>& row, Part* parts, int count, Scratch<C>& scratch) const {
        double mass = 0, largest = 0;
        for (int i = 0; i < count; ++i) {
            mass += parts[i].mass;
            largest = double(parts[i].largest) > largest ? double(parts[i].largest) : largest;
        }
        const bool wide = sizeof(C) < sizeof(double) && !(largest <= MODERATE && mass >= VANISHING);
        if (wide) mass = sum<double>(row, 0, row.n, scratch, nullptr, largest);
        if (largest == -NOTHING) mass = std::numeric_limits<double>::quiet_NaN();  // as every map, also where f is bounded
        for (int i = 0; i < count; ++i) {
            parts[i].mass = mass;
            parts[i].wide = wide;
        }
        return true;
    }

    bool emit(const Row<T>& row, int64_t begin, int64_t end, Part& part, Scratch<C>& scratch) const {
        const double mass = part.mass == 0 ? 1.0 : part.mass;  // a row without mass is one of zeros
        if (part.wide) {
            double buffer[STEP];
            for (int64_t i = begin; i < end; i += STEP) {
                const int64_t length = minimum(STEP, end - i);
                const double* z = scores(row, i, length, scratch, buffer);
                T* to = row.out + i;
                for (int64_t j = 0; j < length; ++j) narrow((z[j] == NOTHING ? 0.0 : Function::value(z[j])) / mass, to[j]);
            }
            return true;
        }
        const Ratio<C> ratio(1.0, mass);
        if constexpr (keeps) {
            for (int64_t i = begin; i < end; ++i) row.out[i] = ratio(row.out[i]);
        } else {
            C values[STEP], unused;
            for (int64_t i = begin; i < end; i += STEP) {
                const int64_t length = minimum(STEP, end - i);
                sum<C>(row, i, i + length, scratch, values, unused);
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
        part.wide ? slopes<double>(row, g, part.mass, scratch) : slopes<C>(row, g, part.mass, scratch);
        return true;
    }

    // Again for `any` g: where f or its slope is 0 it is not read.
    template <class W, bool any = false>
    static void slopes(const Row<T>& row, const Upstream<T>& g, double mass, Scratch<C>& scratch) {
        const double whole = mass == 0 ? 1.0 : mass, shrink = any ? shrinking<C>(g, row.n) : 1.0;
        W buffer[STEP], values[STEP];
        C upstream_buffer[STEP];
        double moved = 0;  // Σ f g
        for (int64_t i = 0; i < row.n; i += STEP) {
            const int64_t length = minimum(STEP, row.n - i);
            const W* f = values;
            W unused;
            if constexpr (keeps && std::is_same_v<W, C>) {
                f = row.out + i;
            } else {
                sum<W>(row, i, i + length, scratch, values, unused);
            }
            const C* upstream = g.read(i, length, upstream_buffer);
            double part = 0;
            if constexpr (any) {
                for (int64_t j = 0; j < length; ++j) part += f[j] == 0 ? 0.0 : double(f[j]) / whole * (double(upstream[j]) * shrink);
            } else {
#pragma omp simd reduction(+ : part)
                for (int64_t j = 0; j < length; ++j) part += double(f[j]) * double(upstream[j]);
            }
            moved += part;
        }
        const double mean = any ? moved : moved / whole, scale = row.scale / whole;
        if (!any && !(std::fabs(mean) < MODERATE_MEAN<double>)) return slopes<W, true>(row, g, mass, scratch);
        for (int64_t i = 0; i < row.n; i += STEP) {
            const int64_t length = minimum(STEP, row.n - i);
            const W* z = scores(row, i, length, scratch, buffer);
            for (int64_t j = 0; j < length; ++j) {
                const bool masked = z[j] == -std::numeric_limits<W>::infinity();
                values[j] = masked ? W(0) : Function::slope(masked ? W(0) : z[j]);
            }
            const C* upstream = g.read(i, length, upstream_buffer);
            T* to = row.out + i;
            if constexpr (any) {
                for (int64_t j = 0; j < length; ++j)
                    put_any(values[j] == 0 ? 0.0 : double(values[j]) / whole * (double(upstream[j]) * shrink - mean) * row.scale / shrink, to[j]);
            } else {
                for (int64_t j = 0; j < length; ++j) put(double(values[j]) * ((double(upstream[j]) - mean) * scale), to[j]);
            }
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
        const int team = team_size(rows.threads, nanoseconds * double(rows.outer) * double(n));
        return share_out<C>((rows.outer + together - 1) / together, team, [&](int64_t task, Scratch<C>& scratch) {
            const int64_t first = task * together, count = minimum(together, rows.outer - first);
            Row<T> row = row_of<T>(rows, first, out);
            row.n = count * n;
            C largest = 0;
            if constexpr (keeps) sum<C>(row, 0, row.n, scratch, row.out, largest);
            bool done = true;
            for (int64_t k = 0; k < count; ++k) done = body(row_of<T>(rows, first + k, out), double(largest) <= MODERATE, scratch) && done;
            return done;
        });
    }

    static double total(const Row<T>& row) {
        C mass = 0;
#pragma omp simd reduction(+ : mass)
        for (int64_t j = 0; j < row.n; ++j) mass += widen(row.out[j]);
        return double(mass);
    }
};

// body(Function) for the f that all rows share.
template <class Body>
bool with_function(const SoftmaximaRows& rows, const Body& body) {
    const double which = *rows.theta;
    return which == 0 ? body(Sigmoid{}) : which == 1 ? body(Square{}) : body(Softplus{});
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
                if (!(mass >= VANISHING)) return whole_row(Map{}, row, scratch);
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
                    if (!(mass >= VANISHING)) return Map{}.pull(row, g, scratch);
                    Map::template slopes<compute_t<T>>(row, g, mass, scratch);
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
