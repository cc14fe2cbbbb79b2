// log(e^x + e^y) = M + log1p(e^{−|x − y|}), M the larger, elementwise, and its gradients σ(x − y) and σ(y − x).

#include "rows.h"

namespace SOFTMAXIMA_ISA {
namespace {

// log(1 + e) for e in [0, 1]. What the sum lost is divided by it, near enough.
[[gnu::always_inline]] inline double log_of_one_and(double e) {
    const double sum = 1 + e;
    return log_of_normal(sum) + (e - (sum - 1)) * (1 - e / 2);
}

// 1/x for x in [1, 3], within 2^-45: a quotient in float and a step of Newton, for a division in double takes as long as an exponential.
[[gnu::always_inline]] inline double inverse_of(double x) {
    const double near = double(1.0f / float(x));
    return near + near * (1 - x * near);
}

// The same for a result that is narrower than double, within 2^-52: 2 artanh(s), s = e / (2 + e).
[[gnu::always_inline]] inline double log_of_one_and_narrow(double e) {
    const double divisor = 2 + e, inverse = inverse_of(divisor), near = e * inverse, s = near + inverse * (e - near * divisor), z = s * s;
    double value = 0.1687070066109721;
    value = 0.10322669270499082 + z * value;
    value = 0.135023424717571 + z * value;
    value = 0.15373274876358003 + z * value;
    value = 0.18182261108419745 + z * value;
    value = 0.22222212557929713 + z * value;
    value = 0.2857142867666099 + z * value;
    value = 0.39999999999560126 + z * value;
    value = 0.6666666666666697 + z * value;
    return 2 * s + (s * z) * value;
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
    if constexpr (sizeof(T) < sizeof(double)) {
        const Exponential<double> exponential(Origin<double>{});
        for (int64_t i = 0; i < length; ++i) {
            double lost;
            const double a = double(widen(x[i])), b = double(widen(y[i]));
            narrow((a > b ? a : b) + log_of_one_and_narrow(exponential(apart<T>(a, b, lost))), out[i]);
        }
        return;
    }
    int near = 0;
    for (int64_t i = 0; i < length; ++i) {
        double lost;
        const double a = double(widen(x[i])), b = double(widen(y[i]));
        const double e = exp(apart<T>(a, b, lost)), log = log_of_one_and(e + e * lost), value = (a > b ? a : b) + log;
        near |= std::fabs(value) < CANCELS * log;
        narrow(value, out[i]);
    }
    if (!near) return;
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
    constexpr bool narrower = sizeof(T) < sizeof(double);
    const Exponential<double> exponential(Origin<double>{});
    for (int64_t i = 0; i < length; ++i) {
        double lost;
        const double a = double(widen(x[i])), b = double(widen(y[i])), pulled = double(widen(g[i])), distance = apart<T>(a, b, lost);
        double e = narrower ? exponential(distance) : exp(distance);
        if (!narrower) e += e * lost;
        const double share = narrower ? inverse_of(1 + e) : 1 / (1 + e);
        const double infinite = ((a == infinity) | (b == infinity)) ? std::numeric_limits<double>::quiet_NaN() : share;
        const double larger = ((a == -infinity) & (b == -infinity)) ? 0.0 : infinite, smaller = e * larger;
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
