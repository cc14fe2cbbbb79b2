// p_i = P[argmax_j (z_j + σε_j) = i] of independent ε with CDF F, z = x/τ, θ = (noise, σ, what else is added to all scores); its
// derivative, and its loss of labels E max(z + σε) − σ E ε − z_t. With u = (z − max z)/σ,
//
//   p_i = ∫ a_i e^L dz,   L(z) = Σ_j log F(z − u_j),   a_i(z) = (f/F)(z − u_i)
//   στ ∂⟨g, p⟩/∂x_i = ∫ a_i (Σ_j a_j γ_i − Σ_j a_j γ_j) e^L dz,   γ = g − g_k, k the largest score
//   E max(u + ε) = b + ∫_b^∞ (1 − e^L) dz, e^L being 0 below b
//
// by the nodes of maps/_quadrature.py, which says why they are enough. F of Gumbel, logistic, exponential and Laplace noise depends on
// y = e^{−t} = w_j v, with w_j = e^{u_j} once a row and v = e^{−z} once a node.

#include <algorithm>
#include <cmath>

#include "loss.h"
#include "near_zero.h"

namespace SOFTMAXIMA_ISA {
namespace {

enum { NORMAL, GUMBEL, LOGISTIC, LAPLACE, UNIFORM, EXPONENTIAL };

constexpr double LOWEST = -40;     // of log e^L
constexpr int64_t SEEN = 54;       // scores whose places matter to double precision, where half the noise is below its median
constexpr int64_t FEW = 64;        // kinks of uniform noise between which wide panels will do
constexpr int STEPS = 192;         // of the trapezoid rule,
constexpr int64_t MODERATE = 512;  // and the scores up to which fewer will do, where e^L is less steep
constexpr int HALVINGS = 8;        // by which the lowest node is found

// x and w of the rule of Gauss and Legendre on [0, 1].
template <int order>
struct Gauss {
    double x[order], w[order];

    Gauss() {
        for (int k = 0; k < order; ++k) {
            double root = std::cos(3.14159265358979323846 * (k + 0.75) / (order + 0.5)), slope = 1;
            for (int step = 0; step < 8; ++step) {
                double last = 1, value = root;
                for (int i = 2; i <= order; ++i) {
                    const double next = ((2 * i - 1) * root * value - (i - 1) * last) / i;
                    last = value;
                    value = next;
                }
                slope = order * (root * value - last) / (root * root - 1);
                root -= value / slope;
            }
            x[k] = (1 - root) / 2;
            w[k] = 1 / ((1 - root * root) * slope * slope);
        }
    }

    static const Gauss& rule() {
        static const Gauss it;
        return it;
    }
};

// log F and f/F of each noise, of w and v, or of u and z.

struct LogisticNoise {
    static constexpr int few = 192;
    static constexpr double lowest = LOWEST, mean = 0;

    [[gnu::always_inline]] static inline void at(double w, double v, double& level, double& rate) {
        const double y = w * v, sum = 1 + y, inverse = 1 / sum;
        level = -(log_of_normal(sum) + (y - (sum - 1)) * inverse);
        rate = y * inverse;
    }
};

struct ExponentialNoise {
    static constexpr double mean = 1;

    [[gnu::always_inline]] static inline void at(double w, double v, double& level, double& rate) {
        const double y = w * v, rest = 1 - y, inverse = 1 / rest;
        level = log_of_normal(rest) - (y - (1 - rest)) * inverse;
        rate = y * inverse;
    }
};

struct LaplaceNoise {
    static constexpr double mean = 0;

    [[gnu::always_inline]] static inline void at(double w, double v, double& level, double& rate) {
        const double y = w * v, half = 0.5 * y;
        const bool above = y < 1;
        const double cdf = above ? 1 - half : 0.5 / y, inverse = 1 / cdf;
        level = log_of_normal(cdf) - (above ? (half - (1 - cdf)) * inverse : 0.0);
        rate = above ? half * inverse : 1.0;
    }
};

struct UniformNoise {
    static constexpr double mean = 0.5;

    [[gnu::always_inline]] static inline void at(double u, double z, double& level, double& rate) {
        const double t = z - u;
        const bool inside = t < 1;
        const double counted = inside ? (t > 1e-18 ? t : 1e-18) : 1.0;
        level = log_of_normal(counted);
        rate = inside ? 1 / counted : 0.0;
    }
};

struct NormalNoise {
    static constexpr int few = 128;
    static constexpr double lowest = -8.9, mean = 0;

    // Mills' ratio (1 − Φ(s))/φ(s) is this polynomial in (s − 4)/(s + 4), divided by 1 + s, within 3e−16 of itself.
    [[gnu::always_inline]] static inline double mills(double s) {
        constexpr double coefficients[] = {
            1.1832619145678034,      -0.24239967052180741,   0.035091880234763104,   0.07169048120137539,     -0.08070800967977465,
            0.044959129078671674,    -0.012539103606874952,  -0.000715950924391318,  0.0017418486430218329,   -0.00023670163210326214,
            -0.00022021483064329638, 5.326645716361317e-05,  3.415612322463766e-05,  -8.604849523997265e-06,  -6.546957883108191e-06,
            1.0172029105143342e-06,  1.3806226999924465e-06, -5.540543966207069e-10, -2.7631507997875554e-07, -4.6731449116760174e-08,
            4.373269691351003e-08,   1.443413241706175e-08,  -3.876203727928102e-09, -1.8186742925695956e-09,
        };
        constexpr int degree = int(sizeof(coefficients) / sizeof(double)) - 1;
        const double t = (s - 4) / (s + 4);
        double value = coefficients[degree];
#pragma GCC unroll 32
        for (int i = degree - 1; i >= 0; --i) value = value * t + coefficients[i];
        return value / (1 + s);
    }

    [[gnu::always_inline]] static inline void at(double u, double z, double& level, double& rate) {
        constexpr double of_density = 0.39894228040143267794;  // 1/√(2π)
        const double t = z - u, ratio = mills(t < 0 ? -t : t), exponent = -0.5 * t * t;
        const double density = of_density * exp(exponent), tail = density * ratio;
        const bool below = t < 0;
        const double rest = 1 - tail, inverse = 1 / (below ? ratio : rest);
        const double value = log_of_normal(below ? of_density * ratio : rest);
        level = value + (below ? exponent : -(tail - (1 - rest)) * inverse);
        rate = below ? inverse : density * inverse;
    }
};

// The scores of a row that are above −∞.
struct Noisy {
    int64_t count;
    int64_t* index;    // where they are
    double* u;         // their gaps
    double* w;         // e^u
    double* rates;     // a at a node
    double* sums;      // of p, or of the derivative
    double* upstream;  // γ
    double* places;    // count + SPARE numbers to work with
    double mass;       // Σ w
    double top;        // the largest x
    Halt* halt;        // of a row that takes long

    static constexpr int64_t SPARE = 128;
    static constexpr int64_t MANY = 1024;  // scores, of which a node takes longer than a look at the clock

    void heed() const {
        if (halt) halt->heed();
    }
};

// L at a node, of the first `count` scores, and their rates.
template <class Noise>
double scan(const double* scores, int64_t count, double place, double* rates) {
    double level = 0;
#pragma omp simd reduction(+ : level)
    for (int64_t j = 0; j < count; ++j) {
        double own, rate;
        Noise::at(scores[j], place, own, rate);
        level += own;
        rates[j] = rate;
    }
    return level;
}

// The last z from low to high with L ≤ LOWEST, or less.
template <class Noise, class Place>
double lowest_node(const double* scores, const Noisy& row, double low, double high, const Place& place) {
    for (int step = 0; step < HALVINGS; ++step) {
        row.heed();
        const double middle = (low + high) / 2;
        (scan<Noise>(scores, row.count, place(middle), row.rates) <= LOWEST ? low : high) = middle;
    }
    return low;
}

inline double share_at(double z) { return exp(-z); }

inline double itself(double z) { return z; }

// visit(scores, count, place, weight) for each node. Where e^L is 0 below.

template <class Noise, class Place, class Visit>
double visit_steps(const double* scores, const Noisy& row, double high, const Place& place, const Visit& visit) {
    const int steps = row.count <= MODERATE ? Noise::few : STEPS;
    const double low = lowest_node<Noise>(scores, row, Noise::lowest, high, place), step = (high - low) / steps;
    for (int k = 0; k < steps; ++k) visit(scores, row.count, place(low + (k + 0.5) * step), step);
    return low;
}

template <class Visit>
double visit_nodes(LogisticNoise, const Noisy& row, const Visit& visit) {
    return visit_steps<LogisticNoise>(row.w, row, log(row.mass) + 39.2, share_at, visit);  // where 1 − e^L ≤ Σ w v = 1e−17
}

template <class Visit>
double visit_nodes(NormalNoise, const Noisy& row, const Visit& visit) {
    return visit_steps<NormalNoise>(row.u, row, 8.6 + 0.26 * log(double(row.count)), itself, visit);
}

// Above all scores, of F = 1 − share y there: dz = −dv/v.
template <class Visit>
double visit_above(double share, const Noisy& row, const Visit& visit) {
    const auto& gauss = Gauss<48>::rule();
    const double bound = std::min(1.0, 45.0 / (share * row.mass));
    for (int k = 0; k < 48; ++k) visit(row.w, row.count, bound * gauss.x[k], gauss.w[k] / gauss.x[k]);
    return -log(bound);
}

template <class Visit>
double visit_nodes(ExponentialNoise, const Noisy& row, const Visit& visit) {
    return visit_above(1.0, row, visit);
}

template <class Visit>
double visit_nodes(LaplaceNoise, const Noisy& row, const Visit& visit) {
    const double above = visit_above(0.5, row, visit);
    if (scan<LaplaceNoise>(row.w, row.count, 1.0, row.rates) < LOWEST) return above;
    const double first = lowest_node<LaplaceNoise>(row.w, row, LOWEST, 0.0, share_at);
    const int64_t seen = minimum(SEEN, row.count);
    std::partial_sort_copy(row.u, row.u + row.count, row.places, row.places + seen, [](double a, double b) { return a > b; });
    const auto& gauss = Gauss<14>::rule();
    for (int64_t k = 1; k <= seen && row.places[k - 1] > first; ++k) {
        const double top = row.places[k - 1], bottom = k < seen ? std::max(row.places[k], first) : first;
        const int panels = int(std::ceil(top - bottom));
        const double width = (top - bottom) / panels;
        for (int panel = 0; panel < panels; ++panel)
            for (int i = 0; i < 14; ++i) visit(row.w, row.count, share_at(bottom + width * (panel + gauss.x[i])), width * gauss.w[i]);
    }
    return first;
}

template <int order, class Visit>
void visit_panels(const double* edges, int64_t count, const Noisy& row, const Visit& visit) {
    const auto& gauss = Gauss<order>::rule();
    int64_t active = 0;
    for (int64_t k = 1; k < count; ++k) {
        const double low = edges[k], width = edges[k - 1] - low;
        if (width <= 0) continue;
        while (active < row.count && row.u[active] + 1 > low) ++active;
        for (int i = 0; i < order; ++i) visit(row.u, active, low + width * gauss.x[i], width * gauss.w[i]);
    }
}

// u descend, and are above −1. 1 − s is where −L ≥ H(s) = Σ (s − d)₊, d = −u, is of some level.
template <class Visit>
double visit_nodes(UniformNoise, const Noisy& row, const Visit& visit) {
    const bool few = row.count <= FEW;
    const int levels = few ? 5 : 80;
    double* edges = row.places;
    int64_t count = 0, below = 1;
    double sum = -row.u[0], bottom = 0;
    for (int k = 1; k <= levels; ++k) {
        const double level = -LOWEST * k / levels;
        for (; below < row.count && double(below) * -row.u[below] - sum <= level; ++below) sum -= row.u[below];
        bottom = 1 - (level + sum) / double(below);
        if (bottom <= 0) break;
        edges[count++] = bottom;
    }
    bottom = std::max(bottom, 0.0);
    edges[count++] = bottom;
    for (int64_t j = 0; j < row.count && row.u[j] + 1 > bottom; ++j) edges[count++] = row.u[j] + 1;
    std::sort(edges, edges + count, [](double a, double b) { return a > b; });
    few ? visit_panels<12>(edges, count, row, visit) : visit_panels<6>(edges, count, row, visit);
    return bottom;
}

// p, but for its sum, in `sums`; E max(u + ε).
template <class Noise>
double integrate(const Noisy& row) {
    double below_one = 0;
    const double bottom = visit_nodes(Noise(), row, [&](const double* scores, int64_t count, double place, double weight) {
        row.heed();
        const double level = exp(scan<Noise>(scores, count, place, row.rates)), share = weight * level;
        below_one += weight * (1 - level);
        for (int64_t j = 0; j < count; ++j) row.sums[j] += share * row.rates[j];
    });
    return row.count > 1 ? bottom + below_one : Noise::mean;
}

template <class Noise>
void integrate_derivative(const Noisy& row) {
    visit_nodes(Noise(), row, [&](const double* scores, int64_t count, double place, double weight) {
        row.heed();
        const double share = weight * exp(scan<Noise>(scores, count, place, row.rates));
        double all = 0, moved = 0;
#pragma omp simd reduction(+ : all, moved)
        for (int64_t j = 0; j < count; ++j) {
            all += row.rates[j];
            moved += row.rates[j] * row.upstream[j];
        }
        for (int64_t j = 0; j < count; ++j) row.sums[j] += share * row.rates[j] * (all * row.upstream[j] - moved);
    });
}

// body(Noise()), of all but Gumbel noise, with which this is softmax.
template <class Body>
void with_noise(double noise, const Body& body) {
    switch (int(noise)) {
        case NORMAL: return body(NormalNoise());
        case LOGISTIC: return body(LogisticNoise());
        case LAPLACE: return body(LaplaceNoise());
        case UNIFORM: return body(UniformNoise());
        default: return body(ExponentialNoise());
    }
}

constexpr double EULER = 0.57721566490153286;

double mean_of(double noise) {
    if (noise == GUMBEL) return EULER;
    double mean = 0;
    with_noise(noise, [&](auto noise) { mean = decltype(noise)::mean; });
    return mean;
}

// In double, and what the roundings of equal terms would add up to.
double sum_of(const double* terms, int64_t count) {
    double sum = 0, lost = 0;
#pragma omp simd reduction(+ : sum, lost)
    for (int64_t k = 0; k < count; ++k) add_exactly(terms[k], sum, lost);
    return sum + lost;
}

enum class Found { memory_ran_out, wrong, nothing, scores };

template <class T>
double scale_of(const Row<T>& row) {
    return inverse(row.tau * row.theta[1]);
}

template <class T>
Found find_scores(const Row<T>& row, Scratch<compute_t<T>>& scratch, Noisy& noisy) {
    const int64_t n = row.n;
    double* memory = scratch.gaps.at_least(6 * n + Noisy::SPARE);
    int64_t* index = reinterpret_cast<int64_t*>(scratch.origins.at_least(n));  // of as many bytes
    if (!memory || !index) return Found::memory_ran_out;
    noisy = {0, index, memory, memory + n, memory + 2 * n, memory + 3 * n, memory + 4 * n, memory + 5 * n, 0, 0, n >= Noisy::MANY ? scratch.halt : nullptr};
    double* x = noisy.places;
    for (int64_t i = 0; i < n; i += BLOCK) row.wide(i, minimum(BLOCK, n - i), scratch, x + i);
    const double top = noisy.top = highest(x, n), scale = scale_of(row);
    if (top == -NOTHING || any_nan(x, n)) return Found::wrong;
    const double least = *row.theta == UNIFORM ? -1.0 : NOTHING;
    for (int64_t i = 0; i < n; ++i) {
        const double u = x[i] == NOTHING ? NOTHING : gap(x[i], top, scale);
        if (u > least) index[noisy.count++] = i;
        x[i] = u;
    }
    if (*row.theta == UNIFORM) {
        const auto before = [=](int64_t a, int64_t b) { return x[a] > x[b] || (x[a] == x[b] && a < b); };
        in_order(before, row.halt, [&](const auto& order) { std::sort(index, index + noisy.count, order); });
    }
    for (int64_t k = 0; k < noisy.count; ++k) {
        noisy.u[k] = x[index[k]];
        noisy.sums[k] = 0;
    }
    for (int64_t k = 0; k < noisy.count; ++k) noisy.w[k] = exp(noisy.u[k]);
    noisy.mass = sum_of(noisy.w, noisy.count);
    return noisy.count > 0 ? Found::scores : Found::nothing;
}

template <class T>
bool fill(const Row<T>& row, double value) {
    for (int64_t i = 0; i < row.n; ++i) narrow(value, row.out[i]);
    return true;
}

// Σ_i p_i and E max(u + ε) of p in `sums`.
struct Total {
    double mass, expected;
};

Total sum_up(const Noisy& row, double noise) {
    if (noise == GUMBEL) {
        std::copy_n(row.w, row.count, row.sums);
        return {row.mass, log(row.mass) + EULER};
    }
    double expected = 0;
    with_noise(noise, [&](auto noise) { expected = integrate<decltype(noise)>(row); });
    return {sum_of(row.sums, row.count), expected};
}

template <class T>
bool probabilities(const Row<T>& row, Scratch<compute_t<T>>& scratch) {
    Noisy noisy;
    const Found found = find_scores(row, scratch, noisy);
    if (found == Found::memory_ran_out) return false;
    if (found != Found::scores) return fill(row, found == Found::wrong ? std::numeric_limits<double>::quiet_NaN() : 0.0);
    const double mass = sum_up(noisy, *row.theta).mass;
    fill(row, 0);
    for (int64_t k = 0; k < noisy.count; ++k) narrow(noisy.sums[k] / mass, row.out[noisy.index[k]]);
    return true;
}

// w (V(x) − σ E ε − x_t + z V(x)²), and its gradient w ((1 + 2 z V(x)) p − y), which may take the place of x.
template <class T>
bool loss_of_label(const SoftmaximaLoss* call, const Row<T>& row, Scratch<compute_t<T>>& scratch) {
    constexpr double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
    const int64_t label = call->labels[row.index];
    double& value = call->values[row.index] = 0;
    if (label < 0) return !row.out || fill(row, 0);
    Noisy noisy;
    const Found found = find_scores(row, scratch, noisy);
    if (found == Found::memory_ran_out) return false;
    const double weight = call->class_weight ? call->class_weight[label] : 1.0, score = row.score(label);
    if (found != Found::scores) {
        value = found == Found::wrong ? nan : weight == 0 ? 0.0 : infinity;
        return !row.out || fill(row, found == Found::wrong ? nan * weight : 0.0);
    }
    const Total total = sum_up(noisy, *row.theta);
    const double scale = row.theta[1], start = row.theta[2], own = scale * mean_of(*row.theta);
    const double above = scale * total.expected - own, distance = noisy.top - score;
    double each = above + distance, slope = 1;
    if (each < 0 && each >= -0x1p-40 * (1 + std::fabs(above) + distance)) each = 0;  // rounding alone
    if (call->square != 0) {
        const double whole = noisy.top + above + own + start;
        each += call->square * whole * whole;
        slope += 2 * call->square * whole;
    }
    value = weight == 0 ? 0.0 : score == NOTHING ? infinity : weight * each;
    if (!row.out) return true;
    const double factor = weight * call->scale;
    double p = 0;
    fill(row, 0);
    for (int64_t k = 0; k < noisy.count; ++k) {
        const double share = noisy.sums[k] / total.mass;
        p = noisy.index[k] == label ? share : p;
        narrow(factor * slope * share, row.out[noisy.index[k]]);
    }
    if (score > NOTHING) narrow(factor * (slope * p - 1), row.out[label]);
    return true;
}

template <class T>
bool pull(const Row<T>& row, const T* p, const Upstream<T>& g, Scratch<compute_t<T>>& scratch) {
    Noisy noisy;
    const Found found = find_scores(row, scratch, noisy);
    if (found == Found::memory_ran_out) return false;
    if (found != Found::scores) return fill(row, found == Found::wrong ? std::numeric_limits<double>::quiet_NaN() : 0.0);
    double* upstream = noisy.upstream;
    int64_t top = 0;
    for (int64_t k = 0; k < noisy.count; ++k) {
        const int64_t i = noisy.index[k];
        const double own = double(g[i]);
        upstream[k] = widen(p[i]) == 0 && !std::isfinite(own) ? 0.0 : own;
        top = noisy.u[k] > noisy.u[top] ? k : top;
    }
    const double shrink = shrinking<compute_t<T>>(upstream, noisy.count), reference = upstream[top] * shrink;
    for (int64_t k = 0; k < noisy.count; ++k) upstream[k] = upstream[k] * shrink - reference;
    if (*row.theta == GUMBEL) {
        double moved = 0;
        for (int64_t k = 0; k < noisy.count; ++k) moved += noisy.w[k] * upstream[k];
        moved /= noisy.mass;
        for (int64_t k = 0; k < noisy.count; ++k) noisy.sums[k] = noisy.w[k] / noisy.mass * (upstream[k] - moved);
    } else {
        with_noise(*row.theta, [&](auto noise) { integrate_derivative<decltype(noise)>(noisy); });
    }
    const double scale = scale_of(row);
    // p may lie where the derivative is written.
    for (int64_t k = 0; k < noisy.count; ++k)
        if (widen(p[noisy.index[k]]) == 0) noisy.sums[k] = 0;
    fill(row, 0);
    for (int64_t k = 0; k < noisy.count; ++k) put_any(noisy.sums[k] * scale / shrink, row.out[noisy.index[k]]);
    return true;
}

constexpr double NANOSECONDS = 1000;  // that a score takes, or so

}  // namespace

int perturb_max(const SoftmaximaForward* call) {
    return with_dtype(call->rows.dtype, [=](auto type) {
        using T = std::remove_pointer_t<decltype(type)>;
        return for_each_whole_row<T>(call->rows, nullptr, 0, call->out, NANOSECONDS,
                                     [](const Row<T>& row, const T* const*, Scratch<compute_t<T>>& scratch) { return probabilities(row, scratch); });
    });
}

int perturb_max_loss(const SoftmaximaLoss* call) {
    return with_dtype(call->rows.dtype, [=](auto type) {
        using T = std::remove_pointer_t<decltype(type)>;
        return for_each_whole_row<T>(call->rows, nullptr, 0, call->out, NANOSECONDS,
                                     [=](const Row<T>& row, const T* const*, Scratch<compute_t<T>>& scratch) { return loss_of_label(call, row, scratch); });
    });
}

int perturb_max_backward(const SoftmaximaBackward* call) {
    return with_dtype(call->rows.dtype, [=](auto type) {
        using T = std::remove_pointer_t<decltype(type)>;
        const T* inputs[] = {static_cast<const T*>(call->p), dense_upstream<T>(call)};
        return for_each_whole_row<T>(call->rows, inputs, 2, call->out, NANOSECONDS,
                                     [=](const Row<T>& row, const T* const* others, Scratch<compute_t<T>>& scratch) {
                                         const Upstream<T> g(call, row.index, others[1]);
                                         return g.left_out() ? fill_with_zeros(row) : pull(row, others[0], g, scratch);
                                     });
    });
}

}  // namespace SOFTMAXIMA_ISA

SOFTMAXIMA_KERNEL(perturb_max, Forward)
SOFTMAXIMA_KERNEL(perturb_max_backward, Backward)
SOFTMAXIMA_KERNEL(perturb_max_loss, Loss)
