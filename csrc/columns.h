// Exponentials of rows that lie beside one another, WIDTH of them at a time, each a lane of a vector: those of [outer, n, inner] as
// they are, and short ones once they are turned into columns. Nothing is left over at the end of a row then, and what is done
// once a row is done for several.
#pragma once

#include "exponential.h"

namespace SOFTMAXIMA_ISA {

template <class T>
struct alignas(LINE) Columns {
    using C = compute_t<T>;
    static constexpr int64_t WIDTH = 256 / sizeof(C);
    static constexpr C nothing = -std::numeric_limits<C>::infinity();
    static constexpr int64_t CACHED = int64_t(1) << 17;  // bytes of exponentials that rest in the second-level cache

    // Scores [n, width], `inner` from one line to the next; a mask of the same shape, or none.
    Columns(const T* x, const uint8_t* mask, int64_t n, int64_t inner, int64_t width, const SoftmaximaRows& rows, int64_t index)
        : x_(x), mask_(mask), n_(n), inner_(inner), width_(width) {
        scaled_ = rows.taus || rows.tau != 1.0;
        for (int64_t j = 0; j < WIDTH; ++j) {
            tau[j] = rows.taus && j < width ? rows.taus[index + j] : rows.tau;
            scale[j] = inverse(tau[j]);
            theta[j] = rows.theta + (j < width ? index + j : index) * rows.distance;
        }
    }

    int64_t n() const { return n_; }

    int64_t width() const { return width_; }

    alignas(LINE) double tau[WIDTH], scale[WIDTH];
    const double* theta[WIDTH];
    double mass[WIDTH];                  // Σ exp(z), relative to the origin
    double log_sum[WIDTH], lost[WIDTH];  // LSE(z) less the largest z, and what its rounding lost
    alignas(LINE) C top[WIDTH];          // the largest x

    // x of the i-th line, −∞ where it does not count: where it lies if it can be read there, else in the buffer.
    const C* raw(int64_t i, bool rectified, C* buffer) const {
        const T* from = x_ + i * inner_;
        if constexpr (sizeof(T) == sizeof(C)) {
            if (width_ == WIDTH && !mask_ && !rectified) return from;
        }
        if (width_ < WIDTH)
            for (int64_t j = width_; j < WIDTH; ++j) buffer[j] = 0;
        for_lanes([&](int64_t j) __attribute__((always_inline)) { buffer[j] = widen(from[j]); });
        if (mask_) {
            const uint8_t* mask = mask_ + i * inner_;
            for (int64_t j = 0; j < width_; ++j) buffer[j] = mask[j] ? buffer[j] : nothing;
        }
        if (rectified)
            for (int64_t j = 0; j < WIDTH; ++j) buffer[j] = buffer[j] < 0 ? nothing : buffer[j];
        return buffer;
    }

    // x of the i-th score of row j, −∞ where it does not count.
    C score(int64_t i, int64_t j) const { return !mask_ || mask_[i * inner_ + j] ? widen(x_[i * inner_ + j]) : nothing; }

    // The largest x of each row.
    void find_top(bool rectified) {
        alignas(LINE) C buffer[WIDTH];
        for (int64_t j = 0; j < WIDTH; ++j) top[j] = nothing;
        for (int64_t i = 0; i < n_; ++i) {
            const C* values = raw(i, rectified, buffer);
#pragma omp simd
            for (int64_t j = 0; j < WIDTH; ++j) top[j] = values[j] > top[j] ? values[j] : top[j];
        }
    }

    template <Kind kind, class U>
    void softmax(U* out, int64_t step) {
        constexpr bool rectified = kind == Kind::rectified;
        const bool keep = sizeof(U) == sizeof(C) && n_ * WIDTH * int64_t(sizeof(C)) <= CACHED;
        sum<false>(rectified, keep ? reinterpret_cast<C*>(out) : nullptr, step);
        double one[WIDTH];
        for (int64_t j = 0; j < WIDTH; ++j) {
            one[j] = 1;
            if (kind == Kind::elastic) add_sink(j);
        }
        emit(rectified, one, keep, out, step);
        for (int64_t j = 0; rectified && j < width_; ++j)
            if (mass[j] == 0 && *theta[j] != 0) emit_uniform(j, out + j, step);
    }

    template <class U>
    bool logsumexp(U* out, Scratch<C>& scratch) {
        sum<false>(false, nullptr, 0);
        if (!log_sums(false, scratch)) return false;
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

    template <class U>
    bool log_softmax(U* out, int64_t step, Scratch<C>& scratch) {
        sum<true>(false, nullptr, 0);
        if (!log_sums(true, scratch)) return false;
        for (int64_t j = 0; j < width_; ++j)
            if (top[j] == -nothing) log_sum[j] = std::numeric_limits<double>::quiet_NaN();
        emit_log(out, step);
        return true;
    }

    // The sink's part of the mass, where a score is allowed: alone it may be too small to divide by.
    void add_sink(int64_t j) {
        if (mass[j] != 0) mass[j] += sink_weight(*theta[j], anchor_[j], tau[j], origin(j));
    }

    Origin<C> origin(int64_t j) const { return {shift_[j], power_[j]}; }

    LogSum log_sum_of(int64_t j) const { return {double(top[j]), log_sum[j], lost[j]}; }

    // Σ exp(z) of each row, where `exact` so that what is added to the largest term is known as well as that. The terms stay in
    // `kept`, where there is one, at a distance of `step` from one line to the next.
    template <bool exact>
    void sum(bool rectified, C* kept, int64_t step) {
        find_top(rectified);
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
        scaled_ ? sum_terms<true, exact>(rectified, kept, step, lost_terms) : sum_terms<false, exact>(rectified, kept, step, lost_terms);
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
        alignas(LINE) C e[WIDTH], share[WIDTH];
        for (int64_t j = 0; j < WIDTH; ++j) {
            const double total = mass[j] == 0 ? 1.0 : mass[j];
            ratios.set(j, {weight[j], total});
            if (sizeof(C) < sizeof(double)) share[j] = C(weight[j] * exact_[j] / total);
        }
        for (int64_t i = 0; i < n_; ++i) {
            U* to = out + i * step;
            const C* from = e;
            if (kept) {
                from = reinterpret_cast<const C*>(to);
            } else {
                C z[WIDTH], rest[WIDTH];
                const C* scores = load(i, rectified, z, rest);
                scaled_ ? exponentials<true>(scores, rest, e) : exponentials<false>(scores, rest, e);
            }
            for_lanes([&](int64_t j) __attribute__((always_inline)) {
                C p = ratios[j](from[j]);
                if constexpr (sizeof(C) < sizeof(double)) p = from[j] == largest_[j] ? share[j] : p;
                narrow(p, to[j]);
            });
        }
    }

    // LSE of each row from its sum, or where `exact` from such a one LSE less the largest z, exact relative to itself.
    bool log_sums(bool exact, Scratch<C>& scratch) {
        bool by_gaps = false;
        if constexpr (sizeof(C) == sizeof(float)) {
            using F = Format<double>;
#pragma omp simd
            for (int64_t j = 0; j < WIDTH; ++j) {
                const double above = (double(shift_[j]) - z_top(j)) + double(power_[j]) * F::log_2_high;
                log_sum[j] = log(mass[j]) + (above + double(power_[j]) * F::log_2_low);
                lost[j] = 0;
            }
            int64_t near_zero = 0;
            for (int64_t j = 0; j < width_; ++j) near_zero += is_finite(j) && is_near(j, exact);
            by_gaps = near_zero * (80 + n_) > 26 * n_;  // all of them at once takes less than one after the other
            if (by_gaps) log_sums_of_gaps();
        } else {
            for (int64_t j = 0; j < width_; ++j) set(j, sum_of(j).log_sum(double(top[j]), z_top(j)));
        }
        for (int64_t j = 0; j < width_; ++j) {
            if (is_finite(j) && (by_gaps || !is_near(j, exact))) continue;
            C* copy = scratch.candidates.at_least(n_);
            if (!copy) return false;
            for (int64_t i = 0; i < n_; ++i) copy[i] = score(i, j);
            Row<C> row = {};
            row.x = copy;
            row.n = n_;
            row.tau = tau[j];
            row.scale = scale[j];
            row.anchor = anchor_[j];
            set(j, LogSumExp<C>::result(row, sum_of(j), exact));
        }
        return true;
    }

    // The logarithms of the probabilities, from LSE.
    template <class U>
    void emit_log(U* out, int64_t step) {
        C maximum[WIDTH], less[WIDTH];
        for (int64_t j = 0; j < WIDTH; ++j) {
            maximum[j] = top[j] == nothing ? C(0) : top[j];  // −∞ − 0 is −∞
            less[j] = C(log_sum[j]);
        }
        alignas(LINE) C buffer[WIDTH];
        for (int64_t i = 0; i < n_; ++i) {
            const C* values = raw(i, false, buffer);
            U* to = out + i * step;
            if (scaled_) {
                for_lanes([&](int64_t j) __attribute__((always_inline)) { narrow(gap(values[j], double(maximum[j]), scale[j]) - log_sum[j], to[j]); });
            } else {  // two numbers that are not positive: no digits cancel
                for_lanes([&](int64_t j) __attribute__((always_inline)) { narrow((values[j] - maximum[j]) - less[j], to[j]); });
            }
        }
    }

    // A row in which no score counted: the same for all that are allowed.
    template <class U>
    void emit_uniform(int64_t j, U* out, int64_t step) const {
        int64_t count = 0;
        for (int64_t i = 0; i < n_; ++i) count += score(i, j) > nothing;
        for (int64_t i = 0; i < n_; ++i) narrow(score(i, j) > nothing ? 1.0 / double(count) : 0.0, out[i * step]);
    }

   private:
    const T* x_;
    const uint8_t* mask_;
    int64_t n_, inner_, width_;
    bool scaled_;
    alignas(LINE) C shift_[WIDTH], power_[WIDTH], magic_[WIDTH], floor_[WIDTH];
    alignas(LINE) double anchor_[WIDTH];  // as in Row
    alignas(LINE) double exact_[WIDTH];   // the largest term, and
    alignas(LINE) C largest_[WIDTH];      // what it was rounded to, in sums in float

    // z of the largest x.
    [[gnu::always_inline]] inline double z_top(int64_t j) const { return double(top[j]) - anchor_[j]; }

    // body(lane) for those that hold a row.
    template <class Body>
    [[gnu::always_inline]] void for_lanes(const Body& body) const {
        if (width_ == WIDTH) {
#pragma omp simd
            for (int64_t j = 0; j < WIDTH; ++j) body(j);
        } else {
            for (int64_t j = 0; j < width_; ++j) body(j);
        }
    }

    // z of the i-th line, and in `low` what its rounding lost.
    const C* load(int64_t i, bool rectified, C* buffer, C* low) const {
        const C* values = raw(i, rectified, buffer);
        if (!scaled_) return values;
#pragma omp simd
        for (int64_t j = 0; j < WIDTH; ++j) {
            C high, rest;
            Tempered<C>{anchor_[j], tau[j], scale[j]}(values[j], high, rest);
            buffer[j] = high;
            low[j] = rest;
        }
        return buffer;
    }

    bool is_finite(int64_t j) const { return std::fabs(log_sum_of(j).value(tau[j])) < std::numeric_limits<double>::infinity(); }

    // Whether the digits of the sum do not do. In an exact sum of floats those of what is added to the largest term do.
    bool is_near(int64_t j, bool exact) const {
        return exact && sizeof(C) == sizeof(float) ? log_sum[j] < 1e-7 : LogSumExp<C>::is_near(log_sum_of(j), tau[j], exact);
    }

    // In double, from the distances to the maximum.
    void log_sums_of_gaps() {
        alignas(LINE) C buffer[WIDTH];
        double count[WIDTH] = {}, rest[WIDTH] = {}, gaps[WIDTH], e[WIDTH];
        const Exponential<double> exp(Origin<double>{});
        for (int64_t i = 0; i < n_; ++i) {
            const C* values = raw(i, false, buffer);
            for (int64_t j = 0; j < WIDTH; ++j) gaps[j] = gap(values[j], double(top[j]), scale[j]);
            for (int64_t j = 0; j < WIDTH; ++j) e[j] = exp(gaps[j]);  // alone, for a condition would make it a branch
#pragma omp simd
            for (int64_t j = 0; j < WIDTH; ++j) {
                const double below = gaps[j] < 0 ? 1.0 : 0.0;
                rest[j] += below * e[j];
                count[j] += 1.0 - below;
            }
        }
#pragma omp simd
        for (int64_t j = 0; j < WIDTH; ++j) {
            const double total = count[j] + rest[j], rounded_off = rest[j] - (total - count[j]);
            log_sum[j] = log(total) + rounded_off / total;
        }
    }

    template <bool Low>
    [[gnu::always_inline]] inline C term(const C* z, const C* low, int64_t j) const {
        return Exponential<C>::evaluate(z[j], Low ? low[j] : C(0), shift_[j], magic_[j], floor_[j]);
    }

    template <bool Low>
    void exponentials(const C* z, const C* low, C* e) const {
#pragma omp simd
        for (int64_t j = 0; j < WIDTH; ++j) e[j] = term<Low>(z, low, j);
    }

    // Two lines at a time, whose terms are added in C unless the sum is to be exact.
    template <bool Low, bool exact>
    void sum_terms(bool rectified, C* kept, int64_t step, double* lost_terms) {
        alignas(LINE) C z0[WIDTH], z1[WIDTH], low0[WIDTH], low1[WIDTH], e[2 * WIDTH];
        const bool direct = kept && width_ == WIDTH;
        for (int64_t i = 0; i < n_; i += 2) {
            const bool two = i + 1 < n_;
            const C *first = load(i, rectified, z0, low0), *second = two ? load(i + 1, rectified, z1, low1) : nullptr;
            C *to0 = direct ? kept + i * step : e, *to1 = direct && two ? kept + (i + 1) * step : e + WIDTH;
            if (two) {
#pragma omp simd
                for (int64_t j = 0; j < WIDTH; ++j) {
                    const C p = term<Low>(first, low0, j), q = term<Low>(second, low1, j);
                    to0[j] = p;
                    to1[j] = q;
                    add(exact ? double(p) + double(q) : double(p + q), j, lost_terms);
                }
            } else {
#pragma omp simd
                for (int64_t j = 0; j < WIDTH; ++j) {
                    const C p = term<Low>(first, low0, j);
                    to0[j] = p;
                    add(double(p), j, lost_terms);
                }
            }
            if (!kept || direct) continue;
            for (int64_t j = 0; j < width_; ++j) kept[i * step + j] = to0[j];
            for (int64_t j = 0; two && j < width_; ++j) kept[(i + 1) * step + j] = to1[j];
        }
    }

    [[gnu::always_inline]] inline void add(double terms, int64_t j, double* lost_terms) {
        if constexpr (sizeof(C) == sizeof(double)) {
            add_exactly(terms, mass[j], lost_terms[j]);
        } else {
            mass[j] += terms;
        }
    }

    // Where one term is most of a sum in float, so is the rounding of that term.
    void add_what_the_largest_lost() {
        using F = Format<double>;
        constexpr double infinity = -NOTHING;
#pragma omp simd
        for (int64_t j = 0; j < WIDTH; ++j) {
            const double z = z_top(j);
            const double exact = exp(((z - double(shift_[j])) - double(power_[j]) * F::log_2_high) - double(power_[j]) * F::log_2_low);
            const C rounded = Exponential<C>::evaluate(C(z), C(0), shift_[j], magic_[j], floor_[j]);  // z is 0 or x, and needs no low part
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
};

// to[j, i] = from[i, j]
template <class C>
[[gnu::noinline]] void transpose(const C* from, int64_t from_step, int64_t lines, int64_t length, C* to, int64_t to_step) {
    int64_t whole = 0, whole_length = 0;
#ifdef __AVX2__
    if constexpr (sizeof(C) == sizeof(float)) {
        whole = lines / 8 * 8;
        whole_length = length / 8 * 8;
        for (int64_t i = 0; i < whole; i += 8)
            for (int64_t j = 0; j < whole_length; j += 8) {
                const float* a = from + i * from_step + j;
                float* b = to + j * to_step + i;
                __m256 r[8], s[8];
                // 4 × 4 blocks of the corners, each with its mirror image in the other half of a register.
                for (int k = 0; k < 4; ++k) {
                    r[k] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(a + k * from_step)), _mm_loadu_ps(a + (k + 4) * from_step), 1);
                    r[k + 4] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(a + k * from_step + 4)), _mm_loadu_ps(a + (k + 4) * from_step + 4), 1);
                }
                for (int k = 0; k < 8; k += 4) {
                    s[k] = _mm256_unpacklo_ps(r[k], r[k + 1]);
                    s[k + 1] = _mm256_unpackhi_ps(r[k], r[k + 1]);
                    s[k + 2] = _mm256_unpacklo_ps(r[k + 2], r[k + 3]);
                    s[k + 3] = _mm256_unpackhi_ps(r[k + 2], r[k + 3]);
                }
                for (int k = 0; k < 8; k += 4) {
                    _mm256_storeu_ps(b + k * to_step, _mm256_shuffle_ps(s[k], s[k + 2], 0x44));
                    _mm256_storeu_ps(b + (k + 1) * to_step, _mm256_shuffle_ps(s[k], s[k + 2], 0xee));
                    _mm256_storeu_ps(b + (k + 2) * to_step, _mm256_shuffle_ps(s[k + 1], s[k + 3], 0x44));
                    _mm256_storeu_ps(b + (k + 3) * to_step, _mm256_shuffle_ps(s[k + 1], s[k + 3], 0xee));
                }
            }
    }
#endif
    for (int64_t i = 0; i < lines; ++i)
        for (int64_t j = i < whole ? whole_length : 0; j < length; ++j) to[j * to_step + i] = from[i * from_step + j];
}

// body(columns, out of the first, distance of lines there, index of the first row, scratch) for columns as they lie.
template <class T, class Body>
bool for_each_columns(const SoftmaximaRows& rows, T* out, double nanoseconds, const Body& body) {
    using C = compute_t<T>;
    constexpr int64_t WIDTH = Columns<T>::WIDTH;
    const int64_t tiles = (rows.inner + WIDTH - 1) / WIDTH, size = rows.n * rows.inner;
    const int team = team_size(rows.threads, nanoseconds * double(rows.outer) * double(size));
    return share_out<C>(rows.outer * tiles, team, [&](int64_t task, Scratch<C>& scratch) __attribute__((noinline)) {
        const int64_t o = task / tiles, first = task % tiles * WIDTH, offset = o * size + first, index = o * rows.inner + first;
        const uint8_t* mask = rows.mask ? rows.mask + (rows.blocks ? rows.blocks[o] : o * size) + first : nullptr;
        Columns<T> columns(static_cast<const T*>(rows.x) + offset, mask, rows.n, rows.inner, minimum(WIDTH, rows.inner - first), rows, index);
        return body(columns, out ? out + offset : nullptr, rows.inner, index, scratch);
    });
}

// Rows of up to so many scores, that are at least so many, are turned into columns.
constexpr int64_t SHORT = 128, SEVERAL = 16;

inline bool are_short(const SoftmaximaRows& rows) { return rows.inner == 1 && rows.n <= SHORT && rows.outer >= SEVERAL; }

struct Unchanged {
    template <class C>
    void operator()(C*, int64_t, int64_t) const {}
};

// The same for short rows; the columns are of C, and so are the results, which are then written as rows. change(scores [n, WIDTH],
// index of the first row, rows) comes before the body.
template <class T, class Body, class Change = Unchanged>
bool for_each_short_rows(const SoftmaximaRows& rows, T* out, double nanoseconds, const Body& body, const Change& change = {}) {
    using C = compute_t<T>;
    constexpr int64_t WIDTH = Columns<C>::WIDTH, LINES = 8;
    const int64_t n = rows.n, size = n * WIDTH;
    const int team = team_size(rows.threads, nanoseconds * double(rows.outer) * double(n));
    return share_out<C>((rows.outer + WIDTH - 1) / WIDTH, team, [&](int64_t task, Scratch<C>& scratch) __attribute__((noinline)) {
        C* tile = reinterpret_cast<C*>(scratch.tile.at_least(2 * size * int64_t(sizeof(C))));
        if (!tile) return false;
        const int64_t first = task * WIDTH, width = minimum(WIDTH, rows.outer - first);
        const bool direct = sizeof(T) == sizeof(C) && !rows.mask;
        if (width < WIDTH)
            for (int64_t i = 0; i < n; ++i)
                for (int64_t j = width; j < WIDTH; ++j) tile[i * WIDTH + j] = 0;
        C buffer[LINES * SHORT];
        for (int64_t r = 0; r < width; r += LINES) {
            const int64_t lines = minimum(LINES, width - r);
            const C* from = buffer;
            if (direct) {
                from = reinterpret_cast<const C*>(static_cast<const T*>(rows.x) + (first + r) * rows.stride);
            } else {
                for (int64_t k = 0; k < lines; ++k) row_of<T>(rows, first + r + k, nullptr).raw(0, n, buffer + k * n);
            }
            transpose(from, direct ? rows.stride : n, lines, n, tile + r, WIDTH);
        }
        change(tile, first, width);
        C* results = out ? tile + size : nullptr;
        Columns<C> columns(tile, nullptr, n, WIDTH, width, rows, first);
        if (!body(columns, results, WIDTH, first, scratch)) return false;
        for (int64_t r = 0; out && r < width; r += LINES) {
            const int64_t lines = minimum(LINES, width - r);
            T* to = out + (first + r) * n;
            if constexpr (sizeof(T) == sizeof(C)) {
                transpose(results + r, WIDTH, n, lines, to, n);
            } else {
                transpose(results + r, WIDTH, n, lines, buffer, n);
                for (int64_t k = 0; k < lines * n; ++k) narrow(buffer[k], to[k]);
            }
        }
        return true;
    });
}

}  // namespace SOFTMAXIMA_ISA
