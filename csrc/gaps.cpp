// What bounds of logsumexp ask of the gaps δ_i = (M − x_i)/τ ≥ 0 of a row, M its largest score, and the sum of the terms exp(−δ_i)
// that are not small.
//
// Scores are read twice: for M and their number, and for all else. A gap is within 3 u of its value, u = 2⁻⁵³, and so is its bin.

#include "rows.h"

namespace SOFTMAXIMA_ISA {
namespace {

constexpr int64_t TURNS = 4;         // histograms that are counted in by turns, for one place is not to be read as soon as it is written
constexpr int64_t CANDIDATES = 256;  // for the k largest

// M, NaN where a score is, and how many scores are above −∞.
template <class T>
struct Extent {
    using C = compute_t<T>;
    C top = -std::numeric_limits<C>::infinity();
    int64_t count = 0;

    Extent(const Row<T>& row, Scratch<C>& scratch) {
        constexpr C nothing = -std::numeric_limits<C>::infinity();
        int64_t wrong = 0;
        for (int64_t i = 0; i < row.n; i += BLOCK) {
            const int64_t length = minimum(BLOCK, row.n - i);
            const C* x = row.raw(i, length, scratch.high);
            row.prefetch_after(i, length);
            const C high = highest(x, length);
            top = high > top ? high : top;
            int32_t below = 0, unordered = 0;
#pragma omp simd reduction(+ : below) reduction(| : unordered)
            for (int64_t j = 0; j < length; ++j) {
                below += x[j] == nothing ? 1 : 0;
                unordered |= x[j] != x[j] ? 1 : 0;
            }
            count += length - below;
            wrong |= unordered;
        }
        if (wrong) top = std::numeric_limits<C>::quiet_NaN();
    }

    bool is_finite() const { return std::fabs(top) < std::numeric_limits<C>::infinity(); }
};

// Not to be inlined: GCC 12 may then move two counts of 32 bits through MMX, which spoils the long doubles of whoever comes next.
template <class C>
[[gnu::noinline]] int64_t how_many_are(const C* x, int64_t length, C value) {
    int32_t count = 0;
#pragma omp simd reduction(+ : count)
    for (int64_t i = 0; i < length; ++i) count += x[i] == value ? 1 : 0;
    return count;
}

template <class C>
[[gnu::noinline]] int64_t how_many_reach(const C* x, int64_t length, C edge) {
    int32_t count = 0;
#pragma omp simd reduction(+ : count)
    for (int64_t i = 0; i < length; ++i) count += x[i] >= edge ? 1 : 0;
    return count;
}

// The k largest of the values, none of which is NaN or +∞, in order.
template <class C>
void select(const C* values, int64_t count, int64_t k, C* to) {
    constexpr C infinity = std::numeric_limits<C>::infinity();
    C last = infinity;
    for (int64_t found = 0; found < k;) {
        C next = -infinity;
#pragma omp simd reduction(max : next)
        for (int64_t i = 0; i < count; ++i) {
            const C own = values[i] < last ? values[i] : -infinity;
            next = own > next ? own : next;
        }
        int64_t times = next == -infinity ? k : how_many_are(values, count, next);
        for (; times > 0 && found < k; --times) to[found++] = next;
        last = next;
    }
}

// The k largest scores, from those above a bound that rises.
template <class C>
struct Largest {
    int64_t k, count = 0;
    C bound = -std::numeric_limits<C>::infinity();
    C best[CANDIDATES + LOOK];

    void look(const C* x, int64_t length) {
        for (int64_t i = 0; i < length; i += LOOK) {
            const uint64_t found = above(x + i, minimum(LOOK, length - i), bound);
            if (!found) continue;
            for_each_bit(found, [&](int64_t j) { best[count++] = x[i + j]; });
            if (count > CANDIDATES) keep();
        }
    }

    void keep() {
        C kept[CANDIDATES];
        select(best, count, k, kept);
        for (int64_t i = 0; i < k; ++i) best[i] = kept[i];
        count = k;
        bound = best[k - 1];
    }

    // Where there are fewer above −∞ the others are that.
    void put(double* to) {
        while (count < k) best[count++] = -std::numeric_limits<C>::infinity();
        keep();
        for (int64_t i = 0; i < k; ++i) to[i] = double(best[i]);
    }
};

// Σδ of what is above −∞, and the bin of each score, to be rounded down, the last for all beyond.
template <class C>
[[gnu::noinline]] double find_bins(const C* x, int64_t length, double top, double scale, double per_unit, double last, double* bins) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < length; ++i) {
        const double own = -gap(x[i], top, scale), place = own * per_unit;
        sum += double(x[i]) == NOTHING ? 0.0 : own;
        bins[i] = place < last ? place : last;
    }
    return sum;
}

inline void count(const double* places, int64_t length, int64_t turns, int64_t size, int32_t* found) {
    int64_t i = 0;
    for (; turns == TURNS && i + TURNS <= length; i += TURNS)
        for (int64_t turn = 0; turn < TURNS; ++turn) ++found[turn * size + int64_t(places[i + turn])];
    for (; i < length; ++i) ++found[int64_t(places[i])];
}

// A score about M − τ log(count), in T.
template <class T>
compute_t<T> edge_of(double top, double tau, int64_t count) {
    T rounded;
    narrow(bounded<T>(top - std::log(double(count)) * tau), rounded);
    return widen(rounded);
}

template <class T>
bool gaps(const SoftmaximaGaps* call, T*) {
    using C = compute_t<T>;
    const int64_t bins = call->bins, k = call->k;
    const double per_unit = 1 / call->width;
    return for_each_whole_row<T>(call->rows, nullptr, 0, nullptr, 1.5, [=](const Row<T>& row, const T* const*, Scratch<C>& scratch) {
        double* summary = call->summary + row.index * 6;
        double* largest = call->largest + row.index * k;
        double* counts = call->counts + row.index * (bins + 1);
        const Extent<T> extent(row, scratch);
        for (int64_t i = 0; i < 6; ++i) summary[i] = 0;
        for (int64_t i = 0; i < k; ++i) largest[i] = 0;
        for (int64_t i = 0; i <= bins; ++i) counts[i] = 0;
        summary[0] = double(extent.top);
        summary[1] = double(extent.count);
        if (!extent.is_finite()) return true;
        const int64_t turns = row.n < BLOCK ? 1 : TURNS;
        int32_t* found = reinterpret_cast<int32_t*>(scratch.gaps.at_least(TURNS * (bins + 1)));
        if (!found) return false;
        std::memset(found, 0, size_t(turns * (bins + 1)) * sizeof(int32_t));
        const double top = double(extent.top);
        const C edge = edge_of<T>(top, row.tau, extent.count);
        int64_t ties = 0, near = 0;
        double sum = 0;
        Largest<C> selected;
        selected.k = k;
        for (int64_t i = 0; i < row.n; i += BLOCK) {
            const int64_t length = minimum(BLOCK, row.n - i);
            const C* x = row.raw(i, length, scratch.high);
            double places[BLOCK];
            ties += how_many_are(x, length, extent.top);
            near += how_many_reach(x, length, edge);
            sum += find_bins(x, length, top, row.scale, per_unit, double(bins), places);
            count(places, length, turns, bins + 1, found);
            selected.look(x, length);
        }
        for (int64_t turn = 0; turn < turns; ++turn)
            for (int64_t i = 0; i <= bins; ++i) counts[i] += double(found[turn * (bins + 1) + i]);
        counts[0] -= double(ties);
        counts[bins] -= double(row.n - extent.count);
        selected.put(largest);
        summary[2] = double(ties);
        summary[3] = sum;
        summary[4] = double(edge);
        summary[5] = double(near);
        return true;
    });
}

// How many δ ≤ reach there are, and Σ exp(−δ) over them, but for those of M.
template <class C>
[[gnu::noinline]] void add_kept(const C* x, int64_t length, double top, double scale, double reach, double& number, double& sum) {
    const Exponential<double> exponential(Origin<double>{});
    double count = 0, part = 0;
#pragma omp simd reduction(+ : count, part)
    for (int64_t i = 0; i < length; ++i) {
        const double z = gap(x[i], top, scale), e = exponential(z), kept = z >= -reach ? 1.0 : 0.0;
        count += kept;
        part += double(x[i]) < top ? kept * e : 0.0;
    }
    number += count;
    sum += part;
}

template <class T>
bool kept(const SoftmaximaKept* call, T*) {
    using C = compute_t<T>;
    return for_each_whole_row<T>(call->rows, nullptr, 0, nullptr, 1.0, [=](const Row<T>& row, const T* const*, Scratch<C>& scratch) {
        double* summary = call->summary + row.index * 5;
        const Extent<T> extent(row, scratch);
        const double top = double(extent.top);
        double ties = 0, number = 0, sum = 0;
        for (int64_t i = 0; extent.is_finite() && i < row.n; i += BLOCK) {
            const int64_t length = minimum(BLOCK, row.n - i);
            const C* x = row.raw(i, length, scratch.high);
            ties += double(how_many_are(x, length, extent.top));
            add_kept(x, length, top, row.scale, call->reach, number, sum);
        }
        summary[0] = top;
        summary[1] = double(extent.count);
        summary[2] = ties;
        summary[3] = number;
        summary[4] = sum;
        return true;
    });
}

}  // namespace

int gaps(const SoftmaximaGaps* call) {
    return with_dtype(call->rows.dtype, [=](auto* type) { return gaps(call, type); });
}

int kept(const SoftmaximaKept* call) {
    return with_dtype(call->rows.dtype, [=](auto* type) { return kept(call, type); });
}

}  // namespace SOFTMAXIMA_ISA

SOFTMAXIMA_KERNEL(gaps, Gaps)
SOFTMAXIMA_KERNEL(kept, Kept)
