// Maps that give equal probabilities to clusters of scores: p = relu(u − λ) with Σp = 1, u the same in each cluster c. With S the
// support, ∂p/∂z is Σ_c 1_c 1_cᵀ/|c| − 1_S 1_Sᵀ/|S| over the clusters in it.
//
// A kernel of this kind has order(ordered), which puts the scores in an order where each cluster is in one piece, and finds these.
#pragma once

#include <algorithm>

#include "exponential.h"

namespace SOFTMAXIMA_ISA {

// Of levels: it must not say which of scores that are equal are in one cluster, nor what is in the support at its edge.
constexpr double ROUNDING = 0x1p-48;

struct Cluster {
    int64_t begin, end;  // in order
    double level;        // u

    int64_t size() const { return end - begin; }
};

// The scores of a row that count, z less the largest of them.
struct Ordered {
    double* z;
    double* sums;     // [count + 1], to work in, as are
    int64_t* first;   // [count + 1]
    int64_t* second;  // [count + 1]
    int64_t* place;   // in the row
    Cluster* clusters;
    int64_t count, found;  // scores and clusters
    double theta;
    double high, low;  // λ
    bool nan;
    bool is_alone;  // whether one cluster has all
    Halt* halt;     // of a long row

    void heed() const {
        if (halt) halt->heed();
    }

    void add(int64_t begin, int64_t end, double level) { clusters[found++] = {begin, end, level}; }

    double sum_of(int64_t begin, int64_t end) const {
        Sum sum;
        for (int64_t k = begin; k < end; ++k) sum.add(z[k]);
        return sum.value();
    }

    double probability(const Cluster& c) const { return is_alone ? 1.0 / double(c.size()) : (c.level - high) - low; }
    bool counts(const Cluster& c) const { return (c.level - high) - low > std::min(ROUNDING * (1 + theta), 0.5 / double(count)); }

    // Michelot's method: λ of all that are within 1 of the highest level, and of those that are above it, until these are all. Of
    // levels at λ but for rounding one may leave and come back.
    void find_threshold() {
        double top = NOTHING;
        for (int64_t c = 0; c < found; ++c) top = std::max(top, clusters[c].level);
        high = top - 1;
        for (double before = std::numeric_limits<double>::infinity();;) {
            Sum sum;
            double size = 0;
            for (int64_t c = 0; c < found; ++c) {
                const double own = double(clusters[c].size());
                if (!(clusters[c].level > high)) continue;
                const double product = own * clusters[c].level;
                sum.add(product);
                sum.low += std::fma(own, clusters[c].level, -product);
                size += own;
            }
            if (size >= before) return;
            heed();
            before = size;
            sum.add(-1.0);
            high = sum.value() / size;
            low = ((sum.high - high * size) - std::fma(high, size, -(high * size)) + sum.low) / size;
        }
    }
};

template <class T, class Solver>
struct Clustered {
    using C = compute_t<T>;

    static bool solve(const Row<T>& row, Ordered& ordered, Scratch<C>& scratch) {
        const int64_t n = row.n;
        double* memory = scratch.gaps.at_least(5 * n + 3);
        double* clusters = scratch.origins.at_least(3 * n);
        if (!memory || (!clusters && n > 0)) return false;
        ordered.z = memory;
        ordered.sums = memory + n;
        ordered.first = reinterpret_cast<int64_t*>(memory + 2 * n + 1);
        ordered.second = reinterpret_cast<int64_t*>(memory + 3 * n + 2);
        ordered.place = reinterpret_cast<int64_t*>(memory + 4 * n + 3);
        ordered.clusters = reinterpret_cast<Cluster*>(clusters);
        ordered.count = ordered.found = 0;
        ordered.theta = *row.theta;
        ordered.high = ordered.low = 0;
        ordered.halt = row.halt;
        double top = NOTHING;
        ordered.nan = ordered.is_alone = false;
        for (int64_t i = 0; i < n; ++i) {
            if (i % Row<T>::LONG == 0) row.heed();
            const double x = row.score(i);
            top = x > top ? x : top;
            ordered.nan = ordered.nan || x != x || x == -NOTHING;
        }
        if (ordered.nan) return true;
        for (int64_t i = 0; i < n; ++i) {
            if (!(row.score(i) > NOTHING)) continue;
            ordered.place[ordered.count] = i;
            ordered.z[ordered.count++] = row.gap_above(i, top);
        }
        if (ordered.count == 0) return true;
        row.heed();
        Solver::order(ordered);
        row.heed();
        ordered.find_threshold();
        ordered.is_alone = std::count_if(ordered.clusters, ordered.clusters + ordered.found, [&](const Cluster& c) { return ordered.counts(c); }) == 1;
        return true;
    }

    static bool forward(const Row<T>& row, Scratch<C>& scratch) {
        Ordered ordered;
        if (!solve(row, ordered, scratch)) return false;
        for (int64_t i = 0; i < row.n; ++i) narrow(ordered.nan ? std::numeric_limits<double>::quiet_NaN() : 0.0, row.out[i]);
        for (int64_t c = 0; c < ordered.found; ++c) {
            const Cluster& cluster = ordered.clusters[c];
            if (!ordered.counts(cluster)) continue;
            const double p = ordered.probability(cluster);
            if (c % Row<T>::LONG == 0) row.heed();
            for (int64_t k = cluster.begin; k < cluster.end; ++k) narrow(p, row.out[ordered.place[k]]);
        }
        return true;
    }

    static bool pull(const Row<T>& row, const Upstream<T>& g, Scratch<C>& scratch) {
        Ordered ordered;
        if (g.left_out()) return fill_with_zeros(row);
        if (!solve(row, ordered, scratch)) return false;
        for (int64_t i = 0; i < row.n; ++i) narrow(ordered.nan ? std::numeric_limits<double>::quiet_NaN() : 0.0, row.out[i]);
        const double shrink = shrinking<C>(g, row.n);
        double all = 0, size = 0;
        int64_t supported = 0;
        for (int64_t c = 0; c < ordered.found; ++c) {
            Cluster& cluster = ordered.clusters[c];
            if (!ordered.counts(cluster)) continue;
            double sum = 0;
            for (int64_t k = cluster.begin; k < cluster.end; ++k) sum += double(g[ordered.place[k]]) * shrink;
            ordered.sums[supported++] = sum / double(cluster.size());
            all += sum;
            size += double(cluster.size());
        }
        if (supported == 1) return true;  // its p does not move
        const double mean = all / size;
        supported = 0;
        for (int64_t c = 0; c < ordered.found; ++c) {
            const Cluster& cluster = ordered.clusters[c];
            if (!ordered.counts(cluster)) continue;
            const double slope = (ordered.sums[supported++] - mean) * row.scale / shrink;
            for (int64_t k = cluster.begin; k < cluster.end; ++k) put_any(slope, row.out[ordered.place[k]]);
        }
        return true;
    }
};

template <class Solver>
int clustered(const SoftmaximaForward* call, double nanoseconds) {
    return with_dtype(call->rows.dtype, [=](auto type) {
        using T = std::remove_pointer_t<decltype(type)>;
        return for_each_whole_row<T>(call->rows, nullptr, 0, call->out, nanoseconds, [](const Row<T>& row, const T* const*, Scratch<compute_t<T>>& scratch) {
            return Clustered<T, Solver>::forward(row, scratch);
        });
    });
}

template <class Solver>
int clustered_backward(const SoftmaximaBackward* call, double nanoseconds) {
    return with_dtype(call->rows.dtype, [=](auto type) {
        using T = std::remove_pointer_t<decltype(type)>;
        const T* inputs[] = {dense_upstream<T>(call)};
        return for_each_whole_row<T>(call->rows, inputs, 1, call->out, nanoseconds,
                                     [=](const Row<T>& row, const T* const* others, Scratch<compute_t<T>>& scratch) {
                                         return Clustered<T, Solver>::pull(row, Upstream<T>(call, row.index, others[0]), scratch);
                                     });
    });
}

}  // namespace SOFTMAXIMA_ISA
