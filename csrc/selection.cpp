// The softmax over the k highest scores, or over the fewest highest that hold the share p of the mass, of equal scores the first
// ones; or over those with the share p of the largest exp. None sorts a row: candidates are collected against a bound that rises, or
// the mass is counted in bins.

#include <algorithm>

#include "exponential.h"

namespace SOFTMAXIMA_ISA {
namespace {

// What is kept of a row: every score above `lowest`, and the first `ties` of those equal to it.
template <class C>
struct Kept {
    C lowest;
    int64_t ties;
    Origin<C> origin;
    double mass;  // Σ exp(z − origin) over what is kept
};

template <class C>
struct Descending {
    bool operator()(C a, C b) const { return a > b; }
};

template <class T>
struct Selection {
    using C = compute_t<T>;
    static constexpr C nothing = -std::numeric_limits<C>::infinity();

    static bool fill(const Row<T>& row, double value) {
        for (int64_t i = 0; i < row.n; ++i) narrow(value, row.out[i]);
        return true;
    }

    // body(scores, length, offset) for the groups that hold a score that is kept, with −∞ for the others, and others(offset, length).
    template <class Body, class Others>
    static void for_each_group(const Row<T>& row, const Kept<C>& kept, Scratch<C>& scratch, const Body& body, const Others& others) {
        int64_t ties = kept.ties;
        for (int64_t i = 0; i < row.n; i += BLOCK) {
            const int64_t length = minimum(BLOCK, row.n - i);
            const C* block = row.raw(i, length, scratch.high);
            for (int64_t j = 0; j < length; j += LOOK) {
                const int64_t look = minimum(LOOK, length - j);
                const C* values = block + j;
                int any = 0, equal = 0;
                for (int64_t k = 0; k < look; ++k) {
                    any |= values[k] >= kept.lowest;
                    equal |= values[k] == kept.lowest;
                }
                if (!any) {
                    others(i + j, look);
                    continue;
                }
                C high[LOOK], low[LOOK];
                if (row.tau == 1.0) {
                    for (int64_t k = 0; k < look; ++k) high[k] = values[k] >= kept.lowest ? values[k] : nothing;
                } else {
                    const Tempered<C> z = row.tempered();
                    for (int64_t k = 0; k < look; ++k) {
                        z(values[k], high[k], low[k]);
                        high[k] = values[k] >= kept.lowest ? high[k] : nothing;
                    }
                }
                for (int64_t k = 0; equal && k < look; ++k) {
                    if (values[k] == kept.lowest && ties-- <= 0) high[k] = nothing;
                }
                body(Scores<C>{high, row.tau == 1.0 ? nullptr : low}, look, i + j);
            }
        }
    }

    static void emit(const Row<T>& row, const Kept<C>& kept, Scratch<C>& scratch) {
        for_each_group(
            row, kept, scratch, [&](Scores<C> z, int64_t length, int64_t at) { emit_exp(z, length, kept.origin, {1.0, kept.mass}, row.out + at); },
            [&](int64_t at, int64_t length) { std::memset(row.out + at, 0, size_t(length) * sizeof(T)); });
    }

    // The largest score; NaN where one is, and of +∞, of which there are no shares.
    static double largest(const Row<T>& row, Scratch<C>& scratch) {
        C top = nothing;
        bool nan = false;
        for (int64_t i = 0; i < row.n; i += BLOCK) {
            const int64_t length = minimum(BLOCK, row.n - i);
            const C* block = row.raw(i, length, scratch.high);
            const C high = highest(block, length);
            top = high > top ? high : top;
            nan = nan || any_nan(block, length);
        }
        return nan || top == -nothing ? std::numeric_limits<double>::quiet_NaN() : double(top);
    }
};

template <class T>
struct TopK : Selection<T> {
    using C = compute_t<T>;
    using Selection<T>::nothing;

    bool operator()(Row<T> row, Scratch<C>& scratch) const {
        const int64_t k = *row.theta < double(row.n) ? int64_t(*row.theta) : row.n;
        const int64_t limit = 2 * k + LOOK;
        C* best = scratch.candidates.at_least(limit + LOOK);
        if (!best) return false;
        int64_t count = 0;
        C bound = nothing;  // the k-th highest so far
        bool nan = false;
        for (int64_t i = 0; i < row.n; i += BLOCK) {
            const int64_t length = minimum(BLOCK, row.n - i);
            const C* block = row.raw(i, length, scratch.high);
            for (int64_t j = 0; j < length; j += LOOK) {
                const int64_t look = minimum(LOOK, length - j);
                const uint64_t found = above(block + j, look, bound);
                if (!found) continue;
                nan = nan || any_nan(block + j, look);
                if (count == 0 && look >= k && !nan) {
                    count = highest_of_few(block + j, look, k, best, bound);
                    if (count > 0) continue;
                }
                for_each_bit(found, [&](int64_t k) { best[count++] = block[j + k]; });
                if (count > limit && !nan) count = highest_k(best, count, k, bound);
                if (nan) return this->fill(row, std::numeric_limits<double>::quiet_NaN());
            }
        }
        if (count > k) count = highest_k(best, count, k, bound);
        if (count == 0) return this->fill(row, 0.0);
        const double top = double(highest(best, count));
        if (top == std::numeric_limits<double>::infinity()) return this->fill(row, std::numeric_limits<double>::quiet_NaN());
        row.anchor_at(top);
        Kept<C> kept;
        kept.lowest = *std::min_element(best, best + count);
        kept.origin = Origin<C>::at(C(top - row.anchor));
        kept.ties = 0;
        Sum mass;
        for (int64_t i = 0; i < count; ++i) {
            kept.ties += best[i] == kept.lowest;
            mass.add(weigh(row, best[i], kept.origin));
        }
        kept.mass = mass.value();
        this->emit(row, kept, scratch);
        return true;
    }

    // The k highest of up to LOOK values, by how many are higher than each, and the lowest of them; none where that is −∞.
    static int64_t highest_of_few(const C* values, int64_t length, int64_t k, C* best, C& bound) {
        alignas(LINE) C own[LOOK];
        alignas(LINE) int32_t higher[LOOK] = {};
        for (int64_t i = 0; i < LOOK; ++i) own[i] = i < length ? values[i] : nothing;
        for (int64_t j = 0; j < length; ++j) {
            const C other = own[j];
#pragma omp simd
            for (int64_t i = 0; i < LOOK; ++i) higher[i] += int32_t(other > own[i]);
        }
        C lowest = std::numeric_limits<C>::infinity();
        for (int64_t i = 0; i < length; ++i) lowest = higher[i] < k && own[i] < lowest ? own[i] : lowest;
        if (lowest == nothing) return 0;
        int64_t count = 0;
        for (int64_t i = 0; i < length; ++i) {
            best[count] = own[i];
            count += own[i] > lowest;
        }
        while (count < k) best[count++] = lowest;
        bound = lowest;
        return k;
    }

    // Leaves the k highest, and raises the bound to the lowest of them.
    static int64_t highest_k(C* best, int64_t count, int64_t k, C& bound) {
        std::nth_element(best, best + (k - 1), best + count, Descending<C>());
        bound = best[k - 1];
        return k;
    }
};

template <class T>
struct TopP : Selection<T> {
    using C = compute_t<T>;
    using Selection<T>::nothing;
    static constexpr int BINS = 1024;
    static constexpr double BINS_PER_NAT = 32;
    static constexpr int64_t SAMPLE = 256, SAMPLED = 16;   // at most so many scores, one in so many, tell about where the share is met
    static constexpr int64_t LONG = 2048;                  // rows that are worth it
    static constexpr double DEVIATIONS = 2.5;              // of the share in the sample, within which it is looked for
    static constexpr bool stays = sizeof(T) == sizeof(C);  // whether weights fit into the place of the results

    // A score, and exp of it relative to the origin.
    struct Candidate {
        C value, weight;
    };

    bool operator()(Row<T> row, Scratch<C>& scratch) const {
        const double top = this->largest(row, scratch);
        if (!(top > NOTHING)) return this->fill(row, top != top ? top : 0.0);
        const C top_value = C(top);

        C* values = scratch.candidates.at_least(2 * row.n);
        if (!values) return false;
        row.anchor_at(top);
        const Origin<C> origin = Origin<C>::at(C(top - row.anchor));
        Kept<C> kept = {nothing, row.n, origin, 0};
        const bool sampled = row.n >= LONG && by_sample(row, top_value, values, kept, scratch);
        if (!sampled) by_bins(row, top_value, values, kept, scratch);
        sampled&& stays ? divide(row, kept, scratch) : this->emit(row, kept, scratch);
        return true;
    }

    // The results, where the weights are in their place.
    static void divide(const Row<T>& row, const Kept<C>& kept, Scratch<C>& scratch) {
        const Ratio<C> ratio(1.0, kept.mass);
        int64_t ties = kept.ties;
        for (int64_t i = 0; i < row.n; i += BLOCK) {
            const int64_t length = minimum(BLOCK, row.n - i);
            const C* values = row.raw(i, length, scratch.high);
            C* to = reinterpret_cast<C*>(row.out + i);
            int equal = 0;
            for (int64_t j = 0; j < length; ++j) {
                const C p = ratio(to[j]);
                to[j] = values[j] >= kept.lowest ? p : C(0);
                equal |= values[j] == kept.lowest;
            }
            for (int64_t j = 0; equal && j < length; ++j) {
                if (values[j] == kept.lowest && ties-- <= 0) to[j] = 0;
            }
        }
    }

    // Scores that are all lower than those of the mass `above`, and include that at which the share is met: it becomes the lowest.
    static void keep(const Row<T>& row, C* values, int64_t count, double above, double target, Kept<C>& kept) {
        in_order(Descending<C>(), row.halt, [=](const auto& by) { std::sort(values, values + count, by); });
        for (int64_t i = 0; i < count && (above < target || i == 0);) {
            const double weight = weigh(row, values[i], kept.origin);
            kept.lowest = values[i];
            for (kept.ties = 0; i < count && values[i] == kept.lowest && (above < target || kept.ties == 0); ++i, ++kept.ties) above += weight;
        }
        if (count > 0) kept.mass = above;
    }

    // Finds it among the scores between two at which a sample says that it cannot be met yet and that it must have been; false where
    // the sample was wrong.
    static bool by_sample(const Row<T>& row, C top_value, C* room, Kept<C>& kept, Scratch<C>& scratch) {
        C high = top_value, low = top_value;
        if (*row.theta < 1) {
            sample(row, kept.origin, high, low);
            if (!(low < high)) return false;
        }
        Candidate* candidates = reinterpret_cast<Candidate*>(room);
        int64_t count = 0;
        Sum total;
        double above_high = 0;
        alignas(LINE) C buffer[BLOCK];
        for (int64_t i = 0; i < row.n; i += BLOCK) {
            const int64_t length = minimum(BLOCK, row.n - i);
            C* weights = stays ? reinterpret_cast<C*>(row.out + i) : buffer;
            const Scores<C> z = row.scores(i, length, scratch);
            const BlockSum<C> sum =
                z.low ? sum_exp<true, true>(z.high, z.low, length, kept.origin, weights) : sum_exp<true, false>(z.high, z.low, length, kept.origin, weights);
            total.add(sum.sum);
            const C* values = row.raw(i, length, scratch.high);
            double part = 0;
#pragma omp simd reduction(+ : part)
            for (int64_t j = 0; j < length; ++j) part += double(values[j] > high ? weights[j] : C(0));
            above_high += part;
            for (int64_t j = 0; j < length; j += LOOK) {
                const int64_t look = minimum(LOOK, length - j);
                const uint64_t found = above(values + j, look, low) & ~above(values + j, look, high);
                for_each_bit(found, [&](int64_t k) { candidates[count++] = {values[j + k], weights[j + k]}; });
            }
        }
        kept.mass = total.value();
        if (*row.theta >= 1) return true;
        const double target = *row.theta * kept.mass;
        if (!(above_high < target)) return false;

        double mass[SAMPLE] = {};
        const double per_value = double(SAMPLE) / (double(high) - double(low));
        const auto bin = [&](C value) {
            const auto b = int64_t((double(high) - double(value)) * per_value);
            return b < SAMPLE ? b : SAMPLE - 1;
        };
        for (int64_t i = 0; i < count; ++i) mass[bin(candidates[i].value)] += double(candidates[i].weight);
        double above_bin = above_high;
        int64_t last = 0;
        while (last < SAMPLE && above_bin + mass[last] < target) above_bin += mass[last++];
        if (last == SAMPLE) return false;
        int64_t in_bin = 0;
        for (int64_t i = 0; i < count; ++i) {
            const C value = candidates[i].value;
            room[in_bin] = value;  // where candidates are that were read
            in_bin += bin(value) == last;
        }
        keep(row, room, in_bin, above_bin, target, kept);
        return true;
    }

    // Narrows the scores between which the share is met, so far as some of them can tell.
    static void sample(const Row<T>& row, Origin<C> origin, C& high, C& low) {
        Candidate found[SAMPLE] = {};
        const int64_t count = minimum(SAMPLE, row.n / SAMPLED), step = row.n / count;
        double total = 0;
        for (int64_t i = 0; i < count; ++i) {
            C value;
            const C* at = row.raw(i * step + step / 2, 1, &value);
            found[i] = {*at, C(weigh(row, *at, origin))};
            total += double(found[i].weight);
        }
        std::sort(found, found + count, [](const Candidate& a, const Candidate& b) { return a.value > b.value; });
        double mass = 0, squares_above = 0, squares = 0;
        for (int64_t i = 0; i < count; ++i) {
            const double weight = double(found[i].weight);
            mass += weight;
            squares += weight * weight;
            if (mass < *row.theta * total) squares_above = squares;
        }
        // The variance of a ratio of two sums over the sample.
        const double p = *row.theta, variance = (1 - p) * (1 - p) * squares_above + p * p * (squares - squares_above);
        const double spread = DEVIATIONS * std::sqrt(variance);
        mass = 0;
        for (int64_t i = 0; i < count && mass <= p * total + spread; ++i) {
            low = found[i].value;
            mass += double(found[i].weight);
            if (mass < p * total - spread) high = low;
        }
    }

    // Finds it from the mass by how far below the maximum it is.
    static void by_bins(const Row<T>& row, C top_value, C* values, Kept<C>& kept, Scratch<C>& scratch) {
        double mass[BINS] = {};
        C weights[BLOCK];
        int bins[BLOCK];
        for (int64_t i = 0; i < row.n; i += BLOCK) {
            const int64_t length = minimum(BLOCK, row.n - i);
            emit_exp(row.scores(i, length, scratch), length, kept.origin, {1.0, 1.0}, weights);
            const C* block = row.raw(i, length, scratch.high);
            for (int64_t j = 0; j < length; ++j) bins[j] = bin(block[j], top_value, row.scale);
            for (int64_t j = 0; j < length; ++j) mass[bins[j]] += double(weights[j]);
        }
        kept.mass = 0;
        for (int b = 0; b < BINS; ++b) kept.mass += mass[b];
        if (*row.theta >= 1) return;
        const double target = *row.theta * kept.mass;
        double above = 0;
        int last = 0;
        while (last < BINS - 1 && above + mass[last] < target) above += mass[last++];
        int64_t count = 0;
        for (int64_t i = 0; i < row.n; i += BLOCK) {
            const int64_t length = minimum(BLOCK, row.n - i);
            const C* block = row.raw(i, length, scratch.high);
            for (int64_t j = 0; j < length; ++j) {
                values[count] = block[j];
                count += bin(block[j], top_value, row.scale) == last && block[j] > nothing;
            }
        }
        keep(row, values, count, above, target, kept);
    }

    static int bin(C value, C top, double scale) {
        const double distance = -gap(value, double(top), scale) * BINS_PER_NAT;
        return distance < BINS - 1 ? int(distance) : BINS - 1;
    }
};

// Every score within −τθ of the largest, θ = log p.
template <class T>
struct MinP : Selection<T> {
    using C = compute_t<T>;

    bool operator()(Row<T> row, Scratch<C>& scratch) const {
        const double top = this->largest(row, scratch);
        if (!(top > NOTHING)) return this->fill(row, top != top ? top : 0.0);
        row.anchor_at(top);
        Kept<C> kept = {lowest(top + row.tau * *row.theta), row.n, Origin<C>::at(C(top - row.anchor)), 0};
        Sum mass;
        const auto add = [&](Scores<C> z, int64_t length, int64_t) {
            mass.add((z.low ? sum_exp<false, true>(z.high, z.low, length, kept.origin, static_cast<C*>(nullptr))
                            : sum_exp<false, false>(z.high, z.low, length, kept.origin, static_cast<C*>(nullptr)))
                         .sum);
        };
        this->for_each_group(row, kept, scratch, add, [](int64_t, int64_t) {});
        kept.mass = mass.value();
        this->emit(row, kept, scratch);
        return true;
    }

    // The least number of C that is not below the level.
    static C lowest(double level) {
        const C value = C(level);
        return double(value) < level ? std::nextafter(value, std::numeric_limits<C>::infinity()) : value;
    }
};

template <template <class> class Map>
int forward(const SoftmaximaForward* call, double nanoseconds) {
    return with_dtype(call->rows.dtype, [=](auto type) {
        using T = std::remove_pointer_t<decltype(type)>;
        return for_each_whole_row<T>(call->rows, nullptr, 0, call->out, nanoseconds,
                                     [](const Row<T>& row, const T* const*, Scratch<compute_t<T>>& scratch) { return Map<T>()(row, scratch); });
    });
}

}  // namespace

int topk_softmax(const SoftmaximaForward* call) { return forward<TopK>(call, 0.5); }

int topp_softmax(const SoftmaximaForward* call) { return forward<TopP>(call, 5.0); }

int minp_softmax(const SoftmaximaForward* call) { return forward<MinP>(call, 0.7); }

}  // namespace SOFTMAXIMA_ISA

SOFTMAXIMA_KERNEL(topk_softmax, Forward)
SOFTMAXIMA_KERNEL(topp_softmax, Forward)
SOFTMAXIMA_KERNEL(minp_softmax, Forward)
