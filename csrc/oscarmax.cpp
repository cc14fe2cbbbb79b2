// oscarmax: u = argmin ½‖u − z‖² + γ Σ_{i<j} max(u_i, u_j), θ = (γ); p = relu(u − λ).
//
// Of scores in descending order u is, up to a constant, the non-increasing sequence nearest to z_(k) + γk: neighbours that are equal
// or out of order are pooled (pool adjacent violators).

#include "clusters.h"

namespace SOFTMAXIMA_ISA {
namespace {

struct Oscar {
    static void order(Ordered& row) {
        const int64_t n = row.count;
        // In the order of the row where z is equal, so that results do not depend on how a sort is made.
        int64_t* order = row.first;
        for (int64_t k = 0; k < n; ++k) order[k] = k;
        const auto before = [&](int64_t a, int64_t b) { return row.z[a] > row.z[b] || (row.z[a] == row.z[b] && a < b); };
        in_order(before, row.halt, [=](const auto& by) { std::sort(order, order + n, by); });
        for (int64_t k = 0; k < n; ++k) {
            row.sums[k] = row.z[order[k]];
            row.second[k] = row.place[order[k]];
        }
        std::copy_n(row.sums, n, row.z);
        std::copy_n(row.second, n, row.place);
        double* totals = row.sums;  // Σz of each cluster
        for (int64_t k = 0; k < n; ++k) {
            double total = row.z[k];
            Cluster own = {k, k + 1, total + row.theta * double(k)};
            while (row.found > 0 && row.theta > 0 && own.level >= row.clusters[row.found - 1].level - ROUNDING * (1 + std::fabs(own.level))) {
                --row.found;
                own.begin = row.clusters[row.found].begin;
                total += totals[row.found];
                own.level = total / double(own.size()) + row.theta * (double(own.begin + own.end - 1) / 2);
            }
            totals[row.found] = total;
            row.clusters[row.found++] = own;
        }
        // Beside a large γ, 1 is nothing: of levels less the highest it is not.
        const double highest = row.clusters[0].level;
        for (int64_t c = 0; c < row.found; ++c) row.clusters[c].level -= highest;
    }
};

}  // namespace

int oscarmax(const SoftmaximaForward* call) { return clustered<Oscar>(call, 60.0); }

int oscarmax_backward(const SoftmaximaBackward* call) { return clustered_backward<Oscar>(call, 60.0); }

}  // namespace SOFTMAXIMA_ISA

SOFTMAXIMA_KERNEL(oscarmax, Forward)
SOFTMAXIMA_KERNEL(oscarmax_backward, Backward)
