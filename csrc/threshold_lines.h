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

// Where scores are, and what they are.
template <class C>
struct Places {
    C* values;
    int32_t* positions;
};

// To their places those of LOOK values or fewer that have a bit, whose number is returned: values from `first` on, or of other places,
// which may be behind their own. There is room for a vector more.
template <class C>
int64_t place(uint64_t bits, const C* values, int64_t first, const int32_t* positions, Places<C> to) {
    int64_t count = 0;
#if defined(__AVX512F__)
    if constexpr (sizeof(C) == sizeof(float)) {
        const __m512i steps = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        for (int64_t i = 0; bits; bits >>= 16, i += 16) {
            const auto mask = __mmask16(bits);
            const __m512i own = positions ? _mm512_maskz_loadu_epi32(mask, positions + i) : _mm512_add_epi32(_mm512_set1_epi32(int32_t(first + i)), steps);
            const __m512 chosen = _mm512_maskz_compress_ps(mask, _mm512_maskz_loadu_ps(mask, values + i));
            _mm512_storeu_si512(to.positions + count, _mm512_maskz_compress_epi32(mask, own));
            _mm512_storeu_ps(to.values + count, chosen);
            count += __builtin_popcount(unsigned(bits & 0xffff));
        }
        return count;
    }
#elif defined(__AVX2__)
    if constexpr (sizeof(C) == sizeof(float)) {
        const __m256i steps = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
        for (int64_t i = 0; bits; bits >>= 8, i += 8) {
            const auto byte = int32_t(bits & 0xff);
            const __m256i mask = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(byte), each), each);
            const __m256i order = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(int64_t(BITS.of[byte])));
            const __m256i own = positions ? _mm256_maskload_epi32(positions + i, mask) : _mm256_add_epi32(_mm256_set1_epi32(int32_t(first + i)), steps);
            const __m256 chosen = _mm256_permutevar8x32_ps(_mm256_maskload_ps(values + i, mask), order);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.positions + count), _mm256_permutevar8x32_epi32(own, order));
            _mm256_storeu_ps(to.values + count, chosen);
            count += __builtin_popcount(unsigned(byte));
        }
        return count;
    }
#endif
    for (; bits; bits &= bits - 1) {
        const int64_t i = __builtin_ctzll(bits);
        to.positions[count] = positions ? positions[i] : int32_t(first + i);
        to.values[count++] = values[i];
    }
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
        values_ = scratch.candidates.at_least((room_ + PADDING) * WIDTH);
        if (!rough || !gaps_ || !values_) return false;
        positions_ = reinterpret_cast<int32_t*>(gaps_ + 2 * room_ * WIDTH);
        typename Family::template Together<WIDTH> families;
        const float* near[WIDTH];
        const double* gaps[WIDTH];
        float edges[WIDTH];
        double starts[WIDTH];
        int64_t counts[WIDTH] = {};
        for (int64_t j = 0; j < WIDTH; ++j) {
            const Family family(lines.theta[j]);
            families.beta[j] = family.beta;
            starts[j] = -family.reach();
            edges[j] = float(starts[j] * (1 + 4 * std::numeric_limits<float>::epsilon()));
            near[j] = rough + j * room_;
            gaps[j] = gaps_ + j * room_;
            if (j < lines.width()) counts[j] = find_largest(j, rough + j * room_, scratch);
        }
        for (int64_t j = lines.width(); j < WIDTH; ++j) lines.top[j] = 0;
        if (lines.n() > DENSE) families.raise(near, counts, false, edges, nullptr);
        for (int64_t j = 0; j < WIDTH; ++j)
            if (counts[j] > 0) counts[j] = measure(j, edges[j], rough + j * room_, scratch);
        families.raise(near, counts, true, edges, starts);
        for (int64_t j = 0; j < WIDTH; ++j)
            if (counts[j] > 0) counts[j] = keep(j, edges[j], scratch);
        families.solve(gaps, counts, starts, lost, threshold_);
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
            const Places<C> places = places_of(j);
            const double *p = shares(j), factor = weight[j];
            C *to = out + j * step, *results = places.values;  // where no score is asked for any more
            const C nothing = C(nan_[j]);
            for (int64_t i = 0; i < lines.n(); ++i) to[i] = nothing;
            for (int64_t k = 0; k < kept_[j]; ++k) results[k] = C(p[k] * factor);
            for (int64_t k = 0; k < kept_[j]; ++k) to[places.positions[k]] = results[k];
        }
    }

    // p of a score in each row, from its distance to the largest z.
    void likelihoods(const double* distances, double* p, double* lack) const {
        for (int64_t j = 0; j < WIDTH; ++j) {
            double own[PADDING] = {distances[j]};
            if (j < lines.width() && kept_[j] > 0) Family(lines.theta[j]).probabilities(own, PADDING, threshold_[j]);
            p[j] = j < lines.width() ? (kept_[j] > 0 ? own[0] : nan_[j]) : 0.0;
            lack[j] = 1 - p[j];
        }
    }

   private:
    int64_t room_ = 0;              // for the scores of a row
    double* gaps_ = nullptr;        // [WIDTH, room], z less the largest of those that can be in the support; behind them p
    int32_t* positions_ = nullptr;  // [WIDTH, room + PADDING], of these scores, and
    C* values_ = nullptr;           // these scores
    int64_t kept_[WIDTH] = {};      // how many they are
    Threshold threshold_[WIDTH];
    double nan_[WIDTH] = {};  // for a row with NaN or +∞, for others 0

    Places<C> places_of(int64_t j) const { return {values_ + j * (room_ + PADDING), positions_ + j * (room_ + PADDING)}; }

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
            const Places<C> places = places_of(j);
            kept_[j] = count = select(x, nullptr, count, bound, places);
            for (int64_t k = 0; k < count; ++k) rough[k] = float(gap(places.values[k], top, scale));
        }
        if (!any_nan(rough, count)) return pad(rough, count);
        nan_[j] = std::numeric_limits<double>::quiet_NaN();
        return kept_[j] = 0;
    }

    // The candidates above an edge.
    int64_t keep(int64_t j, float edge, Scratch<C>& scratch) {
        const Places<C> places = places_of(j);
        const double top = double(lines.top[j]), scale = lines.scale[j];
        const C bound = below<C>(top + double(edge) * lines.tau[j]);
        const int64_t count = lines.n() <= DENSE ? select(lines.row(j, scratch), nullptr, lines.n(), bound, places)
                                                 : select(places.values, places.positions, kept_[j], bound, places);
        double* gaps = gaps_ + j * room_;
        for (int64_t k = 0; k < count; ++k) gaps[k] = gap(places.values[k], top, scale);
        kept_[j] = count;
        return pad(gaps, count);
    }

    // Those of so many scores that are above a bound.
    static int64_t select(const C* values, const int32_t* positions, int64_t length, C bound, Places<C> to) {
        int64_t count = 0;
        for (int64_t i = 0; i < length; i += LOOK) {
            const uint64_t bits = above(values + i, minimum(LOOK, length - i), bound);
            count += place(bits, values + i, i, positions ? positions + i : nullptr, {to.values + count, to.positions + count});
        }
        return count;
    }
};

}  // namespace SOFTMAXIMA_ISA
