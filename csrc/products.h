// Products of small matrices, a tile of the result in registers.
#pragma once

#include "rows.h"
#include "vector.h"

namespace SOFTMAXIMA_ISA {

// Rows and vectors of a tile: as many sums as leave registers for a row of b and an element of a.
#if defined(__AVX512F__)
constexpr int TILE_ROWS = 6, TILE_VECTORS = 4;
#elif defined(__AVX2__)
constexpr int TILE_ROWS = 6, TILE_VECTORS = 2;
#else
constexpr int TILE_ROWS = 4, TILE_VECTORS = 2;
#endif

template <class C>
constexpr int64_t PANEL = TILE_VECTORS * LANES<C>;

inline int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

// Elements a[r · row + k · step].
template <class C>
struct Left {
    const C* data;
    int64_t row, step;

    Left from(int64_t r, int64_t k) const { return {data + r * row + k * step, row, step}; }
};

// c[r, :] (+)= Σ_k a[r, k] b[k, :] of some rows and vectors, b and c by the distances of their rows. What is there is added at the
// end, so that a sum of many products loses digits by the number of times that it is added to, and not by that of its terms.
// `skips`: a term with a = 0 is left out, whatever b is, which may be infinite or NaN.
template <int rows, int vectors, bool adds, bool skips, class C>
inline void tile(Left<C> a, const C* b, int64_t b_row, int64_t depth, C* c, int64_t c_row) {
    Vector<C> sums[rows][vectors];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) sums[r][v] = Vector<C>{};
    for (int64_t k = 0; k < depth; ++k) {
        Vector<C> right[vectors];
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) right[v] = load(b + k * b_row + v * LANES<C>);
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) {
            const C own = a.data[r * a.row + k * a.step];
            if (skips && own == 0) continue;
            const Vector<C> left = all(own);
#pragma GCC unroll 8
            for (int v = 0; v < vectors; ++v) sums[r][v] += left * right[v];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) {
            C* to = c + r * c_row + v * LANES<C>;
            store(adds ? load(to) + sums[r][v] : sums[r][v], to);
        }
}

template <int vectors, bool adds, bool skips = false, class C>
[[gnu::noinline]] void tiles(Left<C> a, const C* b, int64_t b_row, int64_t rows, int64_t depth, C* c, int64_t c_row) {
    int64_t r = 0;
    for (; r + TILE_ROWS <= rows; r += TILE_ROWS) tile<TILE_ROWS, vectors, adds, skips>(a.from(r, 0), b, b_row, depth, c + r * c_row, c_row);
    for (; r + 2 <= rows; r += 2) tile<2, vectors, adds, skips>(a.from(r, 0), b, b_row, depth, c + r * c_row, c_row);
    for (; r < rows; ++r) tile<1, vectors, adds, skips>(a.from(r, 0), b, b_row, depth, c + r * c_row, c_row);
}

// c += a b for b of whole vectors, `columns` of them numbers.
template <bool skips = false, class C>
void product(Left<C> a, const C* b, int64_t b_row, int64_t rows, int64_t depth, int64_t columns, C* c, int64_t c_row) {
    int64_t j = 0;
    for (; j + PANEL<C> <= columns; j += PANEL<C>) tiles<TILE_VECTORS, true, skips>(a, b + j, b_row, rows, depth, c + j, c_row);
    for (; j < columns; j += LANES<C>) tiles<1, true, skips>(a, b + j, b_row, rows, depth, c + j, c_row);
}

// The same for fewer columns than a vector, and nothing beside them.
template <class C>
[[gnu::noinline]] void product_of_few(Left<C> a, const C* b, int64_t b_row, int64_t rows, int64_t depth, int64_t columns, C* c, int64_t c_row) {
    for (int64_t r = 0; r < rows; ++r) {
        Vector<C> sum{};
        for (int64_t k = 0; k < depth; ++k) sum += all(a.data[r * a.row + k * a.step]) * load(b + k * b_row, columns, C(0));
        C* to = c + r * c_row;
        store(load(to, columns, C(0)) + sum, columns, to);
    }
}

// The same for any number of columns.
template <class C>
void product_of_any(Left<C> a, const C* b, int64_t b_row, int64_t rows, int64_t depth, int64_t columns, C* c, int64_t c_row) {
    const int64_t whole = columns / LANES<C> * LANES<C>;
    product(a, b, b_row, rows, depth, whole, c, c_row);
    if (whole < columns) product_of_few(a, b + whole, b_row, rows, depth, columns - whole, c + whole, c_row);
}

// Columns of b, PANEL of them side by side for every row, from rows of what is to be transposed: panel p holds rows p · PANEL and on,
// [depth, PANEL], 0 beyond the last.
template <class C, class T>
void pack(const T* from, int64_t stride, int64_t rows, int64_t depth, C* to) {
    for (int64_t first = 0; first < rows; first += PANEL<C>, to += PANEL<C> * depth) {
        const int64_t count = minimum(PANEL<C>, rows - first);
        for (int64_t j = 0; j < count; ++j)
            for (int64_t k = 0; k < depth; ++k) to[k * PANEL<C> + j] = C(widen(from[(first + j) * stride + k]));
        for (int64_t j = count; j < PANEL<C>; ++j)
            for (int64_t k = 0; k < depth; ++k) to[k * PANEL<C> + j] = 0;
    }
}

// c = a bᵀ from the panels of b; c has whole panels.
template <class C>
void product_with_panels(Left<C> a, const C* panels, int64_t rows, int64_t depth, int64_t columns, C* c, int64_t c_row) {
    for (int64_t j = 0; j < columns; j += PANEL<C>, panels += PANEL<C> * depth) tiles<TILE_VECTORS, false>(a, panels, PANEL<C>, rows, depth, c + j, c_row);
}

}  // namespace SOFTMAXIMA_ISA
