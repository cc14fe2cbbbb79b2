// Rows of any lengths: segments of scores, a map or a sum of each.
//
// Segments are short and many, and a kernel is fast on many rows of one length. So a window of segments, as much as the cache holds, is
// put in order of their lengths, those of one length are copied to be rows, and what the kernel makes of them is copied back.

#include <algorithm>

#include "rows.h"

namespace SOFTMAXIMA_ISA {
namespace {

constexpr int64_t WINDOW = 16384;    // scores that are ordered by the lengths of their segments
constexpr int64_t LENGTHS = 256;     // shorter segments are taken together with others of their length
constexpr int64_t BATCH = 4096;      // scores that are rows of one call
constexpr int64_t LONG = 64 * 1024;  // longer segments are shared among threads
constexpr double NANOSECONDS = 5;    // that a score takes, roughly

template <class Call>
bool run(const void* function, const Call& call) {
    return reinterpret_cast<int (*)(const Call*)>(const_cast<void*>(function))(&call) == 0;
}

// What a thread copies scores to.
template <class T>
struct Rows {
    Array<T> x, p, g, out;
    Array<uint8_t> mask;
    Array<double> taus, theta, states;

    static Rows& of_this_thread() { return own_of_thread<Rows>(); }

    void release_if_large() {
        for (Array<T>* array : {&x, &p, &g, &out}) array->release_if_large();
        for (Array<double>* array : {&taus, &theta, &states}) array->release_if_large();
        mask.release_if_large();
    }
};

template <class T>
struct Segments {
    const SoftmaximaSegments& call;
    const T *x = static_cast<const T*>(call.x), *p = static_cast<const T*>(call.p), *g = static_cast<const T*>(call.g);
    T* out = static_cast<T*>(call.out);

    int64_t length(int64_t s) const { return call.starts[s + 1] - call.starts[s]; }

    // Calls body(place among the scores, place among the rows) for the scores of `count` segments of n scores each.
    template <class Body>
    void for_scores(int64_t outer, const int64_t* segments, int64_t count, int64_t n, const Body& body) const {
        const int64_t inner = call.inner, before = outer * call.elements;
        for (int64_t c = 0; c < count; ++c) {
            const int64_t begin = call.starts[segments[c]], row = c * inner * n;
            if (inner == 1 && !call.order) {
                for (int64_t k = 0; k < n; ++k) body(before + begin + k, row + k);
                continue;
            }
            for (int64_t k = 0; k < n; ++k) {
                const int64_t element = (before + (call.order ? call.order[begin + k] : begin + k)) * inner;
                for (int64_t i = 0; i < inner; ++i) body(element + i, row + k + i * n);
            }
        }
    }

    // Calls body(row among all, row of the batch).
    template <class Body>
    void for_rows(int64_t outer, const int64_t* segments, int64_t count, const Body& body) const {
        for (int64_t c = 0; c < count; ++c)
            for (int64_t i = 0; i < call.inner; ++i) body((outer * call.segments + segments[c]) * call.inner + i, c * call.inner + i);
    }

    template <class V>
    bool copied(Array<V>& array, const V* from, int64_t outer, const int64_t* segments, int64_t count, int64_t n) const {
        if (!from) return true;
        V* to = array.at_least(count * call.inner * n);
        if (!to) return false;
        for_scores(outer, segments, count, n, [=](int64_t element, int64_t place) { to[place] = from[element]; });
        return true;
    }

    // The rows of some segments of n scores each.
    bool put(int64_t outer, const int64_t* segments, int64_t count, int64_t n, int64_t threads) const {
        Rows<T>& memory = Rows<T>::of_this_thread();
        const int64_t rows = count * call.inner, first = (outer * call.segments + segments[0]) * call.inner;
        // A segment whose scores are one after the other is a row as it lies.
        const bool lies = count == 1 && call.inner == 1 && !call.order;
        const int64_t begin = outer * call.elements + call.starts[segments[0]];
        const auto read = [&](Array<T>& array, const T* from, const T*& own) {
            own = !from ? nullptr : lies ? from + begin : nullptr;
            if (!from || lies) return true;
            if (!copied(array, from, outer, segments, count, n)) return false;
            own = array.at_least(0);
            return true;
        };
        const T *own_x, *own_p, *own_g;
        if (!read(memory.x, x, own_x) || !read(memory.p, p, own_p)) return false;

        SoftmaximaRows described{};
        described.dtype = call.dtype;
        described.outer = rows;
        described.n = described.stride = n;
        described.inner = 1;
        described.threads = threads;
        described.x = own_x;
        described.tau = call.tau;
        described.distance = call.distance;
        if (call.mask && lies) {
            described.mask = call.mask + begin;
        } else if (call.mask) {
            if (!copied(memory.mask, call.mask, outer, segments, count, n)) return false;
            described.mask = memory.mask.at_least(0);
        }
        if (call.taus) {
            double* taus = memory.taus.at_least(rows);
            if (!taus) return false;
            for_rows(outer, segments, count, [&](int64_t row, int64_t own) { taus[own] = call.taus[row]; });
            described.taus = taus;
        }
        described.theta = call.theta;
        if (call.theta && call.distance) {
            double* theta = memory.theta.at_least(rows * call.distance);
            if (!theta) return false;
            for_rows(outer, segments, count,
                     [&](int64_t row, int64_t own) { std::copy_n(call.theta + row * call.distance, call.distance, theta + own * call.distance); });
            described.theta = theta;
        }

        const bool of_rows = call.sums && !g;
        T* results = lies ? (of_rows ? out + first : out + begin) : memory.out.at_least(of_rows ? rows : rows * n);
        double* states = call.sums && g ? memory.states.at_least(2 * rows) : nullptr;
        if (!results || (call.sums && g && !states)) return false;
        if (!g || call.sums) {
            T* values = results;
            if (g) values = memory.g.at_least(rows);
            if (!values) return false;
            if (!run(call.forward, SoftmaximaForward{described, values, states})) return false;
        }
        if (g) {
            if (call.sums) {
                T* slopes = memory.g.at_least(rows);
                if (!slopes) return false;
                for_rows(outer, segments, count, [&](int64_t row, int64_t own) { slopes[own] = g[row]; });
                own_g = slopes;
            } else if (!read(memory.g, g, own_g)) {
                return false;
            }
            if (!run(call.derivative, SoftmaximaBackward{described, own_p, states, own_g, results, nullptr})) return false;
        }
        if (lies) return true;
        if (of_rows) {
            for_rows(outer, segments, count, [&](int64_t row, int64_t own) { out[row] = results[own]; });
        } else {
            for_scores(outer, segments, count, n, [&](int64_t element, int64_t place) { out[element] = results[place]; });
        }
        return true;
    }

    void put_empty(int64_t outer, int64_t s) const {
        if (!call.sums || g) return;
        for_rows(outer, &s, 1, [&](int64_t row, int64_t) { narrow(compute_t<T>(NOTHING), out[row]); });
    }

    // Segments [first, last) of no more than LONG scores, of which those in the window before have had theirs.
    bool put_window(int64_t outer, int64_t first, int64_t last, Array<int64_t>& memory) const {
        int64_t ends[LENGTHS + 1] = {};
        int64_t* ordered = memory.at_least(last - first);
        if (!ordered) return false;
        for (int64_t s = first; s < last; ++s)
            if (length(s) < LENGTHS) ++ends[length(s) + 1];
        for (int64_t n = 0; n < LENGTHS; ++n) ends[n + 1] += ends[n];
        bool done = true;
        for (int64_t s = first; s < last; ++s) {
            const int64_t n = length(s);
            if (n < LENGTHS) {
                ordered[ends[n]++] = s;
            } else if (n <= LONG) {
                done = put(outer, &s, 1, n, 1) && done;
            }
        }
        // ends[n] is now where those of length n end.
        for (int64_t i = 0; i < ends[0]; ++i) put_empty(outer, ordered[i]);
        for (int64_t n = 1; n < LENGTHS; ++n) {
            const int64_t most = std::max<int64_t>(1, BATCH / (n * call.inner));
            for (int64_t i = ends[n - 1]; i < ends[n]; i += most) done = put(outer, ordered + i, minimum(most, ends[n] - i), n, 1) && done;
        }
        return done;
    }

    bool put_all() const {
        const int64_t every = std::max<int64_t>(1, WINDOW / call.inner);
        const int64_t windows = std::max<int64_t>(1, (call.elements + every - 1) / every);
        const Team team = team_size(call.threads, NANOSECONDS * double(call.outer) * double(call.elements + call.segments) * double(call.inner));
        const int64_t *starts = call.starts, *end = starts + call.segments;
        const bool done = share_out<compute_t<T>>(call.outer * windows, team, [&](int64_t task, Scratch<compute_t<T>>&) {
            Array<int64_t>& ordered = own_of_thread<Array<int64_t>>();
            const int64_t outer = task / windows, window = task % windows;
            const int64_t first = std::lower_bound(starts, end, window * every) - starts;
            const int64_t last = window + 1 == windows ? call.segments : std::lower_bound(starts, end, (window + 1) * every) - starts;
            const bool put = first >= last || put_window(outer, first, last, ordered);
            Rows<T>::of_this_thread().release_if_large();
            ordered.release_if_large();
            return put;
        });
        return done && put_long();
    }

    // Steps of LONG miss none that is longer.
    bool put_long() const {
        bool done = true;
        for (int64_t outer = 0; outer < call.outer; ++outer)
            for (int64_t at = 0; at < call.elements;) {
                const int64_t s = std::upper_bound(call.starts, call.starts + call.segments, at) - call.starts - 1;
                const bool is_long = length(s) > LONG;
                if (is_long) done = put(outer, &s, 1, length(s), call.threads) && done;
                at = is_long ? call.starts[s + 1] : at + LONG;
            }
        return done;
    }
};

}  // namespace

int segments(const SoftmaximaSegments* call) {
    return with_dtype(call->dtype, [=](auto* type) { return Segments<std::remove_pointer_t<decltype(type)>>{*call}.put_all(); });
}

}  // namespace SOFTMAXIMA_ISA

SOFTMAXIMA_KERNEL(segments, Segments)
