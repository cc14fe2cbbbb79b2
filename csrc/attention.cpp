// Attention in tiles of queries: their scores, the map of them, and the products with values.
//
// A tile is [rows, width]: the keys that its queries may see, then −∞ up to a width that is an odd number of cache lines, lest rows
// fall on the same lines of the cache. The backward pass computes scores and probabilities again; of softmax with states it takes HELD
// keys after the other, whose p does not hang on the rest, so that all that it works in stays in the second-level cache.
//
// A pair of a query and a key whose score is −∞, or whose p is 0, adds nothing, whatever the key, the value, the query and its gradient
// hold. In a product 0 · ∞ and 0 · NaN are NaN: where one has a result that is not finite, it is computed again without those terms.

#include "exponential.h"
#include "products.h"

namespace SOFTMAXIMA_ISA {

int logsumexp(const SoftmaximaForward* call);

namespace {

constexpr int64_t ROWS = 48;         // of a tile: with more of them the gradients of keys and values are read and written less often
constexpr int64_t HELD = 256;        // keys of a tile of gradients, where the others need not be known
constexpr int64_t CACHED = 3 << 20;  // bytes of the scores and probabilities of few queries
constexpr int64_t KEYS = 128;        // whose values are added at a time, from the first-level cache
constexpr int64_t SPLIT = 512;       // keys of few queries that a thread takes at a time, whatever the number of threads
constexpr int64_t FEW = TILE_ROWS;   // queries for which reading the keys is all the work
constexpr int64_t SELDOM = 8;        // one p in so many that is not 0 makes it worth to look for them

// What a thread works in.
template <class C>
struct Workspace {
    Array<C> key_panels, value_panels, keys, values;   // of a matrix
    Array<C> query, g, x, p, dp, dx, product, slopes;  // of a tile
    Array<C> dk, dv;                                   // of a matrix
    Array<C> kept_p, kept_g, kept_d;                   // of the support of a row
    Array<int64_t> support;

    static Workspace& of_this_thread() { return own_of_thread<Workspace>(); }
};

// Calls a kernel, and tells whether there was memory enough for it.
template <class Call>
bool run(const void* kernel, const Call& call) {
    return reinterpret_cast<int (*)(const Call*)>(const_cast<void*>(kernel))(&call) == 0;
}

// An address as a row of C, and how far its rows are apart.
template <class C>
struct Lines {
    const C* data;
    int64_t distance;

    const C* row(int64_t i) const { return data + i * distance; }
};

// Rows [first, last) of what lies `distance` apart, times a factor, each with zeros up to whole vectors.
template <class C, class T>
void copy_rows(const T* from, int64_t distance, int64_t rows, int64_t size, C factor, C* to) {
    const int64_t whole = round_up(size, LANES<C>);
    for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
        for (int64_t e = 0; e < size; ++e) to[r * whole + e] = factor * C(widen(from[r * distance + e]));
        for (int64_t e = size; e < whole; ++e) to[r * whole + e] = 0;
    }
}

// The same, copied only where they are not whole vectors of C.
template <class C, class T>
bool whole_rows(const T* from, int64_t distance, int64_t rows, int64_t size, Array<C>& memory, Lines<C>& to) {
    if constexpr (std::is_same_v<C, T>) {
        if (size % LANES<C> == 0) {
            to = {from, distance};
            return true;
        }
    }
    const int64_t whole = round_up(size, LANES<C>);
    C* copy = memory.at_least(rows * whole + 1);  // null for 0
    if (!copy) return false;
    copy_rows(from, distance, rows, size, C(1), copy);
    to = {copy, whole};
    return true;
}

template <class C>
void clear(C* values, int64_t count) {
    for (int64_t i = 0; i < count; ++i) values[i] = 0;
}

// Whether some are infinite or NaN.
template <class C>
bool spoilt(const C* values, int64_t count) {
    C sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; ++i) sum += values[i] - values[i];
    return sum != 0;
}

// p of a row where x is −∞ is 0, also in a row of NaN.
template <class C>
void hide(const C* x, int64_t count, C* p) {
    for (int64_t j = 0; j < count; ++j)
        if (x[j] == -std::numeric_limits<C>::infinity()) p[j] = 0;
}

template <class C>
C dot(const C* a, const C* b, int64_t whole) {
    Vector<C> sum{};
    for (int64_t e = 0; e < whole; e += LANES<C>) sum += load(a + e) * load(b + e);
    return reduce<LANES<C>>(sum, [](auto x, auto y) __attribute__((always_inline)) { return x + y; });
}

template <class C>
void add_multiple(C factor, const C* from, C* to, int64_t whole) {
    for (int64_t e = 0; e < whole; e += LANES<C>) store(load(to + e) + all(factor) * load(from + e), to + e);
}

// How many of a row are not 0, NaN among them.
template <class C>
int64_t count_support(const C* p, int64_t length) {
    int64_t count = 0;
    for (int64_t j = 0; j < length; j += LOOK) count += __builtin_popcountll(above(p + j, minimum(LOOK, length - j), C(0)));
    return count;
}

template <class C, class Body>
void for_support(const C* p, int64_t length, const Body& body) {
    for (int64_t j = 0; j < length; j += LOOK)
        for (uint64_t bits = above(p + j, minimum(LOOK, length - j), C(0)); bits; bits &= bits - 1) body(j + __builtin_ctzll(bits));
}

// One matrix of queries, keys and values.
template <class T>
struct Matrix {
    using C = compute_t<T>;
    const SoftmaximaAttention& call;
    int64_t index, keys;  // how many keys there are
    int64_t origin;       // the place of the first query

    Matrix(const SoftmaximaAttention& whole, int64_t i)
        : call(whole), index(i), keys(whole.lengths ? whole.lengths[i] : whole.keys), origin(whole.firsts ? whole.firsts[i] : whole.first) {}

    template <class V>
    const V* row(const SoftmaximaMatrices& of, int64_t i) const {
        return static_cast<const V*>(of.data) + of.offsets[index] + i * of.distance;
    }

    int64_t query(int64_t i) const { return index * call.queries + i; }

    // The keys [begin, end) that a query sees.
    int64_t begin(int64_t i) const { return origin + i > call.left ? origin + i - call.left : 0; }
    int64_t end(int64_t i) const { return call.right < keys - origin - i ? origin + i + call.right + 1 : keys; }

    // c tanh(x/c) of `count` products, and its derivative where it is wanted.
    void cap(int64_t count, C* x, C* slopes) const {
        if (call.softcap == 0) return;
        const C top = C(call.softcap), inverse = C(1 / call.softcap);
#pragma omp simd
        for (int64_t j = 0; j < count; ++j) x[j] = tanh(x[j] * inverse);
        if (slopes) {
#pragma omp simd
            for (int64_t j = 0; j < count; ++j) slopes[j] = 1 - x[j] * x[j];
        }
#pragma omp simd
        for (int64_t j = 0; j < count; ++j) x[j] *= top;
    }

    // Adds what is added to scores of the keys from `first` on, and leaves out what the query does not see, `count` of them.
    void finish(int64_t i, int64_t first, int64_t count, C* x) const {
        constexpr C nothing = -std::numeric_limits<C>::infinity();
        if (call.bias.data) {
            const C* bias = row<C>(call.bias, i) + first;
#pragma omp simd
            for (int64_t j = 0; j < count; ++j) x[j] = bias[j] == nothing ? nothing : x[j] + bias[j];
        }
        if (call.slopes) {
            const C slope = C(call.slopes[index]);
            const int64_t place = origin + i - first;
#pragma omp simd
            for (int64_t j = 0; j < count; ++j) x[j] -= slope * C(place > j ? place - j : j - place);
        }
        if (call.mask.data) {
            const uint8_t* mask = row<uint8_t>(call.mask, i) + first;
#pragma omp simd
            for (int64_t j = 0; j < count; ++j) x[j] = mask[j] ? x[j] : nothing;
        }
        const int64_t from = minimum(begin(i) - first, count), to = end(i) - first;
        for (int64_t j = 0; j < from; ++j) x[j] = nothing;
        for (int64_t j = to > 0 ? to : 0; j < count; ++j) x[j] = nothing;
    }

    // The rows of a tile for a kernel of maps.
    SoftmaximaRows rows(int64_t i, int64_t count, int64_t width, const C* x) const {
        SoftmaximaRows rows{};
        rows.dtype = sizeof(C) == sizeof(double) ? 0 : 1;
        rows.outer = count;
        rows.n = rows.stride = width;
        rows.inner = rows.threads = 1;
        rows.x = x;
        rows.tau = call.tau;
        rows.taus = call.taus ? call.taus + query(i) : nullptr;
        rows.theta = call.theta ? call.theta + query(i) * call.distance : nullptr;
        rows.distance = call.distance;
        return rows;
    }
};

// The keys that some of the queries [first, first + rows) see, from a whole panel on, and the width of their tile.
struct Window {
    int64_t begin, count, width;

    // The most that a width can be.
    template <class C>
    static int64_t widest(int64_t keys) {
        return round_up(keys + 1, PANEL<C>) + 2 * int64_t(LINE / sizeof(C));
    }

    // Of the keys [from, to), where `from` begins a panel.
    template <class C, class M>
    static Window of(const M& matrix, int64_t first, int64_t rows, int64_t from, int64_t to) {
        const int64_t seen = matrix.begin(first) / PANEL<C> * PANEL<C>, begin = seen > from ? seen : from;
        const int64_t end = minimum(matrix.end(first + rows - 1), to), count = end > begin ? end - begin : 0, line = LINE / sizeof(C);
        const int64_t lines = (round_up(count + (matrix.call.sinks != nullptr), PANEL<C>) + line - 1) / line;
        return {count ? begin : from, count, (lines + 1 - lines % 2) * line};
    }
};

// out += p v for `count` keys.
template <bool skips = false, class C>
void add_values(const C* p, int64_t width, int64_t rows, int64_t count, Lines<C> values, bool sparse, int64_t whole, C* out) {
    for (int64_t j = 0; j < count; j += KEYS) {
        const int64_t some = minimum(KEYS, count - j);
        if (sparse) {
            int64_t kept = 0;
            for (int64_t r = 0; r < rows; ++r) kept += count_support(p + r * width + j, some);
            if (kept * SELDOM < rows * some) {
                for (int64_t r = 0; r < rows; ++r) {
                    const C* own = p + r * width + j;
                    for_support(own, some, [&](int64_t i) { add_multiple(own[i], values.row(j + i), out + r * whole, whole); });
                }
                continue;
            }
        }
        product<skips>(Left<C>{p + j, width, 1}, values.row(j), values.distance, rows, some, whole, out, whole);
    }
}

// What a thread knows of the matrix that it is at.
template <class T>
struct Tile {
    using C = compute_t<T>;
    const Matrix<T> matrix;
    Workspace<C>& memory;
    const C* key_panels;
    Lines<C> values;
    int64_t first = 0, rows = 0;
    Window window{};
    C *query, *x, *p, *product;
    C* slopes = nullptr;  // the derivative of capped scores, where it is wanted

    Tile(const SoftmaximaAttention& call, int64_t index, Workspace<C>& workspace) : matrix(call, index), memory(workspace) {}

    const SoftmaximaAttention& call() const { return matrix.call; }

    // Memory for tiles of so many rows and keys, and the keys in panels. Tells whether there was enough.
    bool prepare(int64_t most, int64_t held) {
        const int64_t n = matrix.keys, size = call().size, width = Window::widest<C>(held);
        C* panels = memory.key_panels.at_least(round_up(n, PANEL<C>) * size + 1);
        query = memory.query.at_least(most * round_up(size, LANES<C>));
        x = memory.x.at_least(most * width);
        p = memory.p.at_least(most * width);
        product = memory.product.at_least(most * round_up(call().size > call().value_size ? call().size : call().value_size, LANES<C>));
        if (!panels || !query || !x || !p || !product) return false;
        pack(matrix.template row<T>(call().k, 0), call().k.distance, n, size, panels);
        key_panels = panels;
        return whole_rows(matrix.template row<T>(call().v, 0), call().v.distance, n, call().value_size, memory.values, values);
    }

    // The scores of queries [from, from + count) and of the keys that they see of a window.
    void put_scores(int64_t from, int64_t count, const Window& seen) {
        if (Halt* halt = Scratch<C>::of_this_thread().halt) halt->heed();
        first = from, rows = count;
        window = seen;
        const int64_t whole = round_up(call().size, LANES<C>), width = window.width;
        copy_rows(matrix.template row<T>(call().q, first), call().q.distance, rows, call().size, C(call().scale), query);
        product_with_panels(Left<C>{query, whole, 1}, key_panels + window.begin * call().size, rows, call().size, window.count, x, width);
        constexpr C nothing = -std::numeric_limits<C>::infinity();
        for (int64_t r = 0; r < rows; ++r) {
            C* own = x + r * width;
            matrix.cap(window.count, own, slopes ? slopes + r * width : nullptr);
            matrix.finish(first + r, window.begin, window.count, own);
            for (int64_t j = window.count; j < width; ++j) own[j] = nothing;
            if (call().sinks) own[window.count] = C(call().sinks[matrix.query(first + r)]);
        }
    }

    // Their map, where they are of all the keys that are seen.
    bool map() const {
        SoftmaximaForward forward{matrix.rows(first, rows, window.width, x), p, nullptr};
        return run<SoftmaximaForward>(call().map, forward);
    }

    double tau(int64_t r) const { return call().taus ? call().taus[matrix.query(first + r)] : call().tau; }

    // Their softmax, from the states of their rows.
    void put_softmax() const {
        const double *maxima = call().states + matrix.query(first), *log_sums = maxima + call().matrices * call().queries;
        const Exponential<C> exp(Origin<C>{});
        for (int64_t r = 0; r < rows; ++r) {
            const C *own = x + r * window.width, top = C(maxima[r]);
            // One score of +∞ makes NaN of all, which 0 times its share would hide.
            const C factor = top == -NOTHING ? std::numeric_limits<C>::quiet_NaN() : C(std::exp(-log_sums[r]));
            C* to = p + r * window.width;
            if (maxima[r] == NOTHING && log_sums[r] == log_sums[r]) {  // no score but −∞; of NaN there is no largest either
                clear(to, window.width);
            } else {
                with_scale<C>(inverse(tau(r)), [=](auto scale) {
#pragma omp simd
                    for (int64_t j = 0; j < window.width; ++j) to[j] = exp(C((own[j] - top) * scale)) * factor;
                });
            }
        }
    }

    // p of what is left out is 0, also in rows of NaN.
    void hide_others() const {
        for (int64_t r = 0; r < rows; ++r) hide(x + r * window.width, window.width, p + r * window.width);
    }

    Lines<C> visible_values() const { return {values.row(window.begin), values.distance}; }
};

// The LSE of each row, without its θ, and its state with it.
template <class T>
bool put_sums(const Tile<T>& tile) {
    using C = compute_t<T>;
    const SoftmaximaAttention& call = tile.call();
    const int64_t query = tile.matrix.query(tile.first), all = call.matrices * call.queries;
    C unused[ROWS];
    double found[2 * ROWS];
    SoftmaximaForward forward{tile.matrix.rows(tile.first, tile.rows, tile.window.width, tile.x), call.lse ? static_cast<C*>(call.lse) + query : unused,
                              call.states ? found : nullptr};
    forward.rows.theta = nullptr;
    if (logsumexp(&forward) != 0) return false;
    for (int64_t r = 0; call.states && r < tile.rows; ++r) {
        LogSum sum{found[r], found[tile.rows + r], 0};
        if (call.theta) sum = sum.with_sink(call.theta[(query + r) * call.distance], tile.tau(r));
        call.states[query + r] = sum.maximum;
        call.states[all + query + r] = sum.log_sum;
    }
    return true;
}

template <class T, class C>
void put_rows(const C* from, int64_t whole, int64_t rows, int64_t size, T* to) {
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t e = 0; e < size; ++e) narrow(from[r * whole + e], to[r * size + e]);
}

// Calls body(matrix, part, memory) for each part of the queries of each matrix, and tells whether every call was true.
template <class C, class Body>
bool for_each_part(const SoftmaximaAttention& call, double nanoseconds, const Body& body) {
    return share_out<C>(call.matrices * call.parts, team_size(call.threads, nanoseconds),
                        [&](int64_t i, Scratch<C>&) { return body(i / call.parts, i % call.parts, Workspace<C>::of_this_thread()); });
}

// At some operations a nanosecond.
inline double nanoseconds(const SoftmaximaAttention& call) {
    return double(call.matrices) * double(call.queries) * double(call.keys) * double(call.size + call.value_size + 32) / 64;
}

// Few queries of each matrix: its keys are split among threads, and they and their values are read once, as they lie.
template <class T>
struct Few {
    using C = compute_t<T>;
    const SoftmaximaAttention& call;
    const int64_t size_whole, whole, width, splits;
    int64_t first = 0, count = 0;  // the matrices that are worked on
    C *x, *p, *sums;               // [count, queries, width], and [count, splits, queries, whole]

    explicit Few(const SoftmaximaAttention& whole_call)
        : call(whole_call),
          size_whole(round_up(call.size, LANES<C>)),
          whole(round_up(call.value_size, LANES<C>)),
          width(round_up(call.keys + (call.sinks != nullptr), LINE / sizeof(C))),
          splits((call.keys + SPLIT - 1) / SPLIT) {}

    // The keys of a split that some query sees.
    struct Span {
        int64_t from, to, begin, end;
    };

    Span span(const Matrix<T>& matrix, int64_t split) const {
        const int64_t from = split * SPLIT, to = minimum(from + SPLIT, call.keys), own = matrix.begin(0);
        const int64_t begin = own > from ? minimum(own, to) : from, end = minimum(to, matrix.end(call.queries - 1));
        return {from, to, begin, end > begin ? end : begin};
    }

    template <class Body>
    bool for_each_split(const Body& body) const {
        return share_out<C>(count * splits, team_size(call.threads, nanoseconds(call)), [&](int64_t i, Scratch<C>&) {
            return body(Matrix<T>(call, first + i / splits), i / splits, i % splits, Workspace<C>::of_this_thread());
        });
    }

    // x_j = ⟨q, k_j⟩ for `some` keys.
    void put_products(const C* query, Lines<C> keys, int64_t some, C* to) const {
        int64_t j = 0;
        for (; j + LANES<C> <= some; j += LANES<C>) {
            Vector<C> products[LANES<C>] = {};
            for (int64_t lane = 0; lane < LANES<C>; ++lane) {
                const C* key = keys.row(j + lane);
                for (int64_t e = 0; e < size_whole; e += LANES<C>) products[lane] += load(query + e) * load(key + e);
            }
            store(reduce_each<C>(products, [](auto a, auto b) __attribute__((always_inline)) { return a + b; }), to + j);
        }
        for (; j < some; ++j) to[j] = dot(query, keys.row(j), size_whole);
    }

    bool put_scores() const {
        return for_each_split([&](const Matrix<T>& matrix, int64_t place, int64_t split, Workspace<C>& memory) {
            const Span keys = span(matrix, split);
            C* query = memory.query.at_least(call.queries * size_whole);
            if (!query) return false;
            copy_rows(matrix.template row<T>(call.q, 0), call.q.distance, call.queries, call.size, C(call.scale), query);
            C* rows = x + place * call.queries * width;
            for (int64_t j = keys.begin; j < keys.end; j += KEYS) {
                const int64_t some = minimum(KEYS, keys.end - j);
                Lines<C> lines;
                if (!whole_rows(matrix.template row<T>(call.k, j), call.k.distance, some, call.size, memory.keys, lines)) return false;
                for (int64_t r = 0; r < call.queries; ++r) put_products(query + r * size_whole, lines, some, rows + r * width + j);
            }
            constexpr C nothing = -std::numeric_limits<C>::infinity();
            for (int64_t r = 0; r < call.queries; ++r) {
                C* own = rows + r * width;
                matrix.cap(keys.end - keys.begin, own + keys.begin, nullptr);
                matrix.finish(r, keys.from, keys.to - keys.from, own + keys.from);
                for (int64_t j = keys.from; j < keys.begin; ++j) own[j] = nothing;
                for (int64_t j = keys.end; j < keys.to; ++j) own[j] = nothing;
                if (keys.to < call.keys) continue;
                for (int64_t j = call.keys; j < width; ++j) own[j] = nothing;
                if (call.sinks) own[call.keys] = C(call.sinks[matrix.query(r)]);
            }
            return true;
        });
    }

    bool map() const {
        const Matrix<T> matrix(call, first);
        SoftmaximaForward forward{matrix.rows(0, count * call.queries, width, x), p, nullptr};
        forward.rows.threads = call.threads;
        if (!run<SoftmaximaForward>(call.map, forward)) return false;
        if (!call.lse) return true;
        forward.rows.theta = nullptr;
        forward.out = static_cast<C*>(call.lse) + matrix.query(0);
        return logsumexp(&forward) == 0;
    }

    bool put_sums() const {
        return for_each_split([&](const Matrix<T>& matrix, int64_t place, int64_t split, Workspace<C>& memory) {
            const Span keys = span(matrix, split);
            C* own = sums + (place * splits + split) * call.queries * whole;
            const int64_t rows = place * call.queries * width;
            const auto add = [&](auto skips) {
                clear(own, call.queries * whole);
                for (int64_t j = keys.begin; j < keys.end; j += KEYS) {
                    const int64_t some = minimum(KEYS, keys.end - j);
                    Lines<C> lines;
                    if (!whole_rows(matrix.template row<T>(call.v, j), call.v.distance, some, call.value_size, memory.values, lines)) return false;
                    add_values<skips>(p + rows + j, width, call.queries, some, lines, call.sparse, whole, own);
                }
                return true;
            };
            if (!add(std::false_type())) return false;
            if (!spoilt(own, call.queries * whole)) return true;
            for (int64_t i = rows; i < rows + call.queries * width; i += width) hide(x + i + keys.from, keys.to - keys.from, p + i + keys.from);
            return add(std::true_type());
        });
    }

    void put() const {
        const int64_t one = call.queries * whole;
        for (int64_t place = 0; place < count; ++place) {
            C* total = sums + place * splits * one;
            for (int64_t i = one; i < splits * one; ++i) total[i % one] += total[i];
            T* out = static_cast<T*>(call.out) + (first + place) * call.queries * call.value_size;
            put_rows(total, whole, call.queries, call.value_size, out);
        }
    }

    bool attend() {
        const int64_t fit = CACHED / (2 * call.queries * width * int64_t(sizeof(C))), most = minimum(fit < 1 ? 1 : fit, call.matrices);
        Workspace<C>& memory = Workspace<C>::of_this_thread();
        x = memory.x.at_least(most * call.queries * width);
        p = memory.p.at_least(most * call.queries * width);
        sums = memory.product.at_least(most * splits * call.queries * whole);
        if (!x || !p || !sums) return false;
        for (; first < call.matrices; first += most) {
            count = minimum(most, call.matrices - first);
            if (!put_scores() || !map() || !put_sums()) return false;
            put();
        }
        return true;
    }
};

template <class T>
bool attend(const SoftmaximaAttention& call, T*) {
    using C = compute_t<T>;
    if (call.queries <= FEW && !call.states) return Few<T>(call).attend();
    const int64_t most = ROWS, step = most * call.parts, whole = round_up(call.value_size, LANES<C>);
    return for_each_part<C>(call, nanoseconds(call), [&](int64_t index, int64_t part, Workspace<C>& memory) {
        Tile<T> tile(call, index, memory);
        const int64_t keys = tile.matrix.keys;
        if (!tile.prepare(most, keys)) return false;
        for (int64_t first = part * most; first < call.queries; first += step) {
            const int64_t rows = minimum(most, call.queries - first);
            tile.put_scores(first, rows, Window::of<C>(tile.matrix, first, rows, 0, keys));
            if (!tile.map() || ((call.lse || call.states) && !put_sums(tile))) return false;
            const auto add = [&](auto skips) {
                clear(tile.product, rows * whole);
                add_values<skips>(tile.p, tile.window.width, rows, tile.window.count, tile.visible_values(), call.sparse, whole, tile.product);
            };
            add(std::false_type());
            if (spoilt(tile.product, rows * whole)) {
                tile.hide_others();
                add(std::true_type());
            }
            put_rows(tile.product, whole, rows, call.value_size, static_cast<T*>(call.out) + tile.matrix.query(first) * call.value_size);
        }
        return true;
    });
}

// The gradients of a tile's queries, keys and values.
template <class T>
struct Gradients {
    using C = compute_t<T>;
    const SoftmaximaAttentionBackward& call;
    Tile<T>& tile;
    const int64_t whole, value_whole;
    const C* value_panels;
    Lines<C> keys;
    C *g, *dp, *dk, *dv;
    C* beside = nullptr;     // for dx, where p is needed with it
    bool careful = false;    // whether terms that are left out may be infinite or NaN
    bool is_spoilt = false;  // whether some result may have such a term

    Gradients(const SoftmaximaAttentionBackward& whole_call, Tile<T>& its)
        : call(whole_call), tile(its), whole(round_up(its.call().size, LANES<C>)), value_whole(round_up(its.call().value_size, LANES<C>)) {}

    bool prepare(int64_t most, int64_t held) {
        const SoftmaximaAttention& attention = tile.call();
        const int64_t n = tile.matrix.keys, width = Window::widest<C>(held);
        Workspace<C>& memory = tile.memory;
        C* panels = memory.value_panels.at_least(round_up(n, PANEL<C>) * attention.value_size + 1);
        g = memory.g.at_least(most * value_whole);
        dp = memory.dp.at_least(most * width);
        dk = memory.dk.at_least(attention.keys * whole + 1);
        dv = memory.dv.at_least(attention.keys * value_whole + 1);
        if (attention.softcap != 0) tile.slopes = memory.slopes.at_least(most * width);
        if (!panels || !g || !dp || !dk || !dv || (attention.softcap != 0 && !tile.slopes)) return false;
        const bool keeps_p = call.uses_scores && call.g_lse;
        beside = keeps_p ? memory.dx.at_least(most * width) : nullptr;
        if (keeps_p && !beside) return false;
        pack(tile.matrix.template row<T>(attention.v, 0), attention.v.distance, n, attention.value_size, panels);
        value_panels = panels;
        return whole_rows(tile.matrix.template row<T>(attention.k, 0), attention.k.distance, n, attention.size, memory.keys, keys);
    }

    // Before all tiles.
    void begin(bool anew) {
        careful = anew;
        clear(dk, tile.call().keys * whole);
        clear(dv, tile.call().keys * value_whole);
    }

    // After all of them.
    bool ends_spoilt() const { return is_spoilt || spoilt(dk, tile.call().keys * whole) || spoilt(dv, tile.call().keys * value_whole); }

    SoftmaximaBackward derivative(int64_t row, int64_t rows, int64_t width, const C* x, const C* p, const C* dp, C* dx) const {
        SoftmaximaBackward backward{};
        backward.rows = tile.matrix.rows(tile.first + row, rows, width, x);
        backward.p = p;
        backward.g = dp;
        backward.out = dx;
        return backward;
    }

    // dx += g_lse p/τ, of a map whose p is also the gradient of its logsumexp.
    void add_lse(int64_t row, const C* p, int64_t length, C* dx) const {
        if (!call.g_lse) return;
        const int64_t query = tile.matrix.query(tile.first + row);
        const C factor = C(double(static_cast<const C*>(call.g_lse)[query]) / tile.tau(row));
#pragma omp simd
        for (int64_t j = 0; j < length; ++j) dx[j] += p[j] == 0 ? C(0) : factor * p[j];
    }

    bool is_seldom() const {
        int64_t kept = 0;
        for (int64_t r = 0; r < tile.rows; ++r) kept += count_support(tile.p + r * tile.window.width, tile.window.count);
        return kept * SELDOM < tile.rows * tile.window.count;
    }

    // From the support of each row alone.
    bool by_support() {
        const int64_t begin = tile.window.begin, count = tile.window.count, width = tile.window.width;
        Workspace<C>& memory = tile.memory;
        int64_t* support = memory.support.at_least(width);
        C *p = memory.kept_p.at_least(width), *dp = memory.kept_g.at_least(width), *dx = memory.kept_d.at_least(width);
        if (!support || !p || !dp || !dx) return false;
        for (int64_t r = 0; r < tile.rows; ++r) {
            const C *own = g + r * value_whole, *query = tile.query + r * whole;
            C* dq = tile.product + r * whole;
            int64_t kept = 0;
            for_support(tile.p + r * width, width, [&](int64_t j) { support[kept++] = j; });
            clear(dq, whole);
            if (kept == 0) continue;
            for (int64_t i = 0; i < kept; ++i) {
                const int64_t j = support[i];
                p[i] = tile.p[r * width + j];
                dp[i] = j < count ? dot(own, tile.values.row(begin + j), value_whole) : C(0);
            }
            const SoftmaximaBackward backward = derivative(r, 1, kept, nullptr, p, dp, dx);
            if (!run<SoftmaximaBackward>(call.derivative, backward)) return false;
            add_lse(r, p, kept, dx);
            for (int64_t i = 0; i < kept && support[i] < count; ++i) {
                const int64_t j = begin + support[i];
                if (tile.slopes) dx[i] *= tile.slopes[r * width + support[i]];
                add_multiple(dx[i], keys.row(j), dq, whole);
                add_multiple(dx[i], query, dk + j * whole, whole);
                add_multiple(p[i], own, dv + j * value_whole, value_whole);
            }
        }
        return true;
    }

    // p ∘ (dp − ⟨g, o⟩)/τ, for Σ_j p_j dp_j over all keys is ⟨g, o⟩.
    void put_softmax_derivative(int64_t r, C* dx) const {
        const int64_t size = tile.call().value_size, width = tile.window.width;
        const T* out = static_cast<const T*>(tile.call().out) + tile.matrix.query(tile.first + r) * size;
        const C *p = tile.p + r * width, *slopes = dp + r * width, *own = g + r * value_whole;
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t e = 0; e < size; ++e) sum += double(own[e]) * double(widen(out[e]));
        with_scale<C>(inverse(tile.tau(r)), [=, center = C(sum)](auto scale) {
#pragma omp simd
            for (int64_t j = 0; j < width; ++j) dx[j] = p[j] == 0 ? C(0) : C(p[j] * (slopes[j] - center) * scale);
        });
    }

    // Where p is 0 slopes that are not finite are 0.
    void hide_slopes(const C* p, C* slopes) const {
        for (int64_t i = 0; i < tile.rows * tile.window.width; ++i)
            if (p[i] == 0 && slopes[i] - slopes[i] != 0) slopes[i] = 0;
    }

    // From whole rows.
    template <bool skips>
    bool by_rows() {
        const int64_t begin = tile.window.begin, count = tile.window.count, width = tile.window.width, rows = tile.rows;
        product_with_panels(Left<C>{g, value_whole, 1}, value_panels + begin * tile.call().value_size, rows, tile.call().value_size, count, dp, width);
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t j = count; j < width; ++j) dp[r * width + j] = 0;
        product<skips>(Left<C>{tile.p, 1, width}, g, value_whole, count, rows, value_whole, dv + begin * value_whole, value_whole);
        C* dx = !call.uses_scores ? tile.x : call.g_lse ? beside : tile.p;
        if (skips) hide_slopes(tile.p, dp);
        if (tile.call().states) {
            for (int64_t r = 0; r < rows; ++r) put_softmax_derivative(r, dx + r * width);
        } else {
            const SoftmaximaBackward backward = derivative(0, rows, width, call.uses_scores ? tile.x : nullptr, tile.p, dp, dx);
            if (!run<SoftmaximaBackward>(call.derivative, backward)) return false;
        }
        for (int64_t r = 0; r < rows; ++r) add_lse(r, tile.p + r * width, width, dx + r * width);
        for (int64_t r = 0; tile.slopes && r < rows; ++r)
            for (int64_t j = 0; j < count; ++j) dx[r * width + j] *= tile.slopes[r * width + j];
        for (int64_t r = 0; skips && call.uses_scores && r < rows; ++r) hide(tile.x + r * width, width, dx + r * width);
        if (skips && !call.uses_scores) hide_slopes(tile.p, dx);
        product<skips>(Left<C>{dx, 1, width}, tile.query, whole, count, rows, whole, dk + begin * whole, whole);
        clear(tile.product, rows * whole);
        add_values<skips>(dx, width, rows, count, Lines<C>{keys.row(begin), keys.distance}, false, whole, tile.product);
        return true;
    }

    // Those of the tile's queries for keys from `from` on are added to those for keys before.
    bool add(int64_t from) {
        const SoftmaximaAttention& attention = tile.call();
        const int64_t size = attention.size, value_size = attention.value_size, query = tile.matrix.query(tile.first);
        copy_rows(static_cast<const T*>(call.g) + query * value_size, value_size, tile.rows, value_size, C(1), g);
        if (careful) tile.hide_others();
        if (!(call.on_support && is_seldom() ? by_support() : careful ? by_rows<true>() : by_rows<false>())) return false;
        is_spoilt = is_spoilt || spoilt(tile.product, tile.rows * whole);
        C* dq = static_cast<C*>(call.dq) + query * size;
        for (int64_t r = 0; r < tile.rows; ++r)
            for (int64_t e = 0; e < size; ++e) dq[r * size + e] = (from ? dq[r * size + e] : C(0)) + C(attention.scale) * tile.product[r * whole + e];
        return true;
    }

    void put(int64_t part) const {
        const SoftmaximaAttention& attention = tile.call();
        const int64_t rows = (part * attention.matrices + tile.matrix.index) * attention.keys;
        put_rows(dk, whole, attention.keys, attention.size, static_cast<C*>(call.dk) + rows * attention.size);
        put_rows(dv, value_whole, attention.keys, attention.value_size, static_cast<C*>(call.dv) + rows * attention.value_size);
    }
};

template <class T>
bool differentiate(const SoftmaximaAttentionBackward& call, T*) {
    using C = compute_t<T>;
    const SoftmaximaAttention& attention = call.attention;
    const int64_t most = ROWS, step = most * attention.parts;
    return for_each_part<C>(attention, 3 * nanoseconds(attention), [&](int64_t index, int64_t part, Workspace<C>& memory) {
        Tile<T> tile(attention, index, memory);
        Gradients<T> gradients(call, tile);
        const int64_t keys = tile.matrix.keys, held = attention.states ? HELD : keys;
        if (!tile.prepare(most, held) || !gradients.prepare(most, held)) return false;
        const auto add_all = [&](bool careful) {
            gradients.begin(careful);
            int64_t from = 0;
            do {
                for (int64_t first = part * most; first < attention.queries; first += step) {
                    const int64_t rows = minimum(most, attention.queries - first);
                    const Window window = Window::of<C>(tile.matrix, first, rows, from, minimum(from + held, keys));
                    if (from > 0 && window.count == 0) continue;
                    tile.put_scores(first, rows, window);
                    if (attention.states) {
                        tile.put_softmax();
                    } else if (!tile.map()) {
                        return false;
                    }
                    if (!gradients.add(from)) return false;
                }
                from += held;
            } while (from < keys);
            return true;
        };
        if (!add_all(false) || (gradients.ends_spoilt() && !add_all(true))) return false;
        gradients.put(part);
        return true;
    });
}

}  // namespace

int attention(const SoftmaximaAttention* call) {
    return with_dtype(call->dtype, [=](auto* type) { return attend(*call, type); });
}

int attention_backward(const SoftmaximaAttentionBackward* call) {
    return with_dtype(call->attention.dtype, [=](auto* type) { return differentiate(*call, type); });
}

}  // namespace SOFTMAXIMA_ISA

SOFTMAXIMA_KERNEL(attention, Attention)
SOFTMAXIMA_KERNEL(attention_backward, AttentionBackward)
