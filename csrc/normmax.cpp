// normmax: p = u/Σu, u = relu(z − λ)^{1/β}, β = α − 1, with λ such that Σ u^α = 1; and its derivative.
//
// u^α = relu(z − λ)^{1/b} with b = β/α: that is entmax of order 1 + b of z/b, whose threshold has the same λ. Of α = 2 it is entmax-1.5
// of 2z, and p is linear on the support. As b ≤ 1, the threshold is the root of a convex function.
//
// With s = u^{2−α} ‖p‖/β and q = p/Σp, k being where s is largest,
//
//   τ ∂⟨g, p⟩/∂x = v − q Σv,   v = s (γ − ⟨q, γ⟩),   γ = g − g_k
//
// where p > 0, and 0 elsewhere: so nothing cancels there more than in g itself.

#include "threshold.h"

namespace SOFTMAXIMA_ISA {
namespace {

// b, or a number at which p is that of b = 0.
inline double order(double alpha) { return alpha > 1 ? (alpha - 1) / alpha : 1e-30; }

struct Normmax2 : Entmax15 {
    using Entmax15::Entmax15;

    static constexpr double stretch(const double*) { return 0.5; }

    static double share(double gap, double edge) { return gap > above_rounding(edge) ? gap - edge : 0.0; }

    Threshold solve(const double* gaps, int64_t count, double lowest, double lost) const {
        Threshold threshold = Entmax15::solve(gaps, count, lowest, lost);
        double mass = 0;
#pragma omp simd reduction(+ : mass)
        for (int64_t i = 0; i < count; ++i) mass += share(gaps[i], threshold.edge);
        threshold.weight = 1 / mass;
        return threshold;
    }

    void probabilities(double* gaps, int64_t count, const Threshold& threshold) const {
        const double edge = threshold.edge;
        for (int64_t i = 0; i < count; ++i) gaps[i] = share(gaps[i], edge);
    }
};

struct Normmax : Entmax {
    double alpha;

    explicit Normmax(const double* theta) : Entmax(order(*theta)), alpha(*theta) {}

    static double stretch(const double* theta) { return order(*theta); }

    Threshold solve(const double* gaps, int64_t count, double lowest, double lost) const {
        Threshold threshold = Entmax::solve(gaps, count, lowest, lost);
        double mass = 0;
        for (int64_t i = 0; i < count; i += PADDING) {
            double p[PADDING];
            shares(gaps + i, PADDING, threshold, p);
            for (int64_t j = 0; j < PADDING; ++j) mass += p[j];
        }
        threshold.weight = 1 / mass;
        return threshold;
    }

    // ρ^{1/β}, which is u relative to the largest.
    void shares(const double* gaps, int64_t count, const Threshold& threshold, double* p) const {
        powers(gaps, count, threshold.growth, 1 / (alpha * beta), 0, p);
    }

    void probabilities(double* gaps, int64_t count, const Threshold& threshold) const { shares(gaps, count, threshold, gaps); }
};

// The same of z/b.
template <class T, class Family>
struct Stretched : ThresholdMap<T, Family> {
    using Base = ThresholdMap<T, Family>;
    using C = compute_t<T>;
    using Part = typename Base::Part;

    static Row<T> stretched(Row<T> row) {
        row.tau *= Family::stretch(row.theta);
        row.scale = inverse(row.tau);
        return row;
    }

    bool scan(const Row<T>& row, int64_t begin, int64_t end, Part& part, Scratch<C>& scratch) const {
        return Base::scan(stretched(row), begin, end, part, scratch);
    }

    bool finish(const Row<T>& row, Part* parts, int count, Scratch<C>& scratch) const { return Base::finish(stretched(row), parts, count, scratch); }

    bool emit(const Row<T>& row, int64_t begin, int64_t end, Part& part, Scratch<C>& scratch) const {
        return Base::emit(stretched(row), begin, end, part, scratch);
    }
};

// p in float, from the scores: for large α what half precision rounds off p counts α times. What is rounded to 0 stays 0.
template <class T>
const float* probabilities(const Row<T>& row, const T* rounded, Scratch<float>& scratch) {
    float* scores = reinterpret_cast<float*>(scratch.origins.at_least(row.n));  // which maps with a threshold do not use
    if (!scores) return nullptr;
    for (int64_t i = 0; i < row.n; ++i) scores[i] = float(row.score(i));
    Row<float> wide{scores, nullptr, row.tau, row.scale, 0, row.theta, row.n, row.index, scores + row.n};
    if (!whole_row(Stretched<float, Normmax>{}, wide, scratch)) return nullptr;
    for (int64_t i = 0; i < row.n; ++i) wide.out[i] = widen(rounded[i]) == 0 ? 0.0f : wide.out[i];
    return wide.out;
}

template <class T, class P>
bool pull(const Row<T>& row, const P* p, const Upstream<T>& g, Scratch<compute_t<T>>& scratch) {
    const double alpha = *row.theta, beta = alpha - 1;
    // body(i) where p > 0 or NaN, and nothing(begin, length) for groups without.
    const auto for_support = [&](const auto& body, const auto& begin_group) {
        for (int64_t i = 0; i < row.n; i += BLOCK) {
            const int64_t length = minimum(BLOCK, row.n - i);
            const compute_t<T>* values = widened(p + i, length, scratch.high);
            for (int64_t j = 0; j < length; j += LOOK) {
                const int64_t look = minimum(LOOK, length - j);
                const uint64_t found = above(values + j, look, compute_t<T>(0));
                begin_group(i + j, look);  // which may write over p
                for_each_bit(found, [&](int64_t k) { body(i + j + k); });
            }
        }
    };
    double* slopes = scratch.gaps.at_least(3 * row.n);
    if (!slopes) return false;
    double *shares = slopes + row.n, *upstream = shares + row.n;
    int64_t count = 0;
    for_support(
        [&](int64_t i) {
            shares[count] = double(widen(p[i]));
            upstream[count++] = double(g[i]);
        },
        [](int64_t, int64_t) {});
    double total = 0, top = 0;
    for (int64_t i = 0; i < count; ++i) {
        total += shares[i];
        top = shares[i] > top ? shares[i] : top;
    }
    const double log_top = log(top);
    double powers = 0;  // Σ (p/p_max)^α
    for (int64_t i = 0; i < count; ++i) {
        slopes[i] = log(shares[i]);
        powers += exp(alpha * (slopes[i] - log_top));
    }
    const double of_norm = beta / alpha * (alpha * log_top + log(powers)), scale = beta > 0 ? 1 / beta : 0.0;
    int64_t steepest = 0;
    for (int64_t i = 0; i < count; ++i) {
        slopes[i] = exp((2 - alpha) * slopes[i] + of_norm) * scale;
        steepest = slopes[i] > slopes[steepest] ? i : steepest;
    }
    const double reference = count > 0 ? upstream[steepest] : 0.0;
    const double shrink = shrinking<compute_t<T>>(upstream, count);
    double mean = 0, moved = 0;
    for (int64_t i = 0; i < count; ++i) {
        upstream[i] = upstream[i] * shrink - reference * shrink;
        shares[i] /= total;
        mean += shares[i] * upstream[i];
    }
    for (int64_t i = 0; i < count; ++i) {
        slopes[i] *= upstream[i] - mean;
        moved += slopes[i];
    }
    count = 0;
    T* out = row.out;
    for_support(
        [&](int64_t i) {
            put((slopes[count] - shares[count] * moved) * row.scale / shrink, out[i]);
            ++count;
        },
        [=](int64_t begin, int64_t length) { clear(out + begin, length); });
    return true;
}

}  // namespace

int normmax(const SoftmaximaForward* call) {
    return with_dtype(call->rows.dtype, [=](auto type) {
        using T = std::remove_pointer_t<decltype(type)>;
        const bool by_roots = call->rows.distance == 0 && *call->rows.theta == 2;
        return by_roots ? for_each_row<T>(call->rows, call->out, Stretched<T, Normmax2>{}, 1.0)
                        : for_each_row<T>(call->rows, call->out, Stretched<T, Normmax>{}, 5.0);
    });
}

int normmax_backward(const SoftmaximaBackward* call) {
    return with_dtype(call->rows.dtype, [=](auto type) {
        using T = std::remove_pointer_t<decltype(type)>;
        const T* inputs[] = {static_cast<const T*>(call->p), dense_upstream<T>(call)};
        return for_each_whole_row<T>(call->rows, inputs, 2, call->out, 1.0, [=](const Row<T>& row, const T* const* others, Scratch<compute_t<T>>& scratch) {
            const Upstream<T> g(call, row.index, others[1]);
            if (g.left_out()) return fill_with_zeros(row);
            if constexpr (sizeof(T) < sizeof(float)) {
                const float* p = probabilities(row, others[0], scratch);
                return p && pull(row, p, g, scratch);
            } else {
                return pull(row, others[0], g, scratch);
            }
        });
    });
}

}  // namespace SOFTMAXIMA_ISA

SOFTMAXIMA_KERNEL(normmax, Forward)
SOFTMAXIMA_KERNEL(normmax_backward, Backward)
