// Maps with a threshold of rows of some hundred scores, as they lie: what is done once a row is done in vectors for several of them.
#pragma once

#include "lines.h"
#include "threshold.h"

namespace SOFTMAXIMA_ISA {

#if defined(__AVX2__) && !defined(__AVX512F__)
// The bits that are set in a byte, each in a byte.
struct BitsOfBytes {
    uint64_t of[256] = {};

    constexpr BitsOfBytes() {
        for (int byte = 0; byte < 256; ++byte) {
            int count = 0;
            for (uint64_t bit = 0; bit < 8; ++bit)
                if (byte >> bit & 1) of[byte] |= bit << 8 * count++;
        }
    }
};

inline constexpr BitsOfBytes BITS;
#endif

// The positions of those of LOOK values or fewer that have a bit, and their number; there is room for a vector more.
inline int64_t place(uint64_t bits, int64_t first, int32_t* positions) {
    int64_t count = 0;
#if defined(__AVX512F__)
    __m512i own = _mm512_add_epi32(_mm512_set1_epi32(int32_t(first)), _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    for (; bits; bits >>= 16) {
        _mm512_storeu_si512(positions + count, _mm512_maskz_compress_epi32(__mmask16(bits), own));
        count += __builtin_popcount(unsigned(bits & 0xffff));
        own = _mm512_add_epi32(own, _mm512_set1_epi32(16));
    }
#elif defined(__AVX2__)
    __m256i own = _mm256_set1_epi32(int32_t(first));
    for (; bits; bits >>= 8) {
        const __m256i bytes = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(int64_t(BITS.of[bits & 0xff])));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(positions + count), _mm256_add_epi32(own, bytes));
        count += __builtin_popcount(unsigned(bits & 0xff));
        own = _mm256_add_epi32(own, _mm256_set1_epi32(8));
    }
#else
    for (; bits; bits &= bits - 1) positions[count++] = int32_t(first + __builtin_ctzll(bits));
#endif
    return count;
}

template <class C, class Family>
struct alignas(LINE) ThresholdLines {
    static constexpr int64_t WIDTH = Lines<C>::WIDTH;
    static constexpr int64_t MOST = 1024;   // of longer rows so many do not rest in the second-level cache
    static constexpr int64_t DENSE = 64;    // scores of a row that are worked on all, rather than looked through for candidates
    static constexpr int64_t LARGEST = 32;  // scores with which it is begun where there are more

    Lines<C>& lines;
    double conjugate[WIDTH];  // Ω*(z) less the largest z

    static bool suit(const SoftmaximaRows& rows) { return rows.inner == 1 && rows.n <= MOST && rows.outer >= 4 && (Family::costly || rows.n > SHORT); }

    explicit ThresholdLines(Lines<C>& lines_) : lines(lines_) {}

    // The thresholds and probabilities. What is rounded to C need not be more exact.
    bool solve(Scratch<C>& scratch, double lost = sizeof(C) == sizeof(double) ? 1e-15 : 0x1p-25) {
        room_ = (lines.n() + PADDING - 1) / PADDING * PADDING;
        float* rough = scratch.rough.at_least(room_ * WIDTH);
        gaps_ = scratch.gaps.at_least((2 * room_ + (room_ + PADDING) / 2) * WIDTH);
        if (!rough || !gaps_) return false;
        positions_ = reinterpret_cast<int32_t*>(gaps_ + 2 * room_ * WIDTH);
        typename Family::template Together<WIDTH> families;
        const float* near[WIDTH];
        const double* gaps[WIDTH];
        float edges[WIDTH];
        double lowest[WIDTH];
        int64_t counts[WIDTH] = {};
        for (int64_t j = 0; j < WIDTH; ++j) {
            const Family family(lines.theta[j]);
            families.beta[j] = family.beta;
            lowest[j] = -family.reach();
            edges[j] = float(lowest[j] * (1 + 4 * std::numeric_limits<float>::epsilon()));
            near[j] = rough + j * room_;
            gaps[j] = gaps_ + j * room_;
            if (j < lines.width()) counts[j] = find_largest(j, rough + j * room_, scratch);
        }
        for (int64_t j = lines.width(); j < WIDTH; ++j) lines.top[j] = 0;
        if (lines.n() > DENSE) families.raise(near, counts, false, edges);
        for (int64_t j = 0; j < WIDTH; ++j)
            if (counts[j] > 0) counts[j] = measure(j, edges[j], rough + j * room_, scratch);
        families.raise(near, counts, true, edges);
        for (int64_t j = 0; j < WIDTH; ++j)
            if (counts[j] > 0) counts[j] = keep(j, edges[j], lowest[j], scratch);
        families.solve(gaps, counts, lowest, lost, threshold_);
        for (int64_t j = 0; j < WIDTH; ++j) {
            if (counts[j] == 0) continue;
            std::memcpy(shares(j), gaps[j], size_t(counts[j]) * sizeof(double));
            Family(lines.theta[j]).probabilities(shares(j), counts[j], threshold_[j]);
        }
        return true;
    }

    // The same, and the conjugates, in double.
    bool prepare(C*, int64_t, Scratch<C>& scratch) {
        if (!solve(scratch, 1e-15)) return false;
        for (int64_t j = 0; j < lines.width(); ++j) {
            const Family family(lines.theta[j]);
            const double *gaps = gaps_ + j * room_, *p = shares(j);
            double mean = 0;  // Σ p z
            for (int64_t k = 0; k < kept_[j]; ++k) mean += p[k] > 0 ? p[k] * gaps[k] : 0.0;
            const bool empty = lines.top[j] == Lines<C>::nothing;
            conjugate[j] = (empty ? 0.0 : (family.beta * mean - family.offset(threshold_[j])) / (1 + family.beta)) + nan_[j];
        }
        for (int64_t j = lines.width(); j < WIDTH; ++j) conjugate[j] = 0;
        return true;
    }

    // weight · p
    void emit(const double* weight, C* out, int64_t step) const {
        for (int64_t j = 0; j < lines.width(); ++j) {
            const int32_t* positions = positions_ + j * (room_ + PADDING);
            const double *p = shares(j), factor = weight[j];
            C* to = out + j * step;
            const C nothing = C(nan_[j]);
            for (int64_t i = 0; i < lines.n(); ++i) to[i] = nothing;
            for (int64_t k = 0; k < kept_[j]; ++k) to[positions[k]] = C(p[k] * factor);
        }
    }

    // p of a score in each row, from its distance to the largest z.
    void probabilities(const double* distances, double* p) const {
        for (int64_t j = 0; j < WIDTH; ++j) {
            double own[PADDING] = {distances[j]};
            if (j < lines.width() && kept_[j] > 0) Family(lines.theta[j]).probabilities(own, PADDING, threshold_[j]);
            p[j] = j < lines.width() ? (kept_[j] > 0 ? own[0] : nan_[j]) : 0.0;
        }
    }

   private:
    int64_t room_ = 0;              // for the scores of a row
    double* gaps_ = nullptr;        // [WIDTH, room], z less the largest of those that can be in the support; behind them p
    int32_t* positions_ = nullptr;  // [WIDTH, room + PADDING], of these scores
    int64_t kept_[WIDTH] = {};      // how many they are
    Threshold threshold_[WIDTH];
    double nan_[WIDTH] = {};  // for a row with NaN or +∞, for others 0

    double* shares(int64_t j) const { return gaps_ + (WIDTH + j) * room_; }

    // The largest score of a row, and where there are many the gaps of those that are the largest of some. No score is dropped from the
    // support by leaving others out, and so they say much of the edge.
    int64_t find_largest(int64_t j, float* rough, Scratch<C>& scratch) {
        const auto larger = [](auto a, auto b) __attribute__((always_inline)) { return a > b ? a : b; };
        constexpr int64_t lanes = LANES<C>, count = LARGEST / lanes;
        const C* x = lines.row(j, scratch);
        const int64_t n = lines.n();
        Vector<C> tops[count];
        for (Vector<C>& top : tops) top = all(Lines<C>::nothing);
        int64_t i = 0;
        for (; i + LARGEST <= n; i += LARGEST)
            for (int64_t k = 0; k < count; ++k) tops[k] = larger(load(x + i + k * lanes), tops[k]);
        for (; i + lanes <= n; i += lanes) tops[0] = larger(load(x + i), tops[0]);
        if (i < n) tops[0] = larger(load(x + i, n - i, Lines<C>::nothing), tops[0]);
        Vector<C> top = tops[0];
        for (int64_t k = 1; k < count; ++k) top = larger(tops[k], top);
        const C largest = lines.top[j] = reduce<lanes>(top, larger);
        const bool none = largest == Lines<C>::nothing && any_nan(x, n);
        if (largest == std::numeric_limits<C>::infinity() || none) nan_[j] = std::numeric_limits<double>::quiet_NaN();
        if (n > DENSE) {
            alignas(LINE) C values[LARGEST];
            for (int64_t k = 0; k < count; ++k) store(tops[k], values + k * lanes);
            for (int64_t k = 0; k < LARGEST; ++k) rough[k] = float(gap(values[k], double(largest), lines.scale[j]));
        }
        return std::fabs(largest) < std::numeric_limits<C>::infinity() ? LARGEST : 0;
    }

    // The gaps of candidates, roughly; none of a row with NaN, which is among them.
    int64_t measure(int64_t j, float edge, float* rough, Scratch<C>& scratch) {
        const C* x = lines.row(j, scratch);
        const double top = double(lines.top[j]), scale = lines.scale[j];
        int64_t count = lines.n();
        if (count <= DENSE) {
            for (int64_t i = 0; i < count; ++i) rough[i] = float(gap(x[i], top, scale));
        } else {
            const C bound = below<C>(top + double(edge) * lines.tau[j]);
            int32_t* positions = positions_ + j * (room_ + PADDING);
            count = 0;
            for (int64_t i = 0; i < lines.n(); i += LOOK) count += place(above(x + i, minimum(LOOK, lines.n() - i), bound), i, positions + count);
            kept_[j] = count;
            for (int64_t k = 0; k < count; ++k) rough[k] = float(gap(x[positions[k]], top, scale));
        }
        if (!any_nan(rough, count)) return pad(rough, count);
        nan_[j] = std::numeric_limits<double>::quiet_NaN();
        return kept_[j] = 0;
    }

    // The candidates above an edge, which is raised to what is known of it.
    int64_t keep(int64_t j, float edge, double& lowest, Scratch<C>& scratch) {
        const C *x = lines.row(j, scratch), bound = below<C>(double(lines.top[j]) + double(edge) * lines.tau[j]);
        const double top = double(lines.top[j]), scale = lines.scale[j], own = gap(bound, top, scale);
        int32_t* positions = positions_ + j * (room_ + PADDING);
        double* gaps = gaps_ + j * room_;
        int64_t count = 0;
        if (lines.n() <= DENSE) {
            count = place(above(x, lines.n(), bound), 0, positions);
        } else {
            for (int64_t k = 0; k < kept_[j]; ++k) {
                positions[count] = positions[k];
                count += !(x[positions[k]] <= bound);
            }
        }
        for (int64_t k = 0; k < count; ++k) gaps[k] = gap(x[positions[k]], top, scale);
        lowest = own > lowest ? own : lowest;
        kept_[j] = count;
        return pad(gaps, count);
    }
};

}  // namespace SOFTMAXIMA_ISA
