// Exponentials of several rows at a time: what is done once a row is done for all of them, each a lane of a vector. How the rows lie
// is the business of a layout, `Columns` or `Lines`, which has
//   find_top(rectified)                                 the largest x of each row, −∞ for a negative one where `rectified`,
//   can_keep()                                          whether terms may rest in the place of the results,
//   sum_terms<exact>(rectified, kept, step, lost)       adds Σ exp(z) to `mass`, and keeps the terms where there is room for them,
//   emit_terms(rectified, kept, ratios, share, out, step)  term · ratio, and `share` of the largest,
//   emit_log(out, step)                                 the logarithms of the probabilities, from LSE,
//   score(i, j)                                         x of the i-th score of row j, −∞ where it does not count,
//   row(j, memory)                                      row j, copied if it does not lie as one,
//   log_sums_of_gaps()                                  all log_sum, in double from the distances to the maximum, or false,
//   at(out, step, i, j)                                 the place of that score's result.
#pragma once

#include <algorithm>

#include "exponential.h"

namespace SOFTMAXIMA_ISA {

template <class Layout, class C_, int64_t WIDTH_>
struct alignas(LINE) Group {
    using C = C_;
    static constexpr int64_t WIDTH = WIDTH_;
    static constexpr C nothing = -std::numeric_limits<C>::infinity();

    alignas(LINE) double tau[WIDTH], scale[WIDTH];
    const double* theta[WIDTH];
    alignas(LINE) double mass[WIDTH];    // Σ exp(z), relative to the origin
    double log_sum[WIDTH], lost[WIDTH];  // LSE(z) less the largest z, and what its rounding lost
    alignas(LINE) C top[WIDTH];          // the largest x

    int64_t n() const { return n_; }

    int64_t width() const { return width_; }

    template <Kind kind, class U>
    void softmax(U* out, int64_t step) {
        constexpr bool rectified = kind == Kind::rectified;
        const bool keep = sizeof(U) == sizeof(C) && self().can_keep();
        sum<false>(rectified, keep ? reinterpret_cast<C*>(out) : nullptr, step);
        double one[WIDTH];
        std::fill_n(one, WIDTH, 1.0);
        if (kind == Kind::elastic) add_sinks();
        emit(rectified, one, keep, out, step);
        for (int64_t j = 0; rectified && j < width_; ++j)
            if (mass[j] == 0 && *theta[j] != 0) emit_uniform(j, out, step);
    }

    template <class U>
    bool logsumexp(U* out, Scratch<C>& scratch) {
        sum<false>(false, nullptr, 0);
        if (!log_sums(Digits::value, scratch)) return false;
        for (int64_t j = 0; j < width_; ++j) narrow(log_sum_of(j).value(tau[j]), out[j]);
        return true;
    }

    // Of what logsumexp was made.
    void keep_state(double* maxima, double* log_sums) const {
        for (int64_t j = 0; j < width_; ++j) {
            maxima[j] = double(top[j]);
            log_sums[j] = log_sum[j] + lost[j];
        }
    }

    // The largest x, and Σ exp((x − that)/τ) without it.
    bool rests(double* maxima, double* rests, Scratch<C>& scratch) {
        sum<true>(false, nullptr, 0);
        if (!log_sums(Digits::rest, scratch)) return false;
        for (int64_t j = 0; j < width_; ++j) {
            maxima[j] = double(top[j]);
            rests[j] = expm1(log_sum[j], lost[j]);
        }
        return true;
    }

    template <class U>
    bool log_softmax(U* out, int64_t step, Scratch<C>& scratch) {
        sum<true>(false, nullptr, 0);
        if (!log_sums(Digits::log_sum, scratch)) return false;
        for (int64_t j = 0; j < width_; ++j)
            if (top[j] == -nothing) log_sum[j] = std::numeric_limits<double>::quiet_NaN();
        self().emit_log(out, step);
        return true;
    }

    // The sink's part of the mass, where a score is allowed: alone it may be too small to divide by.
    void add_sinks() {
        const Sinks sinks(*this, anchor_);
#pragma omp simd
        for (int64_t j = 0; j < WIDTH; ++j) {
            const double weight = sink_weight(sinks.theta[j], {sinks.high[j], sinks.low[j]}, origin(j));
            mass[j] += mass[j] != 0 ? weight : 0.0;
        }
    }

    // LSE with the sink, less the largest z.
    void log_sums_with_sinks(double* to) const {
        const Sinks sinks(*this, top);
#pragma omp simd
        for (int64_t j = 0; j < WIDTH; ++j) to[j] = log_sum_of(j).with_sink(sink_above(sinks.theta[j], {sinks.high[j], sinks.low[j]})).log_sum;
    }

    Origin<C> origin(int64_t j) const { return {shift_[j], power_[j]}; }

    // Row j, without x where there is no memory for it.
    Row<C> row_at(int64_t j, Scratch<C>& scratch) const {
        Row<C> row = {};
        row.x = self().row(j, scratch);
        row.n = n_;
        row.tau = tau[j];
        row.scale = scale[j];
        row.theta = theta[j];
        return row;
    }

    LogSum log_sum_of(int64_t j) const { return {double(top[j]), log_sum[j], lost[j]}; }

    // Σ exp(z) of each row, where `exact` so that what is added to the largest term is known as well as that. The terms stay in
    // `kept`, where there is one.
    template <bool exact>
    void sum(bool rectified, C* kept, int64_t step) {
        self().find_top(rectified);
        double lost_terms[WIDTH] = {};
        for (int64_t j = 0; j < WIDTH; ++j) {
            anchor_[j] = scaled_ && top[j] > nothing && top[j] < -nothing ? double(top[j]) : 0.0;
            const Origin<C> origin = Origin<C>::at(C(z_top(j)));
            const Exponential<C> exp(origin);
            shift_[j] = origin.shift;
            power_[j] = origin.power;
            magic_[j] = exp.magic;
            floor_[j] = exp.floor;
            mass[j] = 0;
        }
        auto shifted = load(shift_) != all(C(0));
        for (int64_t j = LANES<C>; j < WIDTH; j += LANES<C>) shifted |= load(shift_ + j) != all(C(0));
        shifted_ = any<C>(shifted);
        self().template sum_terms<exact>(rectified, kept, step, lost_terms);
        if constexpr (sizeof(C) == sizeof(float)) {
            add_what_the_largest_lost();
        } else {
            for (int64_t j = 0; j < WIDTH; ++j) mass[j] += lost_terms[j];
        }
    }

    // weight · exp(z) / mass, of the exponentials that `sum` has kept in the place of the results, or computed again.
    template <class U>
    void emit(bool rectified, const double* weight, bool kept, U* out, int64_t step) {
        Ratios<C, WIDTH> ratios;
        alignas(LINE) C share[WIDTH];
        for (int64_t j = 0; j < WIDTH; ++j) {
            const double total = mass[j] == 0 ? 1.0 : mass[j];
            ratios.set(j, {weight[j], total});
            if (sizeof(C) < sizeof(double)) share[j] = C(weight[j] * exact_[j] / total);
        }
        self().emit_terms(rectified, kept, ratios, share, out, step);
    }

    // LSE of each row from its sum, which is an exact one where other digits are wanted than those of its value.
    bool log_sums(Digits digits, Scratch<C>& scratch) {
        bool by_gaps = false;
        if constexpr (sizeof(C) == sizeof(float)) {
            using F = Format<double>;
            alignas(LINE) double value[WIDTH];
            const double with_top = digits == Digits::value ? 1 : 0;
#pragma omp simd
            for (int64_t j = 0; j < WIDTH; ++j) {
                const double above = (double(shift_[j]) - z_top(j)) + double(power_[j]) * F::log_2_high;
                log_sum[j] = log_of_normal(mass[j]) + (above + double(power_[j]) * F::log_2_low);
                lost[j] = 0;
                value[j] = std::fabs(double(top[j]) * with_top + log_sum[j]);
            }
            if (!scaled_ && all_do(value, digits == Digits::value ? 2.0 : least())) return true;
            for (int64_t j = 0; j < WIDTH; ++j)
                if (!(mass[j] > 0 && mass[j] < -NOTHING)) log_sum[j] = mass[j] == 0 ? NOTHING : mass[j];
            int64_t near_zero = 0;
            for (int64_t j = 0; j < width_; ++j) near_zero += is_finite(j) && is_near(j, digits);
            by_gaps = near_zero * (80 + n_) > 26 * n_ && self().log_sums_of_gaps();  // takes less than one after the other
        } else {
            for (int64_t j = 0; j < width_; ++j) set(j, sum_of(j).log_sum(double(top[j]), z_top(j)));
        }
        for (int64_t j = 0; j < width_; ++j) {
            if (is_finite(j) && (by_gaps || !is_near(j, digits))) continue;
            Row<C> row = row_at(j, scratch);
            if (!row.x) return false;
            row.anchor = anchor_[j];
            set(j, LogSumExp<C>::result(row, sum_of(j), digits));
        }
        return true;
    }

   protected:
    int64_t n_, width_;
    bool scaled_, shifted_;  // whether τ is not 1, and a row has an origin that is not 0
    alignas(LINE) C shift_[WIDTH], power_[WIDTH], magic_[WIDTH], floor_[WIDTH];
    alignas(LINE) double anchor_[WIDTH];  // as in Row
    alignas(LINE) double exact_[WIDTH];   // the largest term, and
    alignas(LINE) C largest_[WIDTH];      // what it was rounded to, in sums in float

    template <bool Low>
    [[gnu::always_inline]] inline C term(C z, C low, int64_t j) const {
        return Exponential<C>::evaluate(z, Low ? low : C(0), shift_[j], magic_[j], floor_[j]);
    }

   private:
    friend Layout;

    // θ of each row, and an x of it over τ in two terms.
    struct Sinks {
        alignas(LINE) double theta[WIDTH], high[WIDTH], low[WIDTH];

        template <class X>
        Sinks(const Group& group, const X (&x)[WIDTH]) {
            for (int64_t j = 0; j < WIDTH; ++j) {
                const Quotient z = group.scaled_ ? Quotient::of(double(x[j]), group.tau[j]) : Quotient{double(x[j]), 0};
                theta[j] = *group.theta[j];
                high[j] = z.high;
                low[j] = z.low;
            }
        }
    };

    // `width` rows of n, of which the first has this index.
    Group(const SoftmaximaRows& rows, int64_t n, int64_t width, int64_t index) : n_(n), width_(width), scaled_(rows.taus || rows.tau != 1.0) {
        for (int64_t j = 0; j < WIDTH; ++j) {
            tau[j] = rows.taus && j < width ? rows.taus[index + j] : rows.tau;
            theta[j] = rows.theta + (j < width ? index + j : index) * rows.distance;
        }
        const double all = rows.tau == 1.0 ? 1.0 : inverse(rows.tau);
        for (int64_t j = 0; j < WIDTH; ++j) scale[j] = rows.taus ? inverse(tau[j]) : all;
    }

    Layout& self() { return static_cast<Layout&>(*this); }
    const Layout& self() const { return static_cast<const Layout&>(*this); }

    // z of the largest x.
    [[gnu::always_inline]] inline double z_top(int64_t j) const { return double(top[j]) - anchor_[j]; }

    bool is_finite(int64_t j) const { return std::fabs(log_sum_of(j).value(tau[j])) < std::numeric_limits<double>::infinity(); }

    // Whether all sums are positive numbers, and of these values none is below the least.
    bool all_do(const double* values, double least) const {
        const Vector<double> infinity = all(-NOTHING), zero = {};
        auto wrong = zero != zero;
        for (int64_t j = 0; j < WIDTH; j += LANES<double>) {
            const Vector<double> sum = load(mass + j), value = load(values + j);
            wrong |= ~((sum > zero) & (sum < infinity) & (value >= all(least)));
        }
        return !any<double>(wrong);
    }

    // Below this the digits of an exact sum of floats do not do: those of what is added to the largest term do, as far as n
    // roundings of a double leave them.
    double least() const { return 8e-9 * double(n_); }

    // Whether the digits of the sum do not do.
    bool is_near(int64_t j, Digits digits) const {
        const bool of_exact_floats = digits != Digits::value && sizeof(C) == sizeof(float);
        return of_exact_floats ? log_sum[j] < least() : LogSumExp<C>::is_near(log_sum_of(j), tau[j], digits);
    }

    // Where one term is most of a sum in float, so is the rounding of that term.
    void add_what_the_largest_lost() {
        using F = Format<double>;
        constexpr double infinity = -NOTHING;
#pragma omp simd
        for (int64_t j = 0; j < WIDTH; ++j) {
            const double z = z_top(j);
            const double exact = exp(((z - double(shift_[j])) - double(power_[j]) * F::log_2_high) - double(power_[j]) * F::log_2_low);
            const C rounded = term<false>(C(z), C(0), j);  // z is 0 or x, and needs no low part
            const bool finite = z < infinity && z > -infinity;
            mass[j] += finite ? exact - double(rounded) : 0.0;
            exact_[j] = finite ? exact : 0.0;
            largest_[j] = finite ? rounded : C(0);
        }
    }

    ExpSum<C> sum_of(int64_t j) const {
        ExpSum<C> sum;
        sum.maximum = C(z_top(j));
        sum.origin = origin(j);
        sum.total = {mass[j], 0};
        return sum;
    }

    void set(int64_t j, const LogSum& result) {
        top[j] = C(result.maximum);
        log_sum[j] = result.log_sum;
        lost[j] = result.lost;
    }

    // A row in which no score counted: the same for all that are allowed.
    template <class U>
    void emit_uniform(int64_t j, U* out, int64_t step) {
        int64_t count = 0;
        for (int64_t i = 0; i < n_; ++i) count += self().score(i, j) > nothing;
        for (int64_t i = 0; i < n_; ++i) narrow(self().score(i, j) > nothing ? 1.0 / double(count) : 0.0, *Layout::at(out, step, i, j));
    }
};

}  // namespace SOFTMAXIMA_ISA
