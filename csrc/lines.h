// Rows of some hundred scores, as they lie: each is a few vectors.
#pragma once

#include "columns.h"

namespace SOFTMAXIMA_ISA {

template <class C_>
struct alignas(LINE) Lines : Group<Lines<C_>, C_, 16> {
    using Base = Group<Lines<C_>, C_, 16>;
    using Base::anchor_, Base::floor_, Base::largest_, Base::magic_, Base::n_, Base::scaled_, Base::shift_, Base::shifted_, Base::width_;
    using Base::log_sum, Base::mass, Base::nothing, Base::scale, Base::tau, Base::top, Base::WIDTH;
    using typename Base::C;

    // Scores of a row: with fewer most of a vector would be empty, and of more the terms would not rest in the first-level cache.
    static constexpr int64_t LEAST = 16, MOST = sizeof(C_) == sizeof(double) ? 128 : 512;

    // Scores [width, n], `stride` from one row to the next.
    Lines(const C* x, int64_t stride, int64_t n, int64_t width, const SoftmaximaRows& rows, int64_t index)
        : Base(rows, n, width, index), x_(x), stride_(stride), whole_(n / LANES<C> * LANES<C>) {}

    void find_top(bool rectified) {
        const auto larger = [](auto a, auto b) __attribute__((always_inline)) { return a > b ? a : b; };
        Vector<C> tops[WIDTH];
        for (int64_t j = width_; j < WIDTH; ++j) tops[j] = all(C(0));
        for (int64_t j = 0; j < width_; ++j) {
            const C* x = x_ + j * stride_;
            tops[j] = all(nothing);
            for (int64_t i = 0; i < whole_; i += LANES<C>) tops[j] = larger(load(x + i), tops[j]);
            if (whole_ < n_) tops[j] = larger(load(x + whole_, n_ - whole_, nothing), tops[j]);
        }
        for (int64_t j = 0; j < WIDTH; j += LANES<C>) store(reduce_each<C>(tops + j, larger), top + j);
        for (int64_t j = 0; rectified && j < width_; ++j) top[j] = top[j] < 0 ? nothing : top[j];
    }

    bool can_keep() const { return true; }

    template <bool exact>
    void sum_terms(bool rectified, C* kept, int64_t step, double* lost_terms) {
        typename VectorSum<C>::Whole sums[WIDTH];
        for (int64_t j = width_; j < WIDTH; ++j) sums[j] = VectorSum<C>().whole();
        if (scaled_ || rectified) {
            for (int64_t j = 0; j < width_; ++j) {
                alignas(LINE) C z[MOST], low[MOST];
                temper(j, rectified, z, low);
                C* to = kept ? kept + j * step : nullptr;
                sums[j] = kept ? sum_row<true, true, exact>(j, z, low, shift_[j], to) : sum_row<false, true, exact>(j, z, low, shift_[j], to);
            }
        } else if (shifted_) {
            kept ? sum_rows<true, exact>(kept, step, shift_, sums) : sum_rows<false, exact>(kept, step, shift_, sums);
        } else {
            kept ? sum_rows<true, exact>(kept, step, NoShift{}, sums) : sum_rows<false, exact>(kept, step, NoShift{}, sums);
        }
        VectorSum<C>::total(sums, mass, lost_terms);
    }

    void emit_terms(bool, bool, const Ratios<C, WIDTH>& ratios, const C* share, C* out, int64_t step) const {
        for (int64_t j = 0; j < width_; ++j) {
            C* to = out + j * step;
            const Ratio<C> ratio = ratios[j];
            const C largest = largest_[j], its_share = share[j];
            for (int64_t i = 0; i < n_; ++i) {
                C p = ratio(to[i]);
                if constexpr (sizeof(C) < sizeof(double)) p = to[i] == largest ? its_share : p;
                to[i] = p;
            }
        }
    }

    void emit_log(C* out, int64_t step) const {
        for (int64_t j = 0; j < width_; ++j) {
            const C* x = x_ + j * stride_;
            C* to = out + j * step;
            const C maximum = top[j] == nothing ? C(0) : top[j], less = C(log_sum[j]);  // −∞ − 0 is −∞
            if (scaled_) {
                for (int64_t i = 0; i < n_; ++i) to[i] = C(gap(x[i], double(maximum), scale[j]) - log_sum[j]);
            } else {  // two numbers that are not positive: no digits cancel
                for (int64_t i = 0; i < whole_; i += LANES<C>) store((load(x + i) - maximum) - less, to + i);
                if (whole_ < n_) store((load(x + whole_, n_ - whole_, C(0)) - maximum) - less, n_ - whole_, to + whole_);
            }
        }
    }

    C score(int64_t i, int64_t j) const { return x_[j * stride_ + i]; }

    const C* row(int64_t j, Scratch<C>&) const { return x_ + j * stride_; }

    bool log_sums_of_gaps() { return false; }

    template <class U>
    static U* at(U* out, int64_t step, int64_t i, int64_t j) {
        return out + j * step + i;
    }

   private:
    const C* x_;
    int64_t stride_, whole_;

    // z of row j in two terms, −∞ of a negative x if `rectified`.
    void temper(int64_t j, bool rectified, C* z, C* low) const {
        const C* x = x_ + j * stride_;
        const Tempered<C> tempered{anchor_[j], tau[j], scale[j]};
        for (int64_t i = 0; i < n_; ++i) {
            const bool counts = !(rectified && x[i] < 0);
            C high, rest;
            tempered(x[i], high, rest);
            z[i] = counts ? high : nothing;
            low[i] = counts ? rest : C(0);
        }
    }

    // Four vectors at a time, or two, whose terms are added in C unless the sum is to be exact.
    template <bool Store, bool Low, bool exact>
    [[gnu::always_inline]] inline auto sum_row(int64_t j, const C* z, const C* low, C shift, C* out) const {
        constexpr int64_t lanes = LANES<C>;
        const C magic = magic_[j], floor = floor_[j];
        VectorSum<C> sum;
        const auto term = [=](int64_t i) __attribute__((always_inline)) {
            const Vector<C> e = Exponential<C>::evaluate(load(z + i), Low ? load(low + i) : Vector<C>{}, shift, magic, floor);
            if (Store) store(e, out + i);
            return e;
        };
        const auto add = [&](Vector<C> p, Vector<C> q) __attribute__((always_inline)) {
            if (exact) {
                sum.add(p);
                sum.add(q);
            } else {
                sum.add(p + q);
            }
        };
        int64_t i = 0;
        for (; i + 4 * lanes <= n_; i += 4 * lanes) {
            const Vector<C> a = term(i), b = term(i + lanes), c = term(i + 2 * lanes), d = term(i + 3 * lanes);
            add(a, b);
            add(c, d);
        }
        if (i + 2 * lanes <= n_) {
            const Vector<C> a = term(i), b = term(i + lanes);
            add(a, b);
            i += 2 * lanes;
        }
        if (i + lanes <= n_) {
            sum.add(term(i));
            i += lanes;
        }
        if (i < n_) {
            const int64_t count = n_ - i;
            const Vector<C> rest = Low ? load(low + i, count, C(0)) : Vector<C>{};
            const Vector<C> e = Exponential<C>::evaluate(load(z + i, count, nothing), rest, shift, magic, floor);
            if (Store) store(e, count, out + i);
            sum.add(e);
        }
        return sum.whole();
    }

    struct NoShift {
        C operator[](int64_t) const { return 0; }
    };

    template <bool Store, bool exact, class Shifts>
    [[gnu::noinline]] void sum_rows(C* kept, int64_t step, const Shifts& shifts, typename VectorSum<C>::Whole* sums) const {
        for (int64_t j = 0; j < width_; ++j)
            sums[j] = sum_row<Store, false, exact>(j, x_ + j * stride_, nullptr, shifts[j], Store ? kept + j * step : nullptr);
    }
};

template <class C>
bool are_lines(const SoftmaximaRows& rows) {
    return rows.inner == 1 && rows.n >= Lines<C>::LEAST && rows.n <= Lines<C>::MOST && rows.outer >= 4;
}

// body(lines, out of the first, distance of rows there, index of the first, scratch) for such rows, which are copied where they have
// another dtype or a mask.
template <class T, class Body>
bool for_each_lines(const SoftmaximaRows& rows, T* out, double nanoseconds, const Body& body) {
    using C = compute_t<T>;
    constexpr int64_t WIDTH = Lines<C>::WIDTH;
    const int64_t n = rows.n;
    const bool direct = sizeof(T) == sizeof(C) && !rows.mask;
    const Team team = team_size(rows.threads, nanoseconds * double(rows.outer) * double(n));
    return share_out<C>((rows.outer + WIDTH - 1) / WIDTH, team, [&](int64_t task, Scratch<C>& scratch) __attribute__((noinline)) {
        const int64_t first = task * WIDTH, width = minimum(WIDTH, rows.outer - first);
        C* tile = direct ? nullptr : reinterpret_cast<C*>(scratch.tile.at_least(2 * n * WIDTH * int64_t(sizeof(C))));
        if (!direct && !tile) return false;
        if constexpr (sizeof(T) == sizeof(C)) {
            if (direct) {
                Lines<C> lines(static_cast<const C*>(rows.x) + first * rows.stride, rows.stride, n, width, rows, first);
                return body(lines, out ? out + first * n : nullptr, n, first, scratch);
            }
        }
        for (int64_t j = 0; j < width; ++j) {
            const C* values = row_of<T>(rows, first + j, nullptr).raw(0, n, tile + j * n);
            if (values != tile + j * n) std::memcpy(tile + j * n, values, n * sizeof(C));
        }
        C* results = sizeof(T) == sizeof(C) && out ? reinterpret_cast<C*>(out + first * n) : out ? tile + n * WIDTH : nullptr;
        Lines<C> lines(tile, n, n, width, rows, first);
        if (!body(lines, results, n, first, scratch)) return false;
        if constexpr (sizeof(T) < sizeof(C)) {
            for (int64_t k = 0; out && k < width * n; ++k) narrow(results[k], out[first * n + k]);
        }
        return true;
    });
}

}  // namespace SOFTMAXIMA_ISA
