// Products of bfloat16 numbers, summed in float, where the processor has an instruction for pairs of them.
#pragma once

#include "products.h"

namespace SOFTMAXIMA_ISA {

// Two rows as pairs of numbers side by side, [columns, 2]; 0 in the place of a row that is not there.
inline void interleave(const uint16_t* a, const uint16_t* b, int64_t columns, uint16_t* to) {
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
        to[2 * j] = a[j];
        to[2 * j + 1] = b ? b[j] : uint16_t(0);
    }
}

#if defined(__AVX512F__)
#define SOFTMAXIMA_BFLOAT16 [[gnu::target("avx512bf16")]]

inline bool has_bfloat16_products() {
    static const bool has = __builtin_cpu_supports("avx512bf16");
    return has;
}

// Numbers rounded to the nearest.
SOFTMAXIMA_BFLOAT16 inline void round_to_bfloat16(const float* from, int64_t count, uint16_t* to) {
    int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
        const __m512bh both = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + i + 16), _mm512_loadu_ps(from + i));
        std::memcpy(to + i, &both, sizeof(both));
    }
    for (; i < count; ++i) {
        bfloat16 rounded;
        narrow(from[i], rounded);
        to[i] = rounded.bits;
    }
}

// c[r, :] += Σ_k a[r, k] b[k, :] of some rows and vectors, with pairs of k beside one another: a [rows, 2 pairs], b [pairs, columns, 2].
template <int rows, int vectors>
SOFTMAXIMA_BFLOAT16 inline void pair_tile(const uint16_t* a, int64_t a_row, const uint16_t* b, int64_t b_row, int64_t pairs, float* c, int64_t c_row) {
    __m512 sums[rows][vectors];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) sums[r][v] = _mm512_setzero_ps();
    for (int64_t k = 0; k < pairs; ++k) {
        __m512bh right[vectors];
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) right[v] = __m512bh(_mm512_loadu_si512(b + k * b_row + v * 32));
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) {
            int pair;
            std::memcpy(&pair, a + r * a_row + 2 * k, sizeof(pair));
            const __m512bh left = __m512bh(_mm512_set1_epi32(pair));
#pragma GCC unroll 8
            for (int v = 0; v < vectors; ++v) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], left, right[v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) {
            float* to = c + r * c_row + v * 16;
            _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), sums[r][v]));
        }
}

template <int vectors>
SOFTMAXIMA_BFLOAT16 [[gnu::noinline]] void pair_tiles(const uint16_t* a, int64_t a_row, const uint16_t* b, int64_t b_row, int64_t rows, int64_t pairs,
                                                      float* c, int64_t c_row) {
    int64_t r = 0;
    for (; r + 6 <= rows; r += 6) pair_tile<6, vectors>(a + r * a_row, a_row, b, b_row, pairs, c + r * c_row, c_row);
    for (; r + 2 <= rows; r += 2) pair_tile<2, vectors>(a + r * a_row, a_row, b, b_row, pairs, c + r * c_row, c_row);
    for (; r < rows; ++r) pair_tile<1, vectors>(a + r * a_row, a_row, b, b_row, pairs, c + r * c_row, c_row);
}

// The same of whole vectors of columns.
inline void pair_product(const uint16_t* a, int64_t a_row, const uint16_t* b, int64_t b_row, int64_t rows, int64_t pairs, int64_t columns, float* c,
                         int64_t c_row) {
    int64_t j = 0;
    for (; j + 64 <= columns; j += 64) pair_tiles<4>(a, a_row, b + 2 * j, b_row, rows, pairs, c + j, c_row);
    for (; j < columns; j += 16) pair_tiles<1>(a, a_row, b + 2 * j, b_row, rows, pairs, c + j, c_row);
}

#else
inline bool has_bfloat16_products() { return false; }

inline void round_to_bfloat16(const float*, int64_t, uint16_t*) {}

inline void pair_product(const uint16_t*, int64_t, const uint16_t*, int64_t, int64_t, int64_t, int64_t, float*, int64_t) {}
#endif

// The bits of a float that is a bfloat16 number.
template <class C>
uint16_t upper_half(C value) {
    if constexpr (sizeof(C) == sizeof(float)) return uint16_t(bit_cast<uint32_t>(value) >> 16);
    return 0;
}

// What follows does nothing where there is no such instruction, or where the numbers are others.

template <class A, class C>
void product_of_pairs(const A* a, int64_t a_row, const uint16_t* b, int64_t b_row, int64_t rows, int64_t pairs, int64_t columns, C* c, int64_t c_row) {
    if constexpr (sizeof(A) == sizeof(uint16_t) && sizeof(C) == sizeof(float)) {
        pair_product(reinterpret_cast<const uint16_t*>(a), a_row, b, b_row, rows, pairs, columns, c, c_row);
    }
}

// Rows of floats, rounded; of an odd count with a 0 behind.
template <class C>
void round_rows(const C* from, int64_t from_row, int64_t rows, int64_t count, int64_t to_row, uint16_t* to) {
    if constexpr (sizeof(C) == sizeof(float)) {
        for (int64_t r = 0; r < rows; ++r) {
            round_to_bfloat16(from + r * from_row, count, to + r * to_row);
            if (count % 2 != 0) to[r * to_row + count] = 0;
        }
    }
}

// Pairs of rows side by side, [rows / 2, columns, 2]; of an odd number of rows the last beside 0.
template <class T>
void interleave_rows(const T* from, int64_t from_row, int64_t rows, int64_t columns, uint16_t* to) {
    if constexpr (sizeof(T) == sizeof(uint16_t)) {
        for (int64_t r = 0; r < rows; r += 2, to += 2 * columns) {
            const uint16_t* a = reinterpret_cast<const uint16_t*>(from + r * from_row);
            interleave(a, r + 1 < rows ? a + from_row : nullptr, columns, to);
        }
    }
}

}  // namespace SOFTMAXIMA_ISA
