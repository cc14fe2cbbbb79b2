// Sums of exponentials of a row, relative to an origin near its maximum: what softmax, its relatives and logsumexp are made of.
#pragma once

#include <cstring>
#include <type_traits>

#include "near_zero.h"
#include "rows.h"

namespace SOFTMAXIMA_ISA {

// Terms may exceed the origin by so much, in nats, and be far from overflow.
template <class C>
constexpr C HEADROOM = 40;

// The largest term may be so far below it, and terms of 1e-30 of that one still be normal numbers.
template <class C>
constexpr C DEPTH = 16;

// Adds a term to a sum, and what the rounding lost to another.
[[gnu::always_inline]] inline void add_exactly(double term, double& sum, double& lost) {
    const double next = sum + term, added = next - sum;
    lost += (sum - (next - added)) + (term - added);
    sum = next;
}

// x·y + z, rounded one way wherever it is written: other products the compiler may fuse with a sum in one place and not in the next.
[[gnu::always_inline]] inline double product_sum(double x, double y, double z) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    return std::fma(x, y, z);
#else
    return x * y + z;
#endif
}

// A sum and what its roundings lost.
struct Sum {
    double high = 0, low = 0;

    [[gnu::always_inline]] inline void add(double term) { add_exactly(term, high, low); }
    [[gnu::always_inline]] inline void add(Sum other) {
        add(other.high);
        low += other.low;
    }
    Sum operator*(double factor) const { return {high * factor, low * factor}; }
    double value() const { return high + low; }
};

template <class C>
struct BlockSum {
    C maximum;
    Sum sum;
};

// Sums of lanes: of floats in double, and of doubles with what roundings lost.
template <class C>
struct VectorSum;

template <>
struct VectorSum<float> {
    Vector<double> sums[2] = {};

    [[gnu::always_inline]] inline void add(Vector<float> terms) { SOFTMAXIMA_ISA::add(terms, sums); }
    // All but the last additions, which `total` makes of several rows at a time.
    using Whole = Vector<double>;
    [[gnu::always_inline]] inline Whole whole() const { return sums[0] + sums[1]; }

    [[gnu::always_inline]] inline Sum total() const { return {reduce<LANES<double>>(whole(), plus), 0}; }

    template <int64_t count>
    [[gnu::always_inline]] static inline void total(const Whole (&of)[count], double* high, double* low) {
        for (int64_t j = 0; j < count; j += LANES<double>) {
            store(reduce_each<double>(of + j, plus), high + j);
            store(Vector<double>{}, low + j);
        }
    }

   private:
    static constexpr auto plus = [](auto a, auto b) __attribute__((always_inline)) { return a + b; };
};

template <>
struct VectorSum<double> {
    Vector<double> sum = {}, lost = {};

    [[gnu::always_inline]] inline void add(Vector<double> terms) {
        const Vector<double> next = sum + terms, added = next - sum;
        lost += (sum - (next - added)) + (terms - added);
        sum = next;
    }
    [[gnu::always_inline]] inline Sum total() const { return folded<LANES<double>>(sum, lost); }

    using Whole = Sum;
    [[gnu::always_inline]] inline Whole whole() const { return total(); }

    template <int64_t count>
    static void total(const Whole (&of)[count], double* high, double* low) {
        for (int64_t j = 0; j < count; ++j) {
            high[j] = of[j].high;
            low[j] = of[j].low;
        }
    }

   private:
    template <int64_t lanes, class V>
    [[gnu::always_inline]] static inline Sum folded(V sum, V lost) {
        if constexpr (lanes == 2) {
            Sum whole{sum[0], lost[0]};
            whole.add({sum[1], lost[1]});
            return whole;
        } else {
            const auto a = lower<lanes>(sum), b = upper<lanes>(sum), next = a + b, added = next - a;
            return folded<lanes / 2>(next, (lower<lanes>(lost) + upper<lanes>(lost)) + ((a - (next - added)) + (b - added)));
        }
    }
};

// Σ exp(z − origin) over a block, each term into out where there is one, and the largest z. Four vectors are worked on at a time, for
// exp is a long chain of operations: one after the other, since more places that are written to at a time are slow.
template <bool Store, bool Low, class C>
[[gnu::noinline]] BlockSum<C> sum_exp(const C* high, const C* low, int64_t length, Origin<C> origin, C* out) {
    constexpr int64_t lanes = LANES<C>;
    constexpr C nothing = -std::numeric_limits<C>::infinity();
    const Exponential<C> exp(origin);
    const auto larger = [](auto a, auto b) __attribute__((always_inline)) { return a > b ? a : b; };
    Vector<C> tops = all(nothing);
    VectorSum<C> sum;
    const auto term = [=](Vector<C> z, int64_t i) __attribute__((always_inline)) {
        const Vector<C> e = exp.of(z, Low ? load(low + i) : Vector<C>{});
        if (Store) store(e, out + i);
        return e;
    };
    int64_t i = 0;
    for (; i + 4 * lanes <= length; i += 4 * lanes) {
        const int64_t j = i + lanes, k = j + lanes, l = k + lanes;
        const Vector<C> a = load(high + i), b = load(high + j), c = load(high + k), d = load(high + l);
        tops = larger(larger(larger(a, b), larger(c, d)), tops);
        const Vector<C> two = term(a, i) + term(b, j), others = term(c, k) + term(d, l);
        if (Store) {  // a probability is as exact as the sum; of a logarithm the same rounding is a smaller part
            sum.add(two);
            sum.add(others);
        } else {
            sum.add(two + others);
        }
    }
    for (; i + lanes <= length; i += lanes) {
        const Vector<C> z = load(high + i);
        tops = larger(z, tops);
        sum.add(term(z, i));
    }
    if (i < length) {
        const int64_t count = length - i;
        const Vector<C> z = load(high + i, count, nothing), e = exp.of(z, Low ? load(low + i, count, C(0)) : Vector<C>{});
        tops = larger(z, tops);
        if (Store) store(e, count, out + i);
        sum.add(e);
    }
    return {reduce<lanes>(tops, larger), sum.total()};
}

// Where log Σ of terms up to 1 is below this, the rounding of the sum is more than half a unit of it.
template <class C>
constexpr double NEAR = sizeof(C) == sizeof(double) ? 2.0 : 1.0;

// y log y, and y (y^β − 1)/((1 + β) β), which is that at β = 0. Σ over a distribution is the regulariser of softmax and of entmax.
struct Tsallis {
    double beta;

    double operator()(double y) const {
        if (!(y > 0)) return y == 0 ? 0.0 : y;
        if (beta == 1) return y * (y - 1) / 2;
        if (beta == 0.5) return y * (std::sqrt(y) - 1) / 0.75;
        return y * (beta == 0 ? std::log(y) : std::expm1(beta * std::log(y)) / beta) / (1 + beta);
    }
};

// How far θ is above z.
inline double sink_above(double theta, Quotient z) { return theta == NOTHING ? theta : (theta - z.high) - z.low; }

// exp of a sum, with the digits of its low term.
[[gnu::always_inline]] inline double exp_of(Sum x) {
    const double whole = x.low - x.low == 0 ? x.value() : x.high, low = (x.high - whole) + x.low, e = exp(whole);
    return std::fabs(whole) < 1e3 ? e * (1 + low) : e;  // beyond that it is 0 or ∞, and the low term need not be a number
}

// What takes terms relative to one origin to another.
template <class C>
double moved(Origin<C> from, Origin<C> to) {
    using F = Format<double>;
    const double power = double(from.power) - double(to.power);
    if (power == 0 && from.shift == to.shift) return 1;
    Sum distance{double(from.shift)};
    distance.add(-double(to.shift));
    distance.add(power * F::log_2_high);
    distance.low += power * F::log_2_low;
    return exp_of(distance);
}

// exp(θ − z) relative to an origin of scores less z: what a sink adds to their mass.
template <class C>
[[gnu::always_inline]] inline double sink_weight(double theta, Quotient z, Origin<C> origin) {
    using F = Format<double>;
    Sum gap{theta};
    gap.add(-z.high);
    gap.add(-z.low);
    gap.add(-double(origin.shift));
    gap.add(-double(origin.power) * F::log_2_high);
    gap.low -= double(origin.power) * F::log_2_low;
    const double weight = exp_of(gap);
    return theta == NOTHING ? 0.0 : weight;
}

// The monoid (M, m, r) of logsumexp as its logarithm, LSE(x/τ) = maximum/τ + log_sum with log_sum = log(m + r), exact also near 0.
struct LogSum {
    double maximum;  // of x
    double log_sum;
    double lost;  // what rounding took from it

    double value(double tau) const {
        if (tau == 1.0) return (maximum + log_sum) + lost;
        const Quotient top = Quotient::of(maximum, tau);
        return (top.high + log_sum) + (lost + top.low);
    }

    // With one more score, x/τ = θ.
    LogSum with_sink(double theta, double tau) const { return with_sink(sink_above(theta, Quotient::of(maximum, tau))); }

    // With one that is so far above the maximum's.
    [[gnu::always_inline]] inline LogSum with_sink(double sink) const {
        const bool higher = sink > 0;
        const double e = exp(higher ? log_sum - sink : sink), others = higher ? e : expm1(log_sum) + e;
        return {maximum, maximum == NOTHING ? log_sum : (higher ? sink : 0.0) + log1p(others), lost};
    }
};

// The same as a sum over a part of a row, Σ exp(z) = sum · exp(origin), relative to an origin that need not be M.
template <class C>
struct ExpSum {
    static constexpr C nothing = -std::numeric_limits<C>::infinity();
    C maximum = nothing;
    C base = nothing;  // the maximum that the origin was chosen for
    Origin<C> origin = {};
    Sum total = {};

    double sum() const { return total.value(); }

    // Adds a block, whose largest z is returned, and stores its terms relative to the origin as it then is. Most rows have their
    // maximum near enough to 0 to need no other origin, and no pass to find it; in a row with an anchor it is 0.
    template <bool Store>
    C add(Scores<C> z, int64_t length, C* out, bool has_anchor) {
        const bool first = sum() == 0;
        if (first) *this = {nothing, 0, {}, {}};
        BlockSum<C> block = terms<Store>(z, length, out);
        const bool is_far = block.maximum > base + HEADROOM<C> || (first && !(block.maximum > -DEPTH<C>));
        if (__builtin_expect(is_far && !has_anchor, 0)) {
            const Origin<C> before = origin;
            base = highest(z.high, length);
            origin = Origin<C>::at(base);
            if (!first) total = total * moved(before, origin);
            block = terms<Store>(z, length, out);
        }
        if (first) {
            total = block.sum;
            maximum = block.maximum;
        } else {
            total.add(block.sum);
            maximum = block.maximum > maximum ? block.maximum : maximum;
        }
        return block.maximum;
    }

    void merge(const ExpSum& other) {
        if (other.sum() == 0) return;  // nothing but −∞
        const ExpSum &above = sum() == 0 || other.base > base ? other : *this, &below = &above == this ? other : *this;
        ExpSum merged = above;
        if (below.sum() != 0) merged.total.add(below.total * moved(below.origin, above.origin));
        if (below.maximum > merged.maximum) merged.maximum = below.maximum;
        *this = merged;
    }

    // LSE(x/τ) of a row whose largest x has z = top. For double scores a power of 2 is moved from the sum to its origin first, so that
    // neither of two terms is large.
    LogSum log_sum(double maximum, double top) const {
        using W = std::conditional_t<sizeof(C) == sizeof(double), long double, double>;
        if (sizeof(C) < sizeof(double)) return {maximum, std::log(sum()) + origin.above(top), 0};
        const double distance = (top - origin.value()) * Format<double>::log2_e;
        const double power = std::fabs(distance) < 1000 ? std::nearbyint(distance) : 0.0;
        const Origin<C> near = {origin.shift, C(double(origin.power) + power)};
        const W log = std::log(W(std::ldexp(sum(), -int(power)))) + near.above(top);
        return {maximum, double(log), double(log - W(double(log)))};
    }

    // Of all parts of a row, which are likely to be one.
    template <class Part>
    static ExpSum of(const Part* parts, int count) {
        ExpSum sum = parts[0].sum;
        for (int i = 1; i < count; ++i) sum.merge(parts[i].sum);
        return sum;
    }

   private:
    template <bool Store>
    BlockSum<C> terms(Scores<C> z, int64_t length, C* out) const {
        return z.low ? sum_exp<Store, true>(z.high, z.low, length, origin, out) : sum_exp<Store, false>(z.high, z.high, length, origin, out);
    }
};

// Multiplies by numerator / denominator, with one rounding: in float by two halves of the ratio, in double by a division. What is
// divided by itself is 1.
template <class C>
struct Ratio;

template <>
struct Ratio<float> {
    float high, low, lift;  // a ratio that a float cannot hold is lifted by a power of 2

    Ratio(float high_, float low_, float lift_) : high(high_), low(low_), lift(lift_) {}

    Ratio(double numerator, double denominator) {
        const double ratio = numerator / denominator, size = std::fabs(ratio);
        lift = size < 0x1p-90 ? 0x1p-64f : size > 0x1p90 ? 0x1p100f : 1.0f;
        const double lifted = (size > 0x1p220 ? std::copysign(0x1p220, ratio) : ratio) / double(lift);
        high = float(lifted);
        low = float(lifted - double(high));
    }

    float operator()(float value) const { return (value * high + value * low) * lift; }
};

template <>
struct Ratio<double> {
    double numerator, denominator;

    Ratio(double numerator_, double denominator_) : numerator(numerator_), denominator(denominator_) {}

    double operator()(double value) const { return value * numerator / denominator; }
};

// Several, their fields apart as vectors want them.
template <class C, int64_t count>
struct Ratios;

template <int64_t count>
struct Ratios<float, count> {
    float high[count], low[count], lift[count];

    void set(int64_t j, Ratio<float> ratio) {
        high[j] = ratio.high;
        low[j] = ratio.low;
        lift[j] = ratio.lift;
    }

    Ratio<float> operator[](int64_t j) const { return {high[j], low[j], lift[j]}; }
};

template <int64_t count>
struct Ratios<double, count> {
    double numerator[count], denominator[count];

    void set(int64_t j, Ratio<double> ratio) {
        numerator[j] = ratio.numerator;
        denominator[j] = ratio.denominator;
    }

    Ratio<double> operator[](int64_t j) const { return {numerator[j], denominator[j]}; }
};

// What a term becomes that is most of its sum, and whose own rounding would show; no term is negative.
template <class C>
struct Largest {
    C term = -1, share = 0;

    explicit operator bool() const { return term >= 0; }
};

// exp(z − origin) · ratio, rounded to T.
template <class T, class C>
[[gnu::noinline]] void emit_exp(Scores<C> z, int64_t length, Origin<C> origin, Ratio<C> ratio, T* out, Largest<C> largest = {}) {
    const Exponential<C> exp(origin);
    if (largest) {
        for (int64_t i = 0; i < length; ++i) {
            const C e = z.low ? exp(z.high[i], z.low[i]) : exp(z.high[i]);
            narrow(e == largest.term ? largest.share : ratio(e), out[i]);
        }
    } else if (z.low) {
        for (int64_t i = 0; i < length; ++i) {
            narrow(ratio(exp(z.high[i], z.low[i])), out[i]);
        }
    } else {
        for (int64_t i = 0; i < length; ++i) {
            narrow(ratio(exp(z.high[i])), out[i]);
        }
    }
}

// What is to have its digits: LSE itself, or beside it LSE less the largest z, which is near 0 in a row of one large score, or the sum
// of all that are not that score, which is the same but for less: where it is small.
enum class Digits { value, log_sum, rest };

// log m + log(1 + r/m), m scores at the maximum and r = Σ exp(z − maximum) over the others, within 2 ulp in double.
template <class W, class T>
[[gnu::noinline]] LogSum log_sum_of_gaps(const Row<T>& row, double maximum) {
    W count = 0, rest = 0, lost = 0;
    if constexpr (sizeof(W) == sizeof(double)) {
        using C = compute_t<T>;
        constexpr bool narrow = sizeof(C) < sizeof(double);  // then what a gap in double is rounded by is nothing
        alignas(LINE) C buffer[BLOCK];
        constexpr double lift = 64;  // a power of 2, by which terms are normal numbers whose sum alone is one
        const Exponential<double> exponential(Origin<double>{0, -lift});
        for (int64_t i = 0; i < row.n; i += BLOCK) {
            const int64_t length = minimum(BLOCK, row.n - i);
            const C* x = row.raw(i, length, buffer);
            if constexpr (narrow) {
#pragma omp simd reduction(+ : rest)
                for (int64_t j = 0; j < length; ++j) {
                    const double z = gap(x[j], maximum, row.scale), e = exponential(z);
                    rest += z < 0 ? e : 0.0;
                }
            } else {
#pragma omp simd reduction(+ : rest, lost)
                for (int64_t j = 0; j < length; ++j) {
                    double low = 0;
                    const double z = gap(x[j], maximum, row.tau, row.scale, low), e = exponential(z);
                    add_exactly(z < 0 ? e + e * low : 0.0, rest, lost);
                }
            }
#pragma omp simd reduction(+ : count)
            for (int64_t j = 0; j < length; ++j) count += gap(x[j], maximum, row.scale) < 0 ? 0.0 : 1.0;
        }
        rest = std::ldexp(rest, -int(lift));
        lost = std::ldexp(lost, -int(lift));
    } else {
        for (int64_t i = 0; i < row.n; ++i) {
            const W gap = (W(widen(row.x[i])) - W(maximum)) / W(row.tau);
            rest += row.allowed(i) && gap < 0 ? std::exp(gap) : W(0);
            count += row.allowed(i) && !(gap < 0) ? W(1) : W(0);
        }
    }
    const W log_sum = std::log(count) + std::log1p((rest + lost) / count);
    return {maximum, double(log_sum), double(log_sum - W(double(log_sum)))};
}

// Scans without keeping anything, and finds LSE(x/τ), of sums in W.
template <class T, class W = compute_t<T>>
struct LogSumExp {
    using C = compute_t<T>;
    static constexpr bool anchored = true;

    struct Part {
        ExpSum<W> sum;
        LogSum result;
    };

    bool scan(const Row<T>& row, int64_t begin, int64_t end, Part& part, Scratch<C>& scratch) const {
        part.sum = {};
        for (int64_t i = begin; i < end; i += BLOCK) {
            const int64_t length = minimum(BLOCK, end - i);
            const Scores<C> z = row.scores(i, length, scratch);
            part.sum.template add<false>(z, length, nullptr, row.tau != 1.0);
        }
        return true;
    }

    static LogSum result(const Row<T>& row, const ExpSum<W>& sum, Digits digits) {
        constexpr double infinity = std::numeric_limits<double>::infinity();
        if (double(sum.maximum) == infinity && row.n > 0) return {infinity, has_nan(row) ? std::numeric_limits<double>::quiet_NaN() : 0.0, 0};
        if (sum.sum() == 0) return {NOTHING, 0, 0};
        const double maximum = row.anchor == 0 ? double(sum.maximum) : row.anchor;  // z of an anchor is 0
        return near(row, sum.log_sum(maximum, maximum - row.anchor), digits);
    }

    // Whether a sum in W lacks digits that its logarithm, or LSE itself, has near 0.
    static bool is_near(const LogSum& result, double tau, Digits digits) {
        if (digits == Digits::rest) return result.log_sum < 0.5;
        return std::fabs(result.value(tau)) < 2.0 || (digits == Digits::log_sum && result.log_sum < NEAR<W>);
    }

    // With those digits.
    static LogSum near(const Row<T>& row, LogSum result, Digits digits) {
        if (!is_near(result, row.tau, digits)) return result;
        return sizeof(T) == sizeof(double) && digits == Digits::value ? log_sum_of_gaps<long double>(row, result.maximum)
                                                                      : log_sum_of_gaps<double>(row, result.maximum);
    }

    static bool has_nan(const Row<T>& row) {
        bool found = false;
        for (int64_t i = 0; i < row.n; ++i) found |= row.score(i) != row.score(i);
        return found;
    }
};

// exp(z − origin) of one value, just as a row of them is computed.
template <class T, class C>
double weigh(const Row<T>& row, C value, Origin<C> origin) {
    C high, low;
    row.tempered()(value, high, low);
    return double(Exponential<C>(origin)(high, low));
}

enum class Kind { softmax, elastic, rectified };

template <class T, Kind kind>
struct Softmax {
    using C = compute_t<T>;
    static constexpr bool anchored = true;
    static constexpr bool can_keep = sizeof(T) == sizeof(C);  // exponentials rest in the output until their sum is known

    struct Part {
        ExpSum<C> sum;
        double mass;   // the denominator, relative to the origin
        double exact;  // the largest term if it is most of that, and what it was rounded to; else −1
        C largest;
        double uniform;  // what each allowed score gets in a row of none, for rectified
        double weight;   // a factor of the probabilities
        double top;      // the largest x, and log Σ less it, where they are asked for
        double conjugate;
    };

    bool with_conjugate = false;

    static Tsallis regulariser(const Row<T>&) { return {0}; }

    static Scores<C> load(const Row<T>& row, int64_t begin, int64_t length, Scratch<C>& scratch) {
        return row.template scores<kind == Kind::rectified>(begin, length, scratch);
    }

    bool scan(const Row<T>& row, int64_t begin, int64_t end, Part& part, Scratch<C>& scratch) const {
        const bool keep = can_keep && row.out;
        const bool each = keep && end - begin > BLOCK;
        double* origins = each ? scratch.origins.at_least(2 * ((end - begin + BLOCK - 1) / BLOCK)) : nullptr;
        if (each && !origins) return false;
        part.sum = {};
        part.weight = 1;
        for (int64_t i = begin; i < end; i += BLOCK) {
            const int64_t length = minimum(BLOCK, end - i);
            const Scores<C> z = load(row, i, length, scratch);
            if (keep) {
                part.sum.template add<true>(z, length, reinterpret_cast<C*>(row.out + i), row.tau != 1.0);
            } else {
                part.sum.template add<false>(z, length, nullptr, row.tau != 1.0);
            }
            if (origins) {  // −∞ for a block of nothing
                double* origin = origins + 2 * ((i - begin) / BLOCK);
                origin[0] = part.sum.sum() == 0 ? NOTHING : double(part.sum.origin.shift);
                origin[1] = double(part.sum.origin.power);
            }
        }
        return true;
    }

    bool finish(const Row<T>& row, Part* parts, int count, Scratch<C>&) const {
        const auto sum = ExpSum<C>::of(parts, count);
        Part whole = parts[0];
        whole.sum = sum;
        weigh_largest(row, whole);
        double mass = whole.mass, uniform = 0;
        // Where nothing is allowed there is nothing to divide by, and a sink alone may be too small to divide by.
        if (kind == Kind::elastic && mass != 0) mass += sink_weight(*row.theta, Quotient::of(row.anchor, row.tau), sum.origin);
        if (kind == Kind::rectified && mass == 0 && *row.theta != 0) {
            int64_t allowed = 0;
            for (int64_t i = 0; i < row.n; ++i) allowed += row.score(i) > NOTHING;
            uniform = allowed ? 1.0 / double(allowed) : 0.0;
        }
        LogSum result = {};
        if (with_conjugate) {
            result = LogSumExp<T>::result(row, sum, Digits::log_sum);
            if (kind == Kind::elastic) result = result.with_sink(*row.theta, row.tau);
        }
        for (int i = 0; i < count; ++i) {
            parts[i].sum = sum;
            parts[i].mass = mass;
            parts[i].exact = whole.exact;
            parts[i].largest = whole.largest;
            parts[i].uniform = uniform;
            parts[i].top = result.maximum;
            parts[i].conjugate = result.log_sum;
        }
        return true;
    }

    // The sum that terms are divided by. Where one term is most of it in float, so is the rounding of that term, which is taken off;
    // but none is divided by less than itself.
    static void weigh_largest(const Row<T>& row, Part& part) {
        const ExpSum<C>& sum = part.sum;
        part.mass = sum.sum();
        part.exact = -1;
        part.largest = -1;
        if (sizeof(C) == sizeof(double) || !(std::fabs(sum.maximum) < std::numeric_limits<C>::infinity())) return;
        const auto exponent = int(bit_cast<uint64_t>(part.mass) >> Format<double>::mantissa) - Format<double>::bias;
        const C power = (sum.maximum - sum.origin.shift) * Format<C>::log2_e - sum.origin.power;
        if (power < C(exponent - 1)) return;  // less than half of it
        const C top = row.tau == 1.0 ? sum.maximum : C(row.anchor);
        const double term = weigh(row, top, sum.origin), others = part.mass - term;
        part.exact = std::exp((double(top) - row.anchor) - sum.origin.value());
        part.largest = C(term);
        part.mass = others + (part.exact > term ? part.exact : term);
    }

    // The largest term's share of the mass, with no other's rounding.
    static Largest<C> largest_of(const Part& part) {
        if (part.largest < 0) return {};
        const double lost = part.exact < double(part.largest) ? double(part.largest) - part.exact : 0.0;
        return {part.largest, C(part.weight * part.exact / (part.mass - lost))};
    }

    bool emit(const Row<T>& row, int64_t begin, int64_t end, Part& part, Scratch<C>& scratch) const {
        const double* origins = can_keep && end - begin > BLOCK ? scratch.origins.at_least(0) : nullptr;
        const double mass = part.mass == 0 ? 1.0 : part.mass;  // a row of zeros stays one
        const Largest<C> largest = largest_of(part);
        for (int64_t i = begin; i < end; i += BLOCK) {
            const int64_t length = minimum(BLOCK, end - i);
            if (kind == Kind::rectified && part.uniform > 0) {
                for (int64_t j = i; j < i + length; ++j) narrow(row.score(j) > NOTHING ? part.uniform : 0.0, row.out[j]);
            } else if (can_keep) {
                C* out = reinterpret_cast<C*>(row.out + i);
                const double* origin = origins ? origins + 2 * ((i - begin) / BLOCK) : nullptr;
                const double factor = !origin ? 1.0 : origin[0] == NOTHING ? 0.0 : moved<C>({C(origin[0]), C(origin[1])}, part.sum.origin);
                const Ratio<C> ratio(part.weight * factor, mass);
                if (factor != 1) {  // what is 0 relative to the last origin is so here
                    const double least = double(std::numeric_limits<C>::min()) / factor, most = double(std::numeric_limits<C>::max());
                    const C floor = mass != mass ? C(0) : C(least < most ? least : most);
                    for (int64_t j = 0; j < length; ++j) out[j] = out[j] < floor ? C(0) : ratio(out[j]);
                } else if (largest) {
                    for (int64_t j = 0; j < length; ++j) out[j] = out[j] == largest.term ? largest.share : ratio(out[j]);
                } else {
                    for (int64_t j = 0; j < length; ++j) out[j] = ratio(out[j]);
                }
            } else {
                emit_exp(load(row, i, length, scratch), length, part.sum.origin, {part.weight, mass}, row.out + i);
            }
        }
        return true;
    }

    // The probabilities of a block, computed anew.
    void probabilities(const Row<T>& row, int64_t begin, int64_t length, const Part& part, C* to, Scratch<C>& scratch) const {
        emit_exp(load(row, begin, length, scratch), length, part.sum.origin, {part.weight, part.mass == 0 ? 1.0 : part.mass}, to);
    }

    // Of one class, from the conjugate.
    Likelihood likelihood(const Row<T>& row, int64_t c, const Part& part) const {
        constexpr double nan = std::numeric_limits<double>::quiet_NaN();
        if (part.mass == 0) return {0, 1};
        if (part.mass != part.mass || part.top == -NOTHING) return {nan, nan};
        return Likelihood::of_log(row.gap_above(c, part.top) - part.conjugate);
    }
};

}  // namespace SOFTMAXIMA_ISA
