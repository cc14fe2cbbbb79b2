// The softmax over the k highest scores, or over the fewest highest that hold the share p of the mass; of equal scores the first
// ones. Neither sorts a row: candidates are collected against a bound that rises, or the mass is counted in bins.

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

    static void emit(const Row<T>& row, const Kept<C>& kept, Scratch<C>& scratch) {
        int64_t ties = kept.ties;
        for (int64_t i = 0; i < row.n; i += BLOCK) {
            const int64_t length = minimum(BLOCK, row.n - i);
            const C* block = row.raw(i, length, scratch.high);
            for (int64_t j = 0; j < length; j += LOOK) {
                const int64_t look = minimum(LOOK, length - j);
                const C* values = block + j;
                T* to = row.out + i + j;
                int any = 0;
                for (int64_t k = 0; k < look; ++k) any |= values[k] >= kept.lowest;
                if (!any) {
                    std::memset(to, 0, size_t(look) * sizeof(T));
                    continue;
                }
                C high[LOOK], low[LOOK];
                for (int64_t k = 0; k < look; ++k) {
                    const double z = double(values[k]) * row.scale;
                    high[k] = values[k] >= kept.lowest ? C(z) : nothing;
                    low[k] = values[k] >= kept.lowest ? C(z - double(high[k])) : C(0);
                }
                for (int64_t k = 0; k < look; ++k) {
                    if (values[k] == kept.lowest && ties-- <= 0) high[k] = nothing;
                }
                emit_exp(Scores<C>{high, low}, look, kept.origin, {1.0, kept.mass}, to);
            }
        }
    }
};

template <class T>
struct TopK : Selection<T> {
    using C = compute_t<T>;
    using Selection<T>::nothing;

    bool operator()(const Row<T>& row, Scratch<C>& scratch) const {
        const int64_t k = row.theta < double(row.n) ? int64_t(row.theta) : row.n;
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
                for_each_bit(found, [&](int64_t k) { best[count++] = block[j + k]; });
                if (count > limit && !nan) count = highest_k(best, count, k, bound);
                if (nan) return this->fill(row, std::numeric_limits<double>::quiet_NaN());
            }
        }
        if (count > k) count = highest_k(best, count, k, bound);
        if (count == 0) return this->fill(row, 0.0);
        const double top = double(highest(best, count));
        if (top == std::numeric_limits<double>::infinity()) return this->fill(row, std::numeric_limits<double>::quiet_NaN());
        Kept<C> kept;
        kept.lowest = *std::min_element(best, best + count);
        kept.origin = Origin<C>::at(C(top * row.scale));
        kept.ties = 0;
        kept.mass = 0;
        for (int64_t i = 0; i < count; ++i) {
            kept.ties += best[i] == kept.lowest;
            kept.mass += weigh(row, best[i], kept.origin);
        }
        this->emit(row, kept, scratch);
        return true;
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
    static constexpr int BINS = 1024;
    static constexpr double BINS_PER_NAT = 32;

    bool operator()(const Row<T>& row, Scratch<C>& scratch) const {
        constexpr double infinity = std::numeric_limits<double>::infinity();
        C top_value = -std::numeric_limits<C>::infinity();
        bool nan = false;
        for (int64_t i = 0; i < row.n; i += BLOCK) {
            const int64_t length = minimum(BLOCK, row.n - i);
            const C* block = row.raw(i, length, scratch.high);
            const C high = highest(block, length);
            top_value = high > top_value ? high : top_value;
            nan = nan || any_nan(block, length);
        }
        const double top = double(top_value);
        if (nan || top == infinity) return this->fill(row, std::numeric_limits<double>::quiet_NaN());
        if (top == -infinity) return this->fill(row, 0.0);

        // The mass by how far below the maximum it is.
        double mass[BINS] = {};
        C weights[BLOCK];
        int bins[BLOCK];
        const Origin<C> origin = Origin<C>::at(C(top * row.scale));
        for (int64_t i = 0; i < row.n; i += BLOCK) {
            const int64_t length = minimum(BLOCK, row.n - i);
            emit_exp(row.scores(i, length, scratch), length, origin, {1.0, 1.0}, weights);
            const C* block = row.raw(i, length, scratch.high);
            for (int64_t j = 0; j < length; ++j) bins[j] = bin(block[j], top_value, row.scale);
            for (int64_t j = 0; j < length; ++j) mass[bins[j]] += double(weights[j]);
        }
        double total = 0;
        for (int b = 0; b < BINS; ++b) total += mass[b];
        Kept<C> kept = {-std::numeric_limits<C>::infinity(), row.n, origin, total};
        const double target = row.theta * total;
        if (row.theta >= 1) {
            this->emit(row, kept, scratch);
            return true;
        }
        double above = 0;
        int last = 0;
        while (last < BINS - 1 && above + mass[last] < target) above += mass[last++];

        // The bin in which the target is met, in order.
        C* values = scratch.candidates.at_least(row.n);
        if (!values) return false;
        int64_t count = 0;
        for (int64_t i = 0; i < row.n; i += BLOCK) {
            const int64_t length = minimum(BLOCK, row.n - i);
            const C* block = row.raw(i, length, scratch.high);
            for (int64_t j = 0; j < length; ++j) {
                values[count] = block[j];
                count += bin(block[j], top_value, row.scale) == last && block[j] > -std::numeric_limits<C>::infinity();
            }
        }
        std::sort(values, values + count, Descending<C>());
        for (int64_t i = 0; i < count && (above < target || i == 0);) {
            const double weight = weigh(row, values[i], origin);
            kept.lowest = values[i];
            for (kept.ties = 0; i < count && values[i] == kept.lowest && (above < target || kept.ties == 0); ++i, ++kept.ties)
                above += weight;
        }
        if (count > 0) kept.mass = above;
        this->emit(row, kept, scratch);
        return true;
    }

    static int bin(C value, C top, double scale) {
        const double distance = (double(top) - double(value)) * (scale * BINS_PER_NAT);
        return distance < BINS - 1 ? int(distance) : BINS - 1;
    }
};

template <template <class> class Map>
int forward(const SoftmaximaForward* call, double nanoseconds) {
    return with_dtype(call->rows.dtype, [=](auto type) {
        using T = std::remove_pointer_t<decltype(type)>;
        return for_each_whole_row<T>(call->rows, nullptr, 0, call->out, nanoseconds,
                                     [](const Row<T>& row, const T* const*, Scratch<compute_t<T>>& scratch) {
                                         return Map<T>()(row, scratch);
                                     });
    });
}

}  // namespace

int topk_softmax(const SoftmaximaForward* call) { return forward<TopK>(call, 0.5); }

int topp_softmax(const SoftmaximaForward* call) { return forward<TopP>(call, 5.0); }

}  // namespace SOFTMAXIMA_ISA
