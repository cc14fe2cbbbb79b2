// Weighted sums: log|S| and the sign of S = Σ b_i exp(z_i), z = x/τ, b of either sign: the monoid (M, m, r) with signs.
//
//   S = e^M (m + r),  M the largest score that has a weight,  m the weights of the scores equal to M,  r the other terms
//
// Terms of either sign cancel, so that sums keep what their roundings lost.

#include "exponential.h"

namespace SOFTMAXIMA_ISA {
namespace {

constexpr int64_t PART = 512;                             // scores that are worked on at a time
constexpr double SMALLEST = 0x1p-100, LARGEST = 0x1p100;  // weights beside which no term that counts underflows
constexpr double UNDECIDED = 2;

// The largest score that has a weight, and whether there is a score or weight for which this file has no answer.
[[gnu::noinline]] void look(const double* x, const double* b, int64_t length, double& top, int64_t& odd) {
    double highest = top;
    int64_t found = 0;
#pragma omp simd reduction(max : highest) reduction(| : found)
    for (int64_t i = 0; i < length; ++i) {
        const double size = std::fabs(b[i]), own = size == 0 ? NOTHING : x[i];
        const bool ordinary = size == 0 || (size >= SMALLEST && size <= LARGEST && x[i] < -NOTHING);
        found |= ordinary ? 0 : 1;
        highest = own > highest ? own : highest;
    }
    top = highest;
    odd |= found;
}

[[gnu::noinline]] void add_terms(const double* x, const double* b, int64_t length, double top, double tau, Sum& equal, Sum& rest) {
    const double scale = inverse(tau);
    double m = 0, m_lost = 0, r = 0, r_lost = 0;
#pragma omp simd reduction(+ : m, m_lost, r, r_lost)
    for (int64_t i = 0; i < length; ++i) {
        double lost;
        const double z = gap(x[i], top, tau, scale, lost), e = exp(b[i] == 0 ? NOTHING : z), term = b[i] * (e + e * lost);
        const bool largest = x[i] == top && b[i] != 0;
        add_exactly(largest ? b[i] : 0.0, m, m_lost);
        add_exactly(largest ? 0.0 : term, r, r_lost);
    }
    equal.add({m, m_lost});
    rest.add({r, r_lost});
}

template <class T>
bool weighted(const SoftmaximaWeighted* call, T*) {
    using C = compute_t<T>;
    return for_each_whole_row<T>(call->rows, nullptr, 0, nullptr, 6.0, [=](const Row<T>& row, const T* const*, Scratch<C>& scratch) {
        const double* b = call->weights + row.index * call->distance;
        double x[PART];
        double top = NOTHING, value = NOTHING, sign = 0;
        int64_t odd = 0;
        for (int64_t i = 0; i < row.n; i += PART) {
            const int64_t length = minimum(PART, row.n - i);
            row.wide(i, length, scratch, x);
            look(x, b + i, length, top, odd);
        }
        if (odd) {
            value = sign = UNDECIDED;
        } else if (top > NOTHING) {
            Sum equal, rest;
            for (int64_t i = 0; i < row.n; i += PART) {
                const int64_t length = minimum(PART, row.n - i);
                if (row.n > PART) row.wide(i, length, scratch, x);
                add_terms(x, b + i, length, top, row.tau, equal, rest);
            }
            const double m = equal.value(), r = rest.value(), share = r / m;
            Sum total = equal;
            total.add(rest);
            const double sum = total.value();
            value = LogSum{top, std::fabs(share) <= 0.5 ? std::log(std::fabs(m)) + std::log1p(share) : std::log(std::fabs(sum)), 0}.value(row.tau);
            sign = sum > 0 ? 1 : sum < 0 ? -1 : 0;
        }
        call->values[row.index] = value;
        call->signs[row.index] = sign;
        return true;
    });
}

}  // namespace

int weighted(const SoftmaximaWeighted* call) {
    return with_dtype(call->rows.dtype, [=](auto* type) { return weighted(call, type); });
}

}  // namespace SOFTMAXIMA_ISA

SOFTMAXIMA_KERNEL(weighted, Weighted)
