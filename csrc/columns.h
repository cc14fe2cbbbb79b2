// Rows that lie beside one another: those of [outer, n, inner] as they are, and short ones once they are turned into columns. Nothing
// is left over at the end of a row then.
#pragma once

#include "group.h"

namespace SOFTMAXIMA_ISA {

template <class T>
struct alignas(LINE) Columns : Group<Columns<T>, compute_t<T>, 256 / sizeof(compute_t<T>)> {
    using Base = Group<Columns<T>, compute_t<T>, 256 / sizeof(compute_t<T>)>;
    using Base::anchor_, Base::largest_, Base::n_, Base::scaled_, Base::width_;
    using Base::log_sum, Base::mass, Base::nothing, Base::scale, Base::tau, Base::top, Base::WIDTH;
    using typename Base::C;
    static constexpr int64_t CACHED = int64_t(1) << 17;  // bytes of exponentials that rest in the second-level cache

    // Scores [n, width], `inner` from one line to the next; a mask that lies like them, or none.
    Columns(const T* x, const uint8_t* mask, int64_t n, int64_t inner, int64_t width, const SoftmaximaRows& rows, int64_t index)
        : Base(rows, n, width, index), x_(x), mask_(mask), inner_(inner) {}

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

    void find_top(bool rectified) {
        alignas(LINE) C buffer[WIDTH];
        for (int64_t j = 0; j < WIDTH; ++j) top[j] = nothing;
        for (int64_t i = 0; i < n_; ++i) {
            const C* values = raw(i, rectified, buffer);
#pragma omp simd
            for (int64_t j = 0; j < WIDTH; ++j) top[j] = values[j] > top[j] ? values[j] : top[j];
        }
    }

    bool can_keep() const { return n_ * WIDTH * int64_t(sizeof(C)) <= CACHED; }

    template <bool exact>
    void sum_terms(bool rectified, C* kept, int64_t step, double* lost_terms) {
        scaled_ ? add_lines<true, exact>(rectified, kept, step, lost_terms) : add_lines<false, exact>(rectified, kept, step, lost_terms);
    }

    template <class U>
    void emit_terms(bool rectified, bool kept, const Ratios<C, WIDTH>& ratios, const C* share, U* out, int64_t step) const {
        alignas(LINE) C e[WIDTH];
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

    template <class U>
    void emit_log(U* out, int64_t step) const {
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

    C score(int64_t i, int64_t j) const { return !mask_ || mask_[i * inner_ + j] ? widen(x_[i * inner_ + j]) : nothing; }

    const C* row(int64_t j, Scratch<C>& scratch) const {
        C* copy = scratch.candidates.at_least(n_);
        for (int64_t i = 0; copy && i < n_; ++i) copy[i] = score(i, j);
        return copy;
    }

    bool log_sums_of_gaps() {
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
        return true;
    }

    template <class U>
    static U* at(U* out, int64_t step, int64_t i, int64_t j) {
        return out + i * step + j;
    }

   private:
    const T* x_;
    const uint8_t* mask_;
    int64_t inner_;

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

    template <bool Low>
    void exponentials(const C* z, const C* low, C* e) const {
#pragma omp simd
        for (int64_t j = 0; j < WIDTH; ++j) e[j] = this->template term<Low>(z[j], low[j], j);
    }

    // Two lines at a time, whose terms are added in C unless the sum is to be exact.
    template <bool Low, bool exact>
    void add_lines(bool rectified, C* kept, int64_t step, double* lost_terms) {
        alignas(LINE) C z0[WIDTH], z1[WIDTH], low0[WIDTH], low1[WIDTH], e[2 * WIDTH];
        const bool direct = kept && width_ == WIDTH;
        for (int64_t i = 0; i < n_; i += 2) {
            const bool two = i + 1 < n_;
            const C *first = load(i, rectified, z0, low0), *second = two ? load(i + 1, rectified, z1, low1) : nullptr;
            C *to0 = direct ? kept + i * step : e, *to1 = direct && two ? kept + (i + 1) * step : e + WIDTH;
            if (two) {
#pragma omp simd
                for (int64_t j = 0; j < WIDTH; ++j) {
                    const C p = this->template term<Low>(first[j], low0[j], j), q = this->template term<Low>(second[j], low1[j], j);
                    to0[j] = p;
                    to1[j] = q;
                    add(exact ? double(p) + double(q) : double(p + q), j, lost_terms);
                }
            } else {
#pragma omp simd
                for (int64_t j = 0; j < WIDTH; ++j) {
                    const C p = this->template term<Low>(first[j], low0[j], j);
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
    const int64_t line = rows.stride ? rows.stride : rows.inner;
    const Team team = team_size(rows.threads, nanoseconds * double(rows.outer) * double(size));
    return share_out<C>(rows.outer * tiles, team, [&](int64_t task, Scratch<C>& scratch) __attribute__((noinline)) {
        const int64_t o = task / tiles, first = task % tiles * WIDTH, offset = o * size + first, index = o * rows.inner + first;
        const uint8_t* mask = rows.mask ? rows.mask + (rows.blocks ? rows.blocks[o] : o * size) + first : nullptr;
        Columns<T> columns(static_cast<const T*>(rows.x) + o * rows.n * line + first, mask, rows.n, line, minimum(WIDTH, rows.inner - first), rows, index);
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
    const Team team = team_size(rows.threads, nanoseconds * double(rows.outer) * double(n));
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
