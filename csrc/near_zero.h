// e^x − 1 and log(1 + x), with the digits that they have near 0.
#pragma once

#include "elementary.h"

namespace SOFTMAXIMA_ISA {

// e^x − 1 for x that is not large, and of a term that is added to x, if it is small.
[[gnu::always_inline]] inline double expm1(double x, double low = 0) {
    using F = Format<double>;
    const double bounded = x < F::underflow ? F::underflow : x;
    const double shifted = bounded * F::log2_e + F::magic, n = shifted - F::magic;
    const double r = ((bounded - n * F::log_2_high) - n * F::log_2_low) + low, t = r + (r * r) * F::q(r);
    const double power = n < -1020 ? -1020.0 : n;  // e^x of less is nothing beside 1
    const double scale = bit_cast<double>(bit_cast<uint64_t>(power + (F::magic + F::bias)) << F::mantissa);
    return (scale - 1) + scale * t;
}

[[gnu::always_inline]] inline double log1p(double x) {
    const double sum = 1 + x;
    return log(sum) + (x - (sum - 1)) / sum;
}

// A probability and what it lacks of 1, which has its own digits.
struct Likelihood {
    double p, rest;

    static Likelihood of_log(double log_p) { return {std::exp(log_p), -expm1(log_p)}; }
};

}  // namespace SOFTMAXIMA_ISA
