// The floating-point types that scores come in, and the wider one that each is computed in.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

namespace SOFTMAXIMA_ISA {

struct bfloat16 {
    uint16_t bits;
};

struct float16 {
    uint16_t bits;
};

template <class To, class From>
inline To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
    To to;
    std::memcpy(&to, &from, sizeof(to));
    return to;
}

template <class T>
struct Compute {
    using type = float;
};

template <>
struct Compute<double> {
    using type = double;
};

template <class T>
using compute_t = typename Compute<T>::type;

inline float widen(float value) { return value; }

inline double widen(double value) { return value; }

inline float widen(bfloat16 value) { return bit_cast<float>(uint32_t(value.bits) << 16); }

inline float widen(float16 value) {
    const uint32_t magnitude = uint32_t(value.bits & 0x7fff) << 13;
    const float finite = bit_cast<float>(magnitude) * 0x1p112f;  // the difference of the exponents' biases
    const uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;
    return bit_cast<float>(bit_cast<uint32_t>(finite) | special | uint32_t(value.bits & 0x8000) << 16);
}

// Rounds to nearest, ties to even.
inline void narrow(float value, float& to) { to = value; }

inline void narrow(double value, double& to) { to = value; }

inline void narrow(double value, float& to) { to = float(value); }

inline void narrow(float value, bfloat16& to) {
    const uint32_t bits = bit_cast<uint32_t>(value);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    to.bits = uint16_t(value != value ? 0x7fc0u : rounded);
}

inline void narrow(float value, float16& to) {
    const uint32_t bits = bit_cast<uint32_t>(value), sign = bits >> 16 & 0x8000;
    const uint32_t magnitude = bits & 0x7fffffff;
    const uint32_t normal = (magnitude - 0x38000000u + 0xfff + (magnitude >> 13 & 1)) >> 13;
    // Adding 1/2 leaves a subnormal's bits at the end of the sum, rounded.
    const uint32_t subnormal = bit_cast<uint32_t>(bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
    half = magnitude >= 0x477ff000u ? 0x7c00u : half;
    half = magnitude > 0x7f800000u ? 0x7e00u : half;
    to.bits = uint16_t(half | sign);
}

template <class T>
inline void narrow(double value, T& to) {
    narrow(float(value), to);
}

template <class T>
inline constexpr double LARGEST_NUMBER = double(std::numeric_limits<T>::max());

template <>
inline constexpr double LARGEST_NUMBER<bfloat16> = 0x1.fep127;

template <>
inline constexpr double LARGEST_NUMBER<float16> = 65504;

// The value, or the largest number of T beyond which it is.
template <class T, class C>
inline C bounded(C value) {
    constexpr C most = C(LARGEST_NUMBER<T>);
    return value > most ? most : value < -most ? -most : value;
}

}  // namespace SOFTMAXIMA_ISA
