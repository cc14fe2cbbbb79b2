// fusedmax: u = argmin ½‖u − z‖² + γ Σ |u_{i+1} − u_i| of the scores that count, θ = (γ); p = relu(u − λ).
//
// u are the slopes of the taut string: the shortest path from (0, 0) to (n, Σz) that stays within γ of the sums of z. From an anchor
// the lowest convex path below the upper bound and the highest concave path above the lower one are kept; where a new point makes
// them cross, the string bends at the first vertex of the other path, which is the next anchor. Each point enters and leaves once.

#include "clusters.h"

namespace SOFTMAXIMA_ISA {
namespace {

struct Path {
    int64_t* vertices;
    int64_t begin = 0, end = 0;

    bool empty() const { return begin == end; }
    int64_t first() const { return vertices[begin]; }
    int64_t last() const { return vertices[end - 1]; }
};

struct TautString {
    Ordered& row;
    Path upper, lower;
    int64_t anchor = 0;
    double side = 0;  // of the anchor: 1 at the upper bound, −1 at the lower, 0 at the beginning

    double height(int64_t k, double of) const { return row.sums[k] + (k < row.count ? of * row.theta : 0.0); }
    double slope(int64_t i, double of_i, int64_t j, double of_j) const { return (height(j, of_j) - height(i, of_i)) / double(j - i); }

    // The string bends here; of the last point, whose side is 0, it ends. Neighbours that are equal are one cluster.
    void bend(int64_t k, double at) {
        row.add(anchor, k, (row.sum_of(anchor, k) + row.theta * (at - side)) / double(k - anchor));
        anchor = k;
        side = at;
        if (row.found < 2) return;
        const Cluster &own = row.clusters[row.found - 1], &before = row.clusters[row.found - 2];
        if (std::fabs(own.level - before.level) > ROUNDING * (1 + row.theta)) return;
        row.clusters[row.found - 2] = {before.begin, own.end, own.level};
        --row.found;
    }

    template <int own_side>
    void extend(int64_t k) {
        constexpr double own = own_side, other = -own_side;
        Path &path = own_side > 0 ? upper : lower, &against = own_side > 0 ? lower : upper;
        while (!path.empty()) {
            const int64_t last = path.last();
            const bool only = path.end - path.begin == 1;
            const double before = only ? slope(anchor, side, last, own) : slope(path.vertices[path.end - 2], own, last, own);
            if (!(own * slope(last, own, k, own) < own * before)) break;
            --path.end;
        }
        while (path.empty() && !against.empty() && own * slope(anchor, side, k, own) < own * slope(anchor, side, against.first(), other)) {
            bend(against.first(), other);
            ++against.begin;
        }
        path.vertices[path.end++] = k;
    }
};

struct Fused {
    static void order(Ordered& row) {
        const int64_t n = row.count;
        if (row.theta == 0) {
            for (int64_t k = 0; k < n; ++k) row.add(k, k + 1, row.z[k]);
            return;
        }
        // Nothing so low can have a probability, nor do its neighbours see how low it is.
        const double lowest = -2 - 4 * row.theta;
        row.sums[0] = 0;
        for (int64_t k = 0; k < n; ++k) {
            row.z[k] = std::max(row.z[k], lowest);
            row.sums[k + 1] = row.sums[k] + row.z[k];
        }
        TautString string{row, {row.first}, {row.second}};
        for (int64_t k = 1; k <= n; ++k) {
            if (k % 65536 == 0) row.heed();
            string.extend<1>(k);
            string.extend<-1>(k);
        }
        // Of both paths one is left but for the end.
        const bool rises = string.upper.end - string.upper.begin > 1;
        const Path& rest = rises ? string.upper : string.lower;
        for (int64_t k = rest.begin; k < rest.end; ++k) string.bend(rest.vertices[k], rest.vertices[k] == n ? 0.0 : rises ? 1.0 : -1.0);
    }
};

}  // namespace

int fusedmax(const SoftmaximaForward* call) { return clustered<Fused>(call, 12.0); }

int fusedmax_backward(const SoftmaximaBackward* call) { return clustered_backward<Fused>(call, 12.0); }

}  // namespace SOFTMAXIMA_ISA

SOFTMAXIMA_KERNEL(fusedmax, Forward)
SOFTMAXIMA_KERNEL(fusedmax_backward, Backward)
