// Losses whose gradient is a map less the target, with that gradient, in one call:
//   value = w (U v + Ω(y) + Σ u_c (M − z_c))        out = w (U p − u)
// V(z) = M + v, M the largest z. It is summed in double, where the terms cancel near the loss's zero.

#include "exponential.h"
#include "threshold.h"

namespace SOFTMAXIMA_ISA {
namespace {

// y log y, and y (y^β − 1)/((1 + β) β), which is that at β = 0. Σ over a distribution is the regulariser of softmax and of entmax.
struct Regulariser {
    double beta;

    double operator()(double y) const {
        if (!(y > 0)) return y == 0 ? 0.0 : y;
        if (beta == 1) return y * (y - 1) / 2;
        if (beta == 0.5) return y * (std::sqrt(y) - 1) / 0.75;
        return y * (beta == 0 ? std::log(y) : std::expm1(beta * std::log(y)) / beta) / (1 + beta);
    }
};

template <class T>
struct Target {
    int64_t label;  // negative for probabilities
    const T* soft;
    const double* class_weight;
    double smoothing;
    int64_t classes;
    bool fenchel;

    double y(int64_t c) const {
        const double share = soft ? double(widen(soft[c])) : c == label ? 1.0 : 0.0;
        return smoothing == 0 ? share : share * (1 - smoothing) + smoothing / double(classes);
    }

    double u(int64_t c) const { return fenchel || !class_weight ? y(c) : y(c) * class_weight[c]; }

    bool one_hot() const { return !soft && smoothing == 0; }
};

// What the target says of a row.
struct Account {
    double weight = 1;    // w
    double mass = 0;      // U
    double distance = 0;  // Σ u (M − z)
    double regulariser = 0;
    bool impossible = false;  // a class that is −∞ has a target
};

template <class T>
Account account(const Row<T>& row, const Target<T>& target, double top, const Regulariser& omega) {
    Account sums;
    const bool fenchel = target.fenchel;
    if (fenchel && target.class_weight) sums.weight = target.soft ? 0 : target.class_weight[target.label];
    const auto add = [&](int64_t c, double u) {
        if (u == 0) return;
        const double gap = row.gap(c, top);
        if (gap == NOTHING) {
            sums.impossible = true;
        } else {
            sums.mass += u;
            sums.distance -= u * gap;
        }
    };
    if (target.one_hot()) {
        add(target.label, target.u(target.label));
        return sums;
    }
    for (int64_t c = 0; c < row.n; ++c) {
        add(c, target.u(c));
        if (!fenchel) continue;
        const double y = target.y(c);
        sums.regulariser += omega(y);
        if (target.soft && target.class_weight) sums.weight += y * target.class_weight[c];
    }
    return sums;
}

template <class T, class Kernel>
bool row_loss(const SoftmaximaLoss* call, Kernel kernel, const Row<T>& row, const T* soft, Scratch<compute_t<T>>& scratch) {
    using C = compute_t<T>;
    constexpr double infinity = std::numeric_limits<double>::infinity();
    double& value = call->values[row.index];
    const Target<T> target = {call->labels ? call->labels[row.index] : -1, soft, call->class_weight, call->smoothing, row.n, call->fenchel != 0};
    if (!soft && target.label < 0) {
        value = 0;
        for (int64_t c = 0; row.out && c < row.n; ++c) narrow(0.0, row.out[c]);
        return true;
    }
    typename Kernel::Part part;
    kernel.with_conjugate = true;
    if (!kernel.scan(row, 0, row.n, part, scratch) || !kernel.finish(row, &part, 1, scratch)) return false;
    const double top = part.top == NOTHING ? 0.0 : part.top;
    Account sums = account(row, target, top, Regulariser{kernel.beta(row)});
    if (target.fenchel) {
        sums.mass = 1;
        if constexpr (std::is_same_v<Kernel, Softmax<T, Kind::elastic>>) {
            double missing = 1;
            for (int64_t c = 0; !target.one_hot() && c < row.n; ++c) missing -= target.y(c);
            if (target.one_hot()) missing = 0;
            if (missing > 0 && row.theta > NOTHING) sums.regulariser += missing * (std::log(missing) - row.theta);
        }
    }
    value = sums.weight == 0 ? 0.0 : sums.weight * (sums.mass * part.conjugate + sums.regulariser + sums.distance);
    if (sums.impossible && sums.weight != 0) value = part.conjugate == part.conjugate ? infinity : part.conjugate;
    if (!row.out) return true;

    const double factor = sums.weight * call->scale;
    part.weight = factor * sums.mass;
    if (target.one_hot()) {
        if (!kernel.emit(row, 0, row.n, part, scratch)) return false;
        if (row.score(target.label) > NOTHING) narrow(part.weight * kernel.probability(row, target.label, part) - factor * target.u(target.label), row.out[target.label]);
        return true;
    }
    if (sizeof(T) == sizeof(C) && !kernel.emit(row, 0, row.n, part, scratch)) return false;
    C block[BLOCK];
    for (int64_t i = 0; i < row.n; i += BLOCK) {
        const int64_t length = minimum(BLOCK, row.n - i);
        const C* p = block;
        if constexpr (sizeof(T) == sizeof(C)) {
            p = row.out + i;
        } else {
            kernel.probabilities(row, i, length, part, block, scratch);
        }
        for (int64_t c = i; c < i + length; ++c) {
            const double own = row.score(c) > NOTHING || row.score(c) != row.score(c) ? factor * target.u(c) : 0.0;
            narrow(double(p[c - i]) - own, row.out[c]);
        }
    }
    return true;
}

template <class T, class Kernel>
bool losses(const SoftmaximaLoss* call, T*, const Kernel& kernel, double nanoseconds) {
    const T* inputs[] = {static_cast<const T*>(call->soft)};
    return for_each_whole_row<T>(call->rows, inputs, 1, call->out, nanoseconds,
                                 [=](const Row<T>& row, const T* const* others, Scratch<compute_t<T>>& scratch) {
                                     return row_loss(call, kernel, row, others[0], scratch);
                                 });
}

}  // namespace

#define SOFTMAXIMA_LOSS(name, nanoseconds, ...)                                                     \
    int name(const SoftmaximaLoss* call) {                                                          \
        return with_dtype(call->rows.dtype, [=](auto type) {                                        \
            using T = std::remove_pointer_t<decltype(type)>;                                        \
            return losses(call, type, __VA_ARGS__{}, nanoseconds);                                  \
        });                                                                                         \
    }

SOFTMAXIMA_LOSS(softmax_loss, 1.0, Softmax<T, Kind::softmax>)
SOFTMAXIMA_LOSS(elastic_softmax_loss, 1.0, Softmax<T, Kind::elastic>)
SOFTMAXIMA_LOSS(sparsemax_loss, 1.0, ThresholdMap<T, Sparsemax>)
SOFTMAXIMA_LOSS(entmax15_loss, 1.0, ThresholdMap<T, Entmax15>)
SOFTMAXIMA_LOSS(entmax_loss, 5.0, ThresholdMap<T, Entmax>)

}  // namespace SOFTMAXIMA_ISA
