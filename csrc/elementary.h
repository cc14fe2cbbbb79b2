// exp and log in float and double, each within 1 ulp, of plain operations that the compiler makes vectors of, once they are inlined.
//
// exp(x) = 2^n (1 + t), n the integer nearest x / log 2, t = r + r² q(r), r = x − n log 2.
// log(x) = e log 2 + log(1 + f), f in [√½ − 1, √2 − 1], log(1 + f) = f − f²/2 + s (f²/2 + R(s²)), s = f / (2 + f).
//
// q and R are minimax polynomials. Adding 1.5·2^(digits − 1) to a number rounds it to an integer and leaves that integer in
// the low bits of the sum.
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "vector.h"

namespace SOFTMAXIMA_ISA {

template <class C>
struct Format;

template <>
struct Format<float> {
    using bits = uint32_t;
    using signed_bits = int32_t;
    static constexpr int mantissa = 23, bias = 127;
    static constexpr float magic = 0x1.8p23f;
    static constexpr float log2_e = 0x1.715476p0f;
    static constexpr float log_2_high = 0x1.62e4p-1f, log_2_low = 0x1.7f7d1cp-20f;  // n · high is exact for |n| < 2^10
    // exp of a larger argument is ∞, of a smaller one 0.
    static constexpr float overflow = 88.8f, underflow = -104.0f;
    // Rows with a maximum beyond this are shifted by it: a difference to it is exact where its exp is not 0.
    static constexpr float exact_range = 152.0f;
    template <class V>
    [[gnu::always_inline]] static inline V q(V r) {
        return 0.500000010099f + r * (0.166665128907f + r * (0.0416661872443f + r * (0.00836959819965f + r * 0.00139517199729f)));
    }
    static inline float R(float z) { return z * (0.66666783223f + z * (0.39976612314f + z * 0.29898652756f)); }
};

template <>
struct Format<double> {
    using bits = uint64_t;
    using signed_bits = int64_t;
    static constexpr int mantissa = 52, bias = 1023;
    static constexpr double magic = 0x1.8p52;
    static constexpr double log2_e = 0x1.71547652b82fep0;
    static constexpr double log_2_high = 0x1.62e42fefap-1, log_2_low = 0x1.cf79abc9e3b3ap-40;
    static constexpr double overflow = 709.8, underflow = -746.0;
    static constexpr double exact_range = 1500.0;
    template <class V>
    [[gnu::always_inline]] static inline V q(V r) {
        V value = 2.7632753083757483216e-7 + r * 2.5119160531125604859e-8;
        value = 2.755721219205453538e-6 + r * value;
        value = 2.4801486028184577692e-5 + r * value;
        value = 1.984126992198866311e-4 + r * value;
        value = 1.3888888950555066775e-3 + r * value;
        value = 8.3333333333050747097e-3 + r * value;
        value = 4.1666666666503020358e-2 + r * value;
        value = 0.16666666666666702404 + r * value;
        return 0.50000000000000140595 + r * value;
    }
    static inline double R(double z) {
        double value = 0.14827151548625063689;
        value = 0.15311072372025341277 + z * value;
        value = 0.1818367482715379739 + z * value;
        value = 0.22222196570120208776 + z * value;
        value = 0.28571428760595651022 + z * value;
        value = 0.39999999999339331494 + z * value;
        value = 0.6666666666666744668 + z * value;
        return z * value;
    }
};

// exp relative to an origin: exp(x − shift) / 2^power. With a power the argument itself need not be rounded: a shift is
// zero while the numbers are small, and exact in the difference where they are not.
template <class C>
struct Origin {
    C shift = 0;
    C power = 0;  // an integer

    // The origin at which exp(maximum) is between √½ and √2.
    static inline Origin at(C maximum) {
        const bool small = (maximum < 0 ? -maximum : maximum) <= Format<C>::exact_range;
        const C shift = small || maximum == -std::numeric_limits<C>::infinity() ? C(0) : maximum;
        const C nearest = (maximum * Format<C>::log2_e + Format<C>::magic) - Format<C>::magic;
        return {shift, small ? nearest : C(0)};
    }

    inline double value() const { return above(0); }

    // The origin less a number, which may be near it.
    inline double above(double level) const {
        using F = Format<double>;
        return ((double(shift) - level) + double(power) * F::log_2_high) + double(power) * F::log_2_low;
    }
};

// The bits of a number, or of each of a vector.
template <class C, class V>
[[gnu::always_inline]] inline auto bits_of(V value) {
    if constexpr (std::is_same_v<C, V>) {
        return bit_cast<typename Format<C>::bits>(value);
    } else {
        return bit_cast<decltype(value < value)>(value);
    }
}

// A comparison as bits: all, or none.
template <class C, class B>
[[gnu::always_inline]] inline auto mask_of(B holds) {
    if constexpr (std::is_same_v<bool, B>) {
        return typename Format<C>::bits(holds ? -1 : 0);
    } else {
        return holds;
    }
}

// The numbers that exp relative to an origin needs, once a row.
template <class C>
struct Exponential {
    C shift, magic, floor;

    Exponential() = default;

    explicit inline Exponential(Origin<C> origin)
        : shift(origin.shift),
          magic(Format<C>::magic + (Format<C>::bias - origin.power)),
          floor((origin.power - (Format<C>::bias - 1)) * C(0x1.62e42fefa39efp-1)) {}

    // exp(x + low − shift) / 2^power for x at most about the origin; 0 where that is not a normal number.
    [[gnu::always_inline]] inline C operator()(C x, C low = 0) const { return evaluate(x, low, shift, magic, floor); }

    // The same of a vector.
    [[gnu::always_inline]] inline Vector<C> of(Vector<C> x, Vector<C> low) const { return evaluate(x, low, shift, magic, floor); }

    template <class V>
    [[gnu::always_inline]] static inline V evaluate(V x, V low, C shift, C magic, C floor) {
        using F = Format<C>;
        const V difference = x - shift;
        const V shifted = difference * F::log2_e + magic;
        const V n = shifted - magic;
        const V r = ((difference - n * F::log_2_high) - n * F::log_2_low) + low;
        const V t = r + (r * r) * F::q(r);
        const V scale = bit_cast<V>(bits_of<C>(shifted) << F::mantissa);
        const V value = scale + scale * t;  // below the floor anything, also NaN
        return bit_cast<V>(bits_of<C>(value) & ~mask_of<C>(difference < floor));
    }
};

// exp over the whole range, subnormal results and infinities included.
template <class C>
[[gnu::always_inline]] inline C exp(C x) {
    using F = Format<C>;
    const C bounded = x < F::underflow ? F::underflow : x > F::overflow ? F::overflow : x;
    const C shifted = bounded * F::log2_e + F::magic;
    const C n = shifted - F::magic;
    const C high = bounded - n * F::log_2_high, r = high - n * F::log_2_low;
    const C lost = (high - r) - n * F::log_2_low;
    const C t = r + ((r * r) * F::q(r) + lost);
    // 2^n in two factors, for it may be neither a normal number nor finite.
    const auto whole = typename F::signed_bits(bit_cast<typename F::bits>(shifted) - bit_cast<typename F::bits>(F::magic));
    const auto half = whole >> 1;
    const auto scale = [](auto exponent) { return bit_cast<C>(typename F::bits(exponent + F::bias) << F::mantissa); };
    return (scale(half) + scale(half) * t) * scale(whole - half);
}

// tanh within 2 ulp: near 0 x + x z P(z)/Q(z) of z = x², farther 1 − 2/(e^{2|x|} + 1).
template <class C>
[[gnu::always_inline]] inline C tanh(C x) {
    const C size = x < 0 ? -x : x, z = x * x;
    const C p = (C(-9.64399179425052238628e-1) * z + C(-9.92877231001918586564e1)) * z + C(-1.61468768441708447952e3);
    const C q = ((z + C(1.12811678491632931402e2)) * z + C(2.23548839060100448583e3)) * z + C(4.84406305325125486048e3);
    const C near = x + x * z * (p / q), far = 1 - 2 / (exp(2 * size) + 1);
    return size < C(0.625) ? near : x < 0 ? -far : x > 0 ? far : x;
}

// log(x / 2^lift), x a normal number above 0.
template <class C>
[[gnu::always_inline]] inline C log_of_normal(C x, C lift = 0) {
    using F = Format<C>;
    using bits = typename F::bits;
    // The exponent that leaves a mantissa in [√½, √2).
    constexpr bits sqrt_half = sizeof(C) == 4 ? bits(0x3f3504f3u) : bits(0x3fe6a09e667f3bcdu);
    const bits offset = bit_cast<bits>(x) - sqrt_half;
    // As a number through the low bits of a sum, for not every processor has vectors of 64-bit integers to convert.
    constexpr C whole = C(bits(1) << F::mantissa);
    const bits raised = (offset + (bits(F::bias + 1) << F::mantissa)) >> F::mantissa;
    const C e = ((bit_cast<C>(raised | bit_cast<bits>(whole)) - whole) - C(F::bias + 1)) - lift;
    const C f = bit_cast<C>((offset & ((bits(1) << F::mantissa) - 1)) + sqrt_half) - 1;
    const C s = f / (2 + f);
    const C half_square = C(0.5) * f * f;
    const C near_one = half_square - s * (half_square + F::R(s * s));
    return e * F::log_2_high + (f - (near_one - e * F::log_2_low));
}

// log over the whole range: −∞ at 0, NaN below.
template <class C>
[[gnu::always_inline]] inline C log(C x) {
    using F = Format<C>;
    constexpr C infinity = std::numeric_limits<C>::infinity();
    constexpr int lift = F::mantissa + 1;  // makes a subnormal number normal
    const bool subnormal = x < std::numeric_limits<C>::min();
    const C normal = subnormal ? x * C(typename F::bits(1) << lift) : x;
    const C value = log_of_normal(normal, subnormal ? C(lift) : C(0));
    const C at_edge = x == 0 ? -infinity : x < 0 ? std::numeric_limits<C>::quiet_NaN() : x;
    return x > 0 && x < infinity ? value : at_edge;
}

}  // namespace SOFTMAXIMA_ISA
