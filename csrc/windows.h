// Elements that are anywhere are moved in two steps. First to windows of segments, among whose elements order stays: of a few hundred places that
// are written to one after the other the cache holds the lines, of a million it does not. What is left to do is within a window.
#pragma once

#include <algorithm>

#include "rows.h"

namespace SOFTMAXIMA_ISA {

constexpr double MOVE_NANOSECONDS = 3;  // that a number takes, roughly

// Elements [inner] to their places.
template <class V>
void move_to(const int32_t* places, const V* from, int64_t elements, int64_t inner, int team, V* to) {
    if (inner == 1) {
#pragma omp parallel for num_threads(team)
        for (int64_t k = 0; k < elements; ++k) to[places[k]] = from[k];
    } else {
#pragma omp parallel for num_threads(team)
        for (int64_t k = 0; k < elements; ++k) std::copy_n(from + k * inner, inner, to + int64_t(places[k]) * inner);
    }
}

// And back.
template <class V>
void move_back(const int32_t* places, const V* from, int64_t elements, int64_t inner, int team, V* to) {
    if (inner == 1) {
#pragma omp parallel for num_threads(team)
        for (int64_t k = 0; k < elements; ++k) to[k] = from[places[k]];
    } else {
#pragma omp parallel for num_threads(team)
        for (int64_t k = 0; k < elements; ++k) std::copy_n(from + int64_t(places[k]) * inner, inner, to + k * inner);
    }
}

}  // namespace SOFTMAXIMA_ISA
