// The scores of a linear layer with many classes, of a few rows at a time, and its derivatives: a block of classes after the other, whose
// weights are read once for all rows.

#include <algorithm>

#include "bfloat16_products.h"

namespace SOFTMAXIMA_ISA {

namespace {

constexpr int64_t CLASSES = 96;             // of a block: 16 tiles of 6 rows
constexpr int64_t DEPTH = 512;              // of the products of a block of scores
constexpr int64_t FEATURES = 512;           // that a thread sums the derivatives of, at most
constexpr int64_t SUMS = int64_t(1) << 20;  // numbers of the sums that are shared out, roughly
constexpr int64_t SELDOM = 24;              // so many products of a zero cost as much as one of a number that is looked for

template <class C>
struct Workspace {
    Array<C> panels, sums;        // of all threads
    Array<C> weight, tile;        // of a block of classes
    Array<int32_t> places;        // of numbers that are not 0
    Array<uint16_t> rows, pairs;  // of bfloat16, of a block
    Array<uint16_t> hidden;       // and of all threads
    Halt* halt = nullptr;

    static Workspace& of_this_thread() { return own_of_thread<Workspace>(); }

    void release_if_large() {
        panels.release_if_large();
        sums.release_if_large();
        weight.release_if_large();
        tile.release_if_large();
        places.release_if_large();
        rows.release_if_large();
        pairs.release_if_large();
        hidden.release_if_large();
    }
};

double nanoseconds(const SoftmaximaLinear& call) { return 0.01 * double(call.rows) * double(call.classes) * double(call.features); }

// Numbers in the dtype that is computed in: where they are, or a copy.
template <class T>
const compute_t<T>* widened(const T* from, int64_t count, Array<compute_t<T>>& copy) {
    if constexpr (std::is_same_v<T, compute_t<T>>) {
        return from;
    } else {
        compute_t<T>* to = copy.at_least(count);
        for (int64_t i = 0; to && i < count; ++i) to[i] = widen(from[i]);
        return to;
    }
}

// to[j · to_row + i] = from[i · from_row + j] by `put` of vectors, or of what is left of rows and columns.
template <class C, class Put>
void transposed(const C* from, int64_t from_row, int64_t rows, int64_t columns, const Put& put) {
    constexpr int64_t lanes = LANES<C>;
    for (int64_t j = 0; j < columns; j += lanes)
        for (int64_t i = 0; i < rows; i += lanes) {
            const int64_t height = minimum(lanes, rows - i), width = minimum(lanes, columns - j);
            Vector<C> block[lanes];
            if (width == lanes) {
                for (int64_t k = 0; k < height; ++k) block[k] = load(from + (i + k) * from_row + j);
            } else {
                for (int64_t k = 0; k < height; ++k) block[k] = load(from + (i + k) * from_row + j, width, C(0));
            }
            for (int64_t k = height; k < lanes; ++k) block[k] = Vector<C>{};
            transpose<C>(block);
            for (int64_t k = 0; k < width; ++k) put(j + k, i, block[k], height);
        }
}

template <class C>
void store_some(Vector<C> value, int64_t count, C* to) {
    if (count == LANES<C>) {
        store(value, to);
    } else {
        store(value, count, to);
    }
}

// Rows as columns side by side: panels [depth, width], PANEL wide, the last as wide as the vectors that are left.
template <class C>
void pack_exactly(const C* from, int64_t rows, int64_t depth, C* to) {
    for (int64_t first = 0; first < rows; first += PANEL<C>) {
        const int64_t count = minimum(PANEL<C>, rows - first), width = round_up(count, LANES<C>);
        for (int64_t j = 0; j < width; ++j)
            for (int64_t k = 0; k < depth; ++k) to[k * width + j] = j < count ? from[(first + j) * depth + k] : C(0);
        to += width * depth;
    }
}

template <class C>
void product_with_last(Left<C> a, const C* panel, int64_t width, int64_t rows, int64_t depth, C* c, int64_t c_row) {
    switch (width / LANES<C>) {
        case 1: return tiles<1, true>(a, panel, width, rows, depth, c, c_row);
        case 2: return tiles<2, true>(a, panel, width, rows, depth, c, c_row);
        case 3: return tiles<3, true>(a, panel, width, rows, depth, c, c_row);
        default: return tiles<TILE_VECTORS, true>(a, panel, width, rows, depth, c, c_row);
    }
}

// c += a bᵀ of a part of the depth, from the panels of b.
template <class C>
void product_with_exact_panels(Left<C> a, const C* panels, int64_t begin, int64_t some, int64_t rows, int64_t depth, int64_t columns, C* c, int64_t c_row) {
    for (int64_t j = 0; j < columns; j += PANEL<C>) {
        const int64_t width = minimum(PANEL<C>, columns - j);
        product_with_last(a, panels + begin * width, width, rows, some, c + j, c_row);
        panels += width * depth;
    }
}

// Whether products are of bfloat16 numbers: hidden states are such, and the gradients by scores are rounded to be.
template <class T>
bool is_of_bfloat16(const SoftmaximaLinear& call, int64_t multiple) {
    if constexpr (std::is_same_v<T, bfloat16>) {
        if (!has_bfloat16_products() || call.scales || call.features % multiple != 0) return false;
        const uint32_t* bits = static_cast<const uint32_t*>(call.hidden);
        uint32_t beyond = 0;
        for (int64_t i = 0; i < call.rows * call.features; ++i) beyond |= bits[i] & 0xffff;
        return beyond == 0;
    }
    return false;
}

template <class T>
bool score(const SoftmaximaLinear& call, T*) {
    using C = compute_t<T>;
    const int64_t rows = call.rows, classes = call.classes, features = call.features, width = round_up(rows, LANES<C>);
    Workspace<C>& own = Workspace<C>::of_this_thread();
    const C* hidden = static_cast<const C*>(call.hidden);
    const bool in_pairs = is_of_bfloat16<T>(call, 2);
    C* panels = in_pairs ? nullptr : own.panels.at_least(width * features);
    uint16_t* pairs = in_pairs ? own.hidden.at_least(width * features) : nullptr;
    if (!panels && !pairs) return false;
    if (in_pairs) {
        for (int64_t j = 0; j < width; ++j)
            for (int64_t k = 0; k < features; ++k) pairs[(k - k % 2) * width + 2 * j + k % 2] = j < rows ? upper_half(hidden[j * features + k]) : uint16_t(0);
    } else {
        pack_exactly(hidden, rows, features, panels);
    }
    const int64_t blocks = (classes + CLASSES - 1) / CLASSES;
    const bool done = share<Workspace<C>>(blocks, 1, team_size(call.threads, nanoseconds(call)), [&](int64_t task, Workspace<C>& memory) {
        const int64_t first = task * CLASSES, some = minimum(CLASSES, classes - first);
        const T* given = static_cast<const T*>(call.weight) + first * features;
        const C* weight = in_pairs ? nullptr : widened(given, some * features, memory.weight);
        C* tile = memory.tile.at_least(CLASSES * width);
        if ((!weight && !in_pairs) || !tile) return false;
        std::fill_n(tile, some * width, C(0));
        if (in_pairs) product_of_pairs(given, features, pairs, 2 * width, some, features / 2, width, tile, width);
        for (int64_t k = 0; !in_pairs && k < features; k += DEPTH) {
            product_with_exact_panels(Left<C>{weight + k, features, 1}, panels, k, minimum(DEPTH, features - k), some, features, width, tile, width);
        }
        const T* bias = call.bias ? static_cast<const T*>(call.bias) + first : nullptr;
        for (int64_t c = 0; (bias || call.scales) && c < some; ++c) {
            const C scale = call.scales ? C(call.scales[first + c]) : C(1), more = bias ? C(widen(bias[c])) : C(0);
            for (int64_t r = 0; r < width; ++r) tile[c * width + r] = tile[c * width + r] * scale + more;
        }
        C* scores = static_cast<C*>(call.scores) + first;
        const C over_tau = C(1 / call.tau);
        transposed<C>(tile, width, some, rows, [=](int64_t row, int64_t c, Vector<C> value, int64_t count) __attribute__((always_inline)) {
            store_some<C>(value * over_tau, count, scores + row * classes + c);
        });
        return true;
    });
    own.release_if_large();
    return done;
}

// A block of g, which lies with the classes last.
template <class C>
struct Block {
    const C* g;
    int64_t row;  // from one row to the next
    int64_t rows, classes;

    // The places row · CLASSES + class of numbers that are not 0, and how many they are; −1 for more than `most`.
    int64_t find(int32_t* places, int64_t most) const {
        int64_t count = 0;
        for (int64_t r = 0; r < rows; ++r) {
            if (count + classes > most + CLASSES) return -1;
            for (int64_t c = 0; c < classes; c += LOOK) {
                const C* values = g + r * row + c;
                const int64_t look = minimum(LOOK, classes - c);
                uint64_t found = not_zero(values, look);
                for (; found; found &= found - 1) places[count++] = int32_t(r * CLASSES + c + __builtin_ctzll(found));
            }
        }
        return count <= most ? count : -1;
    }

    static uint64_t not_zero(const C* values, int64_t length) {
        uint64_t bits = 0;
        int64_t i = 0;
#if defined(__AVX512F__)
        for (; i + LANES<C> <= length; i += LANES<C>) {
            if constexpr (sizeof(C) == sizeof(float)) {
                bits |= uint64_t(_mm512_cmp_ps_mask(_mm512_loadu_ps(values + i), _mm512_setzero_ps(), _CMP_NEQ_UQ)) << i;
            } else {
                bits |= uint64_t(_mm512_cmp_pd_mask(_mm512_loadu_pd(values + i), _mm512_setzero_pd(), _CMP_NEQ_UQ)) << i;
            }
        }
#else
        int any = 0;
        for (int64_t j = 0; j < length; ++j) any |= values[j] != 0;
        if (!any) return 0;
#endif
        for (; i < length; ++i) bits |= uint64_t(values[i] != 0) << i;
        return bits;
    }
};

template <class C>
void add_multiple(C factor, const C* from, int64_t count, C* to) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) to[i] += factor * from[i];
}

template <class T>
bool differentiate(const SoftmaximaLinearBackward& call, T*) {
    using C = compute_t<T>;
    const SoftmaximaLinear& linear = call.linear;
    const int64_t rows = linear.rows, classes = linear.classes, features = linear.features, width = round_up(rows, LANES<C>);
    const int64_t blocks = (classes + CLASSES - 1) / CLASSES, parts = (features + FEATURES - 1) / FEATURES;
    // The rows' derivatives are sums over classes, in slices that do not depend on the number of threads.
    const int64_t wanted = SUMS / (rows * features) + 1, slices = minimum(blocks, wanted < 64 ? wanted : 64);
    const int64_t each = (blocks + slices - 1) / slices, size = call.hidden_grad ? rows * features : 0;
    Workspace<C>& own = Workspace<C>::of_this_thread();
    const C* hidden = static_cast<const C*>(linear.hidden);
    C* sums = own.sums.at_least(slices * size + 1);
    const bool in_pairs = is_of_bfloat16<T>(linear, LANES<C>);
    uint16_t* hidden_pairs = own.hidden.at_least(in_pairs ? (rows + 1) / 2 * 2 * features : 1);
    if (!sums || !hidden_pairs) return false;
    for (int64_t r = 0; in_pairs && r < rows; ++r)
        for (int64_t k = 0; k < features; ++k) {
            uint16_t* pair = hidden_pairs + (r / 2 * features + k) * 2;
            pair[r % 2] = upper_half(hidden[r * features + k]);
            if (r % 2 == 0) pair[1] = 0;  // until there is another row
        }
    const Team team = team_size(linear.threads, 2 * nanoseconds(linear));
    bool done = share<Workspace<C>>(slices * parts, 1, team, [&](int64_t task, Workspace<C>& memory) {
        const int64_t slice = task / parts, from = task % parts * FEATURES, some = minimum(FEATURES, features - from);
        C* to = sums + slice * size + from;
        for (int64_t r = 0; size && r < rows; ++r) std::fill_n(to + r * features, some, C(0));
        C* tile = memory.tile.at_least(CLASSES * width);
        const int64_t most = rows * CLASSES / SELDOM;
        int32_t* places = memory.places.at_least(most + 2 * CLASSES);
        if (!tile || !places) return false;
        for (int64_t block = slice * each; block < minimum(blocks, (slice + 1) * each); ++block) {
            if (memory.halt) memory.halt->heed();
            const int64_t first = block * CLASSES, count = minimum(CLASSES, classes - first);
            const Block<C> g{static_cast<const C*>(linear.scores) + first, classes, rows, count};
            C* weight_grad = call.weight_grad ? static_cast<C*>(call.weight_grad) + first * features + from : nullptr;
            C* bias_grad = call.bias_grad && from == 0 ? static_cast<C*>(call.bias_grad) + first : nullptr;
            for (int64_t c = 0; weight_grad && !call.adds && c < count; ++c) std::fill_n(weight_grad + c * features, some, C(0));
            if (bias_grad && !call.adds) std::fill_n(bias_grad, count, C(0));
            const double* scales = linear.scales ? linear.scales + first : nullptr;
            const int64_t found = g.find(places, most);
            const T* given = static_cast<const T*>(linear.weight) + first * features;
            const bool widens = size && (found > 0 || (found < 0 && !in_pairs));
            const C* weight = widens ? widened(given, count * features, memory.weight) : nullptr;
            if (widens && !weight) return false;
            if (bias_grad) {
                double totals[CLASSES] = {};
                for (int64_t r = 0; r < rows; ++r)
                    for (int64_t c = 0; found != 0 && c < count; ++c) totals[c] += double(g.g[r * g.row + c]);
                for (int64_t c = 0; c < count; ++c) bias_grad[c] = C(double(bias_grad[c]) + totals[c]);
            }
            if (found >= 0) {
                for (int64_t i = 0; i < found; ++i) {
                    const int64_t r = places[i] / CLASSES, c = places[i] % CLASSES;
                    const C factor = scales ? g.g[r * g.row + c] * C(scales[c]) : g.g[r * g.row + c];
                    if (size) add_multiple(factor, weight + c * features + from, some, to + r * features);
                    if (weight_grad) add_multiple(factor, hidden + r * features + from, some, weight_grad + c * features);
                }
                continue;
            }
            transposed<C>(g.g, g.row, rows, count, [=](int64_t c, int64_t r, Vector<C> value, int64_t) __attribute__((always_inline)) {
                store(scales ? value * C(scales[c]) : value, tile + c * width + r);
            });
            if (in_pairs) {
                uint16_t *rounded = memory.rows.at_least(CLASSES * width), *pairs = memory.pairs.at_least(CLASSES * FEATURES);
                if (!rounded || !pairs) return false;
                if (size) {
                    round_rows(g.g, g.row, rows, count, CLASSES, rounded);
                    interleave_rows(given + from, features, count, some, pairs);
                    product_of_pairs(rounded, CLASSES, pairs, 2 * some, rows, (count + 1) / 2, some, to, features);
                }
                if (!weight_grad) continue;
                round_rows(tile, width, count, width, width, rounded);
                product_of_pairs(rounded, width, hidden_pairs + 2 * from, 2 * features, count, (rows + 1) / 2, some, weight_grad, features);
                continue;
            }
            if (size) product_of_any(Left<C>{tile, 1, width}, weight + from, features, rows, count, some, to, features);
            if (weight_grad) product_of_any(Left<C>{tile, width, 1}, hidden + from, features, count, rows, some, weight_grad, features);
        }
        return true;
    });
    if (size) std::copy_n(sums, size, static_cast<C*>(call.hidden_grad));
    for (int64_t s = 1; s < slices; ++s) add_multiple(C(1), sums + s * size, size, static_cast<C*>(call.hidden_grad));
    own.release_if_large();
    return done;
}

}  // namespace

int linear_scores(const SoftmaximaLinear* call) {
    return with_dtype(call->dtype, [=](auto* type) { return score(*call, type); });
}

int linear_backward(const SoftmaximaLinearBackward* call) {
    return with_dtype(call->linear.dtype, [=](auto* type) { return differentiate(*call, type); });
}

}  // namespace SOFTMAXIMA_ISA

SOFTMAXIMA_KERNEL(linear_scores, Linear)
SOFTMAXIMA_KERNEL(linear_backward, LinearBackward)
