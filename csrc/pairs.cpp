// log(e^x + e^y) = M + log1p(e^{−|x − y|}), M the larger, elementwise, and its gradients σ(x − y) and σ(y − x).

#include "rows.h"

namespace SOFTMAXIMA_ISA {
namespace {

// log(1 + e) for e in [0, 1]. What the sum lost is divided by it, near enough.
[[gnu::always_inline]] inline double log_of_one_and(double e) {
    const double sum = 1 + e;
    return log_of_normal(sum) + (e - (sum - 1)) * (1 - e / 2);
}

// Where a result is so much smaller than a term of it, its digits are computed anew.
constexpr double CANCELS = 0.125;

// −|x − y|, and what its rounding lost. Equal infinities are 0 apart.
template <class T>
[[gnu::always_inline]] inline double apart(double x, double y, double& lost) {
    const double high = x > y ? x : y, low = x > y ? y : x;
    const double gap = x == y ? 0.0 : low - high;
    lost = 0;
    if constexpr (sizeof(T) == sizeof(double)) {
        const double taken = gap - low, rest = (low - (gap - taken)) - (high + taken);
        lost = rest == rest ? rest : 0.0;
    }
    return gap;
}

// In double, which hides from narrower results what cancels near 0.
template <class T>
void add(const T* x, const T* y, int64_t length, T* out) {
    int near = 0;
    for (int64_t i = 0; i < length; ++i) {
        double lost;
        const double a = double(widen(x[i])), b = double(widen(y[i]));
        const double e = exp(apart<T>(a, b, lost)), log = log_of_one_and(e + e * lost), value = (a > b ? a : b) + log;
        near |= std::fabs(value) < CANCELS * log;
        narrow(value, out[i]);
    }
    if (sizeof(T) < sizeof(double) || !near) return;
    for (int64_t i = 0; i < length; ++i) {
        const double a = double(widen(x[i])), b = double(widen(y[i])), high = a > b ? a : b, value = double(widen(out[i]));
        if (!(std::fabs(value) < CANCELS * (value - high))) continue;
        using W = long double;
        narrow(double(high + std::log1p(std::exp(a > b ? W(b) - W(a) : W(a) - W(b)))), out[i]);
    }
}

template <class T>
void pull(const T* x, const T* y, const T* g, int64_t length, T* of_x, T* of_y) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    for (int64_t i = 0; i < length; ++i) {
        double lost;
        const double a = double(widen(x[i])), b = double(widen(y[i])), pulled = double(widen(g[i]));
        double e = exp(apart<T>(a, b, lost));
        e += e * lost;
        const double nothing = ((a == -infinity) & (b == -infinity)) ? 0.0 : 1.0;
        const double larger = nothing / (1 + e), smaller = e * larger;
        narrow(pulled * (a > b ? larger : smaller), of_x[i]);
        narrow(pulled * (a > b ? smaller : larger), of_y[i]);
    }
}

}  // namespace

int logaddexp(const SoftmaximaPairs* call) {
    return with_dtype(call->dtype, [=](auto type) {
        using T = std::remove_pointer_t<decltype(type)>;
        const auto at = [](const void* array, int64_t i) { return static_cast<const T*>(array) + i; };
        const auto to = [](void* array, int64_t i) { return static_cast<T*>(array) + i; };
        const int64_t blocks = (call->n + BLOCK - 1) / BLOCK;
        return share_out<compute_t<T>>(blocks, team_size(call->threads, 2.0 * double(call->n)), [=](int64_t block, Scratch<compute_t<T>>&) {
            const int64_t i = block * BLOCK, length = minimum(BLOCK, call->n - i);
            if (call->g) {
                pull(at(call->x, i), at(call->y, i), at(call->g, i), length, to(call->out, i), to(call->other, i));
            } else {
                add(at(call->x, i), at(call->y, i), length, to(call->out, i));
            }
            return true;
        });
    });
}

}  // namespace SOFTMAXIMA_ISA

SOFTMAXIMA_KERNEL(logaddexp, Pairs)
