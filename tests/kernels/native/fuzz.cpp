// Random calls of every kernel, for sanitizers to watch: every array has just the size that the interface says, and every call has
// a thread and so a scratch of its own. What comes out is held to little: it is written, and the same whatever was there before and
// whatever the number of threads; probabilities are in [0, 1] and sum to at most what the map says; NaN comes of NaN alone, or of
// +∞. The values are the business of test_kernels.py.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "kernels.h"

// kernels.inc has the line SOFTMAXIMA_KERNEL(name, kind) of every kernel.
#undef SOFTMAXIMA_KERNEL
#define SOFTMAXIMA_KERNEL(name, kind) int name(const Softmaxima##kind*);
namespace baseline {
#include "kernels.inc"
}
namespace v3 {
#include "kernels.inc"
}
namespace v4 {
#include "kernels.inc"
}
#undef SOFTMAXIMA_KERNEL

namespace {

// What a map gives one of its kernels, by its own word.
struct Point {
    std::vector<double> theta;
    double mass;  // the most that Σp is, +∞ where p are logarithms
};

struct Example {
    std::string kernel;
    std::string backward;      // the map's, where this is its forward kernel and it gives probabilities, else empty
    bool sparse, uses_scores;  // whether many p may be 0, and whether the derivative needs x
    bool learns;               // whether θ may be one a row
    bool shift_invariant;      // whether map(x + c) = map(x)
    std::vector<Point> points;
};

const std::vector<Example> EXAMPLES = {
#include "examples.inc"
};

template <class Call>
struct Kernel {
    std::string name;
    int (*run)(const Call*);
};

struct Kernels {
    std::vector<Kernel<SoftmaximaForward>> forward;
    std::vector<Kernel<SoftmaximaBackward>> backward;
    std::vector<Kernel<SoftmaximaLoss>> loss;
    std::vector<Kernel<SoftmaximaGivenLoss>> given;
    std::vector<Kernel<SoftmaximaPairs>> pairs;
    std::vector<Kernel<SoftmaximaState>> state;
    std::vector<Kernel<SoftmaximaWeighted>> weighted;
    std::vector<Kernel<SoftmaximaGaps>> gaps;
    std::vector<Kernel<SoftmaximaKept>> kept;
    std::vector<Kernel<SoftmaximaQuantized>> quantized;
    std::vector<Kernel<SoftmaximaElementwise>> elementwise;
    std::vector<Kernel<SoftmaximaCodes>> codes;
    std::vector<Kernel<SoftmaximaLinear>> linear;
    std::vector<Kernel<SoftmaximaLinearBackward>> linear_backward;
    std::vector<Kernel<SoftmaximaIndex>> index;
    std::vector<Kernel<SoftmaximaPartition>> partition;
    std::vector<Kernel<SoftmaximaGrouping>> grouping;
    std::vector<Kernel<SoftmaximaMove>> move;
    std::vector<Kernel<SoftmaximaIndexed>> indexed;
    std::vector<Kernel<SoftmaximaSegments>> segments;
    std::vector<Kernel<SoftmaximaAttention>> attention;
    std::vector<Kernel<SoftmaximaAttentionBackward>> attention_backward;

    void add(const char* name, int (*run)(const SoftmaximaForward*)) { forward.push_back({name, run}); }
    void add(const char* name, int (*run)(const SoftmaximaBackward*)) { backward.push_back({name, run}); }
    void add(const char* name, int (*run)(const SoftmaximaLoss*)) { loss.push_back({name, run}); }
    void add(const char* name, int (*run)(const SoftmaximaGivenLoss*)) { given.push_back({name, run}); }
    void add(const char* name, int (*run)(const SoftmaximaPairs*)) { pairs.push_back({name, run}); }
    void add(const char* name, int (*run)(const SoftmaximaState*)) { state.push_back({name, run}); }
    void add(const char* name, int (*run)(const SoftmaximaWeighted*)) { weighted.push_back({name, run}); }
    void add(const char* name, int (*run)(const SoftmaximaGaps*)) { gaps.push_back({name, run}); }
    void add(const char* name, int (*run)(const SoftmaximaKept*)) { kept.push_back({name, run}); }
    void add(const char* name, int (*run)(const SoftmaximaQuantized*)) { quantized.push_back({name, run}); }
    void add(const char* name, int (*run)(const SoftmaximaElementwise*)) { elementwise.push_back({name, run}); }
    void add(const char* name, int (*run)(const SoftmaximaCodes*)) { codes.push_back({name, run}); }
    void add(const char* name, int (*run)(const SoftmaximaLinear*)) { linear.push_back({name, run}); }
    void add(const char* name, int (*run)(const SoftmaximaLinearBackward*)) { linear_backward.push_back({name, run}); }
    void add(const char* name, int (*run)(const SoftmaximaIndex*)) { index.push_back({name, run}); }
    void add(const char* name, int (*run)(const SoftmaximaPartition*)) { partition.push_back({name, run}); }
    void add(const char* name, int (*run)(const SoftmaximaGrouping*)) { grouping.push_back({name, run}); }
    void add(const char* name, int (*run)(const SoftmaximaMove*)) { move.push_back({name, run}); }
    void add(const char* name, int (*run)(const SoftmaximaIndexed*)) { indexed.push_back({name, run}); }
    void add(const char* name, int (*run)(const SoftmaximaSegments*)) { segments.push_back({name, run}); }
    void add(const char* name, int (*run)(const SoftmaximaAttention*)) { attention.push_back({name, run}); }
    void add(const char* name, int (*run)(const SoftmaximaAttentionBackward*)) { attention_backward.push_back({name, run}); }
};

#define SOFTMAXIMA_KERNEL(name, kind) kernels.add(#name, variant::name);

using Bytes = std::vector<unsigned char>;

std::mt19937_64 random_bits(1);

int64_t below(int64_t n) { return int64_t(random_bits() % uint64_t(n)); }

bool chance(double probability) { return std::uniform_real_distribution<double>()(random_bits) < probability; }

double normal() { return std::normal_distribution<double>()(random_bits); }

template <class V>
V choose(std::initializer_list<V> values) {
    return values.begin()[below(int64_t(values.size()))];
}

const int64_t SIZE[] = {8, 4, 2, 2};

// Truncates to half precision: which numbers these are does not matter.
void put(Bytes& bytes, int64_t dtype, int64_t i, double value) {
    const float single = float(value);
    uint32_t bits;
    std::memcpy(&bits, &single, 4);
    if (dtype == 0) std::memcpy(&bytes[size_t(i) * 8], &value, 8);
    if (dtype == 1) std::memcpy(&bytes[size_t(i) * 4], &single, 4);
    uint16_t half = uint16_t(bits >> 16);
    if (dtype == 3) {
        const int exponent = int(bits >> 23 & 255) - 127 + 15;
        half = uint16_t((bits >> 16 & 0x8000) | (exponent <= 0 ? 0 : exponent > 30 ? 0x7c00 : exponent << 10 | (bits >> 13 & 0x3ff)));
        if (value != value) half = 0x7e01;
    }
    if (dtype >= 2) std::memcpy(&bytes[size_t(i) * 2], &half, 2);
}

double get(const Bytes& bytes, int64_t dtype, int64_t i) {
    double value;
    float single;
    uint16_t half;
    if (dtype == 0) return std::memcpy(&value, &bytes[size_t(i) * 8], 8), value;
    if (dtype == 1) return std::memcpy(&single, &bytes[size_t(i) * 4], 4), single;
    std::memcpy(&half, &bytes[size_t(i) * 2], 2);
    if (dtype == 2) {
        const uint32_t bits = uint32_t(half) << 16;
        return std::memcpy(&single, &bits, 4), single;
    }
    const int exponent = half >> 10 & 31, mantissa = half & 0x3ff;
    const double magnitude = exponent == 31  ? (mantissa ? std::numeric_limits<double>::quiet_NaN() : INFINITY)
                             : exponent == 0 ? std::ldexp(mantissa, -24)
                                             : std::ldexp(1024 + mantissa, exponent - 25);
    return half & 0x8000 ? -magnitude : magnitude;
}

// What numbers of this dtype have in their bits at the ends of the range: infinities, NaN that signal, subnormal numbers, −0.
uint64_t hard_bits(int64_t dtype) {
    const int mantissa = dtype == 0 ? 52 : dtype == 1 ? 23 : dtype == 2 ? 7 : 10, width = int(SIZE[dtype]) * 8;
    const uint64_t sign = uint64_t(1) << (width - 1), infinity = sign - (uint64_t(1) << mantissa);
    return choose<uint64_t>({infinity, infinity + 1, sign | (infinity + 1), sign | (infinity + 3), ~uint64_t(0), 1, sign | 1, sign, infinity - 1});
}

struct Problem {
    int64_t dtype = below(4), outer, n, inner, stride;
    Bytes x, mask;
    std::vector<double> taus, theta, masses;
    int64_t distance = 0;
    bool shift_invariant = true;
    std::vector<int64_t> blocks;
    double tau = choose({1.0, 1.0, 0.25, 7.0, 1e-307, 1e-30, 1e308});
    bool hard = chance(0.3);

    explicit Problem(bool long_row) {
        n = long_row ? 40'000 + below(30'000) : choose<int64_t>({1, 2, 3, 7, 63, 64, 65, 127, 128, 129, 255, 257, 1023, 1024, 1025, 2049, 3000});
        inner = long_row ? 1 : choose<int64_t>({1, 1, 1, 2, 3, 15, 16, 17, 33, 63, 64, 65, 129});
        outer = long_row ? 1 : inner == 1 && n <= 129 && chance(0.5) ? below(100) : below(4);
        while (n * inner > 8000 && inner > 1) inner = (inner + 1) / 2;
        stride = inner == 1 && chance(0.4) ? choose<int64_t>({0, n + 1, n + 5}) : n;
        // The last row ends where the array does.
        const int64_t size = inner > 1 ? outer * n * inner : outer ? (outer - 1) * stride + n : 0;
        x.resize(size_t(size * SIZE[dtype]));
        const double scale = choose({0.01, 1.0, 10.0, 1000.0}), offset = choose({0.0, 0.0, 100.0, -1e4}), masked = choose({0.0, 0.0, 0.3, 1.0});
        for (int64_t i = 0; i < size; ++i) put(x, dtype, i, chance(masked) ? -INFINITY : normal() * scale + offset);
        for (int64_t i = 0; hard && size && i < 1 + size / 500; ++i) {
            const uint64_t bits = hard_bits(dtype);
            std::memcpy(&x[size_t(below(size) * SIZE[dtype])], &bits, size_t(SIZE[dtype]));
        }
        if (chance(0.3)) {
            taus.resize(size_t(outer * inner));
            for (double& each : taus) each = std::exp(normal());
        }
        const int64_t kind = below(4), count = kind == 0 ? outer : kind == 1 ? 2 : 0;
        mask.resize(size_t(count * n * inner));
        for (unsigned char& each : mask) each = chance(0.7);
        if (kind == 1) {
            blocks.resize(size_t(outer));
            for (int64_t& each : blocks) each = below(2) * n * inner;
        }
    }

    int64_t rows_count() const { return outer * inner; }
    int64_t scores() const { return outer * n * inner; }
    bool contiguous() const { return stride == n; }

    SoftmaximaRows rows(int64_t threads) const {
        return {dtype,
                outer,
                n,
                inner,
                threads,
                x.data(),
                inner == 1 ? stride : 0,
                tau,
                taus.empty() ? nullptr : taus.data(),
                theta.empty() ? nullptr : theta.data(),
                distance,
                mask.empty() ? nullptr : mask.data(),
                blocks.empty() ? nullptr : blocks.data()};
    }

    // θ of a map that has this kernel, the same for all rows or one a row; a kernel of no map has none, and no probabilities.
    void choose_theta(const std::string& kernel) {
        std::vector<const Example*> found;
        for (const Example& example : EXAMPLES)
            if (example.kernel == kernel) found.push_back(&example);
        masses.assign(size_t(rows_count()), INFINITY);
        if (!found.empty()) choose_theta(*found[size_t(below(int64_t(found.size())))]);
    }

    void choose_theta(const Example& example) {
        masses.assign(size_t(rows_count()), INFINITY);
        const auto point = [&] { return example.points[size_t(below(int64_t(example.points.size())))]; };
        const Point shared = point();
        const bool one_a_row = example.learns && chance(0.5);
        shift_invariant = example.shift_invariant;
        theta = one_a_row ? std::vector<double>() : shared.theta;
        distance = one_a_row ? int64_t(shared.theta.size()) : 0;
        for (double& mass : masses) {
            const Point own = one_a_row ? point() : shared;
            if (one_a_row) theta.insert(theta.end(), own.theta.begin(), own.theta.end());
            mass = own.mass;
        }
    }

    // Whether NaN can come of NaN and +∞ alone. Maps that know where 0 is compute with x/τ itself, which may be beyond all numbers.
    bool has_numbers() const { return !hard && (shift_invariant || !taus.empty() || tau > 1e-10); }

    Bytes random_numbers(int64_t count, double scale) const {
        Bytes bytes(size_t(count * SIZE[dtype]));
        for (int64_t i = 0; i < count; ++i) put(bytes, dtype, i, normal() * scale);
        return bytes;
    }
};

void fail(const std::string& name, const Problem& problem, const char* what) {
    std::fprintf(stderr, "%s: %s; dtype %d, [%d, %d, %d], stride %d, tau %g\n", name.c_str(), what, int(problem.dtype), int(problem.outer), int(problem.n),
                 int(problem.inner), int(problem.stride), problem.taus.empty() ? problem.tau : -1.0);
    std::exit(1);
}

// Calls run(threads, outputs) twice, over other bytes and with other threads; rows that threads share may differ in rounding.
template <class Run>
void twice(const std::string& name, const Problem& problem, std::vector<Bytes>& outputs, const Run& run) {
    std::vector<Bytes> first;
    const int64_t counts[] = {1, choose<int64_t>({1, 2, 3, 4})};
    for (int pass = 0; pass < 2; ++pass) {
        for (Bytes& bytes : outputs) std::fill(bytes.begin(), bytes.end(), pass ? 0xc3 : 0x5a);
        int failed = 0;
        std::thread([&] { failed = run(counts[pass]); }).join();
        if (failed) fail(name, problem, "ran out of memory");
        if (pass == 0) first = outputs;
    }
    if (problem.n < 16 * 1024 && outputs != first) fail(name, problem, "depends on what was there or on threads");
}

void check_probabilities(const std::string& name, const Problem& problem, const Bytes& p) {
    for (int64_t o = 0; o < problem.outer; ++o)
        for (int64_t j = 0; j < problem.inner; ++j) {
            double sum = 0;
            for (int64_t i = 0; i < problem.n; ++i) {
                const double value = get(p, problem.dtype, (o * problem.n + i) * problem.inner + j);
                if (value != value && problem.has_numbers()) fail(name, problem, "is NaN");
                if (value < 0 || value > 1) fail(name, problem, "is no probability");
                sum += value;
            }
            const double mass = problem.masses[size_t(o * problem.inner + j)];
            if (sum > mass * (1 + 0.004 * double(problem.n))) fail(name, problem, "sums to more than the map says");
        }
}

void call_forward(const Kernel<SoftmaximaForward>& kernel, bool long_row) {
    Problem problem(long_row);
    const bool one_a_row = kernel.name == "logsumexp" || kernel.name == "log_mean_exp", cumulative = kernel.name == "logcumsumexp";
    const bool rest = kernel.name == "logsumexp_rest";
    problem.choose_theta(kernel.name);
    std::vector<Bytes> outputs(2);
    outputs[0].resize(size_t(rest ? 0 : (one_a_row ? problem.rows_count() : problem.scores()) * SIZE[problem.dtype]));
    outputs[1].resize(size_t(rest || kernel.name == "logsumexp" ? problem.rows_count() * 16 : cumulative ? problem.scores() * 16 : 0));
    twice(kernel.name, problem, outputs, [&](int64_t threads) {
        const SoftmaximaForward call = {problem.rows(threads), outputs[0].data(), outputs[1].empty() ? nullptr : reinterpret_cast<double*>(outputs[1].data())};
        return kernel.run(&call);
    });
    if (!problem.masses.empty() && problem.masses[0] < INFINITY) check_probabilities(kernel.name, problem, outputs[0]);
}

void call_backward(const Kernel<SoftmaximaBackward>& kernel) {
    Problem problem(false);
    const bool logsumexp = kernel.name == "logsumexp_backward", cumulative = kernel.name == "logcumsumexp_backward";
    if (!logsumexp && !cumulative && !problem.contiguous()) return;
    problem.choose_theta(kernel.name);
    const Bytes p = problem.random_numbers(logsumexp || cumulative ? 0 : problem.scores(), 0.3);
    const Bytes g = problem.random_numbers(logsumexp ? problem.rows_count() : problem.scores(), 1.0);
    std::vector<double> states(size_t(2 * (logsumexp ? problem.rows_count() : cumulative ? problem.scores() : 0)));
    for (double& each : states) each = problem.hard ? choose<double>({-INFINITY, INFINITY, NAN, 0.0, 1e4}) : 2e4 + normal();
    std::vector<Bytes> outputs(1, Bytes(size_t(problem.scores() * SIZE[problem.dtype])));
    twice(kernel.name, problem, outputs, [&](int64_t threads) {
        const SoftmaximaBackward call = {problem.rows(threads), p.empty() ? nullptr : p.data(), states.data(), g.data(), outputs[0].data(), nullptr};
        return kernel.run(&call);
    });
}

// Calls run(loss) of random targets and weights.
template <class Run>
void call_any_loss(const std::string& name, Problem& problem, const Run& run) {
    problem.mask.clear();
    problem.blocks.clear();
    problem.taus.clear();
    problem.tau = 1;
    problem.choose_theta(name);
    const double smoothing = choose({0.0, 0.1}), scale = choose({1.0, 0.25});
    const bool hard = chance(0.6) || name == "perturb_max_loss";  // which takes labels alone
    const bool with_gradient = chance(0.7), weighted = chance(0.5), fenchel = chance(0.7);
    std::vector<int64_t> labels(size_t(hard ? problem.rows_count() : 0));
    for (int64_t& each : labels) each = below(problem.n + 1) - 1;
    Bytes soft(size_t(hard ? 0 : problem.scores() * SIZE[problem.dtype]));
    for (int64_t i = 0; !hard && i < problem.scores(); ++i) put(soft, problem.dtype, i, chance(0.5) ? 0.0 : 1.0 / double(problem.n));
    const double square = chance(0.3) ? 0.1 : 0.0;
    std::vector<double> weight(size_t(weighted ? problem.n : 0));
    for (double& each : weight) each = choose({0.0, 0.5, 2.0});
    std::vector<Bytes> outputs(2);
    outputs[0].resize(size_t(problem.rows_count() * 8));
    outputs[1].resize(size_t(with_gradient ? problem.scores() * SIZE[problem.dtype] : 0));
    twice(name, problem, outputs, [&](int64_t threads) {
        return run(SoftmaximaLoss{problem.rows(threads),
                                  hard ? labels.data() : nullptr,
                                  hard ? nullptr : soft.data(),
                                  weighted ? weight.data() : nullptr,
                                  smoothing,
                                  scale,
                                  fenchel,
                                  square,
                                  reinterpret_cast<double*>(outputs[0].data()),
                                  with_gradient ? outputs[1].data() : nullptr,
                                  {}});
    });
}

Problem wide_problem() {
    Problem problem(false);
    while (problem.dtype > 1) problem = Problem(false);
    return problem;
}

void call_loss(const Kernel<SoftmaximaLoss>& kernel) {
    Problem problem(false);
    const bool in_place = problem.inner == 1 && problem.contiguous() && chance(0.5);
    call_any_loss(kernel.name, problem, [&](SoftmaximaLoss loss) {
        if (in_place && loss.out && !problem.x.empty()) {
            std::memcpy(loss.out, problem.x.data(), problem.x.size());
            loss.rows.x = loss.out;
        }
        return kernel.run(&loss);
    });
}

void call_given_loss(const Kernel<SoftmaximaGivenLoss>& kernel) {
    Problem problem = wide_problem();
    Bytes p(size_t(problem.scores() * SIZE[problem.dtype]));
    for (int64_t i = 0; i < problem.scores(); ++i) put(p, problem.dtype, i, chance(0.5) ? 0.0 : 1.0 / double(problem.n));
    const bool in_place = chance(0.5);
    call_any_loss(kernel.name, problem, [&](const SoftmaximaLoss& loss) {
        if (in_place && loss.out && !p.empty()) std::memcpy(loss.out, p.data(), p.size());
        const SoftmaximaGivenLoss call = {loss, in_place && loss.out ? loss.out : p.data()};
        return kernel.run(&call);
    });
}

void call_margin_loss(const Kernel<SoftmaximaLoss>& kernel) {
    Problem problem = wide_problem();
    const int64_t size = int64_t(problem.x.size()) / SIZE[problem.dtype];
    for (int64_t i = 0; !problem.hard && i < size; ++i) put(problem.x, problem.dtype, i, std::cos(get(problem.x, problem.dtype, i)));
    const SoftmaximaMargin margin = {choose({1.0, 30.0}), choose({0.0, 0.35, 1.9}), chance(0.5), choose<double>({1.0, INFINITY})};
    call_any_loss(kernel.name, problem, [&](SoftmaximaLoss loss) {
        loss.margin = margin;
        return kernel.run(&loss);
    });
}

void call_pairs(const Kernel<SoftmaximaPairs>& kernel) {
    Problem problem(false);
    const int64_t n = int64_t(problem.x.size()) / SIZE[problem.dtype];
    Bytes y(problem.x.rbegin(), problem.x.rend());
    const Bytes g = problem.random_numbers(chance(0.5) ? n : 0, 1.0);
    std::vector<Bytes> outputs(2);
    outputs[0].resize(problem.x.size());
    outputs[1].resize(g.size());
    twice(kernel.name, problem, outputs, [&](int64_t threads) {
        const SoftmaximaPairs call = {problem.dtype,     n,
                                      threads,           problem.x.data(),
                                      y.data(),          g.empty() ? nullptr : g.data(),
                                      outputs[0].data(), outputs[1].empty() ? nullptr : outputs[1].data()};
        return kernel.run(&call);
    });
}

void call_state(const Kernel<SoftmaximaState>& kernel, bool long_row) {
    Problem problem(long_row);
    std::vector<Bytes> outputs(3, Bytes(size_t(problem.rows_count() * 8)));
    twice(kernel.name, problem, outputs, [&](int64_t threads) {
        const SoftmaximaState call = {problem.rows(threads), reinterpret_cast<double*>(outputs[0].data()), reinterpret_cast<double*>(outputs[1].data()),
                                      reinterpret_cast<int64_t*>(outputs[2].data())};
        return kernel.run(&call);
    });
    for (int64_t i = 0; i < problem.rows_count(); ++i) {
        int64_t count;
        std::memcpy(&count, &outputs[2][size_t(i) * 8], 8);
        if (count < 0 || count > problem.n) fail(kernel.name, problem, "counts more maxima than there are scores");
    }
}

void call_weighted(const Kernel<SoftmaximaWeighted>& kernel, bool long_row) {
    Problem problem(long_row);
    if (problem.inner > 1) return;
    const bool shared = chance(0.3);
    std::vector<double> weights(size_t(shared ? problem.n : problem.scores()));
    for (double& each : weights) each = chance(0.2) ? 0.0 : normal();
    if (problem.hard && !weights.empty()) weights[size_t(below(int64_t(weights.size())))] = choose<double>({INFINITY, NAN, 1e300, 1e-300});
    const size_t numbers = size_t(problem.rows_count() * 8);
    std::vector<Bytes> outputs = {Bytes(numbers), Bytes(numbers), Bytes(2 * numbers)};
    const auto at = [](Bytes& bytes) { return reinterpret_cast<double*>(bytes.data()); };
    const bool alike = problem.dtype == 0 && chance(0.5);
    const double *same = alike ? weights.data() : nullptr, *wide = alike ? nullptr : weights.data();
    const int64_t distance = shared ? 0 : problem.n;
    twice(kernel.name, problem, outputs, [&](int64_t threads) {
        const SoftmaximaWeighted call = {problem.rows(threads), same, wide, distance, at(outputs[0]), at(outputs[1]), at(outputs[2]), nullptr, nullptr};
        return kernel.run(&call);
    });
    std::vector<double> g(size_t(problem.rows_count()));
    for (double& each : g) each = normal();
    std::vector<Bytes> slopes(1, Bytes(size_t(problem.scores() * SIZE[problem.dtype])));
    twice(kernel.name, problem, slopes, [&](int64_t threads) {
        const SoftmaximaWeighted call = {problem.rows(threads), same, wide, distance, nullptr, at(outputs[1]), at(outputs[2]), g.data(), slopes[0].data()};
        return kernel.run(&call);
    });
}

void call_gaps(const Kernel<SoftmaximaGaps>& kernel, bool long_row) {
    Problem problem(long_row);
    const int64_t bins = choose<int64_t>({1, 7, 200}), k = std::min<int64_t>(problem.n, 1 + below(8));
    std::vector<Bytes> outputs;
    for (const int64_t size : {int64_t(6), k, bins + 1}) outputs.emplace_back(size_t(problem.rows_count() * size * 8));
    twice(kernel.name, problem, outputs, [&](int64_t threads) {
        const auto at = [](Bytes& bytes) { return reinterpret_cast<double*>(bytes.data()); };
        const SoftmaximaGaps call = {problem.rows(threads), 0.05, bins, k, at(outputs[0]), at(outputs[1]), at(outputs[2])};
        return kernel.run(&call);
    });
}

void call_kept(const Kernel<SoftmaximaKept>& kernel, bool long_row) {
    Problem problem(long_row);
    std::vector<Bytes> outputs(1, Bytes(size_t(problem.rows_count() * 5 * 8)));
    twice(kernel.name, problem, outputs, [&](int64_t threads) {
        const SoftmaximaKept call = {problem.rows(threads), 14, reinterpret_cast<double*>(outputs[0].data())};
        return kernel.run(&call);
    });
}

void call_quantized(const Kernel<SoftmaximaQuantized>& kernel, bool long_row) {
    Problem problem(long_row);
    problem.hard = false;
    if (long_row) problem.n *= 4;
    Bytes q(size_t(problem.scores())), mask(size_t(chance(0.4) ? problem.scores() : 0));
    const bool is_signed = chance(0.5), with_softmax = chance(0.5);
    const int64_t range = choose<int64_t>({1, 2, 40, 256});
    for (unsigned char& each : q) each = (unsigned char)(below(range) + 100);
    for (unsigned char& each : mask) each = chance(0.7);
    std::vector<double> scales(size_t(chance(0.4) ? problem.rows_count() : 0)), zeros(size_t(chance(0.4) ? problem.rows_count() : 0));
    for (double& each : scales) each = std::exp(3 * normal());
    for (double& each : zeros) each = 100 * normal();
    std::vector<Bytes> outputs(2);
    outputs[0].resize(size_t(problem.rows_count() * 8));
    outputs[1].resize(size_t(with_softmax ? problem.scores() * SIZE[problem.dtype] : 0));
    twice(kernel.name, problem, outputs, [&](int64_t threads) {
        const SoftmaximaQuantized call = {problem.dtype,
                                          is_signed,
                                          problem.outer,
                                          problem.n,
                                          problem.inner,
                                          threads,
                                          q.data(),
                                          0.1,
                                          3,
                                          scales.empty() ? nullptr : scales.data(),
                                          zeros.empty() ? nullptr : zeros.data(),
                                          mask.empty() ? nullptr : mask.data(),
                                          reinterpret_cast<double*>(outputs[0].data()),
                                          with_softmax ? outputs[1].data() : nullptr};
        return kernel.run(&call);
    });
    problem.masses.assign(size_t(problem.rows_count()), 1);
    if (with_softmax) check_probabilities(kernel.name, problem, outputs[1]);
}

void call_elementwise(const Kernel<SoftmaximaElementwise>& kernel) {
    Problem problem(false);
    problem.dtype = below(2);
    const int64_t n = below(200);
    Bytes x(size_t(n * SIZE[problem.dtype]));
    for (int64_t i = 0; i < n; ++i) {
        const uint64_t bits = chance(0.5) ? hard_bits(problem.dtype) : random_bits();
        std::memcpy(&x[size_t(i * SIZE[problem.dtype])], &bits, size_t(SIZE[problem.dtype]));
    }
    std::vector<Bytes> outputs(1, Bytes(x.size()));
    twice(kernel.name, problem, outputs, [&](int64_t) {
        const SoftmaximaElementwise call = {problem.dtype, n, x.data(), outputs[0].data()};
        return kernel.run(&call);
    });
}

void call_codes(const Kernel<SoftmaximaCodes>& kernel) {
    Problem problem(false);
    const int64_t n = below(200), distinct = choose<int64_t>({1, 3, 65536});
    std::vector<uint16_t> codes(size_t(n), 0);
    for (uint16_t& code : codes) code = uint16_t(65535 - below(distinct));
    std::vector<Bytes> outputs(1, Bytes(size_t(2 * 65536) * sizeof(uint32_t)));
    twice(kernel.name, problem, outputs, [&](int64_t) {
        std::fill(outputs[0].begin(), outputs[0].end(), 0);
        const SoftmaximaCodes call = {n, codes.data(), reinterpret_cast<uint32_t*>(outputs[0].data())};
        return kernel.run(&call);
    });
    int64_t counted = 0;
    for (int64_t i = 0; i < 2 * 65536; ++i) counted += reinterpret_cast<uint32_t*>(outputs[0].data())[i];
    if (counted != n) fail(kernel.name, problem, "does not count every code once");
}

// Rows of a number of matrices, at any distance, each matrix its own or one of a group's.
struct Matrices {
    Bytes data;
    int64_t distance;
    std::vector<int64_t> offsets;

    template <class Put>
    Matrices(int64_t matrices, int64_t rows, int64_t size, int64_t bytes, bool one_row, const Put& put)
        : distance(one_row ? 0 : size + choose<int64_t>({0, 0, 5})) {
        const int64_t groups = choose<int64_t>({1, 1, 2, matrices}), own = (matrices + groups - 1) / groups, step = one_row ? size : rows * distance;
        const int64_t count = (own - 1) * step + (one_row ? 0 : (rows - 1) * distance) + size;
        data.resize(size_t(count * bytes));
        for (int64_t i = 0; i < count; ++i) put(data, i);
        for (int64_t i = 0; i < matrices; ++i) offsets.push_back(i / groups * step);
    }

    SoftmaximaMatrices describe() const { return {data.data(), distance, offsets.data()}; }
};

// Attention with a map that has a derivative.
struct AttentionProblem {
    static int64_t length() { return choose<int64_t>({1, 2, 5, 6, 7, 17, 47, 48, 49, 100}); }
    static int64_t width() { return choose<int64_t>({1, 3, 15, 16, 17, 33, 64}); }

    const Example& example;
    Problem rows;  // of scores
    int64_t matrices = 1 + below(4), queries = length(), keys = chance(0.2) ? 700 : length(), size = width(), value_size = width();
    Matrices q, k, v, mask, bias;
    std::vector<int64_t> lengths, firsts;
    std::vector<double> sinks, slopes;
    double softcap = choose<double>({0, 0, 0.5, 20});
    int64_t first = choose<int64_t>({0, 0, keys - queries, -200, 200});
    bool masked = chance(0.3), biased = chance(0.3);
    int64_t left = choose<int64_t>({ALL, ALL, 0, 3, 60}), right = choose<int64_t>({ALL, ALL, 0, 3, 60});
    static constexpr int64_t ALL = int64_t(1) << 62;

    AttentionProblem()
        : example(choose_example()),
          rows(false),
          q(vectors(queries, size)),
          k(vectors(keys, size)),
          v(vectors(keys, value_size)),
          mask(matrices, queries, keys, 1, chance(0.3), [](Bytes& bytes, int64_t i) { bytes[size_t(i)] = chance(0.7); }),
          bias(matrices, queries, keys, SIZE[computed()], chance(0.3),
               [&](Bytes& bytes, int64_t i) { put(bytes, computed(), i, chance(0.1) ? -INFINITY : normal()); }) {
        rows.outer = matrices * queries;
        rows.n = keys;
        rows.inner = 1;
        if (!rows.taus.empty()) rows.taus.resize(size_t(rows.outer), 0.5);
        if (chance(0.3)) lengths.resize(size_t(matrices));
        for (int64_t& each : lengths) each = below(keys + 1);
        if (chance(0.3)) firsts.resize(size_t(matrices));
        for (int64_t& each : firsts) each = below(keys + queries + 1) - queries;
        if (chance(0.3)) slopes.resize(size_t(matrices));
        for (double& each : slopes) each = normal();
        if (chance(0.3)) sinks.resize(size_t(rows.outer));
        for (double& each : sinks) each = chance(0.1) ? -INFINITY : normal();
        rows.choose_theta(example);
    }

    static const Example& choose_example() {
        while (true) {
            const Example& example = EXAMPLES[size_t(below(int64_t(EXAMPLES.size())))];
            if (!example.backward.empty()) return example;
        }
    }

    int64_t computed() const { return rows.dtype == 0 ? 0 : 1; }

    Matrices vectors(int64_t count, int64_t length) const {
        const auto number = [this](Bytes& bytes, int64_t i) {
            put(bytes, rows.dtype, i, normal());
            if (!rows.hard || chance(0.99)) return;
            const uint64_t bits = hard_bits(rows.dtype);
            std::memcpy(&bytes[size_t(i * SIZE[rows.dtype])], &bits, size_t(SIZE[rows.dtype]));
        };
        return Matrices(matrices, count, length, SIZE[rows.dtype], false, number);
    }

    SoftmaximaAttention call(const Kernels& kernels, int64_t threads, int64_t parts) const {
        SoftmaximaAttention call{};
        call.q = q.describe(), call.k = k.describe(), call.v = v.describe();
        if (masked) call.mask = mask.describe();
        if (biased) call.bias = bias.describe();
        call.dtype = rows.dtype;
        call.matrices = matrices, call.queries = queries, call.keys = keys, call.size = size, call.value_size = value_size;
        call.threads = threads;
        call.parts = parts;
        call.lengths = lengths.empty() ? nullptr : lengths.data();
        call.left = left, call.right = right;
        call.first = first;
        call.firsts = firsts.empty() ? nullptr : firsts.data();
        call.scale = 0.5;
        call.softcap = softcap;
        call.slopes = slopes.empty() ? nullptr : slopes.data();
        call.tau = rows.tau;
        call.taus = rows.taus.empty() ? nullptr : rows.taus.data();
        call.theta = rows.theta.empty() ? nullptr : rows.theta.data();
        call.distance = rows.distance;
        call.sinks = sinks.empty() ? nullptr : sinks.data();
        call.sparse = example.sparse;
        call.map = address(kernels.forward, example.kernel);
        return call;
    }

    template <class Call>
    static const void* address(const std::vector<Kernel<Call>>& kernels, const std::string& name) {
        for (const auto& kernel : kernels)
            if (kernel.name == name) return reinterpret_cast<const void*>(kernel.run);
        std::fprintf(stderr, "there is no kernel %s\n", name.c_str());
        std::exit(1);
    }
};

void call_attention(const Kernels& kernels, const Kernel<SoftmaximaAttention>& kernel) {
    const AttentionProblem problem;
    const std::string name = kernel.name + " of " + problem.example.kernel;
    const bool with_lse = chance(0.5);
    const int64_t count = problem.rows.outer;
    std::vector<Bytes> outputs(2);
    outputs[0].resize(size_t(count * problem.value_size * SIZE[problem.rows.dtype]));
    outputs[1].resize(size_t(with_lse ? count * SIZE[problem.computed()] : 0));
    twice(name, problem.rows, outputs, [&](int64_t threads) {
        SoftmaximaAttention call = problem.call(kernels, threads, 1 + below(3));
        call.out = outputs[0].data();
        call.lse = with_lse ? outputs[1].data() : nullptr;
        return kernel.run(&call);
    });
    if (!problem.rows.has_numbers()) return;
    for (int64_t i = 0; i < count * problem.value_size; ++i)
        if (std::isnan(get(outputs[0], problem.rows.dtype, i))) fail(name, problem.rows, "is NaN");
}

void call_attention_backward(const Kernels& kernels, const Kernel<SoftmaximaAttentionBackward>& kernel) {
    const AttentionProblem problem;
    const std::string name = kernel.name + " of " + problem.example.kernel;
    const int64_t wide = problem.computed(), count = problem.rows.outer, parts = 1 + below(3);
    const Bytes g = problem.rows.random_numbers(count * problem.value_size, 1.0);
    Bytes g_lse(size_t(problem.example.kernel == "softmax" && chance(0.5) ? count * SIZE[wide] : 0));
    for (int64_t i = 0; !g_lse.empty() && i < count; ++i) put(g_lse, wide, i, normal());
    std::vector<Bytes> outputs;
    for (const int64_t numbers :
         {count * problem.size, parts * problem.matrices * problem.keys * problem.size, parts * problem.matrices * problem.keys * problem.value_size})
        outputs.emplace_back(size_t(numbers * SIZE[wide]));
    twice(name, problem.rows, outputs, [&](int64_t threads) {
        SoftmaximaAttentionBackward call{};
        call.attention = problem.call(kernels, threads, parts);
        call.derivative = AttentionProblem::address(kernels.backward, problem.example.backward);
        call.uses_scores = problem.example.uses_scores;
        call.on_support = problem.example.sparse && !problem.example.uses_scores;
        call.g = g.data();
        call.g_lse = g_lse.empty() ? nullptr : g_lse.data();
        call.dq = outputs[0].data(), call.dk = outputs[1].data(), call.dv = outputs[2].data();
        return kernel.run(&call);
    });
}

// A linear layer, of scores that are g for its derivatives.
struct LinearProblem {
    Problem rows{false};  // of which only the dtype counts
    int64_t count = 1 + below(140), classes = choose<int64_t>({1, 2, 95, 96, 97, 193, 400}), features = choose<int64_t>({1, 3, 16, 63, 64, 65, 513});
    Bytes hidden, weight, bias, scores;
    std::vector<double> scales;

    LinearProblem() {
        if (count * classes * features > 2'000'000) count = 1 + below(9);
        const double zeros = choose({0.0, 0.9, 0.99, 1.0});
        for (auto [bytes, size, dtype] : {std::tuple{&hidden, count * features, computed()},
                                          {&weight, classes * features, rows.dtype},
                                          {&bias, chance(0.5) ? classes : 0, rows.dtype},
                                          {&scores, count * classes, computed()}}) {
            bytes->resize(size_t(size * SIZE[dtype]));
            for (int64_t i = 0; i < size; ++i) put(*bytes, dtype, i, bytes == &scores && chance(zeros) ? 0.0 : normal());
        }
        scales.resize(size_t(chance(0.5) ? classes : 0));
        for (double& each : scales) each = std::exp(normal());
        const bool exact = rows.dtype == 2 && chance(0.7);  // hidden states that are bfloat16 numbers
        for (size_t i = 0; exact && i < hidden.size(); i += 4) hidden[i] = hidden[i + 1] = 0;
    }

    int64_t computed() const { return rows.dtype == 0 ? 0 : 1; }

    SoftmaximaLinear call(int64_t threads, const void* at) const {
        return {rows.dtype,
                count,
                classes,
                features,
                threads,
                hidden.data(),
                weight.data(),
                scales.empty() ? nullptr : scales.data(),
                bias.empty() ? nullptr : bias.data(),
                1.0,
                const_cast<void*>(at)};
    }
};

void call_linear(const Kernel<SoftmaximaLinear>& kernel) {
    const LinearProblem problem;
    std::vector<Bytes> outputs(1, Bytes(size_t(problem.count * problem.classes * SIZE[problem.computed()])));
    const double tau = choose({1.0, 0.5});
    twice(kernel.name, problem.rows, outputs, [&](int64_t threads) {
        SoftmaximaLinear call = problem.call(threads, outputs[0].data());
        call.tau = tau;
        return kernel.run(&call);
    });
    for (int64_t i = 0; i < problem.count * problem.classes; ++i)
        if (std::isnan(get(outputs[0], problem.computed(), i))) fail(kernel.name, problem.rows, "is NaN");
}

void call_linear_backward(const Kernel<SoftmaximaLinearBackward>& kernel) {
    const LinearProblem problem;
    std::vector<Bytes> outputs;
    for (const int64_t numbers : {problem.count * problem.features, problem.classes * problem.features, problem.classes})
        outputs.emplace_back(size_t((chance(0.8) ? numbers : 0) * SIZE[problem.computed()]));
    twice(kernel.name, problem.rows, outputs, [&](int64_t threads) {
        SoftmaximaLinearBackward call{};
        call.linear = problem.call(threads, problem.scores.data());
        void** to[] = {&call.hidden_grad, &call.weight_grad, &call.bias_grad};
        for (size_t i = 0; i < 3; ++i) *to[i] = outputs[i].empty() ? nullptr : outputs[i].data();
        return kernel.run(&call);
    });
}

// Scores [outer, elements, inner] in segments: an index, found, moved to windows and put in order as the library does it.
struct SegmentsProblem {
    Problem rows = dense();
    int64_t segments = choose<int64_t>({1, 2, 7, 100, 3000}), shift = below(4), windows = ((segments - 1) >> shift) + 1;
    std::vector<int64_t> index, bounds, starts, order;
    std::vector<int32_t> places, numbers;
    bool in_order = true;

    static Problem dense() {
        Problem problem(chance(0.05));
        while (!problem.contiguous() || !problem.blocks.empty() || problem.outer == 0) problem = Problem(false);
        problem.taus.clear();
        return problem;
    }

    explicit SegmentsProblem(const Kernels& kernels) {
        index.resize(size_t(rows.n));
        for (int64_t& each : index) each = below(1 + below(segments));
        if (chance(0.4)) std::sort(index.begin(), index.end());
        in_order = std::is_sorted(index.begin(), index.end());
        std::vector<Bytes> found(1, Bytes(24));
        twice("index_range", rows, found, [&](int64_t threads) {
            const SoftmaximaIndex call = {rows.n, threads, index.data(), reinterpret_cast<int64_t*>(found[0].data())};
            return kernels.index[0].run(&call);
        });
        int64_t said[3];
        std::memcpy(said, found[0].data(), 24);
        if (said[0] != *std::min_element(index.begin(), index.end()) || said[1] != *std::max_element(index.begin(), index.end()) || said[2] != in_order)
            fail("index_range", rows, "misreads the index");
        if (!in_order) partition(kernels);
        group(kernels);
        if (chance(0.3)) {
            rows.taus.resize(size_t(rows.outer * segments * rows.inner));
            for (double& each : rows.taus) each = std::exp(normal());
        }
    }

    int64_t row_count() const { return rows.outer * segments * rows.inner; }

    void partition(const Kernels& kernels) {
        bounds.resize(size_t(windows + 1));
        places.resize(size_t(rows.n));
        numbers.resize(size_t(rows.n));
        const SoftmaximaPartition call = {rows.n, windows, shift, choose<int64_t>({1, 3}), index.data(), bounds.data(), places.data(), numbers.data()};
        if (kernels.partition[0].run(&call)) fail("partition", rows, "ran out of memory");
        for (int64_t k = 0; k < rows.n; ++k)
            if (numbers[size_t(places[size_t(k)])] != index[size_t(k)]) fail("partition", rows, "loses an element");
    }

    void group(const Kernels& kernels) {
        starts.resize(size_t(segments + 1));
        order.resize(size_t(in_order ? 0 : rows.n));
        const SoftmaximaGrouping call = {rows.n,
                                         segments,
                                         in_order ? 0 : windows,
                                         shift,
                                         choose<int64_t>({1, 3}),
                                         in_order ? index.data() : nullptr,
                                         in_order ? nullptr : bounds.data(),
                                         in_order ? nullptr : numbers.data(),
                                         starts.data(),
                                         in_order ? nullptr : order.data()};
        if (kernels.grouping[0].run(&call)) fail("grouping", rows, "ran out of memory");
        for (int64_t s = 0; s < segments; ++s)
            for (int64_t k = starts[size_t(s)]; k < starts[size_t(s + 1)]; ++k)
                if ((in_order ? index[size_t(k)] : int64_t(numbers[size_t(order[size_t(k)])])) != s) fail("grouping", rows, "puts an element elsewhere");
    }
};

void call_move(const Kernels& kernels) {
    SegmentsProblem problem(kernels);
    if (problem.in_order) return;
    const Problem& rows = problem.rows;
    std::vector<Bytes> there(1, Bytes(rows.x.size())), back = there;
    const auto move = [&](const Bytes& from, std::vector<Bytes>& to, bool is_back) {
        twice("move", rows, to, [&](int64_t threads) {
            const SoftmaximaMove call = {SIZE[rows.dtype], rows.outer, rows.n, rows.inner, threads, is_back, problem.places.data(), from.data(), to[0].data()};
            return kernels.move[0].run(&call);
        });
    };
    move(rows.x, there, false);
    move(there[0], back, true);
    if (back[0] != rows.x) fail("move", rows, "does not come back");
}

void call_indexed(const Kernels& kernels, const Kernel<SoftmaximaIndexed>& kernel) {
    SegmentsProblem problem(kernels);
    while (problem.rows.dtype == 0) problem = SegmentsProblem(kernels);
    const Problem& rows = problem.rows;
    const bool sums = kernel.name == "logsumexp_by_index", backward = chance(0.5), of_rows = sums && !backward;
    const Bytes p = rows.random_numbers(!sums && backward ? rows.scores() : 0, 0.3);
    const Bytes g = rows.random_numbers(!backward ? 0 : sums ? problem.row_count() : rows.scores(), 1.0);
    std::vector<Bytes> outputs(1, Bytes(size_t((of_rows ? problem.row_count() : rows.scores()) * SIZE[rows.dtype])));
    twice(kernel.name, rows, outputs, [&](int64_t threads) {
        const SoftmaximaIndexed call = {rows.dtype,
                                        rows.outer,
                                        rows.n,
                                        rows.inner,
                                        problem.segments,
                                        threads,
                                        problem.in_order ? problem.starts.data() : nullptr,
                                        problem.in_order ? nullptr : problem.numbers.data(),
                                        problem.in_order ? nullptr : problem.bounds.data(),
                                        problem.windows,
                                        problem.shift,
                                        !sums && backward ? nullptr : rows.x.data(),
                                        rows.mask.empty() ? nullptr : rows.mask.data(),
                                        rows.tau,
                                        rows.taus.empty() ? nullptr : rows.taus.data(),
                                        p.empty() ? nullptr : p.data(),
                                        g.empty() ? nullptr : g.data(),
                                        outputs[0].data()};
        return kernel.run(&call);
    });
    for (int64_t i = 0; !sums && !backward && i < rows.scores(); ++i) {
        const double value = get(outputs[0], rows.dtype, i);
        if (value < 0 || value > 1 || (value != value && rows.has_numbers())) fail(kernel.name, rows, "is no probability");
    }
}

void call_segments(const Kernels& kernels, const Kernel<SoftmaximaSegments>& kernel) {
    SegmentsProblem problem(kernels);
    const Problem& rows = problem.rows;
    const bool sums = chance(0.3), backward = chance(0.5), of_rows = sums && !backward;
    std::vector<const Example*> maps;
    for (const Example& example : EXAMPLES)
        if (!example.backward.empty()) maps.push_back(&example);
    const Example& map = *maps[size_t(below(int64_t(maps.size())))];
    const Bytes p = rows.random_numbers(!sums && backward ? rows.scores() : 0, 0.3);
    const Bytes g = rows.random_numbers(!backward ? 0 : sums ? problem.row_count() : rows.scores(), 1.0);
    std::vector<Bytes> outputs(1, Bytes(size_t((of_rows ? problem.row_count() : rows.scores()) * SIZE[rows.dtype])));
    const auto address = [](const auto& functions, const std::string& name) -> const void* {
        for (const auto& function : functions)
            if (function.name == name) return reinterpret_cast<const void*>(function.run);
        return nullptr;
    };
    twice(kernel.name + " of " + (sums ? "logsumexp" : map.kernel), rows, outputs, [&](int64_t threads) {
        const SoftmaximaSegments call = {rows.dtype,
                                         rows.outer,
                                         rows.n,
                                         rows.inner,
                                         problem.segments,
                                         threads,
                                         problem.starts.data(),
                                         problem.in_order ? nullptr : problem.order.data(),
                                         rows.x.data(),
                                         rows.mask.empty() ? nullptr : rows.mask.data(),
                                         rows.tau,
                                         rows.taus.empty() ? nullptr : rows.taus.data(),
                                         sums ? nullptr : map.points[0].theta.data(),
                                         0,
                                         sums,
                                         address(kernels.forward, sums ? "logsumexp" : map.kernel),
                                         address(kernels.backward, sums ? "logsumexp_backward" : map.backward),
                                         p.empty() ? nullptr : p.data(),
                                         g.empty() ? nullptr : g.data(),
                                         outputs[0].data()};
        return kernel.run(&call);
    });
}

void fuzz(const Kernels& kernels, int64_t rounds) {
    for (int64_t round = 0; round < rounds; ++round) {
        for (const auto& kernel : kernels.forward) call_forward(kernel, round % 25 == 0);
        for (const auto& kernel : kernels.backward) call_backward(kernel);
        for (const auto& kernel : kernels.loss) call_loss(kernel);
        for (const auto& kernel : kernels.given) call_given_loss(kernel);
        for (const auto& kernel : kernels.loss)
            if (kernel.name == "softmax_loss") call_margin_loss(kernel);
        for (const auto& kernel : kernels.pairs) call_pairs(kernel);
        for (const auto& kernel : kernels.state) call_state(kernel, round % 25 == 0);
        for (const auto& kernel : kernels.weighted) call_weighted(kernel, round % 25 == 0);
        for (const auto& kernel : kernels.gaps) call_gaps(kernel, round % 25 == 0);
        for (const auto& kernel : kernels.kept) call_kept(kernel, round % 25 == 0);
        for (const auto& kernel : kernels.quantized) call_quantized(kernel, round % 25 == 0);
        for (const auto& kernel : kernels.elementwise) call_elementwise(kernel);
        if (round % 25 == 0)  // whose table is large
            for (const auto& kernel : kernels.codes) call_codes(kernel);
        for (const auto& kernel : kernels.linear) call_linear(kernel);
        for (const auto& kernel : kernels.linear_backward) call_linear_backward(kernel);
        call_move(kernels);
        for (const auto& kernel : kernels.indexed) call_indexed(kernels, kernel);
        for (const auto& kernel : kernels.segments) call_segments(kernels, kernel);
        for (const auto& kernel : kernels.attention) call_attention(kernels, kernel);
        for (const auto& kernel : kernels.attention_backward) call_attention_backward(kernels, kernel);
    }
}

}  // namespace

int main(int count, char** arguments) {
    const int64_t rounds = count > 1 ? std::atoll(arguments[1]) : 120;
    {
        Kernels kernels;
        namespace variant = baseline;
#include "kernels.inc"
        fuzz(kernels, rounds);
    }
#ifdef SOFTMAXIMA_X86
    if (softmaxima_level >= 3) {
        Kernels kernels;
        namespace variant = v3;
#include "kernels.inc"
        fuzz(kernels, rounds);
    }
    if (softmaxima_level == 4) {
        Kernels kernels;
        namespace variant = v4;
#include "kernels.inc"
        fuzz(kernels, rounds);
    }
#endif
    std::printf("%lld rounds of calls without a complaint\n", static_cast<long long>(rounds));
    return 0;
}
