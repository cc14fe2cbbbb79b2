// p = clamp(z − λ, 0, 1), z = x/τ, θ = (B), with λ such that Σp = B; and its derivative (a ⊙ g − a ⟨a, g⟩/Σa)/τ, a = 1 where
// 0 < p < 1, else 0.
//
// λ lies within 1 below the ⌈B⌉-th largest z: there at most ⌈B⌉ − 1 scores are above λ, and 1 below it ⌈B⌉ have p = 1. So candidates
// are collected against a bound 1 below the ⌈B⌉-th largest so far. Measured from the ⌈B⌉-th largest, the anchor, every score with
// 0 < p < 1 is exact. Σp is piecewise linear in λ, so Newton's step is exact once it has the pieces.

#include <algorithm>
#include <functional>

#include "exponential.h"

namespace SOFTMAXIMA_ISA {
namespace {

template <class T>
struct BudgetSparsemax {
    using C = compute_t<T>;
    static constexpr bool anchored = false;
    static constexpr C nothing = -std::numeric_limits<C>::infinity();
    static constexpr int SURE_STEPS = 15;  // after so many every third bisects
    static constexpr int64_t FEW = 16;     // ranks that are found sooner by that many looks than by a selection

    struct Part {
        C* candidates;
        int64_t count;
        C bound;
        bool nan;
        double anchor, level;  // x, and λ less z of it; +∞ where nothing is allowed
    };

    // ⌈B⌉, from 1 to n.
    static int64_t rank(const Row<T>& row) {
        const double budget = *row.theta;
        return budget < double(row.n) ? std::max(int64_t(std::ceil(budget)), int64_t(1)) : row.n;
    }

    bool scan(const Row<T>& row, int64_t begin, int64_t end, Part& part, Scratch<C>& scratch) const {
        const int64_t rank = BudgetSparsemax::rank(row);
        C* candidates = scratch.candidates.at_least(end - begin + LOOK);
        if (!candidates) return false;
        const int64_t first = minimum(BLOCK, end - begin);
        C bound = nothing;
        if (rank <= FEW) bound = below(double(ranked(row.raw(begin, first, scratch.high), first, rank)) - row.tau);
        int64_t count = 0, limit = 2 * rank + LOOK;
        bool nan = false;
        for (int64_t i = begin; i < end && !nan; i += BLOCK) {
            const int64_t length = minimum(BLOCK, end - i);
            const C* block = row.raw(i, length, scratch.high);
            row.prefetch_after(i, length);
            for (int64_t j = 0; j < length; j += LOOK) {
                const int64_t look = minimum(LOOK, length - j);
                const uint64_t found = above(block + j, look, bound);
                if (!found) continue;
                nan = nan || any_nan(block + j, look);
                for_each_bit(found, [&](int64_t k) { candidates[count++] = block[j + k]; });
                if (count > limit && !nan) {
                    const C raised = below(double(ranked(candidates, count, rank)) - row.tau);
                    bound = raised > bound ? raised : bound;
                    count = std::remove_if(candidates, candidates + count, [=](C x) { return x <= bound; }) - candidates;
                    limit = 2 * count + LOOK;
                }
            }
        }
        part.candidates = candidates;
        part.count = count;
        part.bound = bound;
        part.nan = nan;
        return true;
    }

    bool finish(const Row<T>& row, Part* parts, int count, Scratch<C>& scratch) const {
        int64_t rank = BudgetSparsemax::rank(row), total = 0;
        bool nan = false;
        for (int i = 0; i < count; ++i) {
            total += parts[i].count;
            nan = nan || parts[i].nan;
        }
        double anchor = 0, level = std::numeric_limits<double>::infinity();
        if (!nan && total > 0) {
            double* values = scratch.gaps.at_least(total);
            if (!values) return false;
            int64_t filled = 0;
            for (int i = 0; i < count; ++i)
                for (int64_t k = 0; k < parts[i].count; ++k) values[filled++] = double(parts[i].candidates[k]);
            const bool sated = double(total) <= *row.theta;  // then they are all that are allowed, and each gets 1
            rank = minimum(rank, total);
            nan = highest(values, total) == -NOTHING;
            anchor = ranked(values, total, rank);
            if (!nan) level = sated ? -1.0 : solve(row, values, total, anchor);
        }
        for (int i = 0; i < count; ++i) {
            parts[i].nan = nan;
            parts[i].anchor = anchor;
            parts[i].level = level;
        }
        return true;
    }

    // λ ∈ [−1, 0], from the anchor.
    static double solve(const Row<T>& row, double* values, int64_t count, double anchor) {
        double ones = 0;  // which there are for every such λ
        int64_t open = 0;
        for (int64_t k = 0; k < count; ++k) {
            const double own = gap(C(values[k]), anchor, row.scale);
            ones += own >= 1 ? 1.0 : 0.0;
            values[open] = own;
            open += own > -1 && own < 1;
        }
        double low = -1, high = 0, level = 0;
        for (int step = 0;; ++step) {
            double inside = 0, sum = 0, lost = 0, full = 0, at_zero = 0, at_one = 0;
#pragma omp simd reduction(+ : inside, sum, lost, full, at_zero, at_one)
            for (int64_t k = 0; k < open; ++k) {
                const double q = values[k] - level, counts = ((q > 0) & (q < 1)) ? 1.0 : 0.0;
                inside += counts;
                add_exactly(counts * q, sum, lost);
                full += q >= 1 ? 1.0 : 0.0;
                at_zero += q == 0 ? 1.0 : 0.0;
                at_one += q == 1 ? 1.0 : 0.0;
            }
            // The ones are counted, for a sum with them would round the rest.
            const double lack = *row.theta - (ones + full) - sum - lost;
            const double moving = inside + (lack > 0 ? at_zero : at_one);  // what the step sets in motion
            const double newton = level - lack / (moving > 1 ? moving : 1.0);
            low = lack < 0 ? level : low;
            high = lack > 0 ? level : high;
            if (std::fabs(newton - level) <= 4e-16 || high - low <= 4e-16) return newton;
            const bool accept = newton >= low && newton <= high && (step < SURE_STEPS || step % 3 != 2);
            level = accept ? newton : (low + high) / 2;
        }
    }

    // body(offset, length) for the groups that hold a score above λ, others(offset, length) for the others.
    template <class Body, class Others>
    static void for_each_group(const Row<T>& row, const Part& part, Scratch<C>& scratch, int64_t begin, int64_t end, const Body& body, const Others& others) {
        const C bound = below(part.anchor + part.level * row.tau);
        for (int64_t i = begin; i < end; i += BLOCK) {
            const int64_t length = minimum(BLOCK, end - i);
            const C* block = row.raw(i, length, scratch.high);
            for (int64_t j = 0; j < length; j += LOOK) {
                const int64_t look = minimum(LOOK, length - j);
                above(block + j, look, bound) ? body(i + j, look, block + j) : others(i + j, look);
            }
        }
    }

    bool emit(const Row<T>& row, int64_t begin, int64_t end, Part& part, Scratch<C>& scratch) const {
        if (part.nan) {
            for (int64_t i = begin; i < end; ++i) narrow(std::numeric_limits<double>::quiet_NaN(), row.out[i]);
            return true;
        }
        const double anchor = part.anchor, level = part.level, scale = row.scale;
        T* out = row.out;
        for_each_group(
            row, part, scratch, begin, end,
            [=](int64_t at, int64_t length, const C* values) {
                T* to = out + at;
                for (int64_t k = 0; k < length; ++k) {
                    const double q = gap(values[k], anchor, scale) - level;
                    narrow(q > 0 ? q < 1 ? q : 1.0 : 0.0, to[k]);
                }
            },
            [=](int64_t at, int64_t length) { clear(out + at, length); });
        return true;
    }

    // ∂⟨g, p⟩/∂x
    bool pull(const Row<T>& row, const Upstream<T>& g, Scratch<C>& scratch) const {
        C buffer[BLOCK];
        Part part;
        if (!scan(row, 0, row.n, part, scratch) || !finish(row, &part, 1, scratch)) return false;
        if (part.nan) return emit(row, 0, row.n, part, scratch);
        const double anchor = part.anchor, level = part.level, scale = row.scale;
        T* out = row.out;
        double active = 0, sum = 0;
        for_each_group(
            row, part, scratch, 0, row.n,
            [&](int64_t at, int64_t length, const C* values) {
                const C* upstream = g.read(at, length, buffer);
                T* to = out + at;
                double some = 0, part_sum = 0;
                for (int64_t k = 0; k < length; ++k) {
                    const double q = gap(values[k], anchor, scale) - level, counts = ((q > 0) & (q < 1)) ? 1.0 : 0.0;
                    narrow(counts, to[k]);
                    some += counts;
                    part_sum += counts * double(upstream[k]);
                }
                active += some;
                sum += part_sum;
            },
            [=](int64_t at, int64_t length) { clear(out + at, length); });
        if (active == 0) return true;
        double shrink = 1;
        const bool any = !(std::fabs(sum) < MODERATE_MEAN<double>);  // g that is not to be read, or beyond what can be added
        if (any) {
            shrink = shrinking<C>(g, row.n);
            sum = 0;
            for (int64_t i = 0; i < row.n; ++i) sum += widen(out[i]) != 0 ? double(g[i]) * shrink : 0.0;
        }
        const double mean = sum / active;
        for_each_group(
            row, part, scratch, 0, row.n,
            [&](int64_t at, int64_t length, const C*) {
                const C* upstream = g.read(at, length, buffer);
                T* to = out + at;
                for (int64_t k = 0; any && k < length; ++k) put(widen(to[k]) != 0 ? (double(upstream[k]) * shrink - mean) * scale / shrink : 0.0, to[k]);
                for (int64_t k = 0; !any && k < length; ++k) {
                    const double counts = double(widen(to[k]));
                    put(counts * (double(upstream[k]) - mean) * scale, to[k]);
                }
            },
            [](int64_t, int64_t) {});
        return true;
    }

   private:
    // The rank-th highest of the values, −∞ if there are not so many; of more than a few ranks they change places.
    template <class V>
    static V ranked(V* values, int64_t count, int64_t rank) {
        if (rank <= FEW) return ranked(const_cast<const V*>(values), count, rank);
        std::nth_element(values, values + (rank - 1), values + count, std::greater<V>());
        return values[rank - 1];
    }

    template <class V>
    static V ranked(const V* values, int64_t count, int64_t rank) {
        V level = highest(values, count);
        for (int64_t left = rank; level > -std::numeric_limits<V>::infinity();) {
            int64_t equal = 0;
            V next = -std::numeric_limits<V>::infinity();
#pragma omp simd reduction(+ : equal) reduction(max : next)
            for (int64_t k = 0; k < count; ++k) {
                const V lower = values[k] < level ? values[k] : -std::numeric_limits<V>::infinity();
                equal += values[k] == level;
                next = lower > next ? lower : next;
            }
            left -= equal;
            if (left <= 0) break;
            level = next;
        }
        return level;
    }

    // A number of C that is not above the value.
    static C below(double value) {
        constexpr double epsilon = std::numeric_limits<C>::epsilon();
        return C(value - (std::fabs(value) * epsilon * 2 + double(std::numeric_limits<C>::min())));
    }
};

}  // namespace

int budget_sparsemax(const SoftmaximaForward* call) {
    return with_dtype(call->rows.dtype, [=](auto type) {
        using T = std::remove_pointer_t<decltype(type)>;
        return for_each_row<T>(call->rows, call->out, BudgetSparsemax<T>{}, 1.0);
    });
}

int budget_sparsemax_backward(const SoftmaximaBackward* call) {
    return with_dtype(call->rows.dtype, [=](auto type) {
        using T = std::remove_pointer_t<decltype(type)>;
        const T* inputs[] = {dense_upstream<T>(call)};
        return for_each_whole_row<T>(call->rows, inputs, 1, call->out, 1.5, [=](const Row<T>& row, const T* const* others, Scratch<compute_t<T>>& scratch) {
            const Upstream<T> g(call, row.index, others[0]);
            return g.left_out() ? fill_with_zeros(row) : BudgetSparsemax<T>{}.pull(row, g, scratch);
        });
    });
}

}  // namespace SOFTMAXIMA_ISA

SOFTMAXIMA_KERNEL(budget_sparsemax, Forward)
SOFTMAXIMA_KERNEL(budget_sparsemax_backward, Backward)
