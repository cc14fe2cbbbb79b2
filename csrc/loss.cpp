// Losses whose gradient is a map less the target, with that gradient, in one call:
//   value = w (U v + Ω(y) + Σ u_c (M − z_c))        out = w (U p − u)
// V(z) = M + v, M the largest z. It is summed in double, where the terms cancel near the loss's zero.

#include "threshold_columns.h"

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

    bool left_out() const { return !soft && label < 0; }
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

// value, and out = weight p − factor u.
struct Share {
    double value, weight, factor;
};

// Whether what a distribution lacks of 1 has a score of its own.
template <class Kernel>
constexpr bool has_sink = false;

template <class T>
constexpr bool has_sink<Softmax<T, Kind::elastic>> = true;

// `top` is M, and `conjugate` v.
template <class T>
Share share_of(const SoftmaximaLoss* call, const Row<T>& row, const Target<T>& target, double top, double conjugate, double beta, bool sink) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    Account sums = account(row, target, top == NOTHING ? 0.0 : top, Regulariser{beta});
    if (target.fenchel) {
        sums.mass = 1;
        if (sink && !target.one_hot()) {
            double missing = 1;
            for (int64_t c = 0; c < row.n; ++c) missing -= target.y(c);
            if (missing > 0 && row.theta > NOTHING) sums.regulariser += missing * (std::log(missing) - row.theta);
        }
    }
    double value = sums.weight == 0 ? 0.0 : sums.weight * (sums.mass * conjugate + sums.regulariser + sums.distance);
    if (sums.impossible && sums.weight != 0) value = conjugate == conjugate ? infinity : conjugate;
    const double factor = sums.weight * call->scale;
    return {value, factor * sums.mass, factor};
}

template <class T>
Target<T> target_of(const SoftmaximaLoss* call, const Row<T>& row, const T* soft) {
    return {call->labels ? call->labels[row.index] : -1, soft, call->class_weight, call->smoothing, row.n, call->fenchel != 0};
}

// What is subtracted from the gradient of a class.
template <class T>
double own(const Row<T>& row, const Target<T>& target, int64_t c, double factor) {
    const double z = row.score(c);
    return z > NOTHING || z != z ? factor * target.u(c) : 0.0;
}

template <class T, class Kernel>
bool row_loss(const SoftmaximaLoss* call, Kernel kernel, const Row<T>& row, const T* soft, Scratch<compute_t<T>>& scratch) {
    using C = compute_t<T>;
    const Target<T> target = target_of(call, row, soft);
    if (target.left_out()) {
        call->values[row.index] = 0;
        for (int64_t c = 0; row.out && c < row.n; ++c) narrow(0.0, row.out[c]);
        return true;
    }
    typename Kernel::Part part;
    kernel.with_conjugate = true;
    if (!kernel.scan(row, 0, row.n, part, scratch) || !kernel.finish(row, &part, 1, scratch)) return false;
    const Share share = share_of(call, row, target, part.top, part.conjugate, Kernel::beta(row), has_sink<Kernel>);
    call->values[row.index] = share.value;
    if (!row.out) return true;

    part.weight = share.weight;
    if (target.one_hot()) {
        if (!kernel.emit(row, 0, row.n, part, scratch)) return false;
        const int64_t c = target.label;
        if (row.score(c) > NOTHING) narrow(share.weight * kernel.probability(row, c, part) - share.factor * target.u(c), row.out[c]);
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
        for (int64_t c = i; c < i + length; ++c) narrow(double(p[c - i]) - own(row, target, c, share.factor), row.out[c]);
    }
    return true;
}

// Each kind of columns has
//   prepare(out, step, scratch)       the conjugates, less the largest z,
//   emit(weight, out, step)           weight · p,
//   probabilities(distances, p)       p of one score of each row.
template <class C, Kind kind>
struct alignas(LINE) ExponentialColumns {
    static constexpr int64_t WIDTH = Columns<C>::WIDTH;

    Columns<C>& columns;
    alignas(LINE) double conjugate[WIDTH];

    explicit ExponentialColumns(Columns<C>& columns_) : columns(columns_) {}

    bool prepare(C* out, int64_t step, Scratch<C>& scratch) {
        columns.template sum<true>(false, out, step);
        if (!columns.log_sums(true, scratch)) return false;
        for (int64_t j = 0; j < WIDTH; ++j) {
            LogSum sum = columns.log_sum_of(j);
            if (kind == Kind::elastic) {
                sum = sum.with_sink(columns.theta[j], columns.scale[j]);
                columns.mass[j] += std::exp(columns.theta[j] - columns.origin(j).value());
            }
            conjugate[j] = sum.log_sum;
        }
        return true;
    }

    void emit(const double* weight, C* out, int64_t step) { columns.emit(false, weight, true, out, step); }

    void probabilities(const double* distances, double* p) const {
        for (int64_t j = 0; j < WIDTH; ++j) p[j] = columns.mass[j] == columns.mass[j] ? distances[j] - conjugate[j] : columns.mass[j];
        for (int64_t j = 0; j < WIDTH; ++j) p[j] = exp(p[j]);
    }
};

// What a kernel is for columns, where it is anything.
template <class Kernel>
struct AsColumns {
    using type = void;
};

template <class T, Kind kind>
struct AsColumns<Softmax<T, kind>> {
    using type = ExponentialColumns<compute_t<T>, kind>;
};

template <class T, class Family>
struct AsColumns<ThresholdMap<T, Family>> {
    using type = std::conditional_t<Family::costly, void, ThresholdColumns<compute_t<T>, Family>>;
};

// The losses of short rows, which lie beside one another then.
template <class Kernel, class T>
bool short_losses(const SoftmaximaLoss* call, T*) {
    using C = compute_t<T>;
    const SoftmaximaRows& rows = call->rows;
    const T* soft = static_cast<const T*>(call->soft);
    return for_each_short_rows<T>(rows, static_cast<T*>(call->out), 1.0, [=](auto& columns, C* out, int64_t step, int64_t index, Scratch<C>& scratch) {
        constexpr int64_t WIDTH = Columns<C>::WIDTH;
        typename AsColumns<Kernel>::type kernel(columns);
        if (!kernel.prepare(out, step, scratch)) return false;
        double weight[WIDTH] = {}, distance[WIDTH] = {}, of_label[WIDTH];
        Share shares[WIDTH];
        const auto row_at = [&](int64_t j) { return row_of<T>(rows, index + j, nullptr); };
        const auto target_at = [&](const Row<T>& row) { return target_of(call, row, soft ? soft + row.index * row.n : nullptr); };
        for (int64_t j = 0; j < columns.width(); ++j) {
            const Row<T> row = row_at(j);
            const Target<T> target = target_at(row);
            const double top = double(columns.top[j]);
            shares[j] = target.left_out() ? Share{} : share_of(call, row, target, top, kernel.conjugate[j], Kernel::beta(row), has_sink<Kernel>);
            call->values[row.index] = shares[j].value;
            weight[j] = shares[j].weight;
            if (target.one_hot()) distance[j] = row.gap(target.left_out() ? 0 : target.label, top);
        }
        if (!out) return true;
        kernel.emit(weight, out, step);
        kernel.probabilities(distance, of_label);
        for (int64_t j = 0; j < columns.width(); ++j) {
            const Row<T> row = row_at(j);
            const Target<T> target = target_at(row);
            if (target.left_out()) {
                for (int64_t c = 0; c < row.n; ++c) out[c * step + j] = 0;
            } else if (target.one_hot()) {
                const int64_t c = target.label;
                if (row.score(c) > NOTHING) out[c * step + j] = C(weight[j] * of_label[j] - shares[j].factor * target.u(c));
            } else {
                for (int64_t c = 0; c < row.n; ++c) out[c * step + j] = C(double(out[c * step + j]) - own(row, target, c, shares[j].factor));
            }
        }
        return true;
    });
}

template <class T, class Kernel>
bool losses(const SoftmaximaLoss* call, T* type, const Kernel& kernel, double nanoseconds) {
    if constexpr (!std::is_void_v<typename AsColumns<Kernel>::type>) {
        if (are_short(call->rows)) return short_losses<Kernel>(call, type);
    }
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
