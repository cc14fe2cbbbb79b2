// softmax and logsumexp of segments, number by number in the order of an index, of float or less: terms are exp(z − z_M) in float, or
// exp(z) where all scores of a window are near 0, and their sums are in double. Doubles, whose sums need more than a double, and maps
// with a threshold go by rows (segments.cpp).

#include <algorithm>

#include "exponential.h"
#include "rows.h"

namespace SOFTMAXIMA_ISA {
namespace {

constexpr int64_t WINDOW = 4096;       // scores that are worked on at a time
constexpr double NANOSECONDS = 4;      // that a score takes, roughly
constexpr double NEAR_ZERO = 0x1p-20;  // a logarithm of a sum below it has lost digits

// What a thread works in.
struct Terms {
    Array<float> x, high, low, tops;
    Array<double> wide, sums, counts, scales;

    static Terms& of_this_thread() { return own_of_thread<Terms>(); }

    void release_if_large() {
        for (Array<float>* array : {&x, &high, &low, &tops}) array->release_if_large();
        for (Array<double>* array : {&wide, &sums, &counts, &scales}) array->release_if_large();
    }
};

// Of nothing too, so that null says that there is no memory.
template <class V>
V* room(Array<V>& array, int64_t count) {
    return array.at_least(count > 0 ? count : 1);
}

// Segments [first, last), and the elements [begin, end) of them.
struct Window {
    int64_t first, last, begin, end;
};

// One of the outer indices: arrays [elements, inner], those of segments [segments, inner].
template <class T>
struct ByIndex {
    const SoftmaximaIndexed& call;
    int64_t inner;
    const T *x, *p, *g;
    const uint8_t* mask;
    const double* taus;
    T* out;

    int64_t scores(const Window& w) const { return (w.end - w.begin) * inner; }
    int64_t rows(const Window& w) const { return (w.last - w.first) * inner; }
    int64_t first_score(const Window& w) const { return w.begin * inner; }
    int64_t first_row(const Window& w) const { return w.first * inner; }

    // Calls body(score, row), both numbered from those of the window.
    template <class Body>
    [[gnu::always_inline]] inline void each(const Window& w, const Body& body) const {
        if (call.starts && inner == 1) {
            for (int64_t s = w.first; s < w.last; ++s)
                for (int64_t k = call.starts[s]; k < call.starts[s + 1]; ++k) body(k - w.begin, s - w.first);
        } else if (call.starts) {
            for (int64_t s = w.first; s < w.last; ++s)
                for (int64_t k = call.starts[s]; k < call.starts[s + 1]; ++k)
                    for (int64_t i = 0; i < inner; ++i) body((k - w.begin) * inner + i, (s - w.first) * inner + i);
        } else if (inner == 1) {
            for (int64_t k = w.begin; k < w.end; ++k) body(k - w.begin, int64_t(call.numbers[k]) - w.first);
        } else {
            for (int64_t k = w.begin; k < w.end; ++k)
                for (int64_t i = 0; i < inner; ++i) body((k - w.begin) * inner + i, (int64_t(call.numbers[k]) - w.first) * inner + i);
        }
    }

    // Sums of term(score) of each row, in order.
    template <class Term>
    [[gnu::always_inline]] inline void add(const Window& w, double* sums, const Term& term) const {
        if (call.starts && inner == 1) {
            for (int64_t s = w.first; s < w.last; ++s) {
                double sum = 0;
                for (int64_t k = call.starts[s]; k < call.starts[s + 1]; ++k) sum += term(k - w.begin);
                sums[s - w.first] = sum;
            }
        } else {
            std::fill_n(sums, rows(w), 0.0);
            each(w, [&](int64_t score, int64_t row) __attribute__((always_inline)) { sums[row] += term(score); });
        }
    }

    // Scores in float, −∞ where they are masked.
    const float* read(const Window& w, Terms& memory) const {
        const T* from = x + first_score(w);
        if constexpr (sizeof(T) == sizeof(float)) {
            if (!mask) return from;
        }
        const int64_t count = scores(w);
        float* to = room(memory.x, count);
        if (!to) return nullptr;
        for (int64_t i = 0; i < count; ++i) to[i] = widen(from[i]);
        const uint8_t* allowed = mask ? mask + first_score(w) : nullptr;
        for (int64_t i = 0; allowed && i < count; ++i) to[i] = allowed[i] ? to[i] : float(NOTHING);
        return to;
    }

    // Whether all are so near 0 that exp needs no origin.
    bool are_near(const float* values, int64_t count) const {
        if (taus || call.tau != 1.0) return false;
        int far = 0;
        for (int64_t i = 0; i < count; ++i) far |= !(values[i] <= HEADROOM<float> && values[i] >= -DEPTH<float>);
        return !far;
    }

    double tau_of(const Window& w, int64_t row) const { return taus ? taus[first_row(w) + row] : call.tau; }

    // The largest score of each row, 0 where there is none, and 1/τ.
    bool find_tops(const Window& w, const float* values, Terms& memory) const {
        const int64_t count = rows(w);
        float* tops = room(memory.tops, count);
        double* scales = room(memory.scales, count);
        if (!tops || !scales) return false;
        std::fill_n(tops, count, float(NOTHING));
        each(w, [&](int64_t score, int64_t row) __attribute__((always_inline)) { tops[row] = values[score] > tops[row] ? values[score] : tops[row]; });
        for (int64_t r = 0; r < count; ++r) {
            tops[r] = tops[r] == float(NOTHING) ? 0.0f : tops[r];
            scales[r] = inverse(tau_of(w, r));
        }
        return true;
    }

    // exp(z) of each score relative to its row's largest, or to 1, and their sums.
    bool exponentials(const Window& w, Terms& memory) const {
        const int64_t count = scores(w);
        const float* values = read(w, memory);
        float* terms = room(memory.high, count);
        double* sums = room(memory.sums, rows(w));
        if (!values || !terms || !sums) return false;
        const Exponential<float> exp(Origin<float>{});
        if (are_near(values, count)) {
            for (int64_t i = 0; i < count; ++i) terms[i] = exp(values[i]);
        } else {
            float* lows = room(memory.low, count);
            if (!lows || !find_tops(w, values, memory)) return false;
            const float* tops = memory.tops.at_least(0);
            const double* scales = memory.scales.at_least(0);
            each(w, [&](int64_t score, int64_t row) __attribute__((always_inline)) {
                const double z = gap(values[score], double(tops[row]), scales[row]);
                terms[score] = float(z);
                lows[score] = float(z - double(terms[score]));
            });
            for (int64_t i = 0; i < count; ++i) terms[i] = exp(terms[i], lows[i]);
        }
        add(w, sums, [=](int64_t score) __attribute__((always_inline)) { return double(terms[score]); });
        return true;
    }

    bool softmax(const Window& w, Terms& memory) const {
        if (!exponentials(w, memory)) return false;
        const float* terms = memory.high.at_least(0);
        double* sums = memory.sums.at_least(0);
        for (int64_t r = 0; r < rows(w); ++r) sums[r] = sums[r] == 0 ? 0.0 : 1 / sums[r];
        T* to = out + first_score(w);
        each(w, [&](int64_t score, int64_t row) __attribute__((always_inline)) { narrow(float(double(terms[score]) * sums[row]), to[score]); });
        return true;
    }

    // p (g − Σ p g)/τ, in double, which holds what is beyond T on the way; no g is read where p is 0.
    bool softmax_backward(const Window& w, Terms& memory) const {
        const T *own_p = p + first_score(w), *own_g = g + first_score(w);
        double *means = room(memory.sums, rows(w)), *scales = room(memory.scales, rows(w));
        if (!means || !scales) return false;
        for (int64_t r = 0; r < rows(w); ++r) scales[r] = inverse(tau_of(w, r));
        bool has_most = false;
        add(w, means, [=, &has_most](int64_t score) __attribute__((always_inline)) {
            const double share = double(widen(own_p[score])), product = share * double(widen(own_g[score]));
            has_most |= share > MOST_P;
            return share == 0 ? 0.0 : product;
        });
        T* to = out + first_score(w);
        if (has_most) return softmax_backward_by_others(w, means, scales, memory);
        each(w, [&](int64_t score, int64_t row) __attribute__((always_inline)) {
            const double share = double(widen(own_p[score])), slope = double(widen(own_g[score])) - means[row];
            put_any(share == 0 ? 0.0 : share * slope * scales[row], to[score]);
        });
        return true;
    }

    // The same where a p is most of its row, and 1 − p and g − Σ p g are known by all others.
    [[gnu::noinline]] bool softmax_backward_by_others(const Window& w, const double* means, const double* scales, Terms& memory) const {
        const T *own_p = p + first_score(w), *own_g = g + first_score(w);
        double *moved = room(memory.counts, rows(w)), *rests = room(memory.wide, rows(w));
        if (!moved || !rests) return false;
        const auto other = [=](int64_t score) __attribute__((always_inline)) {
            const double share = double(widen(own_p[score]));
            return share > MOST_P ? 0.0 : share;
        };
        add(w, rests, other);
        add(w, moved, [=](int64_t score) __attribute__((always_inline)) {
            const double share = other(score), product = share * double(widen(own_g[score]));
            return share == 0 ? 0.0 : product;
        });
        T* to = out + first_score(w);
        each(w, [&](int64_t score, int64_t row) __attribute__((always_inline)) {
            const double share = double(widen(own_p[score])), upstream = double(widen(own_g[score]));
            const double slope = share > MOST_P ? (rests[row] == 0 ? 0.0 : rests[row] * upstream) - moved[row] : upstream - means[row];
            put_any(share == 0 ? 0.0 : share * slope * scales[row], to[score]);
        });
        return true;
    }

    bool logsumexp(const Window& w, Terms& memory) const {
        const int64_t count = scores(w);
        const float* values = read(w, memory);
        double *terms = room(memory.wide, count), *sums = room(memory.sums, rows(w));
        if (!values || !terms || !sums) return false;
        const auto term = [=](int64_t score) __attribute__((always_inline)) { return terms[score]; };
        T* to = out + first_row(w);
        const Exponential<double> exponential(Origin<double>{});
        if (are_near(values, count)) {
            for (int64_t i = 0; i < count; ++i) terms[i] = exponential(double(values[i]));
            add(w, sums, term);
            int lost = 0;
            for (int64_t r = 0; r < rows(w); ++r) {
                sums[r] = log(sums[r]);
                lost |= std::fabs(sums[r]) < NEAR_ZERO;
            }
            if (!lost) {
                for (int64_t r = 0; r < rows(w); ++r) narrow(sums[r], to[r]);
                return true;
            }
        }
        double* ties = room(memory.counts, rows(w));
        if (!ties || !find_tops(w, values, memory)) return false;
        const float* tops = memory.tops.at_least(0);
        const double* scales = memory.scales.at_least(0);
        std::fill_n(ties, rows(w), 0.0);
        each(w, [&](int64_t score, int64_t row) __attribute__((always_inline)) {
            const bool is_top = values[score] == tops[row];
            terms[score] = is_top ? NOTHING : gap(values[score], double(tops[row]), scales[row]);
            ties[row] += is_top ? 1.0 : 0.0;
        });
        for (int64_t i = 0; i < count; ++i) terms[i] = exponential(terms[i]);
        add(w, sums, term);
        for (int64_t r = 0; r < rows(w); ++r) {
            const Quotient top = Quotient::of(double(tops[r]), tau_of(w, r));
            const double log_sum = std::log(ties[r]) + std::log1p(sums[r] / ties[r]);
            narrow(ties[r] > 0 ? (top.high + log_sum) + top.low : sums[r] == 0 ? NOTHING : sums[r], to[r]);
        }
        return true;
    }

    bool logsumexp_backward(const Window& w, Terms& memory) const {
        if (!exponentials(w, memory)) return false;
        const float* terms = memory.high.at_least(0);
        double* sums = memory.sums.at_least(0);
        for (int64_t r = 0; r < rows(w); ++r) sums[r] = sums[r] == 0 ? 0.0 : double(widen(g[first_row(w) + r])) / sums[r] * inverse(tau_of(w, r));
        T* to = out + first_score(w);
        // A share of 0 has none of a sum that is infinite, and that of NaN.
        each(w, [&](int64_t score, int64_t row) __attribute__((always_inline)) {
            put_any(terms[score] == 0 && sums[row] == sums[row] ? 0.0 : double(terms[score]) * sums[row], to[score]);
        });
        return true;
    }

    template <class Body>
    bool for_each_window(Team team, const Body& body) const {
        const int64_t every = std::max<int64_t>(1, WINDOW / std::max<int64_t>(1, inner));
        const int64_t windows = call.starts ? std::max<int64_t>(1, (call.elements + every - 1) / every) : call.windows;
        return share_out<float>(windows, team, [&](int64_t window, Scratch<float>&) {
            Terms& memory = Terms::of_this_thread();
            Window w{};
            if (call.starts) {  // those that begin among these elements, and all at the end with the last
                const int64_t *starts = call.starts, *end = starts + call.segments;
                w.first = std::lower_bound(starts, end, window * every) - starts;
                w.last = window + 1 == windows ? call.segments : std::lower_bound(starts, end, (window + 1) * every) - starts;
                w.begin = starts[w.first];
                w.end = starts[w.last];
            } else {
                w = {minimum(window << call.shift, call.segments), minimum((window + 1) << call.shift, call.segments), call.bounds[window],
                     call.bounds[window + 1]};
            }
            const bool done = w.first >= w.last || body(*this, w, memory);
            memory.release_if_large();
            return done;
        });
    }
};

// body(the segments, a window, memory) for all windows. `sums` tells whether it gives one number a segment, or takes g as such.
template <class T, class Body>
bool for_each_window(const SoftmaximaIndexed& call, bool sums, const Body& body) {
    const int64_t size = call.elements * call.inner, rows = call.segments * call.inner;
    const Team team = team_size(call.threads, NANOSECONDS * double(call.elements + call.segments) * double(call.inner));
    bool done = true;
    const auto part = [](auto* array, int64_t begin) { return array ? array + begin : nullptr; };
    for (int64_t outer = 0; outer < call.outer; ++outer) {
        const ByIndex<T> segments{call,
                                  call.inner,
                                  part(static_cast<const T*>(call.x), outer * size),
                                  part(static_cast<const T*>(call.p), outer * size),
                                  part(static_cast<const T*>(call.g), outer * (sums ? rows : size)),
                                  part(call.mask, outer * size),
                                  part(call.taus, outer * rows),
                                  static_cast<T*>(call.out) + outer * (sums && !call.g ? rows : size)};
        done = segments.for_each_window(team, body) && done;
    }
    return done;
}

template <class Body>
int with_narrow_dtype(int64_t dtype, const Body& body) {
    switch (dtype) {
        case 1: return body(static_cast<float*>(nullptr)) ? 0 : 1;
        case 2: return body(static_cast<bfloat16*>(nullptr)) ? 0 : 1;
        default: return body(static_cast<float16*>(nullptr)) ? 0 : 1;
    }
}

}  // namespace

int softmax_by_index(const SoftmaximaIndexed* call) {
    return with_narrow_dtype(call->dtype, [=](auto* type) {
        return for_each_window<std::remove_pointer_t<decltype(type)>>(*call, false, [=](const auto& segments, const Window& w, Terms& memory) {
            return call->g ? segments.softmax_backward(w, memory) : segments.softmax(w, memory);
        });
    });
}

int logsumexp_by_index(const SoftmaximaIndexed* call) {
    return with_narrow_dtype(call->dtype, [=](auto* type) {
        return for_each_window<std::remove_pointer_t<decltype(type)>>(*call, true, [=](const auto& segments, const Window& w, Terms& memory) {
            return call->g ? segments.logsumexp_backward(w, memory) : segments.logsumexp(w, memory);
        });
    });
}

}  // namespace SOFTMAXIMA_ISA

SOFTMAXIMA_KERNEL(softmax_by_index, Indexed)
SOFTMAXIMA_KERNEL(logsumexp_by_index, Indexed)
