// Losses whose gradient is a map less the target, with that gradient, in one call:
//   value = w (U v + Ω(y) + Σ u_c (M − z_c))        out = w (U p − u)
// V(z) = M + v, M the largest z. It is summed in double, where the terms cancel near the loss's zero.

#pragma once

#include "threshold_columns.h"
#include "threshold_lines.h"

namespace SOFTMAXIMA_ISA {

// A cosine with its margin, times s, and the derivative of the cosine with its margin.
struct Moved {
    double score, slope;
};

struct Margin {
    double scale, size, limit, of_cosine, of_sine;
    bool angular;

    explicit Margin(const SoftmaximaMargin& margin) : scale(margin.scale), size(margin.size), limit(margin.limit), angular(margin.angular != 0) { set(1); }

    explicit operator bool() const { return scale != 0; }

    // For a class of the target probability y.
    void set(double y) {
        of_cosine = angular ? std::cos(size * y) : size * y;
        of_sine = angular ? std::sin(size * y) : 0.0;
    }

    // The rounding of cosines: their limit has four of those that they came with, that of features none.
    template <class T>
    double eps() const {
        return limit < std::numeric_limits<double>::infinity() ? (limit - 1) / 4 : double(std::numeric_limits<T>::epsilon());
    }

    template <class T>
    Moved operator()(T x) const {
        const double cosine = double(x);
        if (!angular) return {(cosine - of_cosine) * scale, 1};
        const bool inside = std::fabs(cosine) <= 1;
        const double c = inside ? cosine : cosine > 0 ? 1.0 : cosine < 0 ? -1.0 : cosine;
        // The root has no derivative at 0.
        const double square = (1 - c) * (1 + c), root = std::sqrt(square > 0 ? square : eps<T>());
        const double sine = square > 0 ? root : 0.0;
        const double value = c * of_cosine - sine * of_sine, slope = inside ? of_cosine + c / root * of_sine : 0.0;
        if (c >= -of_cosine) return {value * scale, slope};
        return {(-2 - value) * scale, -slope};
    }
};

template <class T>
struct Target {
    int64_t label;  // negative for probabilities
    const T* soft;
    const double* class_weight;
    double smoothing;
    double spread;  // what smoothing gives each class
    bool fenchel;
    compute_t<T> score;  // of the label, with its margin

    double y(int64_t c) const { return (soft ? double(widen(soft[c])) : c == label ? 1.0 : 0.0) * (1 - smoothing) + spread; }

    double u(int64_t c) const { return weighted() ? y(c) * class_weight[c] : y(c); }

    // What u leaves of a sum U for the other classes.
    double rest(int64_t c, int64_t n, double sum) const { return !soft && c == label && !weighted() ? spread * double(n - 1) : sum - u(c); }

    bool weighted() const { return class_weight && !fenchel; }

    bool one_hot() const { return !soft && smoothing == 0; }

    bool left_out() const { return !soft && label < 0; }

    // body(u) for a u(c) that loops can be made vectors of; a label is left to have its own share.
    template <class Body>
    void with_u(const Body& body) const {
        const double kept = 1 - smoothing, each = spread;
        const T* from = soft;
        const double* w = class_weight;
        if (soft && weighted()) {
            body([=](int64_t c) __attribute__((always_inline)) { return (double(widen(from[c])) * kept + each) * w[c]; });
        } else if (soft) {
            body([=](int64_t c) __attribute__((always_inline)) { return double(widen(from[c])) * kept + each; });
        } else if (weighted()) {
            body([=](int64_t c) __attribute__((always_inline)) { return each * w[c]; });
        } else {
            body([=](int64_t) __attribute__((always_inline)) { return each; });
        }
    }
};

// What the target says of a row.
struct Account {
    double weight = 1;    // w
    double mass = 0;      // U
    double distance = 0;  // Σ u (M − z)
    double regulariser = 0;
    double total = 1;         // Σ y
    bool impossible = false;  // a class that is −∞ has a target
};

// What a row's scores and the u(c) of its classes add up to, with what roundings lost.
struct Weighed {
    double mass = 0, mass_lost = 0, distance = 0, distance_lost = 0, impossible = 0;

    void add(double u, double gap) {
        if (u != 0 && gap == NOTHING) {
            impossible = 1;
        } else if (u != 0) {
            add_exactly(u, mass, mass_lost);
            add_exactly(u * -gap, distance, distance_lost);
        }
    }
};

template <class T, class Shares>
Weighed weigh_classes(const T* x, int64_t n, double top, const Shares& u) {
    double mass = 0, mass_lost = 0, distance = 0, distance_lost = 0, impossible = 0;
#pragma omp simd reduction(+ : mass, mass_lost, distance, distance_lost, impossible)
    for (int64_t c = 0; c < n; ++c) {
        const double share = u(c), gap = double(widen(x[c])) - top;
        const bool nothing = gap == NOTHING, counts = (share != 0) & !nothing;
        add_exactly(counts ? share : 0.0, mass, mass_lost);
        add_exactly(counts ? share * -gap : 0.0, distance, distance_lost);
        impossible += ((share != 0) & nothing) ? 1.0 : 0.0;
    }
    return {mass, mass_lost, distance, distance_lost, impossible};
}

// Σ w_c y_c.
template <class T>
double weight_of(const Target<T>& target, int64_t n) {
    const double* w = target.class_weight;
    Sum total;
    if (!target.soft) total.add((1 - target.smoothing) * w[target.label]);
    if (target.one_hot()) return total.value();
    target.with_u([&](const auto& y) {
        double sum = 0, lost = 0;
#pragma omp simd reduction(+ : sum, lost)
        for (int64_t c = 0; c < n; ++c) add_exactly(y(c) * w[c], sum, lost);
        total.add({sum, lost});
    });
    return total.value();
}

// A sum and what its roundings lost, where that can be said.
inline double corrected(double sum, double lost) { return lost == lost ? sum + lost : sum; }

template <class T, class Regulariser>
Account account(const Row<T>& row, const Target<T>& target, double top, const Regulariser& omega) {
    Account sums;
    Weighed weighed;
    const int64_t n = row.n;
    if (!target.one_hot()) target.with_u([&](const auto& u) { weighed = weigh_classes(row.x, n, top, u); });
    if (!target.soft) {
        const double share = (1 - target.smoothing) * (target.weighted() ? target.class_weight[target.label] : 1.0);
        weighed.add(share, double(target.score) - top);
    }
    sums.mass = corrected(weighed.mass, weighed.mass_lost);
    sums.distance = corrected(weighed.distance, weighed.distance_lost);
    sums.impossible = weighed.impossible > 0;
    if (!target.fenchel) return sums;
    if (target.class_weight) sums.weight = weight_of(target, n);
    if (target.soft) {
        Sum regulariser, total;
        for (int64_t c = 0; c < n; ++c) {
            const double y = target.y(c);
            regulariser.add(omega(y));
            total.add(y);
        }
        sums.regulariser = regulariser.value();
        sums.total = total.value();
    } else if (!target.one_hot()) {
        sums.regulariser = double(n - 1) * omega(target.spread) + omega(target.y(target.label));
    }
    return sums;
}

// value, and out = weight p − factor u, of which weight = factor (U + more).
struct Share {
    double value, weight, factor, mass, more;
};

// Whether the conjugate is log Σ exp, and whether what a distribution lacks of 1 has a score of its own there.
template <class Kernel>
constexpr bool is_exponential = false;

template <class T, Kind kind>
constexpr bool is_exponential<Softmax<T, kind>> = true;

// Whether `likelihood` tells what p lacks of 1; of another kernel that is what all others are.
template <class Kernel>
constexpr bool knows_lack = is_exponential<Kernel>;

template <class Kernel>
constexpr bool has_sink = false;

template <class T>
constexpr bool has_sink<Softmax<T, Kind::elastic>> = true;

// Whether no value is below 0.
template <class Kernel>
constexpr bool is_nonnegative = true;

// `top` is M, and `conjugate` v.
template <class Kernel, class T>
Share share_of(const SoftmaximaLoss* call, const Row<T>& row, const Target<T>& target, double top, double conjugate) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    if (is_exponential<Kernel> && sizeof(compute_t<T>) < sizeof(double) && target.fenchel && !target.one_hot() && std::fabs(top) < infinity) {
        // From Ω(y) not the last digits of a float sum are taken, but all of a double.
        const LogSum sum = log_sum_of_gaps<double>(row, top);
        if (conjugate == conjugate) conjugate = (has_sink<Kernel> ? sum.with_sink(*row.theta, row.tau) : sum).log_sum;
    }
    const Account sums = account(row, target, top == NOTHING ? 0.0 : top, Kernel::regulariser(row));
    const double mass = target.fenchel ? 1.0 : sums.mass;
    double regulariser = sums.regulariser;
    if (target.fenchel && has_sink<Kernel>) {
        const double missing = 1 - sums.total;
        if (missing > 0 && *row.theta > NOTHING) regulariser += missing * (std::log(missing) + (top == NOTHING ? 0.0 : top) - *row.theta);
    }
    double value = mass * conjugate + regulariser + sums.distance;
    if (is_nonnegative<Kernel> && target.fenchel && value < 0) {
        // No less than 0 for a distribution: only rounding, here and of a target that sums to 1 no better, may have taken it there.
        const double rounding = std::fabs(1 - sums.total) + 0x1p-40;
        if (value >= -rounding * (1 + std::fabs(conjugate) + std::fabs(regulariser) + sums.distance)) value = 0;
    }
    double more = 0;
    if (call->square != 0) {
        const double whole = conjugate + (top == NOTHING ? 0.0 : top);  // V(x)
        value += mass * call->square * whole * whole;
        more = mass * 2 * call->square * whole;
    }
    value = sums.weight == 0 && value == value ? 0.0 : sums.weight * value;
    if (sums.impossible && sums.weight != 0) value = conjugate == conjugate ? infinity : conjugate;
    const double factor = sums.weight * call->scale;
    return {value, factor * (mass + more), factor, mass, more};
}

// The values of share_of for rows of labels that have all of the target, without weights.
template <class C, int64_t WIDTH>
void share_of_labels(const double (&conjugate)[WIDTH], const C* top, const C* scores, bool fenchel, double* values) {
#pragma omp simd
    for (int64_t j = 0; j < WIDTH; ++j) {
        const double distance = (double(top[j]) == NOTHING ? 0.0 : double(top[j])) - double(scores[j]), value = conjugate[j] + distance;
        const bool rounded = fenchel && value < 0 && value >= -0x1p-40 * (1 + std::fabs(conjugate[j]) + distance);
        values[j] = rounded ? 0.0 : value;
    }
}

template <class T>
Target<T> target_of(const SoftmaximaLoss* call, const Row<T>& row, const T* soft) {
    const int64_t label = call->labels ? call->labels[row.index] : -1;
    const compute_t<T> score = widen(row.x[label < 0 ? 0 : label]);
    return {label, soft, call->class_weight, call->smoothing, call->smoothing / double(row.n), call->fenchel != 0, score};
}

// What is subtracted from the gradient of a class.
template <class T>
double own(const Row<T>& row, const Target<T>& target, int64_t c, double factor) {
    const double x = row.score(c);
    return x > NOTHING || x != x ? factor * target.u(c) : 0.0;
}

// weight p − taken, of a p near 1 by what it lacks of that: where its digits are few for C, what all others are, weight p(c) of each.
template <class C, class Each>
double less(double weight, Likelihood own, double taken, int64_t label, int64_t n, bool is_known, const Each& each) {
    if (!(own.p > MOST_P)) return weight * own.p - taken;
    double lack = weight * own.rest;
    if (!is_known && own.rest < (sizeof(C) < sizeof(double) ? 0x1p-20 : 0.5)) {
        lack = 0;
        for (int64_t c = 0; c < n; ++c) lack += c == label ? 0.0 : each(c);
    }
    return (weight - taken) - lack;
}

// The same of a target of several classes, whose others have what it leaves.
template <class T>
double less_than_most(const Share& share, const Row<T>& row, const Target<T>& target, int64_t most, double lack) {
    return share.factor * (target.rest(most, row.n, share.mass) + share.more) - lack;
}

// What is most of a row of weight · p, or none.
template <class C>
int64_t most_of(const C* p, int64_t n, double weight) {
    for (int64_t c = 0; c < n; c += LOOK)
        if (const uint64_t found = above(p + c, minimum(LOOK, n - c), C(MOST_P * weight))) return c + __builtin_ctzll(found);
    return -1;
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
    const Share share = share_of<Kernel>(call, row, target, part.top, part.conjugate);
    call->values[row.index] = share.value;
    if (!row.out) return true;

    part.weight = share.weight;
    if (target.one_hot()) {
        const int64_t c = target.label;
        const Likelihood own = kernel.likelihood(row, c, part);
        if (!kernel.emit(row, 0, row.n, part, scratch)) return false;
        const auto each = [&](int64_t i) { return double(widen(row.out[i])); };
        if (row.score(c) > NOTHING) narrow(less<C>(share.weight, own, share.factor * target.u(c), c, row.n, knows_lack<Kernel>, each), row.out[c]);
        return true;
    }
    if (sizeof(T) == sizeof(C) && !kernel.emit(row, 0, row.n, part, scratch)) return false;
    C block[BLOCK];
    int64_t most = -1;
    double others = 0;  // what is not most of the row
    for (int64_t i = 0; i < row.n; i += BLOCK) {
        const int64_t length = minimum(BLOCK, row.n - i);
        const C* p = block;
        if constexpr (sizeof(T) == sizeof(C)) {
            p = row.out + i;
        } else {
            kernel.probabilities(row, i, length, part, block, scratch);
        }
        if (const int64_t found = most_of(p, length, share.weight); found >= 0) most = i + found;
        if (!knows_lack<Kernel>)
            for (int64_t c = 0; c < length; ++c) others += i + c == most ? 0.0 : double(p[c]);
        const bool has_label = !soft && target.label >= i && target.label < i + length;
        const double of_label = has_label ? double(p[target.label - i]) : 0.0;
        target.with_u([&](const auto& u) {
            const T* x = row.x;
            T* out = row.out;
            for (int64_t c = i; c < i + length; ++c) {
                const double taken = double(widen(x[c])) == NOTHING ? 0.0 : share.factor * u(c);
                narrow(double(p[c - i]) - taken, out[c]);
            }
        });
        if (has_label) narrow(of_label - own(row, target, target.label, share.factor), row.out[target.label]);
    }
    if (most >= 0 && row.score(most) > NOTHING) {
        const double lack = knows_lack<Kernel> ? share.weight * kernel.likelihood(row, most, part).rest : others;
        narrow(less_than_most(share, row, target, most, lack), row.out[most]);
    }
    return true;
}

// The same of the cosines of a row, with a margin.
template <class T, class Kernel>
bool margin_row_loss(const SoftmaximaLoss* call, const Kernel& kernel, Margin margin, const Row<T>& row, const T* soft, Scratch<T>& scratch) {
    T* scores = scratch.candidates.at_least(row.n);
    if (!scores) return false;
    const int64_t label = soft ? -1 : call->labels[row.index];
    const auto moved = [&](int64_t c) {
        if (soft) margin.set(double(soft[c]));
        return margin(row.x[c]);
    };
    const T scale = T(margin.scale), *x = row.x;
    T largest = 0;
#pragma omp simd reduction(max : largest)
    for (int64_t c = 0; c < row.n; ++c) {
        const T size = std::fabs(x[c]);
        largest = size > largest ? size : largest;
        scores[c] = x[c] * scale;
    }
    for (int64_t c = 0; soft && c < row.n; ++c) scores[c] = T(moved(c).score);
    if (label >= 0) scores[label] = T(moved(label).score);
    Row<T> with_margin = row;
    with_margin.x = scores;
    if (!row_loss(call, kernel, with_margin, soft, scratch)) return false;
    if (double(largest) > margin.limit) call->values[row.index] = NOTHING;
    if (!row.out) return true;
    for (int64_t c = 0; soft && c < row.n; ++c) row.out[c] = T(double(row.out[c]) * moved(c).slope);
    if (label >= 0) row.out[label] = T(double(row.out[label]) * moved(label).slope);
    return true;
}

// Each kind of groups has
//   suit(rows)                        whether rows should be worked on so,
//   prepare(out, step, scratch)       the conjugates, less the largest z,
//   emit(weight, out, step)           weight · p,
//   likelihoods(distances, p, lack)   p of one score of each row, and what it lacks of 1.
template <class Group, Kind kind>
struct alignas(LINE) ExponentialGroup {
    using C = typename Group::C;
    static constexpr int64_t WIDTH = Group::WIDTH;

    Group& group;
    alignas(LINE) double conjugate[WIDTH];

    static bool suit(const SoftmaximaRows& rows) {
        if constexpr (std::is_same_v<Group, Lines<C>>) return are_lines<C>(rows);
        return are_short(rows);
    }

    explicit ExponentialGroup(Group& group_) : group(group_) {}

    bool prepare(C* out, int64_t step, Scratch<C>& scratch) {
        group.template sum<true>(false, out, step);
        if (!group.log_sums(Digits::log_sum, scratch)) return false;
        if (kind == Kind::elastic) {
            group.log_sums_with_sinks(conjugate);
            group.add_sinks();
        } else {
            std::copy_n(group.log_sum, WIDTH, conjugate);
        }
        return true;
    }

    void emit(const double* weight, C* out, int64_t step) { group.emit(false, weight, true, out, step); }

    void likelihoods(const double* distances, double* p, double* lack) const {
        for (int64_t j = 0; j < WIDTH; ++j) p[j] = group.mass[j] == group.mass[j] ? distances[j] - conjugate[j] : group.mass[j];
        for (int64_t j = 0; j < WIDTH; ++j) lack[j] = -expm1(p[j]);
        for (int64_t j = 0; j < WIDTH; ++j) p[j] = exp(p[j]);
    }
};

// What a kernel is for a group, where it is anything.
template <class Kernel, class Group>
struct AsGroup {
    using type = void;
};

template <class T, Kind kind, class Group>
struct AsGroup<Softmax<T, kind>, Group> {
    using type = ExponentialGroup<Group, kind>;
};

template <class T, class Family, class C>
struct AsGroup<ThresholdMap<T, Family>, Columns<C>> {
    using type = std::conditional_t<Family::costly, void, ThresholdColumns<C, Family>>;
};

template <class T, class Family, class C>
struct AsGroup<ThresholdMap<T, Family>, Lines<C>> {
    using type = ThresholdLines<C, Family>;
};

template <class Kernel, class Group>
constexpr bool has_groups = !std::is_void_v<typename AsGroup<Kernel, Group>::type>;

template <class Kernel, class Group>
bool suits(const SoftmaximaRows& rows) {
    if constexpr (has_groups<Kernel, Group>) return AsGroup<Kernel, Group>::type::suit(rows);
    return false;
}

// The losses of short rows, several at a time; with a margin, of labels that have all of the target, and as columns.
template <class Kernel, class T>
bool short_losses(const SoftmaximaLoss* call, T*, double nanoseconds) {
    using C = compute_t<T>;
    const SoftmaximaRows& rows = call->rows;
    const T* soft = static_cast<const T*>(call->soft);
    const Margin margin(call->margin);
    const bool one_hot = call->labels && call->smoothing == 0;
    const auto cosine = [=](int64_t index) { return widen(row_of<T>(rows, index, nullptr).x[call->labels[index]]); };
    const auto change = [=](C* tile, int64_t index, int64_t width) {
        if (!margin) return;
        constexpr int64_t WIDTH = Columns<C>::WIDTH;
        C largest[WIDTH] = {};
        const C scale = C(margin.scale);
        for (int64_t i = 0; i < rows.n; ++i) {
            C* line = tile + i * WIDTH;
#pragma omp simd
            for (int64_t j = 0; j < WIDTH; ++j) {
                const C size = std::fabs(line[j]);
                largest[j] = size > largest[j] ? size : largest[j];
                line[j] *= scale;
            }
        }
        for (int64_t j = 0; j < width; ++j) {
            call->values[index + j] = double(largest[j]);  // which the body looks at
            if (const int64_t label = call->labels[index + j]; label >= 0) tile[label * WIDTH + j] = C(margin(cosine(index + j)).score);
        }
    };
    const auto body = [=](auto& group, C* out, int64_t step, int64_t index, Scratch<C>& scratch) {
        using Group = std::decay_t<decltype(group)>;
        constexpr int64_t WIDTH = Group::WIDTH;
        typename AsGroup<Kernel, Group>::type kernel(group);
        if (!kernel.prepare(out, step, scratch)) return false;
        const int64_t width = group.width();
        const auto at = [=](int64_t c, int64_t j) -> C& { return *Group::at(out, step, c, j); };
        const int64_t* labels = call->labels ? call->labels + index : nullptr;
        Share shares[WIDTH] = {};
        double values[WIDTH], weight[WIDTH] = {}, factor[WIDTH] = {}, distance[WIDTH] = {}, of_label[WIDTH], lack[WIDTH];
        C scores[WIDTH] = {};
        for (int64_t j = 0; one_hot && j < width; ++j) scores[j] = group.score(labels[j] < 0 ? 0 : labels[j], j);
#pragma omp simd
        for (int64_t j = 0; j < WIDTH; ++j) distance[j] = gap(scores[j], double(group.top[j]), 1.0);
        const auto row_at = [&](int64_t j) { return row_of<T>(rows, index + j, nullptr); };
        const auto target_at = [&](const Row<T>& row) { return target_of(call, row, soft ? soft + row.index * row.n : nullptr); };
        if (one_hot && !call->class_weight) {
            share_of_labels(kernel.conjugate, group.top, scores, call->fenchel != 0, values);
            for (int64_t j = 0; j < width; ++j) {
                values[j] = labels[j] < 0 ? 0.0 : values[j];
                const bool pulls = labels[j] >= 0 && (call->fenchel || double(scores[j]) != NOTHING);  // a masked label does not
                weight[j] = factor[j] = pulls ? call->scale : 0.0;
            }
        } else {
            for (int64_t j = 0; j < width; ++j) {
                const Row<T> row = row_at(j);
                Target<T> target = target_at(row);
                if (one_hot) target.score = scores[j];
                const Share share = target.left_out() ? Share{} : share_of<Kernel>(call, row, target, double(group.top[j]), kernel.conjugate[j]);
                shares[j] = share;
                values[j] = share.value;
                weight[j] = share.weight;
                factor[j] = share.factor;
            }
        }
        for (int64_t j = 0; j < width; ++j) {
            double& value = call->values[index + j];
            value = margin && value > margin.limit ? NOTHING : values[j];
        }
        if (!out) return true;
        kernel.emit(weight, out, step);
        kernel.likelihoods(distance, of_label, lack);
        int64_t most[WIDTH];  // of a target of several classes, and what is not that of the row
        double others[WIDTH] = {};
        std::fill_n(most, WIDTH, -1);
        for (int64_t j = 0; j < width; ++j) {
            if (labels && labels[j] < 0) {
                for (int64_t c = 0; c < rows.n; ++c) at(c, j) = 0;
            } else if (one_hot) {
                const int64_t c = labels[j];
                const double u = call->class_weight && !call->fenchel ? call->class_weight[c] : 1.0, slope = margin ? margin(cosine(index + j)).slope : 1.0;
                const auto each = [&](int64_t i) { return double(at(i, j)); };
                const double own = less<C>(weight[j], {of_label[j], lack[j]}, factor[j] * u, c, rows.n, is_exponential<Kernel>, each);
                if (double(scores[j]) > NOTHING) at(c, j) = C(own * slope);
            } else {
                const Row<T> row = row_at(j);
                const Target<T> target = target_at(row);
                for (int64_t c = 0; c < row.n; ++c) {
                    const double p = double(at(c, j));
                    (p > MOST_P * weight[j]) ? void(most[j] = c) : void(others[j] += p);
                    at(c, j) = C(double(at(c, j)) - own(row, target, c, factor[j]));
                }
            }
        }
        if (std::all_of(most, most + WIDTH, [](int64_t c) { return c < 0; })) return true;
        for (int64_t j = 0; j < width; ++j) distance[j] = most[j] < 0 ? 0.0 : gap(group.score(most[j], j), double(group.top[j]), 1.0);
        if (is_exponential<Kernel>) kernel.likelihoods(distance, of_label, lack);
        for (int64_t j = 0; j < width; ++j) {
            if (most[j] < 0) continue;
            const Row<T> row = row_at(j);
            const double lacks = is_exponential<Kernel> ? weight[j] * lack[j] : others[j];
            if (row.score(most[j]) > NOTHING) at(most[j], j) = C(less_than_most(shares[j], row, target_at(row), most[j], lacks));
        }
        return true;
    };
    T* out = static_cast<T*>(call->out);
    if constexpr (has_groups<Kernel, Lines<C>>) {
        if (suits<Kernel, Lines<C>>(rows) && !margin) return for_each_lines<T>(rows, out, nanoseconds, body);
    }
    if constexpr (has_groups<Kernel, Columns<C>>) return for_each_short_rows<T>(rows, out, nanoseconds, body, change);
    return false;
}

template <class T, class Kernel>
bool losses(const SoftmaximaLoss* call, T* type, const Kernel& kernel, double nanoseconds) {
    const Margin margin(call->margin);
    using C = compute_t<T>;
    const bool in_place = call->out == call->rows.x;
    if constexpr (has_groups<Kernel, Lines<C>>) {
        const bool by_columns = suits<Kernel, Columns<C>>(call->rows) && (!margin || (call->labels && call->smoothing == 0));
        const bool by_lines = suits<Kernel, Lines<C>>(call->rows) && !margin;
        if ((by_columns || by_lines) && !in_place && call->square == 0) return short_losses<Kernel>(call, type, nanoseconds);
    }
    const T* inputs[] = {static_cast<const T*>(call->soft)};
    const auto body = [=](const Row<T>& row, const T* soft, Scratch<C>& scratch) {
        if constexpr (std::is_same_v<Kernel, Softmax<C, Kind::softmax>>) {
            if (margin) return margin_row_loss(call, kernel, margin, row, soft, scratch);
        }
        return row_loss(call, kernel, row, soft, scratch);
    };
    return for_each_whole_row<T>(call->rows, inputs, 1, call->out, nanoseconds, [=](Row<T> row, const T* const* others, Scratch<C>& scratch) {
        if (!in_place) return body(row, others[0], scratch);
        T* const out = row.out;  // where the scores are, which are read until all of the gradient is known
        row.out = reinterpret_cast<T*>(scratch.tile.at_least(row.n * int64_t(sizeof(T))));
        if (!row.out || !body(row, others[0], scratch)) return false;
        std::memcpy(out, row.out, size_t(row.n) * sizeof(T));
        return true;
    });
}

// The kernel `name` of a map's losses, by its kernel in terms of the dtype T.
#define SOFTMAXIMA_LOSS(name, nanoseconds, ...)                    \
    int name(const SoftmaximaLoss* call) {                         \
        return with_dtype(call->rows.dtype, [=](auto type) {       \
            using T = std::remove_pointer_t<decltype(type)>;       \
            return losses(call, type, __VA_ARGS__{}, nanoseconds); \
        });                                                        \
    }

}  // namespace SOFTMAXIMA_ISA
