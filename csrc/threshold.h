// sparsemax, entmax-1.5 and entmax-α of a row: p = relu(βz − λ)^{1/β}, β = α − 1, with λ such that Σp = 1.
//
// With the row's maximum at 0 and Λ = −log p_max, p_i = e^{−Λ} ρ_i^{1/β}, ρ_i = relu(1 + β z_i e^{βΛ}), and the support is
// z > −e^{−βΛ}/β. Only scores within 1/β of the maximum can be in it, and no score is dropped from it by leaving others out: so
// candidates are collected in one pass, against a bound that rises as they are, and Λ is solved for on the few that are left.
#pragma once

#include "rows.h"

namespace SOFTMAXIMA_ISA {

// The threshold of a row.
struct Threshold {
    double edge = 0;                // scores above it, less the row's maximum, are the support
    double level = 0, growth = 1;   // Λ, e^{βΛ}
    double share = 0;               // with a share, p is the mixture with the one at the next Λ: see Entmax
    double next_level = 0, next_growth = 1;
};

// A solver is given scores less their maximum, and a bound that the support is known to be above. It may drop scores that it finds
// not to be in the support. The tolerance is for the last step, in nats.
// offset is (e^{−βΛ} − 1)/β, which the conjugate is made of.

struct Sparsemax {
    static constexpr double beta = 1;

    static constexpr double reach() { return 1; }  // how far below the maximum the support can go

    explicit Sparsemax(double) {}

    // Michelot: the mean of the candidates says which cannot be in the support, until all can.
    Threshold solve(double* gaps, int64_t& count, double lowest, double) const {
        double lambda = lowest, before = 0;
        for (bool first = true;; first = false) {
            double sum = 0, kept = 0;
#pragma omp simd reduction(+ : sum, kept)
            for (int64_t i = 0; i < count; ++i) {
                sum += gaps[i] > lambda ? gaps[i] : 0.0;
                kept += gaps[i] > lambda ? 1.0 : 0.0;
            }
            if (kept >= before && !first) break;  // more only by rounding, of scores at the very threshold
            lambda = (sum - 1) / kept;
            before = kept;
        }
        Threshold threshold;
        threshold.edge = lambda;
        return threshold;
    }

    double offset(const Threshold& threshold) const { return -threshold.edge - 1; }

    double probability(double gap, const Threshold& threshold) const {
        const double p = gap - threshold.edge;
        return p > 0 ? p : 0.0;
    }
};

struct Entmax15 {
    static constexpr double beta = 0.5;
    static constexpr int MOST_STEPS = 60;

    static constexpr double reach() { return 2; }

    explicit Entmax15(double) {}

    // Newton on the norm √Σp, which is convex in λ and so never passed from the left, until the root of the quadratic
    // Σ (√p − δ)² = 1 over the candidates leaves each of them in the support: then it is exact.
    Threshold solve(double* gaps, int64_t& count, double lowest, double) const {
        double edge = lowest;
        for (int step = 0; step < MOST_STEPS; ++step) {
            double sum = 0, mass = 0, kept = 0, least = 0;
#pragma omp simd reduction(+ : sum, mass, kept) reduction(min : least)
            for (int64_t i = 0; i < count; ++i) {
                const bool inside = gaps[i] > edge;
                const double root = inside ? (gaps[i] - edge) / 2 : 0.0, gap = inside ? gaps[i] : 0.0;
                sum += root;
                mass += root * root;
                kept += inside ? 1.0 : 0.0;
                least = gap < least ? gap : least;
            }
            const double discriminant = sum * sum - kept * (mass - 1);
            if (discriminant >= 0) {
                const double exact = edge + 2 * (mass - 1) / (sum + std::sqrt(discriminant));
                if (least > exact) {
                    edge = exact;
                    break;
                }
            }
            const double move = 2 * (mass - std::sqrt(mass)) / sum;
            if (move <= 1e-16) break;
            edge += move;
        }
        Threshold threshold;
        threshold.edge = edge;
        return threshold;
    }

    double offset(const Threshold& threshold) const { return -threshold.edge - 2; }

    double probability(double gap, const Threshold& threshold) const {
        const double root = (gap - threshold.edge) / 2;
        return root > 0 ? root * root : 0.0;
    }
};

// Any α ≥ 1. For β ≤ 1, (Σp)^β is a norm, convex in e^{−βΛ}, and Newton's step on it never passes the root from the left. For β > 1
// the step is Newton's on log Σp inside a bracket, and every third step bisects it. There a score enters with infinite slope: where
// neighbouring Λ leave a jump of Σp across 1, p is their mixture.
struct Entmax {
    static constexpr int MOST_STEPS = 200;  // of which a third shrinks the bracket below the rounding of Λ

    double beta;

    explicit Entmax(double alpha) : beta(alpha - 1) {}

    double reach() const { return 1 / beta; }

    struct Mass {
        double mass, slope;  // Σp, Σp/ρ
    };

    // log p and 1/ρ, p = 0 where ρ is.
    static double log_share(double gap, double scale, double inverse, double level, double& inverse_rho) {
        const double ratio = gap == 0 ? 0.0 : gap * scale;
        const double rho = 1 + ratio;
        inverse_rho = 1 / rho;
        const double lost = (ratio - (rho - 1)) * inverse_rho;  // log(1 + ratio) = log ρ + lost, also for small ratios
        return rho > 0x1p-52 ? (log_of_normal(rho) + lost) * inverse - level : -std::numeric_limits<double>::infinity();
    }

    Mass evaluate(const double* gaps, int64_t count, double level) const {
        const Exponential<double> exp(Origin<double>{});
        double mass = 0, slope = 0;
        if (beta == 0) {
#pragma omp simd reduction(+ : mass)
            for (int64_t i = 0; i < count; ++i) mass += exp(gaps[i] - level);
            return {mass, mass};
        }
        const double scale = beta * std::exp(beta * level), inverse = 1 / beta;
#pragma omp simd reduction(+ : mass, slope)
        for (int64_t i = 0; i < count; ++i) {
            double inverse_rho;
            const double p = exp(log_share(gaps[i], scale, inverse, level, inverse_rho));
            mass += p;
            slope += p > 0 ? p * inverse_rho : 0.0;
        }
        return {mass, slope};
    }

    double edge(double level) const { return beta == 0 ? -std::numeric_limits<double>::infinity() : -std::exp(-beta * level) / beta; }

    Threshold solve(double* gaps, int64_t& count, double lowest, double tolerance) const {
        const bool convex = beta <= 1;
        double level = beta > 0 && lowest > -1 / beta ? -std::log(-beta * lowest) / beta : 0.0, low = level;
        double high = std::log(double(count));
        Mass at = evaluate(gaps, count, level);
        for (int step = 0; step < MOST_STEPS; ++step) {
            if (at.mass >= 1) {
                low = level;
                const double bound = edge(level);
                int64_t kept = 0;
                for (int64_t i = 0; i < count; ++i) {
                    gaps[kept] = gaps[i];
                    kept += gaps[i] > bound;
                }
                count = kept;
            }
            if (at.mass <= 1) high = level;
            const double error = std::fabs(at.mass - 1), log_mass = std::log(at.mass), ascent = at.mass * log_mass / at.slope;
            double newton = level + ascent;
            if (convex && beta > 0) {
                const double t = -beta * log_mass;
                newton = level - std::log1p(-beta * ascent * (t == 0 ? 1.0 : std::expm1(t) / t)) / beta;
            }
            const double move = std::fabs(newton - level), rounding = 4e-16 * (level > 1 ? level : 1.0);
            if (error <= 1e-15 || high - low <= rounding || (move <= rounding && (convex || error <= 1e-12))) break;
            if (convex && move < tolerance) {  // Newton's next error is of the order of the square of this one
                level = newton;
                at.mass = 1;
                break;
            }
            const bool accept = newton > low && newton < high && (convex || step % 3 != 2);
            level = accept ? newton : (low + high) / 2;
            at = evaluate(gaps, count, level);
        }
        Threshold threshold{edge(level), level, std::exp(beta * level)};
        if (std::fabs(at.mass - 1) > 1e-12) {
            const double excess = evaluate(gaps, count, low).mass - 1, lack = 1 - evaluate(gaps, count, high).mass;
            threshold = {edge(low), low, std::exp(beta * low), lack > 0 ? excess / (excess + lack) : 0.0, high, std::exp(beta * high)};
        }
        return threshold;
    }

    double offset(const Threshold& threshold) const {
        return beta == 0 ? -threshold.level : std::expm1(-beta * threshold.level) / beta;
    }

    double at_level(double gap, double level, double growth) const {
        double unused;
        const double power = beta == 0 ? gap - level : log_share(gap, beta * growth, 1 / beta, level, unused);
        return Exponential<double>(Origin<double>{})(power);
    }

    double probability(double gap, const Threshold& threshold) const {
        const double p = at_level(gap, threshold.level, threshold.growth);
        const double next = threshold.share == 0 ? 0.0 : at_level(gap, threshold.next_level, threshold.next_growth) - p;
        return p + threshold.share * next;
    }
};

template <class T, class Family>
struct ThresholdMap {
    using C = compute_t<T>;
    static constexpr int64_t TIGHTEN = 128;  // candidates that are worth a solve to thin them out

    struct Part {
        const C* candidates;
        int64_t count;
        bool nan;
        C maximum, bound;
        Threshold threshold;
        bool empty;         // nothing allowed
        double weight;  // a factor of the probabilities
        double top;        // the largest z
        double conjugate;  // Ω*(z) less it, where it is asked for
    };

    bool with_conjugate = false;

    static double beta(const Row<T>& row) { return Family(row.theta).beta; }  // of the regulariser

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
            for (int64_t j = 0; j < length; j += LOOK) {
                const C* values = block + j;
                const int64_t look = minimum(LOOK, length - j);
                if (!any_above(values, look, bound)) continue;
                const C high = highest(values, look);
                if (high > top) {
                    top = high;
                    const C raised = farthest(family, top, row.tau);
                    bound = raised > bound ? raised : bound;
                }
                count = append_above(values, look, bound, candidates, count);
                nan |= any_nan(values, look);
                if (count > limit && !nan) {
                    double* gaps = scratch.gaps.at_least(count);
                    if (!gaps) return false;
                    int64_t solved = count;
                    for (int64_t k = 0; k < count; ++k) gaps[k] = (double(candidates[k]) - double(top)) * row.scale;
                    const C raised = below(double(top) + family.solve(gaps, solved, lowest(bound, top, row.scale), 0.1).edge * row.tau);
                    bound = raised > bound ? raised : bound;
                    int64_t kept = 0;
                    for (int64_t k = 0; k < count; ++k) {
                        candidates[kept] = candidates[k];
                        kept += candidates[k] > bound;
                    }
                    count = kept;
                    limit = 2 * count > TIGHTEN ? 2 * count : TIGHTEN;
                }
            }
        }
        part.candidates = candidates;
        part.count = count;
        part.nan = nan;
        part.maximum = top;
        part.bound = bound;
        part.weight = 1;
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
            double* gaps = scratch.gaps.at_least(candidates);
            if (!gaps) return false;
            int64_t filled = 0;
            for (int i = 0; i < count; ++i)
                for (int64_t k = 0; k < parts[i].count; ++k)
                    gaps[filled++] = (double(parts[i].candidates[k]) - double(top)) * row.scale;
            threshold = family.solve(gaps, filled, lowest(bound, top, row.scale), sizeof(C) == sizeof(double) ? 1e-8 : 3e-5);
            if (with_conjugate) {
                double mean = 0;  // Σ p z
                for (int64_t k = 0; k < filled; ++k) mean += family.probability(gaps[k], threshold) * gaps[k];
                conjugate = (family.beta * mean - family.offset(threshold)) / (1 + family.beta);
            }
        }
        for (int i = 0; i < count; ++i) {
            parts[i].nan = nan;
            parts[i].empty = empty;
            parts[i].maximum = top;
            parts[i].threshold = threshold;
            parts[i].top = double(top) * row.scale;
            parts[i].conjugate = nan ? std::numeric_limits<double>::quiet_NaN() : conjugate;
        }
        return true;
    }

    bool emit(const Row<T>& row, int64_t begin, int64_t end, Part& part, Scratch<C>& scratch) const {
        if (part.nan || part.empty) {
            const double value = part.nan ? std::numeric_limits<double>::quiet_NaN() : 0.0;
            for (int64_t i = begin; i < end; ++i) narrow(value, row.out[i]);
            return true;
        }
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
        const Family family(row.theta);
        const Threshold threshold = part.threshold;
        const C bound = below(double(part.maximum) + threshold.edge * row.tau);
        const double top = double(part.maximum), scale = row.scale, weight = part.weight;
        const C* values = row.raw(begin, length, scratch.high);
        for (int64_t j = 0; j < length; j += LOOK) {
            const int64_t look = minimum(LOOK, length - j);
            if (any_above(values + j, look, bound)) {
                for (int64_t k = j; k < j + look; ++k)
                    to[k] = C(family.probability((double(values[k]) - top) * scale, threshold) * weight);
            } else {
                std::memset(to + j, 0, size_t(look) * sizeof(C));
            }
        }
    }

    double probability(const Row<T>& row, double score, const Part& part) const {
        return Family(row.theta).probability(score - part.top, part.threshold);
    }

   private:
    // What no score of the support can be below.
    static C farthest(const Family& family, C top, double tau) { return below(double(top) - family.reach() * tau); }

    // A bound as a gap.
    static double lowest(C bound, C top, double scale) { return (double(bound) - double(top)) * scale; }

    // A number of C that is not above the value: a bound may let too much pass, never too little.
    static C below(double value) {
        constexpr double epsilon = std::numeric_limits<C>::epsilon();
        return C(value - (std::fabs(value) * epsilon * 2 + double(std::numeric_limits<C>::min())));
    }
};

}  // namespace SOFTMAXIMA_ISA
