// sparsemax, entmax-1.5 and entmax-α of a row: p = relu(βz − λ)^{1/β}, β = α − 1, with λ such that Σp = 1.
//
// With the row's maximum at 0 and Λ = −log p_max, p_i = e^{−Λ} ρ_i^{1/β}, ρ_i = relu(1 + β z_i e^{βΛ}), and the support is
// z > −e^{−βΛ}/β. Only scores within 1/β of the maximum can be in it, and no score is dropped from it by leaving others out: so
// candidates are collected in one pass, against a bound that rises as they are, and Λ is solved for on the few that are left.
#pragma once

#include "exponential.h"
#include "near_zero.h"

namespace SOFTMAXIMA_ISA {

// The threshold of a row.
struct Threshold {
    double edge = 0;               // scores above it, less the row's maximum, are the support
    double level = 0, growth = 1;  // Λ, e^{βΛ}
    double share = 0;              // with a share, p is the mixture with the one at the next Λ: see Entmax
    double next_level = 0, next_growth = 1;
    double weight = 1;  // a factor of the probabilities
    double rest = 0;    // what the threshold is above the edge by, less than its rounding: see Sparsemax
};

// Each family has
//   reach()                                how far below the maximum the support can go,
//   lower_bound(gaps, count, lowest, all)  an edge at or below the threshold's, found quickly; a coarse one does where more gaps will come,
//   solve(gaps, count, lowest, lost)       the threshold, found exactly, or where it is costly so that Σp lacks no more than is lost,
//   offset(threshold)                      (e^{−βΛ} − 1)/β, which the conjugate is made of,
//   probabilities(gaps, count, threshold)  p, in the place of the gaps,
// and tells whether its probabilities are costly. They are given scores less their maximum, to which −∞ is added until their number
// is a multiple of PADDING, and an edge that the support is known to be above.
constexpr int64_t PADDING = 16;

template <class V>
int64_t pad(V* gaps, int64_t count) {
    const int64_t padded = (count + PADDING - 1) / PADDING * PADDING;
    for (int64_t i = count; i < padded; ++i) gaps[i] = -std::numeric_limits<V>::infinity();
    return padded;
}

// What rounding may add to the mean of so many gaps: the vectors of a sum have 4 numbers or more.
template <class V>
inline V slack(int64_t count) {
    const int64_t additions = count / 4 + 8;
    return std::numeric_limits<V>::epsilon() * V(additions);
}

// Above the edge by more than its rounding: what is less than that is 0 if it is anything.
inline double above_rounding(double edge) { return edge * (1 - 16 * std::numeric_limits<double>::epsilon()); }

// A number of C that is not above the value: a bound may let too much pass, never too little.
template <class C>
C below(double value) {
    constexpr double epsilon = std::numeric_limits<C>::epsilon();
    return C(value - (std::fabs(value) * epsilon * 2 + double(std::numeric_limits<C>::min())));
}

// Adds a term, in double with what the rounding lost: a sum of masses counts once for every score of the support.
inline void add_mass(float term, float& sum, float&) { sum += term; }

inline void add_mass(double term, double& sum, double& lost) { add_exactly(term, sum, lost); }

// Several rows, whose thresholds are found one after the other.
template <class Family, int64_t WIDTH>
struct OneByOne {
    double beta[WIDTH];

    // The edges, and where there is room for it from where to solve.
    void raise(const float* const* gaps, const int64_t* counts, bool all, float* edges, double* starts) const {
        for (int64_t j = 0; j < WIDTH; ++j) {
            if (counts[j] > 0) edges[j] = Family(nullptr).lower_bound(gaps[j], counts[j], edges[j], all);
            if (starts && double(edges[j]) > starts[j]) starts[j] = double(edges[j]);
        }
    }

    void solve(const double* const* gaps, const int64_t* counts, const double* starts, double lost, Threshold* thresholds) const {
        for (int64_t j = 0; j < WIDTH; ++j)
            if (counts[j] > 0) thresholds[j] = Family(nullptr).solve(gaps[j], counts[j], starts[j], lost);
    }
};

struct Sparsemax {
    template <int64_t WIDTH>
    using Together = OneByOne<Sparsemax, WIDTH>;
    static constexpr double beta = 1;
    static constexpr bool costly = false;

    static constexpr double reach() { return 1; }

    explicit Sparsemax(const double*) {}

    // Of the gaps above an edge: Σ (gap − edge) − 1, how many they are, and the least.
    template <class V>
    struct Sums {
        V excess = 0, kept = 0, least = 0;

        Sums(const V* gaps, int64_t count, V edge) {
            V sum = 0, lost = 0, inside = 0, lowest = 0;
#pragma omp simd reduction(+ : sum, lost, inside) reduction(min : lowest)
            for (int64_t i = 0; i < count; ++i) {
                const bool above = gaps[i] > edge;
                const V gap = above ? gaps[i] : V(0);
                add_mass(above ? gaps[i] - edge : V(0), sum, lost);
                inside += above ? V(1) : V(0);
                lowest = gap < lowest ? gap : lowest;
            }
            excess = sum - 1 + lost;
            kept = inside;
            least = lowest;
        }
    };

    // Newton's from an edge that is not above the threshold, nor is the next then. Where it leaves no score behind that was above the edge,
    // edge + move is the threshold, of whose many digits each counts once for every score of the support: so it remains a sum of two, the
    // excess small beside the 1 that it was told apart from. A step that rounding would take back ends at the edge.
    template <class V>
    struct Step {
        V move, next, settled;

        Step(V edge, V excess, V kept, V least) {
            constexpr bool exact = sizeof(V) == sizeof(double);
            const V newton = excess / kept;
            const bool back = !(newton > 0), all = least - edge > newton, small = !exact || excess < 1;
            const V sure = edge + newton + 8 * std::numeric_limits<V>::epsilon() * edge;  // whatever rounding has done
            move = back ? V(0) : newton;
            next = !all && least > sure ? least : sure;
            settled = back || (all && small) ? V(1) : V(0);
        }
    };

    float lower_bound(const float* gaps, int64_t count, float lowest, bool) const {
        for (float edge = lowest;;) {
            const Sums<float> sums(gaps, count, edge);
            const Step<float> step(edge, sums.excess, sums.kept, sums.least);
            if (step.settled > 0) return edge + step.move - slack<float>(count);
            edge = step.next;
        }
    }

    Threshold solve(const double* gaps, int64_t count, double lowest, double) const {
        for (double edge = lowest;;) {
            const Sums<double> sums(gaps, count, edge);
            const Step<double> step(edge, sums.excess, sums.kept, sums.least);
            if (step.settled > 0) {
                Threshold threshold{edge};
                add_exactly(step.move, threshold.edge, threshold.rest);
                return threshold;
            }
            edge = step.next;
        }
    }

    double offset(const Threshold& threshold) const { return -threshold.rest - threshold.edge - 1; }

    static inline double share(double gap, double edge, double rest) {
        const double p = gap - edge - rest;
        return p > 0 ? p : 0.0;
    }

    void probabilities(double* gaps, int64_t count, const Threshold& threshold) const {
        const double edge = threshold.edge, rest = threshold.rest;
        for (int64_t i = 0; i < count; ++i) gaps[i] = share(gaps[i], edge, rest);
    }
};

struct Entmax15 {
    template <int64_t WIDTH>
    using Together = OneByOne<Entmax15, WIDTH>;
    static constexpr double beta = 0.5;
    static constexpr bool costly = false;
    static constexpr int MOST_STEPS = 60;

    static constexpr double reach() { return 2; }

    explicit Entmax15(const double*) {}

    // With roots = (gap − edge)/2 of those above the edge.
    template <class V>
    struct Sums {
        V roots = 0, mass = 0, kept = 0, least = 0;

        Sums(const V* gaps, int64_t count, V edge) {
            V sum = 0, squares = 0, lost = 0, inside = 0, lowest = 0;
#pragma omp simd reduction(+ : sum, squares, lost, inside) reduction(min : lowest)
            for (int64_t i = 0; i < count; ++i) {
                const bool above = gaps[i] > edge;
                const V root = above ? (gaps[i] - edge) / 2 : V(0), gap = above ? gaps[i] : V(0);
                sum += root;
                add_mass(root * root, squares, lost);
                inside += above ? V(1) : V(0);
                lowest = gap < lowest ? gap : lowest;
            }
            roots = sum;
            mass = squares + lost;
            kept = inside;
            least = lowest;
        }

        // Newton's on the norm √Σp, which is convex in the edge and so never passed from the left.
        V step() const { return 2 * (mass - std::sqrt(mass)) / roots; }
    };

    float lower_bound(const float* gaps, int64_t count, float lowest, bool) const {
        float edge = lowest;
        for (int step = 0; step < MOST_STEPS; ++step) {
            const float move = Sums<float>(gaps, count, edge).step();
            edge += move > 0 ? move : 0.0f;
            if (!(move > 1e-2f)) break;
        }
        return edge - 2 * slack<float>(count);
    }

    // Newton, until the root of the quadratic Σ (√p − δ)² = 1 over the candidates leaves each of them in the support: then it is exact.
    Threshold solve(const double* gaps, int64_t count, double lowest, double) const {
        double edge = lowest;
        for (int step = 0; step < MOST_STEPS; ++step) {
            const Sums<double> sums(gaps, count, edge);
            const double discriminant = sums.roots * sums.roots - sums.kept * (sums.mass - 1);
            if (discriminant >= 0) {
                const double exact = edge + 2 * (sums.mass - 1) / (sums.roots + std::sqrt(discriminant));
                if (sums.least > exact) return {exact};
            }
            const double move = sums.step();
            if (move <= 1e-16) break;
            edge += move;
        }
        return {edge};
    }

    double offset(const Threshold& threshold) const { return -threshold.edge - 2; }

    static inline double share(double gap, double edge, double) {
        const double root = gap > above_rounding(edge) ? (gap - edge) / 2 : 0.0;
        return root * root;
    }

    void probabilities(double* gaps, int64_t count, const Threshold& threshold) const {
        const double edge = threshold.edge;
        for (int64_t i = 0; i < count; ++i) gaps[i] = share(gaps[i], edge, 0);
    }
};

// Any α ≥ 1. For β ≤ 1, (Σp)^β is a norm, convex in u = e^{−βΛ}, and Halley's step on it is taken. For β > 1 the step is Newton's on
// log Σp, and every third step bisects. There a score enters with infinite slope: where neighbouring Λ leave a jump of Σp across 1,
// p is their mixture.
struct Entmax {
    static constexpr int MOST_STEPS = 200;  // of which a third shrinks the bracket below the rounding of Λ
    static constexpr int ROUGH_STEPS = 12, COARSE_STEPS = 2;
    static constexpr double NEAR_START = 0.02;  // of u, how far a start may be from its edge
    static constexpr double ROUGH = 5e-5;       // of Σp, what a rough bound may leave beside its roundings
    static constexpr double SMALLEST_EDGE = 1e-30, SMALLEST_ROUGH = 0x1p-6;
    static constexpr bool costly = true;

    double beta;

    explicit Entmax(double order) : beta(order) {}

    explicit Entmax(const double* alpha) : Entmax(*alpha - 1) {}

    double reach() const { return 1 / beta; }

    struct Mass {
        double mass, slope, curve;  // Σp, Σp/ρ, Σp/ρ²
    };

    // log p and 1/ρ, p = 0 where ρ is. Large powers of ρ make much of its last digit, so what Σp is solved with and p itself have one ρ.
    [[gnu::always_inline]] static inline double log_share(double gap, double scale, double inverse, double level, double& inverse_rho) {
        const double factor = gap == 0 ? 0.0 : scale, rho = product_sum(gap, factor, 1.0);
        inverse_rho = 1 / rho;
        // log(1 + ratio) = log ρ + lost, also for small ratios; for large ones the difference would be rounded itself.
        const double lost = rho > 0.5 ? product_sum(gap, factor, 1 - rho) * inverse_rho : 0.0;
        return rho > std::numeric_limits<double>::epsilon() ? (log_of_normal(rho) + lost) * inverse - level : NOTHING;
    }

    Mass evaluate(const double* gaps, int64_t count, double level, double growth) const {
        const Exponential<double> exp(Origin<double>{});
        double mass = 0, slope = 0, curve = 0;
        if (beta == 0) {
#pragma omp simd reduction(+ : mass)
            for (int64_t i = 0; i < count; ++i) mass += exp(gaps[i] - level);
            return {mass, mass, mass};
        }
        const double scale = beta * growth, inverse = 1 / beta;
        const int64_t half = count / 2;  // two at a time, for log and exp are long chains of operations
#pragma omp simd reduction(+ : mass, slope, curve)
        for (int64_t i = 0; i < half; ++i) {
            double first, second;  // 1/ρ
            const double p = exp(log_share(gaps[i], scale, inverse, level, first));
            const double q = exp(log_share(gaps[i + half], scale, inverse, level, second));
            const double p_slope = p > 0 ? p * first : 0.0, q_slope = q > 0 ? q * second : 0.0;
            mass += p + q;
            slope += p_slope + q_slope;
            curve += p_slope * first + q_slope * second;
        }
        return {mass, slope, curve};
    }

    // With ρ = relu(1 + gap · scale), each power to 2^-18.
    struct RoughMass {
        double mass, slope, curve;  // Σ ρ^{1/β}, Σ ρ^{1/β − 1}, Σ ρ^{1/β − 2}
    };

    RoughMass evaluate_roughly(const float* gaps, int64_t count, float scale) const {
        using F = Format<float>;
        constexpr uint32_t sqrt_half = 0x3f3504f3u;
        constexpr float least = -126;  // of a number that is normal
        const float exponent = float(1 / beta - 2);
        float mass = 0, slope = 0, curve = 0;
#pragma omp simd reduction(+ : mass, slope, curve)
        for (int64_t i = 0; i < count; ++i) {
            const float ratio = gaps[i] < 0 ? gaps[i] * scale : 0.0f, rho = ratio > -1 ? 1 + ratio : 0.0f;
            const float inside = rho > std::numeric_limits<float>::epsilon() ? 1.0f : 0.0f, base = inside > 0 ? rho : 1.0f;
            const uint32_t offset = bit_cast<uint32_t>(base) - sqrt_half;
            const float f = bit_cast<float>((offset & 0x7fffffu) + sqrt_half) - 1, e = float(int32_t(offset) >> F::mantissa);
            float q = 0.1716244519f;
            q = -0.2693202794f + f * q;
            q = 0.2956995666f + f * q;
            q = -0.3593716323f + f * q;
            q = 0.4806267619f + f * q;
            q = -0.7213636041f + f * q;
            q = 1.442696452f + f * q;
            const float wanted = exponent * (e + f * q), power = wanted > least ? wanted : least;  // log₂ ρ^{1/β − 2}
            const float shifted = power + F::magic, r = power - (shifted - F::magic);
            float t = 0.0095701013f;
            t = 0.0559178628f + r * t;
            t = 0.2402474433f + r * t;
            t = 0.6931217909f + r * t;
            t = 0.9999992847f + r * t;
            const float two = bit_cast<float>((bit_cast<uint32_t>(shifted) << F::mantissa) + (uint32_t(F::bias) << F::mantissa));
            const float own = inside * (two * t);
            curve += own;
            slope += own * rho;
            mass += own * rho * rho;
        }
        return {double(mass), double(slope), double(curve)};
    }

    // Whether a score is so near the edge of the support that only the last digits tell on which side it is.
    static bool is_near_one(const double* gaps, int64_t count, double edge) {
        int near = 0;
#pragma omp simd reduction(| : near)
        for (int64_t i = 0; i < count; ++i) near |= std::fabs(gaps[i] - edge) <= 1e-7 * -edge;
        return near != 0;
    }

    // Several rows at a time, for what is done once a row is then done in vectors. A row that is none has no gaps.
    template <int64_t WIDTH>
    struct Together {
        alignas(LINE) double beta[WIDTH];

        // In u = e^{−βΛ}, in which (Σp)^β = u (Σ ρ^{1/β})^β. A start, unlike an edge, need not be known to be low enough: near the root it is
        // a step ahead, which spares a look at the scores.
        void raise(const float* const* gaps, const int64_t* counts, bool all, float* edges, double* starts) const {
            constexpr double wider = 1 + 4 * std::numeric_limits<float>::epsilon();
            alignas(LINE) double u[WIDTH], low[WIDTH], high[WIDTH], rough[WIDTH], open[WIDTH], mass[WIDTH], slope[WIDTH], curve[WIDTH];
            alignas(LINE) double start[WIDTH] = {};
            const double near = starts ? NEAR_START : 0.0;
            double left = 0;
            for (int64_t j = 0; j < WIDTH; ++j) {
                low[j] = double(counts[j] > 0 ? counts[j] : 1);
                high[j] = -beta[j] * wider * edges[j];
                rough[j] = 2 * slack<float>(counts[j]);
                open[j] = counts[j] > 0 && beta[j] >= SMALLEST_ROUGH ? 1.0 : 0.0;  // below that few scores would be dropped
                left += open[j];
                mass[j] = slope[j] = curve[j] = 1;
            }
#pragma omp simd
            for (int64_t j = 0; j < WIDTH; ++j) {
                const double most = log(low[j]), highest = high[j];
                rough[j] += 2e-6 * (2 + most);
                high[j] = u[j] = highest < 1 ? highest : 1.0;
                low[j] = exp(-beta[j] * most);
            }
            for (int step = 0; step < (all ? ROUGH_STEPS : COARSE_STEPS) && left > 0; ++step) {
                for (int64_t j = 0; j < WIDTH; ++j) {
                    if (open[j] == 0) continue;
                    const RoughMass at = Entmax(beta[j]).evaluate_roughly(gaps[j], counts[j], float(beta[j] / u[j]));
                    mass[j] = at.mass;
                    slope[j] = at.slope;
                    curve[j] = at.curve;
                }
                left = 0;
#pragma omp simd reduction(+ : left)
                for (int64_t j = 0; j < WIDTH; ++j) {
                    const double own = u[j], excess = 1 - exp(-beta[j] * log(mass[j])) / own;  // 1 − (Σp)^{−β}
                    const double spread = mass[j] / slope[j], enough = beta[j] * rough[j] + 2e-7 / spread, target = enough + ROUGH * beta[j];
                    const bool is_open = open[j] > 0, is_high = excess >= enough;
                    const double above = (is_open & is_high) ? own : high[j], below = (is_open & !is_high) ? own : low[j];
                    const double newton = excess * spread, half = newton * (1 / beta[j] - 1) * (curve[j] / slope[j] - 1 / spread) / 2;
                    const double root = own * (1 - newton / (1 - (half < 0.5 ? half : 0.5))), next = root * (1 + target * spread);
                    const bool found = is_high & ((excess < target + ROUGH * beta[j]) | ((newton < near) & (beta[j] <= 1)));
                    const double taken = ((next > below) & (next < above)) ? next : (below + above) / 2;
                    high[j] = above;
                    low[j] = below;
                    u[j] = (is_open & !found) ? taken : own;
                    start[j] = (is_open & found) ? root : start[j];
                    open[j] = (is_open & !found) ? 1.0 : 0.0;
                    left += open[j];
                }
            }
            for (int64_t j = 0; j < WIDTH; ++j) {
                // Where the edge is near 0 it depends on gaps that are too small for a float, which are 0 here.
                const double edge = high[j] / beta[j];
                if (beta[j] < SMALLEST_ROUGH || edge < SMALLEST_EDGE) continue;
                edges[j] = -float(wider * edge);
                if (starts) starts[j] = start[j] > 0 ? -start[j] / beta[j] : double(edges[j]);
            }
        }

        void solve(const double* const* gaps, const int64_t* counts, const double* starts, double lost, Threshold* thresholds) const {
            alignas(LINE) double level[WIDTH], growth[WIDTH], low[WIDTH], high[WIDTH], open[WIDTH], mass[WIDTH], slope[WIDTH], curve[WIDTH];
            alignas(LINE) double newton[WIDTH], less[WIDTH], settled[WIDTH], taken[WIDTH], edge[WIDTH], low_growth[WIDTH], high_growth[WIDTH];
            double left = 0;
            for (int64_t j = 0; j < WIDTH; ++j) {
                open[j] = counts[j] > 0 ? 1.0 : 0.0;
                left += open[j];
                high[j] = double(counts[j] > 0 ? counts[j] : 1);
                low[j] = 0;
                low_growth[j] = 1;
                mass[j] = slope[j] = curve[j] = 1;
            }
#pragma omp simd
            for (int64_t j = 0; j < WIDTH; ++j) {
                const double start = -log(-beta[j] * starts[j]) / beta[j];
                level[j] = ((beta[j] > 0) & (-beta[j] * starts[j] < 1)) ? start : 0.0;
                high[j] = log(high[j]);
                high_growth[j] = exp(beta[j] * high[j]);
            }
            for (int step = 0; step < MOST_STEPS && left > 0; ++step) {
                for (int64_t j = 0; j < WIDTH; ++j) growth[j] = exp(beta[j] * level[j]);
                for (int64_t j = 0; j < WIDTH; ++j) {
                    if (open[j] == 0) continue;
                    const Mass at = Entmax(beta[j]).evaluate(gaps[j], counts[j], level[j], growth[j]);
                    mass[j] = at.mass;
                    slope[j] = at.slope;
                    curve[j] = at.curve;
                }
                const bool third = step % 3 == 2;
#pragma omp simd
                for (int64_t j = 0; j < WIDTH; ++j) {
                    const double order = beta[j], own = level[j], of_mass = mass[j], of_slope = slope[j], log_mass = log(of_mass);
                    const bool is_open = open[j] > 0, convex = (order > 0) & (order <= 1), steep = order > 1;
                    const double below = (is_open & (of_mass >= 1)) ? own : low[j], above = (is_open & (of_mass <= 1)) ? own : high[j];
                    // Of a convex one as shares of u: Newton's step, N''/N' with which Halley's follows, and an upper bound of it.
                    const double share = -of_mass * expm1(-order * log_mass) / of_slope, steepness = curve[j] / of_slope;
                    const double bend = (1 / order - 1) * (steepness - of_slope / of_mass), half = share * bend / 2;
                    const double halley = own - log1p(-share / (1 - (half < 0.5 ? half : 0.5))) / order;
                    const double next = convex ? halley : own + of_mass * log_mass / of_slope;
                    // What is lost if it is taken for the last.
                    less[j] = convex ? std::fabs(share * share * (steepness / order)) / order * of_slope : of_slope;
                    const double error = std::fabs(of_mass - 1), move = std::fabs(next - own), rounding = 4e-16 * (own > 1 ? own : 1.0);
                    const bool still = (move <= rounding) & (!steep | (error <= 1e-12));
                    settled[j] = ((error <= 1e-15) | (above - below <= rounding) | still) ? 1.0 : 0.0;
                    const bool accept = (next > below) & (next < above) & !(steep & third);
                    newton[j] = next;
                    taken[j] = accept ? next : (below + above) / 2;
                    low_growth[j] = (is_open & (of_mass >= 1)) ? growth[j] : low_growth[j];
                    high_growth[j] = (is_open & (of_mass <= 1)) ? growth[j] : high_growth[j];
                    low[j] = below;
                    high[j] = above;
                    edge[j] = -exp(-order * next) / order;
                }
                left = 0;
                for (int64_t j = 0; j < WIDTH; ++j) {
                    if (open[j] == 0) continue;
                    const bool last = settled[j] == 0 && (less[j] <= 1e-15 || (less[j] <= lost && !is_near_one(gaps[j], counts[j], edge[j])));
                    if (last) {
                        level[j] = newton[j];
                        mass[j] = 1;
                    } else if (settled[j] == 0) {
                        level[j] = taken[j];
                    }
                    open[j] = last || settled[j] > 0 ? 0.0 : 1.0;
                    left += open[j];
                }
            }
            for (int64_t j = 0; j < WIDTH; ++j) {
                edge[j] = beta[j] == 0 ? -std::numeric_limits<double>::infinity() : -exp(-beta[j] * level[j]) / beta[j];
                growth[j] = exp(beta[j] * level[j]);
            }
            for (int64_t j = 0; j < WIDTH; ++j) {
                thresholds[j] = {edge[j], level[j], growth[j]};
                if (std::fabs(mass[j] - 1) > 1e-12)
                    thresholds[j] = Entmax(beta[j]).between(gaps[j], counts[j], low[j], low_growth[j], high[j], high_growth[j]);
            }
        }
    };

    float lower_bound(const float* gaps, int64_t count, float lowest, bool all) const {
        Together<1>{{beta}}.raise(&gaps, &count, all, &lowest, nullptr);
        return lowest;
    }

    Threshold solve(const double* gaps, int64_t count, double lowest, double lost) const {
        Threshold threshold;
        Together<1>{{beta}}.solve(&gaps, &count, &lowest, lost, &threshold);
        return threshold;
    }

    // The mixture of two neighbouring levels.
    Threshold between(const double* gaps, int64_t count, double low, double growth, double high, double next_growth) const {
        const double excess = evaluate(gaps, count, low, growth).mass - 1, lack = 1 - evaluate(gaps, count, high, next_growth).mass;
        const double edge = beta == 0 ? -std::numeric_limits<double>::infinity() : -std::exp(-beta * low) / beta;
        return {edge, low, growth, lack > 0 ? excess / (excess + lack) : 0.0, high, next_growth};
    }

    double offset(const Threshold& threshold) const { return beta == 0 ? -threshold.level : std::expm1(-beta * threshold.level) / beta; }

    // p at one level. The results may take the place of the gaps.
    void at_level(const double* gaps, int64_t count, double level, double growth, double* p) const {
        if (beta != 0) return powers(gaps, count, growth, 1 / beta, level, p);
        const Exponential<double> exp(Origin<double>{});
#pragma omp simd
        for (int64_t i = 0; i < count; ++i) p[i] = exp(gaps[i] - level);
    }

    // e^{−less} ρ^inverse
    void powers(const double* gaps, int64_t count, double growth, double inverse, double less, double* p) const {
        const Exponential<double> exp(Origin<double>{});
        const double scale = beta * growth;
        // For β > 1 not even that is little.
        const double lowest = beta > 0 && beta <= 1 ? above_rounding(-1 / scale) : -std::numeric_limits<double>::infinity();
        const auto one = [=](double gap) __attribute__((always_inline)) {
            double unused;
            const double p = exp(log_share(gap, scale, inverse, less, unused));
            return gap > lowest ? p : 0.0;
        };
        const int64_t half = count / 2;
#pragma omp simd
        for (int64_t i = 0; i < half; ++i) {
            const double first = one(gaps[i]), second = one(gaps[i + half]);
            p[i] = first;
            p[i + half] = second;
        }
    }

    void probabilities(double* gaps, int64_t count, const Threshold& threshold) const {
        if (threshold.share == 0) return at_level(gaps, count, threshold.level, threshold.growth, gaps);
        for (int64_t i = 0; i < count; i += PADDING) {
            double next[PADDING];
            at_level(gaps + i, PADDING, threshold.next_level, threshold.next_growth, next);
            at_level(gaps + i, PADDING, threshold.level, threshold.growth, gaps + i);
            for (int64_t j = 0; j < PADDING; ++j) gaps[i + j] += threshold.share * (next[j] - gaps[i + j]);
        }
    }
};

template <class T, class Family>
struct ThresholdMap {
    using C = compute_t<T>;
    static constexpr bool anchored = false;
    static constexpr int64_t TIGHTEN = 256;  // candidates that are worth thinning out while more are collected
    static constexpr int64_t FEW = 16;       // candidates that are not worth it before the threshold is solved for

    struct Part {
        C* candidates;
        int64_t count;
        bool nan;
        C maximum, bound;
        Threshold threshold;
        bool empty;        // nothing allowed
        double weight;     // a factor of the probabilities
        double top;        // the largest x
        double conjugate;  // Ω*(z) less it, where it is asked for
    };

    bool with_conjugate = false;

    static Tsallis regulariser(const Row<T>& row) { return {Family(row.theta).beta}; }

    bool scan(const Row<T>& row, int64_t begin, int64_t end, Part& part, Scratch<C>& scratch) const {
        const Family family(row.theta);
        C* candidates = scratch.candidates.at_least(end - begin + LOOK);
        if (!candidates) return false;
        C top = highest(row.raw(begin, minimum(BLOCK, end - begin), scratch.high), minimum(BLOCK, end - begin));
        C bound = farthest(family, top, row.tau);
        int64_t count = 0, limit = TIGHTEN;
        bool nan = false;
        for (int64_t i = begin; i < end; i += BLOCK) {
            const int64_t length = minimum(BLOCK, end - i);
            const C* block = row.raw(i, length, scratch.high);
            row.prefetch_after(i, length);
            for (int64_t j = 0; j < length; j += LOOK) {
                const C* values = block + j;
                const int64_t look = minimum(LOOK, length - j);
                uint64_t found = above(values, look, bound);
                if (!found) continue;
                const C high = i == begin ? top : highest(values, look);
                if (high > top) {
                    top = high;
                    const C raised = farthest(family, top, row.tau);
                    if (raised > bound) found = above(values, look, bound = raised);
                }
                for_each_bit(found, [&](int64_t k) { candidates[count++] = values[k]; });
                nan |= any_nan(values, look);
                if (count > limit && !nan) {
                    if (!thin(family, row, top, bound, candidates, count, false, scratch)) return false;
                    limit = 2 * count > TIGHTEN ? 2 * count : TIGHTEN;
                }
            }
        }
        part.candidates = candidates;
        part.count = count;
        part.nan = nan;
        part.maximum = top;
        part.bound = bound;
        return true;
    }

    bool finish(const Row<T>& row, Part* parts, int count, Scratch<C>& scratch) const {
        const Family family(row.theta);
        C top = -std::numeric_limits<C>::infinity(), bound = top;
        int64_t candidates = 0;
        bool nan = false;
        for (int i = 0; i < count; ++i) {
            top = parts[i].maximum > top ? parts[i].maximum : top;
            bound = parts[i].bound > bound ? parts[i].bound : bound;
            candidates += parts[i].count;
            nan |= parts[i].nan;
        }
        nan |= top == std::numeric_limits<C>::infinity();
        const bool empty = !nan && top == -std::numeric_limits<C>::infinity();
        Threshold threshold;
        double conjugate = 0;
        if (!nan && !empty) {
            candidates = 0;
            for (int i = 0; i < count; ++i) {
                if (parts[i].count > FEW && !thin(family, row, top, bound, parts[i].candidates, parts[i].count, count == 1, scratch)) return false;
                candidates += parts[i].count;
            }
            double* gaps = scratch.gaps.at_least(2 * (candidates + PADDING));
            if (!gaps) return false;
            int64_t filled = 0;
            for (int i = 0; i < count; ++i)
                for (int64_t k = 0; k < parts[i].count; ++k) gaps[filled++] = gap(parts[i].candidates[k], double(top), row.scale);
            filled = pad(gaps, filled);
            // What is rounded to C need not be more exact; a conjugate is kept in double.
            const double lost = sizeof(C) == sizeof(double) || with_conjugate ? 1e-15 : 0x1p-25;
            threshold = family.solve(gaps, filled, lowest(family, bound, top, row.scale), lost);
            if (with_conjugate) {
                double* p = gaps + filled;
                std::memcpy(p, gaps, size_t(filled) * sizeof(double));
                family.probabilities(p, filled, threshold);
                double mean = 0, rounded = 0;  // Σ p z
#pragma omp simd reduction(+ : mean, rounded)
                for (int64_t k = 0; k < filled; ++k) add_exactly(p[k] > 0 ? p[k] * gaps[k] : 0.0, mean, rounded);
                conjugate = (family.beta * (mean + rounded) - family.offset(threshold)) / (1 + family.beta);
            }
        }
        for (int i = 0; i < count; ++i) {
            parts[i].nan = nan;
            parts[i].empty = empty;
            parts[i].maximum = top;
            parts[i].threshold = threshold;
            parts[i].weight = threshold.weight;
            parts[i].top = double(top);
            parts[i].conjugate = nan ? std::numeric_limits<double>::quiet_NaN() : conjugate;
        }
        return true;
    }

    bool emit(const Row<T>& row, int64_t begin, int64_t end, Part& part, Scratch<C>& scratch) const {
        for (int64_t i = begin; i < end; i += BLOCK) {
            const int64_t length = minimum(BLOCK, end - i);
            if constexpr (sizeof(T) == sizeof(C)) {
                probabilities(row, i, length, part, row.out + i, scratch);
            } else {
                C block[BLOCK];
                probabilities(row, i, length, part, block, scratch);
                for (int64_t j = 0; j < length; ++j) narrow(block[j], row.out[i + j]);
            }
        }
        return true;
    }

    void probabilities(const Row<T>& row, int64_t begin, int64_t length, const Part& part, C* to, Scratch<C>& scratch) const {
        if (part.nan || part.empty) {
            for (int64_t j = 0; j < length; ++j) to[j] = part.nan ? std::numeric_limits<C>::quiet_NaN() : C(0);
            return;
        }
        const Family family(row.theta);
        const Threshold threshold = part.threshold;
        const C bound = below<C>(double(part.maximum) + threshold.edge * row.tau);
        const double top = double(part.maximum), scale = row.scale, weight = part.weight;
        const C* values = row.raw(begin, length, scratch.high);
        double p[BLOCK];
        int32_t positions[BLOCK];
        int64_t count = 0;
        for (int64_t j = 0; j < length; j += LOOK) {
            const int64_t look = minimum(LOOK, length - j);
            const uint64_t found = above(values + j, look, bound);
            if (found == 0 || Family::costly) {
                clear(to + j, look);
                for_each_bit(found, [&](int64_t k) { positions[count++] = int32_t(j + k); });
            } else if (std::is_same_v<Family, Sparsemax> && sizeof(C) < sizeof(double) && row.tau == 1.0) {
                // The difference of two numbers of C is rounded once, and what the threshold has beyond C is taken off after.
                const C high = C(top + threshold.edge), low = C((top - double(high)) + threshold.edge + threshold.rest), factor = C(weight);
                for (int64_t k = j; k < j + look; ++k) {
                    const C excess = (values[k] - high) - low;
                    to[k] = excess > 0 ? excess * factor : C(0);
                }
            } else {
                for (int64_t k = 0; k < look; ++k) p[k] = gap(values[j + k], top, scale);
                family.probabilities(p, look, threshold);
                for (int64_t k = 0; k < look; ++k) to[j + k] = C(p[k] * weight);
            }
        }
        if (count == 0) return;
        for (int64_t k = 0; k < count; ++k) p[k] = gap(values[positions[k]], top, scale);
        family.probabilities(p, pad(p, count), threshold);
        for (int64_t k = 0; k < count; ++k) to[positions[k]] = C(p[k] * weight);
    }

    // Of one class.
    Likelihood likelihood(const Row<T>& row, int64_t c, const Part& part) const {
        double p[PADDING] = {row.gap_above(c, part.top)};
        Family(row.theta).probabilities(p, PADDING, part.threshold);
        const double own = part.nan ? std::numeric_limits<double>::quiet_NaN() : p[0];
        return {own, 1 - own};
    }

   private:
    // Raises the bound, and drops the candidates below it.
    static bool thin(const Family& family, const Row<T>& row, C top, C& bound, C* candidates, int64_t& count, bool all, Scratch<C>& scratch) {
        float* gaps = scratch.rough.at_least(count + PADDING);
        if (!gaps) return false;
        for (int64_t k = 0; k < count; ++k) gaps[k] = float(gap(candidates[k], double(top), row.scale));
        const float edge = family.lower_bound(gaps, pad(gaps, count), float(lowest(family, bound, top, row.scale)), all);
        const C raised = below<C>(double(top) + double(edge) * row.tau);
        bound = raised > bound ? raised : bound;
        int64_t kept = 0;
        for (int64_t k = 0; k < count; ++k) {
            candidates[kept] = candidates[k];
            kept += candidates[k] > bound;
        }
        count = kept;
        return true;
    }

    // What no score of the support can be below.
    static C farthest(const Family& family, C top, double tau) { return below<C>(double(top) - family.reach() * tau); }

    // A bound as a gap. C may be too coarse to say how far the support can go.
    static double lowest(const Family& family, C bound, C top, double scale) {
        const double own = gap(bound, double(top), scale), reach = -family.reach();
        return own > reach ? own : reach;
    }
};

}  // namespace SOFTMAXIMA_ISA
