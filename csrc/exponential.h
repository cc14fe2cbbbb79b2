// Sums of exponentials of a row, relative to an origin near its maximum: what softmax, its relatives and logsumexp are made of.
#pragma once

#include <type_traits>

#include "rows.h"

namespace SOFTMAXIMA_ISA {

constexpr double NOTHING = -std::numeric_limits<double>::infinity();

// Terms may exceed the origin by so much, in nats, and be far from overflow.
template <class C>
constexpr C HEADROOM = 40;

// The largest term may be so far below it, and terms of 1e-30 of that one still be normal numbers.
template <class C>
constexpr C DEPTH = 16;

template <class C>
struct BlockSum {
    C maximum;
    double sum;
};

// Σ exp(z − origin) over a block, each term into out where there is one, and the largest z. The block is worked on at four places
// at a time, for exp is a long chain of operations.
template <bool Store, bool Low, class C>
BlockSum<C> sum_exp(const C* high, const C* low, int64_t length, Origin<C> origin, C* out) {
    const Exponential<C> exp(origin);
    constexpr C nothing = -std::numeric_limits<C>::infinity();
    const int64_t q = length / 64 * 16;
    C top0 = nothing, top1 = nothing, top2 = nothing, top3 = nothing, sum0 = 0, sum1 = 0, sum2 = 0, sum3 = 0;
    double rest = 0;
    const auto term = [=](int64_t i, C& top, auto& sum) {
        const C z = high[i];
        const C e = Low ? exp(z, low[i]) : exp(z);
        if (Store) out[i] = e;
        top = z > top ? z : top;
        sum += e;
    };
#pragma omp simd reduction(max : top0, top1, top2, top3) reduction(+ : sum0, sum1, sum2, sum3)
    for (int64_t i = 0; i < q; ++i) {
        term(i, top0, sum0);
        term(i + q, top1, sum1);
        term(i + 2 * q, top2, sum2);
        term(i + 3 * q, top3, sum3);
    }
    for (int64_t i = 4 * q; i < length; ++i) term(i, top0, rest);
    top0 = top1 > top0 ? top1 : top0;
    top2 = top3 > top2 ? top3 : top2;
    return {top2 > top0 ? top2 : top0, rest + ((double(sum0) + double(sum1)) + (double(sum2) + double(sum3)))};
}

// Σ exp(z) = sum · exp(origin) over a part of a row.
template <class C>
struct ExpSum {
    static constexpr C nothing = -std::numeric_limits<C>::infinity();
    C maximum = nothing;
    C base = nothing;  // the maximum that the origin was chosen for
    Origin<C> origin = {};
    double sum = 0;

    // Adds a block, and stores its terms relative to the origin as it then is. Most rows have their maximum near enough to 0
    // to need no other origin, and no pass to find it.
    template <bool Store>
    void add(Scores<C> z, int64_t length, C* out) {
        const bool first = sum == 0;
        if (first) *this = {nothing, 0, {}, 0};
        BlockSum<C> block = terms<Store>(z, length, out);
        if (block.maximum > base + HEADROOM<C> || (first && !(block.maximum > -DEPTH<C>))) {
            const double before = origin.value();
            base = highest(z.high, length);
            origin = Origin<C>::at(base);
            if (!first) sum *= std::exp(before - origin.value());
            block = terms<Store>(z, length, out);
        }
        sum += block.sum;
        maximum = block.maximum > maximum ? block.maximum : maximum;
    }

    void merge(const ExpSum& other) {
        if (other.sum == 0) return;  // nothing but −∞
        const ExpSum &above = sum == 0 || other.base > base ? other : *this, &below = &above == this ? other : *this;
        const double distance = below.origin.value() - above.origin.value();
        ExpSum merged = above;
        if (below.sum != 0) merged.sum += below.sum * std::exp(distance);
        if (below.maximum > merged.maximum) merged.maximum = below.maximum;
        *this = merged;
    }

   private:
    template <bool Store>
    BlockSum<C> terms(Scores<C> z, int64_t length, C* out) const {
        return z.low ? sum_exp<Store, true>(z.high, z.low, length, origin, out)
                     : sum_exp<Store, false>(z.high, z.high, length, origin, out);
    }
};

// Multiplies by numerator / denominator, with one rounding: in float by two halves of the ratio, in double by a division. What is
// divided by itself is 1.
template <class C>
struct Ratio;

template <>
struct Ratio<float> {
    float high, low, lift;  // a ratio that is too small for a float is lifted by a power of 2

    Ratio(double numerator, double denominator) {
        const double ratio = numerator / denominator;
        const bool small = std::fabs(ratio) < 0x1p-90;
        const double lifted = small ? ratio * 0x1p64 : ratio;
        high = float(lifted);
        low = float(lifted - double(high));
        lift = small ? 0x1p-64f : 1.0f;
    }

    float operator()(float value) const { return (value * high + value * low) * lift; }
};

template <>
struct Ratio<double> {
    double numerator, denominator;
    Ratio(double numerator_, double denominator_) : numerator(numerator_), denominator(denominator_) {}
    double operator()(double value) const { return value * numerator / denominator; }
};

// exp(z − origin) · ratio, rounded to T.
template <class T, class C>
void emit_exp(Scores<C> z, int64_t length, Origin<C> origin, Ratio<C> ratio, T* out) {
    const Exponential<C> exp(origin);
    if (z.low) {
        for (int64_t i = 0; i < length; ++i) {
            narrow(ratio(exp(z.high[i], z.low[i])), out[i]);
        }
    } else {
        for (int64_t i = 0; i < length; ++i) {
            narrow(ratio(exp(z.high[i])), out[i]);
        }
    }
}

// LSE(z) = maximum + log_sum, exact also where it is near 0.
struct LogSum {
    double maximum;
    double log_sum;
    double value() const { return maximum + log_sum; }
};

// log m + log(1 + r/m), m scores at the maximum and r = Σ exp(z − maximum) over the others. In double; in long double for
// double scores, whose own sums would leave 4 ulp of a result near 0.
template <class T>
double log_sum_of_gaps(const Row<T>& row, double maximum) {
    using W = std::conditional_t<sizeof(T) == sizeof(double), long double, double>;
    W count = 0, rest = 0;
    if constexpr (sizeof(W) == sizeof(double)) {
#pragma omp simd reduction(+ : rest, count)
        for (int64_t i = 0; i < row.n; ++i) {
            const double gap = row.score(i) - maximum;
            rest += gap < 0 ? exp(gap) : 0.0;
            count += gap < 0 ? 0.0 : 1.0;
        }
    } else {
        for (int64_t i = 0; i < row.n; ++i) {
            const W gap = W(row.score(i)) - W(maximum);
            rest += gap < 0 ? std::exp(gap) : W(0);
            count += gap < 0 ? W(0) : W(1);
        }
    }
    return double(std::log(count) + std::log1p(rest / count));
}

// Scans without keeping anything, and finds LSE(z).
template <class T>
struct LogSumExp {
    using C = compute_t<T>;

    struct Part {
        ExpSum<C> sum;
        LogSum result;
    };

    bool scan(const Row<T>& row, int64_t begin, int64_t end, Part& part, Scratch<C>& scratch) const {
        part.sum = {};
        for (int64_t i = begin; i < end; i += BLOCK) {
            const int64_t length = minimum(BLOCK, end - i);
            const Scores<C> z = row.scores(i, length, scratch);
            part.sum.template add<false>(z, length, nullptr);
        }
        return true;
    }

    // Where `exact` is true log_sum is exact relative to itself, else relative to 1.
    static LogSum result(const Row<T>& row, const ExpSum<C>& sum, bool exact) {
        constexpr double infinity = std::numeric_limits<double>::infinity();
        if (double(sum.maximum) == infinity && row.n > 0) return {infinity, has_nan(row) ? std::numeric_limits<double>::quiet_NaN() : 0.0};
        if (sum.sum == 0) return {NOTHING, 0.0};
        const double value = sum.origin.value() + std::log(sum.sum);
        const double maximum = row.scale == 1.0 ? double(sum.maximum) : highest_score(row);
        if (std::fabs(value) < 2.0 || (exact && value - maximum < 2.0)) return {maximum, log_sum_of_gaps(row, maximum)};
        return {maximum, value - maximum};
    }

    static double highest_score(const Row<T>& row) {
        double highest = NOTHING;
#pragma omp simd reduction(max : highest)
        for (int64_t i = 0; i < row.n; ++i) highest = row.score(i) > highest ? row.score(i) : highest;
        return highest;
    }

    static bool has_nan(const Row<T>& row) {
        bool found = false;
        for (int64_t i = 0; i < row.n; ++i) found |= row.score(i) != row.score(i);
        return found;
    }
};

enum class Kind { softmax, elastic, rectified };

template <class T, Kind kind>
struct Softmax {
    using C = compute_t<T>;
    static constexpr bool can_keep = sizeof(T) == sizeof(C);  // exponentials rest in the output until their sum is known

    struct Part {
        ExpSum<C> sum;
        double mass;       // the denominator, relative to the origin
        double uniform;    // what each allowed score gets in a row of none, for rectified
        double weight;     // a factor of the probabilities
        double top;        // the largest z, and log Σ less it, where they are asked for
        double conjugate;
    };

    bool with_conjugate = false;

    static double beta(const Row<T>&) { return 0; }  // of the regulariser

    Scores<C> load(const Row<T>& row, int64_t begin, int64_t length, Scratch<C>& scratch) const {
        Scores<C> z = row.scores(begin, length, scratch);
        if constexpr (kind == Kind::rectified) {
            for (int64_t i = 0; i < length; ++i) scratch.high[i] = z.high[i] < 0 ? -std::numeric_limits<C>::infinity() : z.high[i];
            z.high = scratch.high;
        }
        return z;
    }

    bool scan(const Row<T>& row, int64_t begin, int64_t end, Part& part, Scratch<C>& scratch) const {
        const bool keep = can_keep && row.out;
        double* origins = nullptr;
        if (keep && end - begin > BLOCK && !(origins = scratch.origins.at_least((end - begin + BLOCK - 1) / BLOCK))) return false;
        part.sum = {};
        part.weight = 1;
        for (int64_t i = begin; i < end; i += BLOCK) {
            const int64_t length = minimum(BLOCK, end - i);
            const Scores<C> z = load(row, i, length, scratch);
            if (keep) {
                part.sum.template add<true>(z, length, reinterpret_cast<C*>(row.out + i));
            } else {
                part.sum.template add<false>(z, length, nullptr);
            }
            if (origins) origins[(i - begin) / BLOCK] = part.sum.sum == 0 ? NOTHING : part.sum.origin.value();
        }
        return true;
    }

    bool finish(const Row<T>& row, Part* parts, int count, Scratch<C>&) const {
        ExpSum<C> sum;
        for (int i = 0; i < count; ++i) sum.merge(parts[i].sum);
        double mass = sum.sum, uniform = 0;
        if (kind == Kind::elastic) mass += std::exp(row.theta - sum.origin.value());
        if (kind == Kind::rectified && mass == 0 && row.theta != 0) {
            int64_t allowed = 0;
            for (int64_t i = 0; i < row.n; ++i) allowed += row.score(i) > NOTHING;
            uniform = allowed ? 1.0 / double(allowed) : 0.0;
        }
        LogSum result = {};
        if (with_conjugate) {
            result = LogSumExp<T>::result(row, sum, true);
            if (kind == Kind::elastic && result.maximum > NOTHING) {
                const double sink = row.theta - result.maximum;
                result.log_sum = sink > 0 ? sink + std::log1p(std::exp(result.log_sum - sink))
                                          : std::log1p(std::expm1(result.log_sum) + std::exp(sink));
            }
        }
        for (int i = 0; i < count; ++i) {
            parts[i].sum = sum;
            parts[i].mass = mass;
            parts[i].uniform = uniform;
            parts[i].top = result.maximum;
            parts[i].conjugate = result.log_sum;
        }
        return true;
    }

    bool emit(const Row<T>& row, int64_t begin, int64_t end, Part& part, Scratch<C>& scratch) const {
        const double* origins = can_keep && end - begin > BLOCK ? scratch.origins.at_least(0) : nullptr;
        const double mass = part.mass == 0 ? 1.0 : part.mass, origin = part.sum.origin.value();  // a row of zeros stays one
        for (int64_t i = begin; i < end; i += BLOCK) {
            const int64_t length = minimum(BLOCK, end - i);
            if (kind == Kind::rectified && part.uniform > 0) {
                for (int64_t j = i; j < i + length; ++j) narrow(row.score(j) > NOTHING ? part.uniform : 0.0, row.out[j]);
            } else if (can_keep) {
                C* out = reinterpret_cast<C*>(row.out + i);
                const double distance = origins ? origins[(i - begin) / BLOCK] - origin : 0.0;
                const Ratio<C> ratio(distance == 0 ? part.weight : part.weight * std::exp(distance), mass);
                for (int64_t j = 0; j < length; ++j) out[j] = ratio(out[j]);
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

    double probability(const Row<T>&, double score, const Part& part) const {
        return part.mass == 0 ? 0.0 : std::exp(score - part.sum.origin.value()) / part.mass;
    }
};

}  // namespace SOFTMAXIMA_ISA
