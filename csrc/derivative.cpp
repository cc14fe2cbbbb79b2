// ∂⟨g, p⟩/∂x = (s ⊙ g − r ⟨q, g⟩)/τ for the maps whose s, q and r can be read off p. Here Σ w and Σ w g are taken first, and then
//   softmax and its relatives   w = p        s = p, ⟨q, g⟩ = Σ w g
//   rectified softmax           w = p        s = p where x ≥ 0, else 0
//   sparsemax, entmax           w = p^{2−α} on the support, s = w, ⟨q, g⟩ = Σ w g / Σ w
//   log_softmax                 w = 1 where allowed, r = exp(log p)
//
// Of entmax with α > 2 the largest w may be huge, and the two terms of its difference cancel: see Steep.
//
// Where one p_k is most of its row, the terms of its own entry cancel, and what is left of them is the others':
//   softmax …, entmax           Σ_{j≠k} w_j (g_k − g_j) takes the place of g_k Σ w − Σ w g, and a sink adds its p g_k
//   log_softmax                 g_k (1 − p_k) − p_k Σ_{j≠k} g_j,   1 − p_k = −expm1(log p_k)
//
// Where w is 0 the derivative is 0, whatever g is, and g is not read. Loops in C multiply it by 0 nonetheless: a g for which that matters
// shows in the mean, and such a row is done again by pull_any, as is one whose sums or differences may be beyond C.

#include <algorithm>
#include <type_traits>

#include "exponential.h"

namespace SOFTMAXIMA_ISA {
namespace {

// w as a function of p, in C.
struct Probability {
    static constexpr bool divided = false;
    explicit Probability(const double*) {}
    template <class C>
    C operator()(C p) const {
        return p;
    }
};

struct Support {
    static constexpr bool divided = true;
    explicit Support(const double*) {}
    template <class C>
    C operator()(C p) const {
        return p > 0 ? C(1) : p <= 0 ? C(0) : p;
    }
};

struct Root {
    static constexpr bool divided = true;
    explicit Root(const double*) {}
    template <class C>
    C operator()(C p) const {
        return std::sqrt(p);
    }
};

struct Power {
    static constexpr bool divided = true;
    double exponent;
    explicit Power(const double* alpha) : exponent(2 - *alpha) {}
    template <class C>
    C operator()(C p) const {
        const C tiny = std::numeric_limits<C>::min();
        const C power = exp(C(exponent) * log_of_normal(p > tiny ? p : tiny));
        return p > 0 ? power : p <= 0 ? C(0) : p;
    }
};

constexpr int64_t STEP = 512;

// Σ w and Σ w g, of blocks, and the largest w.
template <class C, bool weighted>
struct Sums {
    VectorSum<C> weights, products;
    Vector<C> largest = {};

    bool has_above(C w) const { return any<C>(largest > all(w)); }

    // Four vectors at a time, to hide the latency of an addition.
    [[gnu::always_inline]] inline void add(const C* w, const C* g, int64_t length) {
        constexpr int64_t lanes = LANES<C>;
        Vector<C> weight[4] = {}, product[4] = {}, most[4] = {};
        const auto of = [&](int k, Vector<C> own, Vector<C> upstream) __attribute__((always_inline)) {
            product[k] += own * upstream;
            most[k] = own > most[k] ? own : most[k];
            if (weighted) weight[k] += own;
        };
        int64_t i = 0;
        for (; i + 4 * lanes <= length; i += 4 * lanes) {
            of(0, load(w + i), load(g + i));
            of(1, load(w + i + lanes), load(g + i + lanes));
            of(2, load(w + i + 2 * lanes), load(g + i + 2 * lanes));
            of(3, load(w + i + 3 * lanes), load(g + i + 3 * lanes));
        }
        for (; i + lanes <= length; i += lanes) of(0, load(w + i), load(g + i));
        if (i < length) of(1, load(w + i, length - i, C(0)), load(g + i, length - i, C(0)));
        for (int k = 0; k < 4; ++k) largest = most[k] > largest ? most[k] : largest;
        products.add((product[0] + product[1]) + (product[2] + product[3]));
        if (weighted) weights.add((weight[0] + weight[1]) + (weight[2] + weight[3]));
    }
};

// α > 2, where w grows as p falls. Let k have the smallest p > 0, and e^a be the second largest w. Less g_k, which changes nothing,
//
//   ∂⟨g, p⟩/∂z_i = e^a (h_i − q_i Σh),   h = e^{−a} w (g − g_k) with h_k = 0,   q = w / Σw,
//
// and nothing is huge but e^a, which is the size of the result. All in double: what rounds log p counts α times.
template <class T>
struct Steep {
    const T* p;
    const Upstream<T>& g;
    int64_t n, least = -1;  // k
    double exponent;
    double smallest = 0, next = 0, reference = 0;  // p_k, the second smallest p > 0, g_k
    double shrink;

    Steep(const T* p, const Upstream<T>& g, int64_t n, double alpha) : p(p), g(g), n(n), exponent(2 - alpha), shrink(shrinking<compute_t<T>>(g, n)) {
        constexpr double infinity = std::numeric_limits<double>::infinity();
        double first = infinity, second = infinity;
        for (int64_t i = 0; i < n; ++i) {
            const double value = double(widen(p[i]));
            if (!(value > 0) || value >= second) continue;
            if (value < first) {
                second = first;
                first = value;
                least = i;
            } else {
                second = value;
            }
        }
        if (least < 0) return;
        smallest = first;
        next = second < infinity ? second : first;
        reference = upstream(least);
    }

    // Of a second derivative g may have been beyond T.
    double upstream(int64_t i) const { return std::clamp(double(g[i]), -LARGEST_NUMBER<T>, LARGEST_NUMBER<T>) * shrink; }

    // e^{−a} w of the others; 0 of k and outside the support.
    void weigh(int64_t begin, int64_t length, double log_next, double* w) const {
        for (int64_t i = 0; i < length; ++i) {
            const double value = double(widen(p[begin + i]));
            const bool counts = value > 0 && begin + i != least;
            const double weight = exp(exponent * (log(counts ? value : next) - log_next));
            w[i] = counts ? weight : value == value ? 0.0 : value;
        }
    }

    void emit(double scale, T* out) const {
        const double log_next = next > 0 ? log(next) : 0.0;
        double w[STEP], total = 0, moved = 0;
        for (int64_t i = 0; i < n; i += STEP) {
            const int64_t length = minimum(STEP, n - i);
            weigh(i, length, log_next, w);
            for (int64_t j = 0; j < length; ++j) {
                total += w[j];
                moved += w[j] != 0 ? w[j] * (upstream(i + j) - reference) : 0.0;
            }
        }
        // Of k e^{−a} w may be infinite; its inverse is at most 1.
        const double ratio = smallest > 0 ? exp(exponent * (log_next - log(smallest))) : 1.0;
        const double center = moved / (1 + ratio * total);  // Σh q_k
        // e^a/τ in two factors, for it may be beyond double.
        const double half = std::exp(exponent * log_next < 1418 ? exponent * log_next / 2 : 709.0);
        for (int64_t i = 0; i < n; i += STEP) {
            const int64_t length = minimum(STEP, n - i);
            weigh(i, length, log_next, w);
            for (int64_t j = 0; j < length; ++j) {
                const double gap = upstream(i + j) - reference;
                const double share = i + j == least ? -center : w[j] != 0 ? w[j] * (gap - ratio * center) : 0.0;
                narrow(bounded<T>(share * half * half * scale / shrink), out[i + j]);
            }
        }
    }
};

// What else of x or θ is part of the derivative.
enum class Reads { nothing, sign, sink };

// The entry of the p_k that is most of its row, times τ.
template <class Weight, Reads reads>
struct MostEntry {
    int64_t k = -1;
    double value = 0;

    MostEntry() = default;

    // p(i) and g(i) in double.
    template <class T, class P, class G>
    MostEntry(const Row<T>& row, const P& p, const G& g) {
        const Weight weigh(row.theta);
        const Most most = Most::of(row.n, p, [&](int64_t i) { return weigh(p(i)); }, g);
        k = most.k;
        if (k < 0) return;
        double moved = Weight::divided ? most.moved / most.total : most.moved;
        if constexpr (reads == Reads::sink) {
            const double sink = p(k) * std::exp(sink_above(*row.theta, Quotient::of(row.score(k), row.tau)));
            moved += sink == 0 ? 0.0 : sink * g(k);
        }
        value = moved == 0 || (reads == Reads::sign && row.score(k) < 0) ? 0.0 : weigh(p(k)) * moved;
    }
};

// Any g, in double.
template <class Weight, Reads reads, class T>
[[gnu::noinline]] void pull_any(const Row<T>& row, const T* p, const Upstream<T>& g) {
    const Weight weigh(row.theta);
    const double shrink = shrinking<compute_t<T>>(g, row.n);
    double w[STEP], upstream[STEP];
    const auto read = [&](int64_t begin, int64_t length) {
        for (int64_t j = 0; j < length; ++j) {
            const double own = weigh(double(widen(p[begin + j]))), slope = double(g[begin + j]) * shrink;
            w[j] = own;
            upstream[j] = own == 0 ? 0.0 : slope;
        }
    };
    Sums<double, Weight::divided> sums;
    for (int64_t i = 0; i < row.n; i += STEP) {
        const int64_t length = minimum(STEP, row.n - i);
        read(i, length);
        sums.add(w, upstream, length);
    }
    double mean = sums.products.total().value();
    if (Weight::divided) {
        const double total = sums.weights.total().value();
        mean = total == 0 ? 0.0 : mean / total;
    }
    const MostEntry<Weight, reads> most(row, [=](int64_t i) { return double(widen(p[i])); }, [&](int64_t i) { return double(g[i]) * shrink; });
    for (int64_t i = 0; i < row.n; i += STEP) {
        const int64_t length = minimum(STEP, row.n - i);
        read(i, length);
        for (int64_t j = 0; j < length; ++j) {
            const double s = reads == Reads::sign && row.score(i + j) < 0 ? 0.0 : w[j];
            put_any(s == 0 ? 0.0 : s * (upstream[j] - mean) * row.scale / shrink, row.out[i + j]);
        }
    }
    if (most.k >= 0) put_any(most.value * row.scale / shrink, row.out[most.k]);
}

template <class Weight, Reads reads, class T>
[[gnu::noinline]] MostEntry<Weight, reads> of_most(const Row<T>& row, const T* p, const Upstream<T>& g) {
    return {row, [=](int64_t i) { return double(widen(p[i])); }, [&](int64_t i) { return double(g[i]); }};
}

// Where g is of one label.
template <Reads reads, class T, class Weight>
void pull_label(const Row<T>& row, const Weight& weigh, const T* p, const Upstream<T>& g) {
    using C = compute_t<T>;
    const C own = weigh(widen(p[g.label()])), upstream = g[g.label()];
    if (own == 0) {
        fill_with_zeros(row);
        return;
    }
    double total = 1;
    if (Weight::divided) {
        total = 0;
        for (int64_t i = 0; i < row.n; i += STEP) {
            const int64_t length = minimum(STEP, row.n - i);
            C sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int64_t j = i; j < i + length; ++j) sum += weigh(widen(p[j]));
            total += double(sum);
        }
    }
    const double mean = total == 0 ? 0.0 : double(own) * double(upstream) / total;
    if (!(std::fabs(mean) < MODERATE_MEAN<C>)) return pull_any<Weight, reads>(row, p, g);
    const double of_label = double(own) > double(weigh(MOST_P)) ? of_most<Weight, reads>(row, p, g).value : double(own) * ((double(upstream) - mean));
    const C center = C(mean), lost = C(mean - double(center));
    T* out = row.out;
    with_scale<C>(row.scale, [&](auto scale) {
#pragma omp simd
        for (int64_t i = 0; i < row.n; ++i) put(weigh(widen(p[i])) * (-center - lost) * scale, out[i]);
        put(of_label * double(scale), out[g.label()]);
    });
}

// Whether a block is without support, where the derivative is 0 whatever g is.
template <class C>
bool are_zero(const C* p, int64_t length) {
    uint64_t found = 0;
    for (int64_t j = 0; j < length; j += LOOK) found |= above(p + j, minimum(LOOK, length - j), C(0));
    return found == 0;
}

template <class Weight, Reads reads, class T>
bool backward(const SoftmaximaBackward* call, T*, double nanoseconds) {
    using C = compute_t<T>;
    const T* inputs[] = {static_cast<const T*>(call->p), dense_upstream<T>(call)};
    return for_each_whole_row<T>(call->rows, inputs, 2, call->out, nanoseconds, [=](const Row<T>& row, const T* const* others, Scratch<C>& scratch) {
        const T* p = others[0];
        const Upstream<T> g(call, row.index, others[1]);
        if (g.left_out()) return fill_with_zeros(row);
        if constexpr (std::is_same_v<Weight, Power>) {
            if (*row.theta > 2) {
                Steep<T>(p, g, row.n, *row.theta).emit(row.scale, row.out);
                return true;
            }
        }
        const Weight weigh(row.theta);
        if constexpr (reads != Reads::sign) {
            if (g.of_label()) {
                pull_label<reads>(row, weigh, p, g);
                return true;
            }
        }
        C p_block[STEP], g_block[STEP], w[STEP];
        Sums<C, Weight::divided> sums;
        for (int64_t i = 0; i < row.n; i += STEP) {
            const int64_t length = minimum(STEP, row.n - i);
            const C *values = widened(p + i, length, p_block), *weights = values;
            if (Weight::divided && are_zero(values, length)) continue;
            if constexpr (!std::is_same_v<Weight, Probability>) {
                for (int64_t j = 0; j < length; ++j) w[j] = weigh(values[j]);
                weights = w;
            }
            sums.add(weights, g.read(i, length, g_block), length);
        }
        double mean = sums.products.total().value();
        if (Weight::divided) {
            const double total = sums.weights.total().value();
            mean = total == 0 ? 0.0 : mean / total;
        }
        if (!(std::fabs(mean) < MODERATE_MEAN<C>)) {
            pull_any<Weight, reads>(row, p, g);
            return true;
        }
        MostEntry<Weight, reads> most;
        if (sums.has_above(weigh(C(MOST_P)))) most = of_most<Weight, reads>(row, p, g);
        for (int64_t i = 0; i < row.n; i += STEP) {
            const int64_t length = minimum(STEP, row.n - i);
            const C* values = widened(p + i, length, p_block);
            T* to = row.out + i;
            if (Weight::divided && are_zero(values, length)) {
                for (int64_t j = 0; j < length; j += LOOK) clear(to + j, minimum(LOOK, length - j));
                continue;
            }
            const C* upstream = g.read(i, length, g_block);
            const C center = C(mean), lost = C(mean - double(center));
            with_scale<C>(row.scale, [&](auto scale) {
                if constexpr (reads == Reads::sign) {
                    const C* scores = row.raw(i, length, scratch.high);
                    for (int64_t j = 0; j < length; ++j) {
                        const C s = scores[j] < 0 ? C(0) : values[j];
                        put(s * ((upstream[j] - center) - lost) * scale, to[j]);
                    }
                } else if constexpr (std::is_same_v<Weight, Probability> && std::is_same_v<C, T> && std::is_same_v<C, decltype(scale)>) {
                    constexpr int64_t lanes = LANES<C>;
                    const auto pulled = [=](Vector<C> w, Vector<C> g) __attribute__((always_inline)) { return w * ((g - center) - lost) * scale; };
                    int64_t j = 0;
                    for (; j + lanes <= length; j += lanes) store(pulled(load(values + j), load(upstream + j)), to + j);
                    const int64_t rest = length - j;
                    if (rest > 0) store(pulled(load(values + j, rest, C(0)), load(upstream + j, rest, C(0))), rest, to + j);
                } else {
#pragma omp simd
                    for (int64_t j = 0; j < length; ++j) put(weigh(values[j]) * ((upstream[j] - center) - lost) * scale, to[j]);
                }
            });
        }
        if (most.k >= 0) put(most.value * row.scale, row.out[most.k]);
        return true;
    });
}

constexpr double LOG_MOST_P = -0.28768207245178093;

// The same of log_softmax.
struct MostOfLog {
    int64_t k = -1;
    double value = 0;

    template <class T, class L, class Slope>
    static MostOfLog of(const Row<T>& row, const L& log_p, const Slope& slope) {
        MostOfLog most;
        for (int64_t i = 0; i < row.n; ++i)
            if (log_p(i) > LOG_MOST_P) most.k = i;
        if (most.k < 0) return most;
        double others = 0;
        for (int64_t i = 0; i < row.n; ++i) others += i == most.k || log_p(i) == NOTHING ? 0.0 : slope(i);
        const double rest = -std::expm1(log_p(most.k));
        most.value = (rest == 0 ? 0.0 : rest * slope(most.k)) - std::exp(log_p(most.k)) * others;
        return most;
    }
};

template <class T>
[[gnu::noinline]] MostOfLog most_of_log(const Row<T>& row, const T* log_p, const Upstream<T>& g) {
    return MostOfLog::of(row, [=](int64_t i) { return double(widen(log_p[i])); }, [&](int64_t i) { return double(g[i]); });
}

// log_softmax of any g, in double.
template <class T>
[[gnu::noinline]] void pull_any_log(const Row<T>& row, const T* log_p, const Upstream<T>& g) {
    const double shrink = shrinking<compute_t<T>>(g, row.n);
    double allowed[STEP], upstream[STEP];
    const auto read = [&](int64_t begin, int64_t length) {
        for (int64_t j = 0; j < length; ++j) {
            const double slope = double(g[begin + j]) * shrink;
            allowed[j] = double(widen(log_p[begin + j])) == NOTHING ? 0.0 : 1.0;
            upstream[j] = allowed[j] == 0 ? 0.0 : slope;
        }
    };
    Sums<double, false> sums;
    for (int64_t i = 0; i < row.n; i += STEP) {
        const int64_t length = minimum(STEP, row.n - i);
        read(i, length);
        sums.add(allowed, upstream, length);
    }
    const double total = sums.products.total().value();
    for (int64_t i = 0; i < row.n; i += STEP) {
        const int64_t length = minimum(STEP, row.n - i);
        read(i, length);
        for (int64_t j = 0; j < length; ++j) {
            const double p = exp(double(widen(log_p[i + j])));
            put_any((upstream[j] - (p == 0 ? 0.0 : p * total)) * row.scale / shrink, row.out[i + j]);
        }
    }
    const auto most = MostOfLog::of(row, [=](int64_t i) { return double(widen(log_p[i])); }, [&](int64_t i) { return double(g[i]) * shrink; });
    if (most.k >= 0) put_any(most.value * row.scale / shrink, row.out[most.k]);
}

template <class T>
bool log_softmax_backward(const SoftmaximaBackward* call, T*) {
    using C = compute_t<T>;
    const T* inputs[] = {static_cast<const T*>(call->p), dense_upstream<T>(call)};
    return for_each_whole_row<T>(call->rows, inputs, 2, call->out, 1.0, [=](const Row<T>& row, const T* const* others, Scratch<C>&) {
        const T* log_p = others[0];
        const Upstream<T> g(call, row.index, others[1]);
        if (g.left_out()) return fill_with_zeros(row);
        const Exponential<C> exp(Origin<C>{});
        constexpr C nothing = -std::numeric_limits<C>::infinity();
        C l_block[STEP], g_block[STEP], allowed[STEP];
        Sums<C, false> sums;
        C largest = nothing;
        for (int64_t i = 0; i < row.n; i += STEP) {
            const int64_t length = minimum(STEP, row.n - i);
            const C* values = widened(log_p + i, length, l_block);
#pragma omp simd reduction(max : largest)
            for (int64_t j = 0; j < length; ++j) {
                allowed[j] = values[j] == nothing ? C(0) : C(1);
                largest = values[j] > largest ? values[j] : largest;
            }
            sums.add(allowed, g.read(i, length, g_block), length);
        }
        const double sum = sums.products.total().value();
        if (!(std::fabs(sum) < MODERATE_MEAN<C>)) {
            pull_any_log(row, log_p, g);
            return true;
        }
        const C total = C(sum);
        const MostOfLog most = largest > C(LOG_MOST_P) ? most_of_log(row, log_p, g) : MostOfLog{};
        for (int64_t i = 0; i < row.n; i += STEP) {
            const int64_t length = minimum(STEP, row.n - i);
            const C *values = widened(log_p + i, length, l_block), *upstream = g.read(i, length, g_block);
            with_scale<C>(row.scale, [&](auto scale) {
                for (int64_t j = 0; j < length; ++j) {
                    const C own = values[j] == nothing ? C(0) : upstream[j];
                    put((own - exp(values[j]) * total) * scale, row.out[i + j]);
                }
            });
        }
        if (most.k >= 0) put(most.value * row.scale, row.out[most.k]);
        return true;
    });
}

// Rows that lie in the first-level cache together, and are finished in groups.
constexpr int64_t SHORT_ROW = 128, GROUP = 16;

// Of short rows of an ordinary τ: product(w, g) adds up to the mean, or the total, of a row, pulled(w, g, high, low) makes of it the
// derivative times τ, and most(row, p, g) is the entry of a p above `half`. A group in which the mean is no moderate number is left to
// `general`, a call of its own.
template <class C, class Product, class Pulled, class OfMost, class General>
bool pull_short_rows(const SoftmaximaBackward* call, double nanoseconds, C half, const Product& product, const Pulled& pulled, const OfMost& of_most,
                     const General& general) {
    constexpr int64_t lanes = LANES<C>;
    const SoftmaximaRows& rows = call->rows;
    const int64_t n = rows.n, whole = n / lanes * lanes, rest = n - whole;
    const C *all_p = static_cast<const C*>(call->p), *all_g = static_cast<const C*>(call->g), scale = C(rows.tau == 1.0 ? 1.0 : inverse(rows.tau));
    const Team team = team_size(rows.threads, nanoseconds * double(rows.outer) * double(n));
    return share_out<C>((rows.outer + GROUP - 1) / GROUP, team, [&](int64_t task, Scratch<C>&) {
        const int64_t first = task * GROUP, width = minimum(GROUP, rows.outer - first);
        const C *p = all_p + first * n, *g = all_g + first * n;
        C* out = static_cast<C*>(call->out) + first * n;
        typename VectorSum<C>::Whole sums[GROUP];
        bool has_most[GROUP];
        for (int64_t j = 0; j < GROUP; ++j) {
            const int64_t begin = (j < width ? j : 0) * n;
            Vector<C> a = {}, b = {}, c = all(-std::numeric_limits<C>::infinity()), d = c;
            const auto add = [=](int64_t i, Vector<C>& sum, Vector<C>& largest) __attribute__((always_inline)) {
                const Vector<C> w = load(p + begin + i);
                sum += product(w, load(g + begin + i));
                largest = w > largest ? w : largest;
            };
            int64_t i = 0;
            for (; i + 2 * lanes <= n; i += 2 * lanes) {
                add(i, a, c);
                add(i + lanes, b, d);
            }
            if (i < whole) add(i, a, c);
            if (rest) {
                const Vector<C> w = load(p + begin + whole, rest, -std::numeric_limits<C>::infinity());
                b += product(load(p + begin + whole, rest, C(0)), load(g + begin + whole, rest, C(0)));
                d = w > d ? w : d;
            }
            has_most[j] = any<C>((c > d ? c : d) > all(half));
            VectorSum<C> sum;
            sum.add(a + b);
            sums[j] = sum.whole();
        }
        alignas(LINE) double high[GROUP], low[GROUP];
        VectorSum<C>::total(sums, high, low);
        bool moderate = true;
        for (int64_t j = 0; j < GROUP; ++j) {
            high[j] += low[j];
            moderate &= std::fabs(high[j]) < 0x1p60;
        }
        if (!moderate) {
            SoftmaximaBackward group = *call;
            group.rows.outer = width;
            group.rows.threads = 1;
            group.rows.theta += first * rows.distance;
            if (rows.x) group.rows.x = static_cast<const C*>(rows.x) + first * rows.stride;
            if (rows.blocks) group.rows.blocks += first;
            if (rows.mask && !rows.blocks) group.rows.mask += first * n;
            group.p = p;
            group.g = g;
            group.out = out;
            return general(&group);
        }
        for (int64_t j = 0; j < width; ++j) {
            const int64_t begin = j * n;
            const C center = C(high[j]), lost = C(high[j] - double(center));
            const auto most = has_most[j] ? of_most(row_of<C>(rows, first + j, nullptr), p + begin, g + begin) : decltype(of_most(Row<C>{}, p, g)){};
            const auto of = [&](Vector<C> w, Vector<C> slope) __attribute__((always_inline)) { return pulled(w, slope, center, lost) * scale; };
            for (int64_t i = begin; i < begin + whole; i += lanes) store(of(load(p + i), load(g + i)), out + i);
            const int64_t end = begin + whole;
            if (rest) store(of(load(p + end, rest, C(0)), load(g + end, rest, C(0))), rest, out + end);
            if (most.k >= 0) put(most.value * double(scale), out[begin + most.k]);
        }
        return true;
    });
}

template <class T>
bool are_short(const SoftmaximaBackward* call) {
    const SoftmaximaRows& rows = call->rows;
    const bool ordinary = !rows.taus && rows.tau > 0x1p-64 && rows.tau < 0x1p64;
    return sizeof(T) == sizeof(compute_t<T>) && !call->labels && rows.inner == 1 && rows.n <= SHORT_ROW && rows.outer >= GROUP && ordinary;
}

template <Reads reads, class T>
bool softmax_backward(const SoftmaximaBackward* call, T* type) {
    const auto general = [=](const SoftmaximaBackward* rows) { return backward<Probability, reads>(rows, type, 0.4); };
    if (!are_short<T>(call)) return general(call);
    using C = compute_t<T>;
    const auto product = [](Vector<C> p, Vector<C> g) __attribute__((always_inline)) { return p * g; };
    const auto pulled = [](Vector<C> p, Vector<C> g, C center, C lost) __attribute__((always_inline)) { return p * ((g - center) - lost); };
    const auto most = [](const Row<C>& row, const C* p, const C* g) __attribute__((noinline)) {
        return MostEntry<Probability, reads>{row, [=](int64_t i) { return double(p[i]); }, [=](int64_t i) { return double(g[i]); }};
    };
    return pull_short_rows<C>(call, 0.4, C(MOST_P), product, pulled, most, general);
}

template <class T>
bool log_softmax_pull(const SoftmaximaBackward* call, T* type) {
    const auto general = [=](const SoftmaximaBackward* rows) { return log_softmax_backward(rows, type); };
    if (!are_short<T>(call)) return general(call);
    using C = compute_t<T>;
    const Exponential<C> exp(Origin<C>{});
    const Vector<C> nothing = all(-std::numeric_limits<C>::infinity());
    const auto allowed = [=](Vector<C> log_p, Vector<C> g) __attribute__((always_inline)) { return log_p == nothing ? Vector<C>{} : g; };
    const auto pulled = [=](Vector<C> log_p, Vector<C> g, C total, C)
                            __attribute__((always_inline)) { return allowed(log_p, g) - exp.of(log_p, Vector<C>{}) * total; };
    const auto most = [](const Row<C>& row, const C* log_p, const C* g) __attribute__((noinline)) {
        return MostOfLog::of(row, [=](int64_t i) { return double(log_p[i]); }, [=](int64_t i) { return double(g[i]); });
    };
    return pull_short_rows<C>(call, 1.0, C(LOG_MOST_P), allowed, pulled, most, general);
}

template <class Weight, Reads reads = Reads::nothing>
int run(const SoftmaximaBackward* call, double nanoseconds) {
    return with_dtype(call->rows.dtype, [=](auto type) { return backward<Weight, reads>(call, type, nanoseconds); });
}

}  // namespace

int softmax_backward(const SoftmaximaBackward* call) {
    return with_dtype(call->rows.dtype, [=](auto type) { return softmax_backward<Reads::nothing>(call, type); });
}

int elastic_backward(const SoftmaximaBackward* call) {
    return with_dtype(call->rows.dtype, [=](auto type) { return softmax_backward<Reads::sink>(call, type); });
}

int rectified_backward(const SoftmaximaBackward* call) { return run<Probability, Reads::sign>(call, 0.6); }

int sparsemax_backward(const SoftmaximaBackward* call) { return run<Support>(call, 0.4); }

int entmax15_backward(const SoftmaximaBackward* call) { return run<Root>(call, 0.8); }

int entmax_backward(const SoftmaximaBackward* call) { return run<Power>(call, 3.0); }

int log_softmax_backward(const SoftmaximaBackward* call) {
    return with_dtype(call->rows.dtype, [=](auto type) { return log_softmax_pull(call, type); });
}

}  // namespace SOFTMAXIMA_ISA

SOFTMAXIMA_KERNEL(softmax_backward, Backward)
SOFTMAXIMA_KERNEL(elastic_backward, Backward)
SOFTMAXIMA_KERNEL(rectified_backward, Backward)
SOFTMAXIMA_KERNEL(sparsemax_backward, Backward)
SOFTMAXIMA_KERNEL(entmax15_backward, Backward)
SOFTMAXIMA_KERNEL(entmax_backward, Backward)
SOFTMAXIMA_KERNEL(log_softmax_backward, Backward)
