// Taylor softmax: p = f(z) / Σ f(z), f the Taylor polynomial of exp of even order k, and its derivative: f' is that of order k − 1.
// In double, for negative scores cancel digits; in z/s with s = max(1, |z|), so that no power overflows.

#include "rows.h"

namespace SOFTMAXIMA_ISA {
namespace {

// f of some degree, over s^order.
class Polynomial {
   public:
    // The coefficients are kept in `memory`, for degree + 1.
    Polynomial(int degree, int order, double scale, double* memory) : coefficients_(memory), degree_(degree), inverse_scale_(1 / scale) {
        for (int m = 0; m <= degree; ++m) memory[m] = std::exp((m - order) * std::log(scale) - std::lgamma(m + 1.0));
        double factorial = 1;
        for (int m = 0; m <= degree && m <= 20; ++m) {
            factorial *= m > 0 ? m : 1;
            memory[m] = std::pow(scale, m - order) / factorial;  // exact while it can be
        }
    }

    void operator()(const double* z, double* f, int64_t length) const {
        for (int64_t i = 0; i < length; ++i) f[i] = coefficients_[degree_];
        for (int m = degree_ - 1; m >= 0; --m) {
            const double c = coefficients_[m];
            for (int64_t i = 0; i < length; ++i) f[i] = f[i] * (z[i] * inverse_scale_) + c;
        }
    }

   private:
    const double* coefficients_;
    int degree_;
    double inverse_scale_;
};

constexpr int64_t STEP = 256;

// A few scores of a row: 0 with weight 0 where masked.
template <class T>
struct Terms {
    double z[STEP], f[STEP], allowed[STEP];

    void load(const Row<T>& row, int64_t begin, int64_t length, Scratch<compute_t<T>>& scratch) {
        const auto* values = row.raw(begin, length, scratch.high);
        for (int64_t i = 0; i < length; ++i) {
            allowed[i] = double(values[i]) == -std::numeric_limits<double>::infinity() ? 0.0 : 1.0;
            z[i] = allowed[i] == 0 ? 0.0 : double(values[i]) * row.scale;
        }
    }
};

template <class T>
struct Taylor {
    using C = compute_t<T>;

    // max(1, |z|) over a row.
    static double scale(const Row<T>& row, Terms<T>& terms, Scratch<C>& scratch) {
        double largest = 1;
        for (int64_t i = 0; i < row.n; i += STEP) {
            const int64_t length = minimum(STEP, row.n - i);
            terms.load(row, i, length, scratch);
            for (int64_t j = 0; j < length; ++j) largest = std::fabs(terms.z[j]) > largest ? std::fabs(terms.z[j]) : largest;
        }
        return largest;
    }

    static double mass(const Row<T>& row, const Polynomial& f, Terms<T>& terms, Scratch<C>& scratch) {
        double sum = 0;
        for (int64_t i = 0; i < row.n; i += STEP) {
            const int64_t length = minimum(STEP, row.n - i);
            terms.load(row, i, length, scratch);
            f(terms.z, terms.f, length);
#pragma omp simd reduction(+ : sum)
            for (int64_t j = 0; j < length; ++j) sum += terms.f[j] * terms.allowed[j];
        }
        return sum;
    }
};

template <class T>
bool forward(const SoftmaximaForward* call, T*) {
    using C = compute_t<T>;
    return for_each_whole_row<T>(call->rows, nullptr, 0, call->out, 2.0, [](const Row<T>& row, const T* const*, Scratch<C>& scratch) {
        Terms<T> terms;
        const int order = int(row.theta);
        double* memory = scratch.gaps.at_least(order + 1);
        if (!memory) return false;
        const Polynomial f(order, order, Taylor<T>::scale(row, terms, scratch), memory);
        const double sum = Taylor<T>::mass(row, f, terms, scratch), factor = sum == 0 ? 1.0 : 1 / sum;
        for (int64_t i = 0; i < row.n; i += STEP) {
            const int64_t length = minimum(STEP, row.n - i);
            terms.load(row, i, length, scratch);
            f(terms.z, terms.f, length);
            for (int64_t j = 0; j < length; ++j) narrow(terms.f[j] * terms.allowed[j] * factor, row.out[i + j]);
        }
        return true;
    });
}

// ∂x = s (g − ⟨p, g⟩) / τ, s = f'(z) / Σ f(z).
template <class T>
bool backward(const SoftmaximaBackward* call, T*) {
    using C = compute_t<T>;
    const T* inputs[] = {static_cast<const T*>(call->p), static_cast<const T*>(call->g)};
    return for_each_whole_row<T>(call->rows, inputs, 2, call->out, 3.0, [](const Row<T>& row, const T* const* others, Scratch<C>& scratch) {
        const T *p = others[0], *g = others[1];
        Terms<T> terms;
        const int order = int(row.theta);
        const double scale = Taylor<T>::scale(row, terms, scratch);
        double* memory = scratch.gaps.at_least(order + 1);
        if (!memory) return false;
        const double sum = Taylor<T>::mass(row, Polynomial(order, order, scale, memory), terms, scratch), factor = sum == 0 ? 1.0 : 1 / sum;
        double mean = 0;
#pragma omp simd reduction(+ : mean)
        for (int64_t i = 0; i < row.n; ++i) mean += double(widen(p[i])) * double(widen(g[i]));
        const Polynomial slope(order - 1, order, scale, memory);
        for (int64_t i = 0; i < row.n; i += STEP) {
            const int64_t length = minimum(STEP, row.n - i);
            terms.load(row, i, length, scratch);
            slope(terms.z, terms.f, length);
            for (int64_t j = 0; j < length; ++j) {
                const double s = terms.f[j] * terms.allowed[j] * factor * row.scale;
                narrow(s * (double(widen(g[i + j])) - mean), row.out[i + j]);
            }
        }
        return true;
    });
}

}  // namespace

int taylor_softmax(const SoftmaximaForward* call) {
    return with_dtype(call->rows.dtype, [=](auto type) { return forward(call, type); });
}

int taylor_backward(const SoftmaximaBackward* call) {
    return with_dtype(call->rows.dtype, [=](auto type) { return backward(call, type); });
}

}  // namespace SOFTMAXIMA_ISA
