// sparsemax and entmax-1.5 of short rows, as columns: every step is taken for all of them, in vectors, until each is where it belongs.
#pragma once

#include "columns.h"
#include "threshold.h"

namespace SOFTMAXIMA_ISA {

// Each family has, for WIDTH rows whose gaps [n, WIDTH] lie beside one another, all finite, and edges at or below their thresholds,
// n a multiple of LINES,
//   raise(gaps, n, edges)          raises the edges, by arithmetic in float, to where rounding might put them above,
//   solve(gaps, n, edges, rests)   raises them to the thresholds, which they lack their rests of.
constexpr int64_t LINES = 4;

template <class Family, int64_t WIDTH>
struct Edges;

template <int64_t WIDTH>
struct Edges<Sparsemax, WIDTH> {
    // The threshold is edge + rest, of those that are settled.
    template <class V>
    static void step(const V* gaps, int64_t n, V* edges, V* rests) {
        alignas(LINE) V mass[WIDTH], kept[WIDTH], least[WIDTH], open[WIDTH];
        for (int64_t j = 0; j < WIDTH; ++j) {
            open[j] = 1;
            rests[j] = 0;
        }
        for (V left = 1; left > 0;) {
            for (int64_t j = 0; j < WIDTH; ++j) mass[j] = kept[j] = least[j] = 0;
            for (int64_t i = 0; i < n; i += LINES) {
                const V* lines = gaps + i * WIDTH;
#pragma omp simd
                for (int64_t j = 0; j < WIDTH; ++j) {
                    const V edge = edges[j];
                    V sum = 0, count = kept[j], lowest = least[j];  // so few at a time that no more than some digits are rounded
                    for (int64_t k = 0; k < LINES; ++k) {
                        const V own = lines[k * WIDTH + j], above = own > edge ? V(1) : V(0), gap = above * own;
                        sum += above * (own - edge);
                        count += above;
                        lowest = gap < lowest ? gap : lowest;
                    }
                    mass[j] += sum;
                    kept[j] = count;
                    least[j] = lowest;
                }
            }
            left = 0;
#pragma omp simd reduction(+ : left)
            for (int64_t j = 0; j < WIDTH; ++j) {
                const Sparsemax::Step<V> step(edges[j], mass[j] - 1, kept[j], least[j]);
                const V still = step.settled > 0 ? V(0) : open[j], settles = open[j] - still;
                rests[j] = settles > 0 ? step.move : rests[j];
                edges[j] = still > 0 ? step.next : edges[j];
                open[j] = still;
                left += still;
            }
        }
    }

    static void raise(const float* gaps, int64_t n, float* edges) {
        alignas(LINE) float moves[WIDTH];
        step(gaps, n, edges, moves);
        for (int64_t j = 0; j < WIDTH; ++j) edges[j] += moves[j] - slack<float>(n);
    }

    static void solve(const double* gaps, int64_t n, double* edges, double* rests) {
        alignas(LINE) double moves[WIDTH];
        step(gaps, n, edges, moves);
        for (int64_t j = 0; j < WIDTH; ++j) {
            rests[j] = 0;
            add_exactly(moves[j], edges[j], rests[j]);
        }
    }
};

template <int64_t WIDTH>
struct Edges<Entmax15, WIDTH> {
    template <class V>
    struct alignas(LINE) Sums {
        V roots[WIDTH], mass[WIDTH], kept[WIDTH], least[WIDTH];  // as in Entmax15::Sums

        Sums(const V* gaps, int64_t n, const V* edges) {
            for (int64_t j = 0; j < WIDTH; ++j) roots[j] = mass[j] = kept[j] = least[j] = 0;
            for (int64_t i = 0; i < n; i += LINES) {
                const V* lines = gaps + i * WIDTH;
#pragma omp simd
                for (int64_t j = 0; j < WIDTH; ++j) {
                    const V edge = edges[j];
                    V sum = roots[j], squares = mass[j], count = kept[j], lowest = least[j];
                    for (int64_t k = 0; k < LINES; ++k) {
                        const V own = lines[k * WIDTH + j], above = own > edge ? V(1) : V(0), gap = above * own;
                        const V root = above * (own - edge) / 2;
                        sum += root;
                        squares += root * root;
                        count += above;
                        lowest = gap < lowest ? gap : lowest;
                    }
                    roots[j] = sum;
                    mass[j] = squares;
                    kept[j] = count;
                    least[j] = lowest;
                }
            }
        }

        V step(int64_t j) const { return 2 * (mass[j] - std::sqrt(mass[j])) / roots[j]; }
    };

    static void raise(const float* gaps, int64_t n, float* edges) {
        float farthest = 1;
        for (int step = 0; step < Entmax15::MOST_STEPS && farthest > 1e-2f; ++step) {
            const Sums<float> sums(gaps, n, edges);
            farthest = 0;
#pragma omp simd reduction(max : farthest)
            for (int64_t j = 0; j < WIDTH; ++j) {
                const float newton = sums.step(j), move = newton > 0 ? newton : 0.0f;
                edges[j] += move;
                farthest = move > farthest ? move : farthest;
            }
        }
        for (int64_t j = 0; j < WIDTH; ++j) edges[j] -= 2 * slack<float>(n);
    }

    static void solve(const double* gaps, int64_t n, double* edges, double* rests) {
        alignas(LINE) double open[WIDTH];  // 1 for a row that is not solved
        for (int64_t j = 0; j < WIDTH; ++j) rests[j] = 0;
        for (int64_t j = 0; j < WIDTH; ++j) open[j] = 1;
        double left = 1;
        for (int step = 0; step < Entmax15::MOST_STEPS && left > 0; ++step) {
            const Sums<double> sums(gaps, n, edges);
            left = 0;
#pragma omp simd reduction(+ : left)
            for (int64_t j = 0; j < WIDTH; ++j) {
                const double roots = sums.roots[j], excess = sums.mass[j] - 1, discriminant = roots * roots - sums.kept[j] * excess;
                const double exact = edges[j] + 2 * excess / (roots + std::sqrt(discriminant < 0 ? 0.0 : discriminant));
                const double newton = sums.step(j), move = newton > 1e-16 ? newton : 0.0;
                const bool solved = (discriminant >= 0) & (sums.least[j] > exact) & (sums.kept[j] > 0);
                const double next = solved ? exact : edges[j] + move;
                edges[j] = open[j] > 0 ? next : edges[j];
                open[j] = (solved | (move == 0)) ? 0.0 : open[j];
                left += open[j];
            }
        }
    }
};

template <class C, class Family>
struct alignas(LINE) ThresholdColumns {
    static constexpr int64_t WIDTH = Columns<C>::WIDTH;

    Columns<C>& columns;
    alignas(LINE) double edge[WIDTH], rest[WIDTH];
    double conjugate[WIDTH];  // Ω*(z) less the largest z

    static bool suit(const SoftmaximaRows& rows) { return are_short(rows); }

    explicit ThresholdColumns(Columns<C>& columns_) : columns(columns_) {}

    // The thresholds.
    bool solve(Scratch<C>& scratch) {
        columns.find_top(false);
        const int64_t n = (columns.n() + LINES - 1) / LINES * LINES;
        float* rough = scratch.rough.at_least(n * WIDTH);
        gaps_ = scratch.gaps.at_least(n * WIDTH);
        if (!rough || !gaps_) return false;
        const double lowest = -Family(nullptr).reach();
        measure(lowest, rough);
        alignas(LINE) float near[WIDTH];
        for (int64_t j = 0; j < WIDTH; ++j) near[j] = float(lowest);
        Edges<Family, WIDTH>::raise(rough, n, near);
        for (int64_t j = 0; j < WIDTH; ++j) edge[j] = double(near[j]) > lowest ? double(near[j]) : lowest;
        Edges<Family, WIDTH>::solve(gaps_, n, edge, rest);
        return true;
    }

    // The same, and the conjugates.
    bool prepare(C*, int64_t, Scratch<C>& scratch) {
        if (!solve(scratch)) return false;
        double mean[WIDTH] = {};  // Σ p z
        for (int64_t i = 0; i < columns.n(); ++i) {
            const double* line = gaps_ + i * WIDTH;
#pragma omp simd
            for (int64_t j = 0; j < WIDTH; ++j) mean[j] += Family::share(line[j], edge[j], rest[j]) * line[j];
        }
        for (int64_t j = 0; j < WIDTH; ++j) {
            const bool empty = columns.top[j] == Columns<C>::nothing;
            Threshold threshold{edge[j]};
            threshold.rest = rest[j];
            const double value = (Family::beta * mean[j] - Family(nullptr).offset(threshold)) / (1 + Family::beta);
            conjugate[j] = (empty ? 0.0 : value) + nan_[j];
        }
        return true;
    }

    // weight · p
    void emit(const double* weight, C* out, int64_t step) const {
        alignas(LINE) double factor[WIDTH];
        for (int64_t j = 0; j < WIDTH; ++j) factor[j] = weight[j] + nan_[j];
        for (int64_t i = 0; i < columns.n(); ++i) {
            const double* line = gaps_ + i * WIDTH;
            C* to = out + i * step;
#pragma omp simd
            for (int64_t j = 0; j < WIDTH; ++j) to[j] = C(Family::share(line[j], edge[j], rest[j]) * factor[j]);
        }
    }

    // p of a score in each row, from its distance to the largest z.
    void likelihoods(const double* distances, double* p, double* lack) const {
        for (int64_t j = 0; j < WIDTH; ++j) p[j] = Family::share(distances[j], edge[j], rest[j]) + nan_[j];
        for (int64_t j = 0; j < WIDTH; ++j) lack[j] = 1 - p[j];
    }

   private:
    double* gaps_ = nullptr;           // [n, WIDTH], z less the largest, or as far below it as the support can go
    alignas(LINE) double nan_[WIDTH];  // for a row with NaN or +∞, for others 0

    void measure(double lowest, float* rough) {
        constexpr double nan = std::numeric_limits<double>::quiet_NaN();
        alignas(LINE) C buffer[WIDTH];
        for (int64_t j = 0; j < WIDTH; ++j) nan_[j] = columns.top[j] == std::numeric_limits<C>::infinity() ? nan : 0.0;
        for (int64_t i = 0; i < columns.n(); ++i) {
            const C* values = columns.raw(i, false, buffer);
            double* line = gaps_ + i * WIDTH;
            float* near = rough + i * WIDTH;
#pragma omp simd
            for (int64_t j = 0; j < WIDTH; ++j) {
                const double own = gap(values[j], double(columns.top[j]), columns.scale[j]);
                line[j] = own > lowest ? own : lowest;
                nan_[j] = values[j] == values[j] ? nan_[j] : nan;
            }
#pragma omp simd
            for (int64_t j = 0; j < WIDTH; ++j) near[j] = float(line[j]);
        }
        for (int64_t i = columns.n() * WIDTH; i < (columns.n() + LINES - 1) / LINES * LINES * WIDTH; ++i) gaps_[i] = rough[i] = float(lowest);
    }
};

}  // namespace SOFTMAXIMA_ISA
