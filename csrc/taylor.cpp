// Taylor softmax: p = f(z) / Σ f(z), f the Taylor polynomial of exp of even order k, and its derivative: f' is that of order k − 1.
// In double, for negative scores cancel digits; order 2 can do without. Where Σ f overflows, f(z) / s^k is evaluated in z/s, s about max |z|.

#include "lines.h"

namespace SOFTMAXIMA_ISA {
namespace {

constexpr double LARGEST_SUM = 1e300;
constexpr int64_t STEP = 512;

// f or, for one degree less, f' over s^k at scores x. Degree is what the compiler is to know it by, or −1.
template <int Degree, class C>
void horner(const double* coefficients, int degree, double scale, const C* x, int64_t length, double* f) {
    if constexpr (Degree >= 0) {
        double c[Degree + 1];
        for (int m = 0; m <= Degree; ++m) c[m] = coefficients[m];
        for (int64_t i = 0; i < length; ++i) {
            const double wide = double(x[i]), ratio = wide * scale;
            double value = c[Degree];
            for (int m = Degree - 1; m >= 0; --m) value = value * ratio + c[m];
            f[i] = wide == NOTHING ? 0.0 : value;
        }
    } else {
        for (int64_t i = 0; i < length; ++i) f[i] = coefficients[degree];
        for (int m = degree - 1; m >= 0; --m) {
            const double c = coefficients[m];
            for (int64_t i = 0; i < length; ++i) f[i] = f[i] * (double(x[i]) * scale) + c;
        }
        for (int64_t i = 0; i < length; ++i) f[i] = double(x[i]) == NOTHING ? 0.0 : f[i];
    }
}

// f and f' over s^k, at x/τ; s = 2^exponent, for its powers to be exact.
struct Polynomial {
    const double* coefficients;
    int order;
    double scale;  // 1/(τ s)

    // With s for its unit.
    static double scale_of(double tau, int exponent) {
        int its_exponent;
        const double mantissa = std::frexp(tau, &its_exponent);
        return std::ldexp(1 / mantissa, -its_exponent - exponent);
    }

    // s^(m − k)/m! for m up to k.
    static bool fill(int order, int exponent, double* to) {
        if (!to) return false;
        double factorial = 1;
        for (int m = 0; m <= order; ++m) {
            factorial *= m ? m : 1;
            to[m] = std::ldexp(1 / factorial, exponent * (m - order));
        }
        return true;
    }

    // 0 at −∞, a mask.
    template <class C>
    void operator()(const C* x, int64_t length, double* f) const {
        const auto evaluate = order == 1 ? horner<1, C> : order == 2 ? horner<2, C> : order == 4 ? horner<4, C> : horner<-1, C>;
        evaluate(coefficients, order, scale, x, length, f);
    }

    Polynomial derivative() const { return {coefficients, order - 1, scale}; }
};

// 2 f = 2 + z (z + 2) of order 2 in float, which is within two roundings of it for every z, and 2 f'.
struct Quadratic {
    bool differentiated = false;

    void operator()(const float* x, int64_t length, float* f) const {
        constexpr float nothing = -std::numeric_limits<float>::infinity();
        const float square = differentiated ? 0.0f : 1.0f;
        for (int64_t i = 0; i < length; ++i) {
            const float factor = square * x[i] + 2.0f, value = x[i] * factor + 2.0f;
            f[i] = x[i] == nothing ? 0.0f : value;
        }
    }

    Quadratic derivative() const { return {true}; }
};

// Adds Σ term(i) for i in [0, length), taken in a few sums side by side.
template <class C, class Term>
[[gnu::always_inline]] inline void add(int64_t length, Sum& total, const Term& term) {
    constexpr int64_t lanes = LINE / sizeof(double);
    const int64_t whole = length / (4 * lanes) * (4 * lanes);
    double sums[lanes] = {}, losses[lanes] = {};
    for (int64_t i = 0; i < whole; i += 4 * lanes) {
#pragma omp simd
        for (int64_t lane = 0; lane < lanes; ++lane) {
            const int64_t a = i + lane, b = a + lanes, c = b + lanes, d = c + lanes;
            const double four = (term(a) + term(b)) + (term(c) + term(d));
            if constexpr (sizeof(C) == sizeof(double)) {
                add_exactly(four, sums[lane], losses[lane]);
            } else {
                sums[lane] += four;
            }
        }
    }
    for (int64_t i = whole; i < length; ++i) sums[i % lanes] += term(i);
    if constexpr (sizeof(C) == sizeof(double)) {
        for (int64_t lane = 0; lane < lanes; ++lane) total.add({sums[lane], losses[lane]});
    } else {
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t lane = 0; lane < lanes; ++lane) sum += sums[lane];
        total.add(sum);
    }
}

// The sum of a row of up to some hundred values but for its last additions.
template <class C>
[[gnu::always_inline]] inline typename VectorSum<C>::Whole sum_of(const C* values, int64_t length) {
    const int64_t whole = length / LANES<C> * LANES<C>;
    VectorSum<C> sum;
    for (int64_t i = 0; i < whole; i += LANES<C>) sum.add(load(values + i));
    if (whole < length) sum.add(load(values + whole, length - whole, C(0)));
    return sum.whole();
}

// Multiplies by numerator / denominator: where C is less exact than W, that needs no care.
template <class C, class W>
struct Quotient : Ratio<W> {
    using Ratio<W>::Ratio;
};

template <>
struct Quotient<float, double> {
    double ratio;
    Quotient(double numerator, double denominator) : ratio(numerator / denominator) {}
    double operator()(double value) const { return value * ratio; }
};

// Of a part of a row, and then of the row: Σ f over s^k, s = 2^exponent.
struct TaylorPart {
    double mass;
    int exponent;
};

// Evaluated in W: float with Quadratic, or double.
template <class T, class W>
struct Taylor {
    using C = compute_t<T>;
    using Part = TaylorPart;
    static constexpr bool anchored = false;
    static constexpr bool keeps = std::is_same_v<W, C>;
    using Function = std::conditional_t<std::is_same_v<W, double>, Polynomial, Quadratic>;

    int order;
    const double* coefficients;  // of f itself

    Taylor<T, double> wide() const { return {order, coefficients}; }

    bool polynomial(const Row<T>&, const Part&, Scratch<C>&, Quadratic&) const { return true; }

    // Relative to where the row's sum is. The coefficients are kept in the scratch, if they are not those of f itself.
    bool polynomial(const Row<T>& row, const Part& part, Scratch<C>& scratch, Polynomial& f) const {
        f = {coefficients, order, row.scale};
        if (part.exponent == 0) return true;
        double* memory = scratch.gaps.at_least(order + 1);
        f = {memory, order, Polynomial::scale_of(row.tau, part.exponent)};
        return Polynomial::fill(order, part.exponent, memory);
    }

    bool sum(const Row<T>& row, int64_t begin, int64_t end, Part& part, Scratch<C>& scratch) const {
        W values[STEP];
        Function f;
        if (!polynomial(row, part, scratch, f)) return false;
        Sum mass;
        for (int64_t i = begin; i < end; i += STEP) {
            const int64_t length = minimum(STEP, end - i);
            f(row.raw(i, length, scratch.high), length, values);
            add<C>(length, mass, [&](int64_t j) { return double(values[j]); });
        }
        part.mass = mass.value();
        return true;
    }

    static bool is_settled(const Row<T>& row, double mass) { return mass < LARGEST_SUM && 1 / row.tau < -NOTHING; }

    // Of the whole row again, if it overflowed; NaN where a score is infinite.
    bool settle(const Row<T>& row, Part& part, Scratch<C>& scratch) const {
        if (is_settled(row, part.mass)) return true;
        double largest = row.tau;
        for (int64_t i = 0; i < row.n; ++i) {
            const double x = row.score(i), size = std::fabs(x);
            largest = x != NOTHING && size > largest ? size : largest;
        }
        int of_tau;
        std::frexp(largest, &part.exponent);
        std::frexp(row.tau, &of_tau);
        part.exponent += 1 - of_tau;  // s > max |z|
        const bool done = wide().sum(row, 0, row.n, part, scratch);
        if (!(part.mass < std::numeric_limits<double>::infinity())) part.mass = std::numeric_limits<double>::quiet_NaN();
        return done;
    }

    bool scan(const Row<T>& row, int64_t begin, int64_t end, Part& part, Scratch<C>& scratch) const {
        part.exponent = 0;
        return sum(row, begin, end, part, scratch);
    }

    bool finish(const Row<T>& row, Part* parts, int count, Scratch<C>& scratch) const {
        for (int i = 1; i < count; ++i) parts[0].mass += parts[i].mass;
        if (!settle(row, parts[0], scratch)) return false;
        for (int i = 1; i < count; ++i) parts[i] = parts[0];
        return true;
    }

    bool emit(const Row<T>& row, int64_t begin, int64_t end, Part& part, Scratch<C>& scratch) const {
        if (sizeof(W) < sizeof(double) && part.exponent) return wide().emit(row, begin, end, part, scratch);
        W values[STEP];
        Function f;
        if (!polynomial(row, part, scratch, f)) return false;
        const Quotient<C, W> ratio(1, part.mass == 0 ? 1.0 : part.mass);  // a row of masks is one of zeros
        for (int64_t i = begin; i < end; i += STEP) {
            const int64_t length = minimum(STEP, end - i);
            f(row.raw(i, length, scratch.high), length, values);
            T* to = row.out + i;
            for (int64_t j = 0; j < length; ++j) narrow(ratio(values[j]), to[j]);
        }
        return true;
    }

    // Several short rows, f in the place of the results until its sum is known.
    bool emit_lines(const Lines<T>& lines, T* out, int64_t step, Scratch<C>& scratch) const {
        constexpr int64_t WIDTH = Lines<T>::WIDTH;
        const int64_t n = lines.n(), width = lines.width();
        typename VectorSum<T>::Whole sums[WIDTH];
        double mass[WIDTH], lost[WIDTH];
        for (int64_t j = width; j < WIDTH; ++j) sums[j] = VectorSum<T>().whole();
        for (int64_t j = 0; j < width; ++j) {
            const Row<T> row = lines.row_at(j, scratch);
            Function f;
            if (!polynomial(row, {0, 0}, scratch, f)) return false;
            f(row.x, n, out + j * step);
            sums[j] = sum_of(out + j * step, n);
        }
        VectorSum<T>::total(sums, mass, lost);
        Ratios<T, WIDTH> ratios;
        for (int64_t j = 0; j < WIDTH; ++j) {
            mass[j] += lost[j];
            ratios.set(j, {1.0, mass[j] == 0 ? 1.0 : mass[j]});
        }
        for (int64_t j = 0; j < width; ++j) {
            Row<T> row = lines.row_at(j, scratch);
            row.out = out + j * step;
            const Ratio<T> ratio = ratios[j];
            if (is_settled(row, mass[j])) {
                for (int64_t i = 0; i < n; ++i) row.out[i] = ratio(row.out[i]);
            } else if (!whole_row(*this, row, scratch)) {
                return false;
            }
        }
        return true;
    }

    // ∂x = s (g − ⟨p, g⟩) / τ, s = f'(z) / Σ f(z).
    bool differentiate(const Row<T>& row, const T* p, const Upstream<T>& g, Scratch<C>& scratch) const {
        Part part = {0, 0};
        if (!sum(row, 0, row.n, part, scratch) || !settle(row, part, scratch)) return false;
        return part.exponent ? wide().slope(row, part, p, g, scratch) : slope(row, part, p, g, scratch);
    }

    bool slope(const Row<T>& row, const Part& part, const T* p, const Upstream<T>& g, Scratch<C>& scratch) const {
        W values[STEP];
        Function f;
        if (!polynomial(row, part, scratch, f)) return false;
        Sum product;
        for (int64_t i = 0; i < row.n; i += STEP) {
            const int64_t length = minimum(STEP, row.n - i);
            const C *share = widened(p + i, length, scratch.high), *upstream = g.read(i, length, scratch.low);
            add<C>(length, product, [&](int64_t j) { return double(share[j]) * double(upstream[j]); });
        }
        const double mean = product.value();
        if (!(std::fabs(mean) < MODERATE_MEAN<W>)) {
            Part again = part;
            return wide().sum(row, 0, row.n, again, scratch) && wide().slope_of_any(row, again, p, g, scratch);
        }
        const Quotient<C, W> ratio(1, part.mass == 0 ? 1.0 : part.mass);
        const Most most = most_of(row, p, g, 1);
        const W center = W(mean), lost = W(mean - double(center));
        for (int64_t i = 0; i < row.n; i += STEP) {
            const int64_t length = minimum(STEP, row.n - i);
            f.derivative()(row.raw(i, length, scratch.high), length, values);
            const C* upstream = g.read(i, length, scratch.low);
            T* to = row.out + i;
            with_scale<W>(row.scale, [&](auto scale) {
                for (int64_t j = 0; j < length; ++j) put(ratio(values[j]) * ((W(upstream[j]) - center) - lost) * scale, to[j]);
            });
            if (most.k >= i && most.k < i + length) put(double(ratio(values[most.k - i])) * most.moved * row.scale, row.out[most.k]);
        }
        return true;
    }

    static Most most_of(const Row<T>& row, const T* p, const Upstream<T>& g, double shrink) {
        const auto share = [=](int64_t i) { return double(widen(p[i])); };
        return Most::of(row.n, share, share, [&](int64_t i) { return double(g[i]) * shrink; });
    }

    // The same in double of any g: where p or s is 0 it is not read.
    bool slope_of_any(const Row<T>& row, const Part& part, const T* p, const Upstream<T>& g, Scratch<C>& scratch) const {
        const double shrink = shrinking<C>(g, row.n);
        double mean = 0, values[STEP];
        for (int64_t i = 0; i < row.n; ++i) {
            const double share = double(widen(p[i]));
            mean += share == 0 ? 0.0 : share * (double(g[i]) * shrink);
        }
        Function f;
        if (!polynomial(row, part, scratch, f)) return false;
        const Quotient<C, W> ratio(1, part.mass == 0 ? 1.0 : part.mass);
        const Most most = most_of(row, p, g, shrink);
        for (int64_t i = 0; i < row.n; i += STEP) {
            const int64_t length = minimum(STEP, row.n - i);
            f.derivative()(row.raw(i, length, scratch.high), length, values);
            for (int64_t j = 0; j < length; ++j) {
                const double s = ratio(values[j]), gap = i + j == most.k ? most.moved : double(g[i + j]) * shrink - mean;
                put_any(s == 0 ? 0.0 : s * gap * row.scale / shrink, row.out[i + j]);
            }
        }
        return true;
    }
};

// body(kernel), memory permitting.
template <class T, class Body>
bool with_kernel(const SoftmaximaRows& rows, const Body& body) {
    const int order = int(*rows.theta);
    double* coefficients = Scratch<compute_t<T>>::of_this_thread().origins.at_least(order + 1);
    if (!Polynomial::fill(order, 0, coefficients)) return false;
    if constexpr (sizeof(T) < sizeof(double)) {
        if (order == 2 && rows.tau == 1.0 && !rows.taus) return body(Taylor<T, float>{order, coefficients});
    }
    return body(Taylor<T, double>{order, coefficients});
}

template <class T>
bool forward(const SoftmaximaForward* call, T*) {
    using C = compute_t<T>;
    const SoftmaximaRows& rows = call->rows;
    return with_kernel<T>(rows, [=](const auto& kernel) {
        if constexpr (std::decay_t<decltype(kernel)>::keeps) {
            const auto body = [=](const Lines<C>& lines, C* out, int64_t step, int64_t, Scratch<C>& scratch) {
                return Taylor<C, C>{kernel.order, kernel.coefficients}.emit_lines(lines, out, step, scratch);
            };
            if (are_lines<C>(rows)) return for_each_lines<T>(rows, static_cast<T*>(call->out), 0.6, body);
        }
        return for_each_row<T>(rows, call->out, kernel, 0.6);
    });
}

template <class T>
bool backward(const SoftmaximaBackward* call, T*) {
    const T* inputs[] = {static_cast<const T*>(call->p), dense_upstream<T>(call)};
    return with_kernel<T>(call->rows, [&](const auto& kernel) {
        return for_each_whole_row<T>(call->rows, inputs, 2, call->out, 1.0, [=](const Row<T>& row, const T* const* others, auto& scratch) {
            const Upstream<T> g(call, row.index, others[1]);
            return g.left_out() ? fill_with_zeros(row) : kernel.differentiate(row, others[0], g, scratch);
        });
    });
}

}  // namespace

int taylor_softmax(const SoftmaximaForward* call) {
    return with_dtype(call->rows.dtype, [=](auto type) { return forward(call, type); });
}

int taylor_backward(const SoftmaximaBackward* call) {
    return with_dtype(call->rows.dtype, [=](auto type) { return backward(call, type); });
}

}  // namespace SOFTMAXIMA_ISA

SOFTMAXIMA_KERNEL(taylor_softmax, Forward)
SOFTMAXIMA_KERNEL(taylor_backward, Backward)
