// Vectors that fill a register, by the extension of GCC and clang: operators work on each element, and a comparison is 0 or −1.
#pragma once

#include <limits>
#include <utility>

#include "number.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace SOFTMAXIMA_ISA {

#if defined(__AVX512F__)
constexpr int64_t REGISTER = 64;  // bytes
#elif defined(__AVX2__)
constexpr int64_t REGISTER = 32;
#else
constexpr int64_t REGISTER = 16;
#endif

template <class C>
constexpr int64_t LANES = REGISTER / sizeof(C);

template <class C, int64_t lanes>
struct VectorOf {
    typedef C type __attribute__((vector_size(lanes * sizeof(C))));
};

template <class C, int64_t lanes = LANES<C>>
using Vector = typename VectorOf<C, lanes>::type;

template <class C>
[[gnu::always_inline]] inline Vector<C> all(C value) {
    return value - Vector<C>{};
}

template <class C>
[[gnu::always_inline]] inline Vector<C> load(const C* from) {
    Vector<C> value;
    std::memcpy(&value, from, sizeof(value));
    return value;
}

template <class C>
[[gnu::always_inline]] inline void store(Vector<C> value, C* to) {
    std::memcpy(to, &value, sizeof(value));
}

// The last values of a row, fewer than LANES, with others behind them; and back.
template <class C>
[[gnu::always_inline]] inline Vector<C> load(const C* from, int64_t count, C fill) {
#if defined(__AVX512F__)
    if constexpr (sizeof(C) == sizeof(float)) {
        return (Vector<C>)_mm512_mask_loadu_ps(_mm512_set1_ps(fill), __mmask16((1u << count) - 1), from);
    } else {
        return (Vector<C>)_mm512_mask_loadu_pd(_mm512_set1_pd(fill), __mmask8((1u << count) - 1), from);
    }
#else
    Vector<C> value = all(fill);
    for (int64_t a = 0; a < LANES<C> - 1; ++a)
        if (a < count) value[a] = from[a];
    return value;
#endif
}

template <class C>
[[gnu::always_inline]] inline void store(Vector<C> value, int64_t count, C* to) {
#if defined(__AVX512F__)
    if constexpr (sizeof(C) == sizeof(float)) {
        _mm512_mask_storeu_ps(to, __mmask16((1u << count) - 1), (__m512)value);
    } else {
        _mm512_mask_storeu_pd(to, __mmask8((1u << count) - 1), (__m512d)value);
    }
#else
    for (int64_t a = 0; a < LANES<C> - 1; ++a)
        if (a < count) to[a] = value[a];
#endif
}

template <int64_t first, class V, int... i>
[[gnu::always_inline]] inline auto part(V value, std::integer_sequence<int, i...>) {
    return __builtin_shufflevector(value, value, (first + i)...);
}

// The halves of a vector.
template <int64_t lanes, class V>
[[gnu::always_inline]] inline auto lower(V value) {
    return part<0>(value, std::make_integer_sequence<int, lanes / 2>());
}

template <int64_t lanes, class V>
[[gnu::always_inline]] inline auto upper(V value) {
    return part<lanes / 2>(value, std::make_integer_sequence<int, lanes / 2>());
}

// Adds floats to as many doubles, in two halves.
[[gnu::always_inline]] inline void add(Vector<float> values, Vector<double> (&sums)[2]) {
    const auto low = lower<LANES<float>>(values), high = upper<LANES<float>>(values);
#if defined(__AVX512F__)
    // With a mask of all, for GCC 12 warns of the register that the other leaves undefined.
    sums[0] += (Vector<double>)_mm512_maskz_cvtps_pd(0xff, (__m256)low);
    sums[1] += (Vector<double>)_mm512_maskz_cvtps_pd(0xff, (__m256)high);
#elif defined(__AVX2__)
    sums[0] += (Vector<double>)_mm256_cvtps_pd((__m128)low);
    sums[1] += (Vector<double>)_mm256_cvtps_pd((__m128)high);
#else
    sums[0] += __builtin_convertvector(low, Vector<double>);
    sums[1] += __builtin_convertvector(high, Vector<double>);
#endif
}

// All elements by one operation, half and half.
template <int64_t lanes, class V, class Operation>
[[gnu::always_inline]] inline auto reduce(V value, const Operation& operation) {
    if constexpr (lanes == 2) {
        return operation(value[0], value[1]);
    } else {
        return reduce<lanes / 2>(operation(lower<lanes>(value), upper<lanes>(value)), operation);
    }
}

// Whether a comparison of vectors of C holds anywhere.
template <class C, class B>
[[gnu::always_inline]] inline bool any(B holds) {
    return reduce<LANES<C>>(holds, [](auto a, auto b) __attribute__((always_inline)) { return a | b; }) != 0;
}

// Where element e of two vectors half reduced comes from: their blocks of `step` elements side by side, of either half of what each was
// reduced to. Within 128 bits and of whole such parts a processor has this as one instruction.
template <int64_t lanes, int64_t step, int64_t lane>
constexpr int source_of(int64_t e, int64_t half) {
    if (step < lane) {
        const int64_t first = e / lane * lane, place = e % lane;
        return int(place / step % 2 * lanes + first + half * (lane / 2) + place / (2 * step) * step + place % step);
    }
    const int64_t place = e % (lanes / 2), part = place / lane;
    const int64_t from = step == lane ? place + half * (lanes / 2) : (2 * part + half) * lane + place % lane;
    return int(e / (lanes / 2) * lanes + from);
}

template <int64_t lanes, int64_t step, int64_t lane, int64_t half, class V, int... e>
[[gnu::always_inline]] inline V side_by_side(V a, V b, std::integer_sequence<int, e...>) {
    return __builtin_shufflevector(a, b, source_of<lanes, step, lane>(e, half)...);
}

// Where element e of two vectors comes from that change their blocks of `step` elements crosswise: half 0 is the new first one.
template <int64_t lanes, int64_t step>
constexpr int crossed(int64_t e, int64_t half) {
    const bool odd = e / step % 2 != 0;
    return int(half == 0 ? (odd ? lanes + e - step : e) : (odd ? lanes + e : e + step));
}

template <int64_t lanes, int64_t step, int64_t half, class V, int... e>
[[gnu::always_inline]] inline V cross(V a, V b, std::integer_sequence<int, e...>) {
    return __builtin_shufflevector(a, b, crossed<lanes, step>(e, half)...);
}

// LANES vectors as the columns of what they were the rows of.
template <class C, int64_t step = 1>
[[gnu::always_inline]] inline void transpose(Vector<C>* rows) {
    constexpr int64_t lanes = LANES<C>;
    constexpr auto elements = std::make_integer_sequence<int, int(lanes)>();
#pragma GCC unroll 16
    for (int64_t i = 0; i < lanes; ++i) {
        if (i / step % 2 != 0) continue;
        const Vector<C> a = rows[i], b = rows[i + step];
        rows[i] = cross<lanes, step, 0>(a, b, elements);
        rows[i + step] = cross<lanes, step, 1>(a, b, elements);
    }
    if constexpr (2 * step < lanes) transpose<C, 2 * step>(rows);
}

// Element e is all elements of the e-th of LANES vectors by one operation, which takes two shuffles and one operation a vector.
template <class C, int64_t step = 1, class Operation>
[[gnu::always_inline]] inline Vector<C> reduce_each(const Vector<C>* of, const Operation& operation) {
    constexpr int64_t lanes = LANES<C>, lane = 16 / sizeof(C);
    constexpr auto elements = std::make_integer_sequence<int, int(lanes)>();
    Vector<C> pairs[lanes / (2 * step)];
    for (int64_t k = 0; k < lanes / (2 * step); ++k) {
        const Vector<C> a = of[2 * k], b = of[2 * k + 1];
        pairs[k] = operation(side_by_side<lanes, step, lane, 0>(a, b, elements), side_by_side<lanes, step, lane, 1>(a, b, elements));
    }
    if constexpr (2 * step == lanes) {
        return pairs[0];
    } else {
        return reduce_each<C, 2 * step>(pairs, operation);
    }
}

}  // namespace SOFTMAXIMA_ISA
