// Reading rows of scores in blocks, and sharing rows out among threads.
#pragma once

#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <type_traits>

#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "elementary.h"
#include "interruption.h"
#include "kernels.h"
#include "pages.h"

namespace SOFTMAXIMA_ISA {

constexpr size_t LINE = 64;      // bytes of the cache that are read together
constexpr int64_t BLOCK = 1024;  // scores that are worked on at a time, in the first-level cache

// An array that grows, and stays for the next call.
template <class V>
class Array {
   public:
    Array() = default;
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;
    ~Array() { std::free(data_); }

    V* at_least(int64_t size) {
        if (size > size_) {
            std::free(data_);
            data_ = static_cast<V*>(std::aligned_alloc(LINE, (size_t(size) * sizeof(V) + LINE - 1) / LINE * LINE));
            size_ = data_ ? size : 0;
            if (data_) prefer_large_pages(data_, size_t(size) * sizeof(V));
        }
        return data_;
    }

    // Gives back what one unusually long row needed.
    void release_if_large() {
        if (size_ * int64_t(sizeof(V)) <= int64_t(64) << 20) return;
        std::free(data_);
        data_ = nullptr;
        size_ = 0;
    }

   private:
    V* data_ = nullptr;
    int64_t size_ = 0;
};

// What a thread works in.
template <class C>
struct Scratch {
    alignas(LINE) C high[BLOCK];
    alignas(LINE) C low[BLOCK];
    Array<double> origins;
    Array<C> candidates;
    Array<double> gaps;
    Array<float> rough;
    Array<char> tile;
    Halt* halt = nullptr;  // of the work that is shared out, if it takes long

    void release_if_large() {
        origins.release_if_large();
        candidates.release_if_large();
        gaps.release_if_large();
        rough.release_if_large();
        tile.release_if_large();
    }

    static Scratch& of_this_thread() { return own_of_thread<Scratch>(); }
};

// Scores z = high + low of a block; low is null where it is zero.
template <class C>
struct Scores {
    const C* high;
    const C* low;
};

constexpr double NOTHING = -std::numeric_limits<double>::infinity();

// The largest of the values that are not NaN, −∞ if there is none. Four at a time, to hide the latency of a comparison.
template <class C>
C highest(const C* values, int64_t length) {
    const int64_t quarter = length / 4;
    const C *second = values + quarter, *third = second + quarter, *fourth = third + quarter;
    constexpr C nothing = -std::numeric_limits<C>::infinity();
    C a = nothing, b = nothing, c = nothing, d = nothing;
#pragma omp simd reduction(max : a, b, c, d)
    for (int64_t i = 0; i < quarter; ++i) {
        a = values[i] > a ? values[i] : a;
        b = second[i] > b ? second[i] : b;
        c = third[i] > c ? third[i] : c;
        d = fourth[i] > d ? fourth[i] : d;
    }
    for (int64_t i = 4 * quarter; i < length; ++i) a = values[i] > a ? values[i] : a;
    a = b > a ? b : a;
    c = d > c ? d : c;
    return c > a ? c : a;
}

// 1/τ, or a number so large that it is finite when doubled: 0 stays 0 when it is multiplied by it.
inline double inverse(double tau) {
    const double value = 1 / tau;
    return value < 0x1p1022 ? value : 0x1p1022;
}

// body(1/τ), in C, or in double where that may be beyond C.
template <class C, class Body>
void with_scale(double scale, const Body& body) {
    if (scale > 0x1p-64 && scale < 0x1p64) {
        body(C(scale));
    } else {
        body(scale);
    }
}

// A product with that 1/τ in T: the largest number of T where only T is too narrow for it.
template <class T, class Product>
inline void put(Product product, T& to) {
    if constexpr (sizeof(Product) == sizeof(T)) {
        narrow(product, to);
    } else {
        narrow(bounded<T>(product), to);
    }
}

// Doubles are halved before they are subtracted, for two of them may be further apart than any is from 0.
template <class C>
constexpr double HALF = sizeof(C) == sizeof(double) ? 0.5 : 1.0;

// (x − top)/τ, exactly 0 of equal numbers.
template <class C>
[[gnu::always_inline]] inline double gap(C x, double top, double scale) {
    const double half = double(x) * HALF<C> - top * HALF<C>;
    return half * (scale / HALF<C>);
}

// And what its roundings lost, near enough; 0 where that is nothing that can be said.
template <class C>
[[gnu::always_inline]] inline double gap(C x, double top, double tau, double scale, double& lost) {
    const double own = double(x) * HALF<C>, origin = top * HALF<C>, difference = own - origin, taken = difference - own;
    const double rest = (own - (difference - taken)) - (origin + taken), value = difference * (scale / HALF<C>);
    const double low = (std::fma(-value, tau * HALF<C>, difference) + rest) * (scale / HALF<C>);
    lost = low - low == 0 ? low : 0.0;
    return value;
}

// x/τ in two terms.
struct Quotient {
    double high, low;

    static Quotient of(double x, double tau) {
        const double high = x / tau, low = std::fma(-high, tau, x) / tau;
        return {high, low - low == 0 ? low : 0.0};
    }
};

// z = (x − anchor)/τ in two terms.
template <class C>
struct Tempered {
    double anchor, tau, scale;

    [[gnu::always_inline]] inline void operator()(C x, C& high, C& low) const {
        if constexpr (sizeof(C) == sizeof(double)) {
            high = gap(x, anchor, tau, scale, low);
        } else {
            const double z = gap(x, anchor, scale);
            high = C(z);
            low = C(z - double(high));
        }
    }
};

// Numbers in C, where they lie if they are.
template <class T, class C>
const C* widened(const T* from, int64_t length, C* buffer) {
    if constexpr (sizeof(T) == sizeof(C)) {
        return from;
    } else {
        for (int64_t i = 0; i < length; ++i) buffer[i] = widen(from[i]);
        return buffer;
    }
}

// A row of scores, −∞ where masked. Sums of exponentials are of z = x where τ is 1, and of z = (x − anchor)/τ elsewhere, the anchor
// the largest x: a quotient x/τ would have lost the digits in which large scores differ.
template <class T>
struct Row {
    using C = compute_t<T>;

    const T* x;
    const uint8_t* mask;  // may be null
    double tau, scale;    // τ, 1/τ
    double anchor;        // 0 where τ is 1
    const double* theta;
    int64_t n;
    int64_t index;
    T* out;
    Halt* halt = nullptr;  // of a long row

    static constexpr int64_t LONG = int64_t(1) << 16;  // a multiple of BLOCK

    void heed_if_long(Halt* its) { halt = n >= LONG ? its : nullptr; }

    void heed() const {
        if (halt) halt->heed();
    }

    void set_parameters(const SoftmaximaRows& rows) {
        tau = rows.taus ? rows.taus[index] : rows.tau;
        scale = tau == 1.0 ? 1.0 : inverse(tau);
        anchor = 0;
        theta = rows.theta + index * rows.distance;
    }

    // x itself, in C and −∞ where masked.
    const C* raw(int64_t begin, int64_t length, C* buffer) const {
        if (halt && begin % LONG == 0) halt->heed();
        if constexpr (sizeof(T) == sizeof(C)) {
            if (!mask) return x + begin;
        }
        const T* from = x + begin;
        if (mask) {
            const uint8_t* allowed = mask + begin;
            for (int64_t i = 0; i < length; ++i) {
                const C value = widen(from[i]);
                buffer[i] = allowed[i] ? value : -std::numeric_limits<C>::infinity();
            }
        } else {
            for (int64_t i = 0; i < length; ++i) buffer[i] = widen(from[i]);
        }
        return buffer;
    }

    // The next block, for the processor's own prefetch does not keep up at the end of a page.
    [[gnu::always_inline]] inline void prefetch_after(int64_t begin, int64_t length) const {
        if (begin + length < n)
            for (int64_t i = 0; i < length; i += int64_t(64 / sizeof(T))) __builtin_prefetch(x + begin + BLOCK + i);
    }

    // x in double.
    void wide(int64_t begin, int64_t length, Scratch<C>& scratch, double* to) const {
        const C* values = raw(begin, length, scratch.high);
        for (int64_t i = 0; i < length; ++i) to[i] = double(values[i]);
    }

    // The largest x of a part.
    double largest(int64_t begin, int64_t end, Scratch<C>& scratch) const {
        C top = -std::numeric_limits<C>::infinity();
        for (int64_t i = begin; i < end; i += BLOCK) {
            const int64_t length = end - i < BLOCK ? end - i : BLOCK;
            prefetch_after(i, length);
            const C high = highest(raw(i, length, scratch.high), length);
            top = high > top ? high : top;
        }
        return double(top);
    }

    // A row of nothing, and one with +∞, have no anchor, and need none.
    void anchor_at(double largest) { anchor = tau != 1.0 && std::fabs(largest) < -NOTHING ? largest : 0.0; }

    void find_anchor(Scratch<C>& scratch) {
        if (tau != 1.0) anchor_at(largest(0, n, scratch));
    }

    Tempered<C> tempered() const { return {anchor, tau, scale}; }

    // z of a block in the precision of W and a half more, as exp of a long argument needs it; −∞ of a negative x if `rectified`.
    template <bool rectified = false, class W = C>
    Scores<W> scores(int64_t begin, int64_t length, Scratch<W>& scratch) const {
        constexpr bool same = std::is_same_v<W, C>;
        constexpr W nothing = -std::numeric_limits<W>::infinity();
        C own[same ? 1 : BLOCK];
        C* buffer = own;
        if constexpr (same) buffer = scratch.high;
        const C* values = raw(begin, length, buffer);
        prefetch_after(begin, length);
        if (tau == 1.0) {
            if constexpr (same && !rectified) {
                return {values, nullptr};
            } else {
                for (int64_t i = 0; i < length; ++i) scratch.high[i] = rectified && values[i] < 0 ? nothing : W(values[i]);
                return {scratch.high, nullptr};
            }
        }
        const Tempered<C> z = tempered();
        if constexpr (same) {
            for (int64_t i = 0; i < length; ++i) {
                const bool counts = !(rectified && values[i] < 0);
                C high, low;
                z(values[i], high, low);
                scratch.high[i] = counts ? high : nothing;
                scratch.low[i] = low;
            }
            return {scratch.high, scratch.low};
        } else {
            for (int64_t i = 0; i < length; ++i) scratch.high[i] = gap(values[i], z.anchor, z.scale);
            return {scratch.high, nullptr};
        }
    }

    // How far a score is above another.
    inline double gap_above(int64_t i, double top) const { return allowed(i) ? gap(widen(x[i]), top, scale) : NOTHING; }

    // And what its roundings lost.
    inline double gap_above(int64_t i, double top, double& lost) const {
        const double value = gap(widen(x[i]), top, tau, scale, lost);
        return allowed(i) ? value : NOTHING;
    }

    inline bool allowed(int64_t i) const { return !mask || mask[i]; }

    // x in double, −∞ where masked.
    inline double score(int64_t i) const { return allowed(i) ? double(widen(x[i])) : NOTHING; }
};

constexpr int MAX_TEAM = 256;

#ifdef _OPENMP
inline int threads_here() { return omp_get_num_threads(); }
inline int thread_here() { return omp_get_thread_num(); }
#else
inline int threads_here() { return 1; }
inline int thread_here() { return 0; }
#endif

// How many threads a piece of work is worth, and whether it may take so long that interrupts are heard.
struct Team {
    int size;
    double nanoseconds;

    bool is_long() const { return nanoseconds > LONG_WORK; }

    // So many tasks in chunks, of a millisecond or so where they take long.
    int64_t chunk(int64_t count) const {
        const double most = double(size) * 8;
        return is_long() && nanoseconds > most * 1e6 ? int64_t(double(count) / nanoseconds * 1e6) + 1 : count / (int64_t(size) * 8) + 1;
    }

    operator int() const { return size; }
};

// Each should have 20 µs of it, several times what waking a thread takes.
inline Team team_size(int64_t threads, double nanoseconds) {
#ifdef _OPENMP
    const double most = double(threads < MAX_TEAM ? threads : MAX_TEAM), worth = nanoseconds / 20e3;
    return {worth < 2 ? 1 : int(worth < most ? worth : most), nanoseconds};
#else
    (void)threads;
    return {1, nanoseconds};
#endif
}

inline int64_t minimum(int64_t a, int64_t b) { return a < b ? a : b; }

// Calls body(i, memory) for i in [0, count), `chunk` of them at a time, and tells whether every call was true; false where an interrupt
// ended that. Memory is a thread's own, and has the halt of long work, that a long task heeds.
template <class Memory, class Body>
bool share(int64_t count, int64_t chunk, Team team, const Body& body) {
    bool done = true;
    Memory& own = Memory::of_this_thread();
    if (own.halt || (!team.is_long() && team.size == 1)) {  // within a task, or short
        for (int64_t i = 0; i < count; ++i) done = body(i, own) && done;
        own.release_if_large();
        return done;
    }
    Halt halt(team.is_long());
    std::atomic<int> arrived{0};
    const int64_t chunks = (count + chunk - 1) / chunk;
#pragma omp parallel num_threads(team.size) reduction(&& : done) if (team.size > 1)
    {
        Memory& memory = Memory::of_this_thread();
        memory.halt = halt.if_heard();
#pragma omp for schedule(dynamic) nowait
        for (int64_t c = 0; c < chunks; ++c) {
            done = !halt.is_due() && attempt([&] {
                bool all = true;
                for (int64_t i = c * chunk; i < minimum(c * chunk + chunk, count); ++i) all = body(i, memory) && all;
                return all;
            }) && done;
        }
        halt.wait(arrived, threads_here());
#pragma omp barrier
        memory.halt = nullptr;
        memory.release_if_large();
    }
    return done && !halt.is_due();
}

template <class C, class Body>
bool share_out(int64_t count, Team team, const Body& body) {
    return share<Scratch<C>>(count, team.chunk(count), team, body);
}

template <class T>
Row<T> row_of(const SoftmaximaRows& rows, int64_t index, void* out) {
    const int64_t n = rows.n;
    Row<T> row;
    row.x = rows.x ? static_cast<const T*>(rows.x) + index * rows.stride : nullptr;
    row.mask = rows.mask ? rows.mask + (rows.blocks ? rows.blocks[index] : index * n) : nullptr;
    row.n = n;
    row.index = index;
    row.set_parameters(rows);
    row.out = out ? static_cast<T*>(out) + index * n : nullptr;
    return row;
}

// g of a row that is differentiated.
template <class T>
class Upstream {
   public:
    using C = compute_t<T>;

    Upstream(const SoftmaximaBackward* call, int64_t index, const T* dense) : dense_(dense) {
        if (!call->labels) return;
        label_ = call->labels[index];
        of_label_ = widen(static_cast<const T*>(call->g)[index]);
    }

    // Whether no derivative is wanted, whatever the scores are.
    bool left_out() const { return !dense_ && label_ < 0; }

    // Whether it is of one class, and which.
    bool of_label() const { return !dense_; }
    int64_t label() const { return label_; }

    C operator[](int64_t i) const { return dense_ ? widen(dense_[i]) : i == label_ ? of_label_ : C(0); }

    // A block of it, where it lies or in the buffer.
    const C* read(int64_t begin, int64_t length, C* buffer) const {
        if (dense_) return widened(dense_ + begin, length, buffer);
        for (int64_t i = 0; i < length; ++i) buffer[i] = 0;
        if (label_ >= begin && label_ < begin + length) buffer[label_ - begin] = of_label_;
        return buffer;
    }

   private:
    const T* dense_;
    int64_t label_ = 0;
    C of_label_ = 0;
};

// A power of 2 by which sums and differences of the largest numbers among these are numbers of double.
template <class C, class Values>
double shrinking(const Values& values, int64_t length) {
    if (sizeof(C) < sizeof(double)) return 1.0;
    double most = 0;
    for (int64_t i = 0; i < length; ++i) {
        const double size = std::fabs(double(values[i]));
        most = size > most ? size : most;
    }
    return most < 0x1p900 ? 1.0 : 0x1p-100;
}

// Where the mean of g is below, no g less the mean is beyond C: it is less than half of what separates the largest numbers. And where it
// is, no g was infinite or NaN, for not even 0 g is a number then.
template <class C>
constexpr double MODERATE_MEAN = double(std::numeric_limits<C>::max()) * double(std::numeric_limits<C>::epsilon()) / 4;

// A product with g in double, for any g: what is infinite stays so.
template <class T>
inline void put_any(double product, T& to) {
    std::isinf(product) ? narrow(product, to) : put(product, to);
}

// A p above this is most of its row; of two that share it both are ½, or above by a rounding.
constexpr double MOST_P = 0.75;

// Where a p_k is that: k, and Σ w (g_k − g) over the row, which g_k Σ w − Σ w g has not the digits of.
struct Most {
    int64_t k = -1;
    double moved = 0, total = 0;  // that, and Σ w

    // p(i), w(i) and g(i) in double.
    template <class P, class W, class G>
    static Most of(int64_t n, const P& p, const W& w, const G& g) {
        Most most;
        for (int64_t i = 0; i < n; ++i)
            if (p(i) > MOST_P) most.k = i;
        if (most.k < 0) return most;
        const double upstream = g(most.k);
        most.total = w(most.k);
        for (int64_t i = 0; i < n; ++i) {
            const double weight = i == most.k ? 0.0 : w(i);
            most.total += weight;
            most.moved += weight == 0 ? 0.0 : weight * (upstream - g(i));
        }
        return most;
    }
};

// g [outer, n, inner] where it is that.
template <class T>
const T* dense_upstream(const SoftmaximaBackward* call) {
    return call->labels ? nullptr : static_cast<const T*>(call->g);
}

template <class T>
bool fill_with_zeros(const Row<T>& row) {
    for (int64_t i = 0; i < row.n; ++i) narrow(0.0, row.out[i]);
    return true;
}

// A kernel works on a row in three steps, so that threads can share a long one:
//   scan(row, begin, end, part, scratch)   what a part of the row says,
//   finish(row, parts, count, scratch)     what the row as a whole says, written into each part,
//   emit(row, begin, end, part, scratch)   the results of a part.
// Each returns whether it had the memory it needed. A part is scanned and emitted by one thread, with one scratch.
// `anchored` tells whether it works on z.
template <class T, class Kernel>
[[gnu::noinline]] bool whole_row(const Kernel& kernel, Row<T> row, Scratch<compute_t<T>>& scratch) {
    typename Kernel::Part part;
    row.heed_if_long(scratch.halt);
    if (Kernel::anchored) row.find_anchor(scratch);
    return kernel.scan(row, 0, row.n, part, scratch) && kernel.finish(row, &part, 1, scratch) && kernel.emit(row, 0, row.n, part, scratch);
}

template <class T, class Kernel>
bool split_row(const Kernel& kernel, const Row<T>& row, int team, Halt& halt) {
    using C = compute_t<T>;
    auto& storage = own_of_thread<std::array<typename Kernel::Part, MAX_TEAM>>();
    typename Kernel::Part* parts = storage.data();  // the caller's, in every thread
    double tops[MAX_TEAM];
    std::atomic<int> arrived{0};
    bool done = true;
#pragma omp parallel num_threads(team) reduction(&& : done)
    {
        const int count = threads_here(), i = thread_here();
        // A multiple of the block, so that only the last block of a row is shorter.
        const int64_t length = (row.n / count / BLOCK + 1) * BLOCK;
        const int64_t begin = minimum(i * length, row.n), end = minimum(begin + length, row.n);
        Scratch<C>& scratch = Scratch<C>::of_this_thread();
        Row<T> own = row;
        own.heed_if_long(halt.if_heard());
        if (Kernel::anchored && row.tau != 1.0) {
            tops[i] = NOTHING;
            done = attempt([&] { return tops[i] = own.largest(begin, end, scratch), true; });
            halt.wait(arrived, count);
#pragma omp barrier
            double top = tops[0];
            for (int k = 1; k < count; ++k) top = tops[k] > top ? tops[k] : top;
            own.anchor_at(top);
        }
        done = done && attempt([&] { return kernel.scan(own, begin, end, parts[i], scratch); });
        halt.wait(arrived, count);
#pragma omp barrier
        // By the caller, which hears interrupts. After one parts may be unfinished.
        if (i == 0) done = !halt.is_due() && attempt([&] { return kernel.finish(own, parts, count, scratch); }) && done;
#pragma omp barrier
        done = !halt.is_due() && attempt([&] { return kernel.emit(own, begin, end, parts[i], scratch); }) && done;
        halt.wait(arrived, count);
        scratch.release_if_large();
    }
    return done;
}

template <class T>
constexpr int64_t TILE = 64 / sizeof(T);  // columns in a line of the cache

// [n, TILE] at a distance of inner ⇄ [TILE, n]
template <class T>
void to_rows(const T* from, int64_t n, int64_t inner, int64_t columns, T* to) {
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < columns; ++j) to[j * n + i] = from[i * inner + j];
}

template <class T>
void to_columns(const T* from, int64_t n, int64_t inner, int64_t columns, T* to) {
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < columns; ++j) to[i * inner + j] = from[j * n + i];
}

// Columns as rows, a line of the cache at a time: body(row index, x, mask, other inputs, out, scratch) works on rows of n that
// are contiguous. `inputs` are further arrays [outer, n, inner].
template <class T, class Body>
bool transposed(const SoftmaximaRows& rows, const T* const* inputs, int count, T* out, Team team, const Body& body) {
    using C = compute_t<T>;
    const int64_t n = rows.n, inner = rows.inner, tiles = (inner + TILE<T> - 1) / TILE<T>;
    const T* x = static_cast<const T*>(rows.x);
    return share_out<C>(rows.outer * tiles, team, [&](int64_t task, Scratch<C>& scratch) __attribute__((noinline)) {
        const int64_t o = task / tiles, first = task % tiles * TILE<T>, columns = minimum(TILE<T>, inner - first);
        const int64_t size = n * TILE<T>;
        char* memory = scratch.tile.at_least(size * int64_t(sizeof(T)) * (count + 2) + size);
        if (!memory) return false;
        T* arrays = reinterpret_cast<T*>(memory);
        uint8_t* mask_rows = reinterpret_cast<uint8_t*>(arrays + size * (count + 2));
        if (x) to_rows(x + o * n * inner + first, n, inner, columns, arrays);
        for (int a = 0; a < count; ++a)
            if (inputs[a]) to_rows(inputs[a] + o * n * inner + first, n, inner, columns, arrays + (a + 2) * size);
        if (rows.mask) {
            const int64_t block = rows.blocks ? rows.blocks[o] : o * n * inner;
            to_rows(rows.mask + block + first, n, inner, columns, mask_rows);
        }
        T* results = arrays + size;
        bool done = true;
        for (int64_t j = 0; j < columns; ++j) {
            const int64_t index = o * inner + first + j;
            Row<T> row;
            row.x = x ? arrays + j * n : nullptr;
            row.mask = rows.mask ? mask_rows + j * n : nullptr;
            row.n = n;
            row.index = index;
            row.set_parameters(rows);
            row.out = out ? results + j * n : nullptr;
            row.heed_if_long(scratch.halt);
            const T* others[3] = {};
            for (int a = 0; a < count; ++a) others[a] = inputs[a] ? arrays + (a + 2) * size + j * n : nullptr;
            done = body(row, others, scratch) && done;
        }
        if (out) to_columns(results, n, inner, columns, out + o * n * inner + first);
        return done;
    });
}

// Calls body(row, other inputs, scratch) for every row, each a thread's own work. `inputs` are `count` further arrays
// [outer, n, inner]; `nanoseconds` is what a score costs, roughly.
template <class T, class Body>
bool for_each_whole_row(const SoftmaximaRows& rows, const T* const* inputs, int count, void* out, double nanoseconds, const Body& body) {
    using C = compute_t<T>;
    const int64_t total = rows.outer * rows.inner;
    const Team team = team_size(rows.threads, nanoseconds * double(total) * double(rows.n));
    if (rows.inner > 1) return transposed<T>(rows, inputs, count, static_cast<T*>(out), team, body);
    return share_out<C>(total, team, [&](int64_t index, Scratch<C>& scratch) {
        const T* others[3] = {};
        for (int a = 0; a < count; ++a) others[a] = inputs[a] ? inputs[a] + index * rows.n : nullptr;
        Row<T> row = row_of<T>(rows, index, out);
        row.heed_if_long(scratch.halt);
        return body(row, others, scratch);
    });
}

// A kernel over rows whose scores are beside one another; several threads share a row where there are fewer rows than threads.
template <class T, class Kernel>
bool for_each_contiguous_row(const SoftmaximaRows& rows, void* out, const Kernel& kernel, double nanoseconds) {
    using C = compute_t<T>;
    const Team team = team_size(rows.threads, nanoseconds * double(rows.outer) * double(rows.n));
    if (rows.outer < team && rows.n >= 16 * BLOCK) {
        bool done = true;
        Halt halt(team.is_long());
        for (int64_t index = 0; index < rows.outer && !halt.is_due(); ++index) done = split_row(kernel, row_of<T>(rows, index, out), team, halt) && done;
        return done && !halt.is_due();
    }
    return share_out<C>(rows.outer, team, [&](int64_t index, Scratch<C>& scratch) { return whole_row(kernel, row_of<T>(rows, index, out), scratch); });
}

// A kernel over every row.
template <class T, class Kernel>
bool for_each_row(const SoftmaximaRows& rows, void* out, const Kernel& kernel, double nanoseconds) {
    if (rows.inner == 1) return for_each_contiguous_row<T>(rows, out, kernel, nanoseconds);
    return for_each_whole_row<T>(rows, nullptr, 0, out, nanoseconds,
                                 [&](const Row<T>& row, const T* const*, Scratch<compute_t<T>>& scratch) { return whole_row(kernel, row, scratch); });
}

// Calls body with a null pointer of the dtype that the rows are of.
template <class Body>
int with_dtype(int64_t dtype, const Body& body) {
    switch (dtype) {
        case 0: return body(static_cast<double*>(nullptr)) ? 0 : 1;
        case 1: return body(static_cast<float*>(nullptr)) ? 0 : 1;
        case 2: return body(static_cast<bfloat16*>(nullptr)) ? 0 : 1;
        default: return body(static_cast<float16*>(nullptr)) ? 0 : 1;
    }
}

// Scores that are looked at together for candidates: most such groups hold none.
constexpr int64_t LOOK = 64;

// Bit i tells whether the i-th of up to LOOK values is not at most the bound, as NaN is not.
template <class C>
uint64_t above(const C* values, int64_t length, C bound) {
    int64_t i = 0;
    uint64_t bits = 0;
#if defined(__AVX512F__)
    constexpr int64_t lanes = 64 / sizeof(C);
    for (; i + lanes <= length; i += lanes) {
        if constexpr (sizeof(C) == sizeof(float)) {
            bits |= uint64_t(_mm512_cmp_ps_mask(_mm512_loadu_ps(values + i), _mm512_set1_ps(bound), _CMP_NLE_UQ)) << i;
        } else {
            bits |= uint64_t(_mm512_cmp_pd_mask(_mm512_loadu_pd(values + i), _mm512_set1_pd(bound), _CMP_NLE_UQ)) << i;
        }
    }
#elif defined(__AVX2__)
    constexpr int64_t lanes = 32 / sizeof(C);
    for (; i + lanes <= length; i += lanes) {
        int mask;
        if constexpr (sizeof(C) == sizeof(float)) {
            mask = _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(values + i), _mm256_set1_ps(bound), _CMP_NLE_UQ));
        } else {
            mask = _mm256_movemask_pd(_mm256_cmp_pd(_mm256_loadu_pd(values + i), _mm256_set1_pd(bound), _CMP_NLE_UQ));
        }
        bits |= uint64_t(mask) << i;
    }
#else
    int any = 0;
    for (int64_t j = 0; j < length; ++j) any |= !(values[j] <= bound);
    if (!any) return 0;
#endif
    for (; i < length; ++i) bits |= uint64_t(!(values[i] <= bound)) << i;
    return bits;
}

// Of a known length, for what a compiler makes of any length takes long to start.
template <class T>
void clear(T* to, int64_t length) {
    if (length == LOOK) {
        std::memset(to, 0, size_t(LOOK) * sizeof(T));
    } else {
        for (int64_t i = 0; i < length; ++i) narrow(0.0, to[i]);
    }
}

template <class C>
bool any_nan(const C* values, int64_t length) {
    int unordered = 0;
    for (int64_t i = 0; i < length; ++i) unordered |= values[i] != values[i];
    return unordered != 0;
}

// body(i) for the bits that are set.
template <class Body>
inline void for_each_bit(uint64_t bits, const Body& body) {
    for (; bits; bits &= bits - 1) body(int64_t(__builtin_ctzll(bits)));
}

}  // namespace SOFTMAXIMA_ISA
