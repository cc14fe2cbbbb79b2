// The losses of softmax and its relatives, and of maps with a threshold.

#include "loss.h"

namespace SOFTMAXIMA_ISA {
namespace {

template <class T>
bool emit_given(const Row<T>& row, const T* p, double weight) {
    const T factor = T(weight);
    T* out = row.out;
#pragma omp simd
    for (int64_t i = 0; i < row.n; ++i) out[i] = p[i] * factor;
    return true;
}

// Softmax over the scores whose probabilities are not 0.
template <class T>
struct Selected {
    struct Part {
        double weight, top, conjugate;
    };

    const T* p;  // of the row
    bool with_conjugate = false;

    static Tsallis regulariser(const Row<T>&) { return {0}; }

    // v = log m + log(1 + r/m), m scores having the largest probability, which is the unit of r.
    bool scan(const Row<T>& row, int64_t begin, int64_t end, Part& part, Scratch<T>& scratch) const {
        double largest = 0, count = 0, rest = 0;
#pragma omp simd reduction(max : largest)
        for (int64_t i = begin; i < end; ++i) largest = double(p[i]) > largest ? double(p[i]) : largest;
#pragma omp simd reduction(+ : rest, count)
        for (int64_t i = begin; i < end; ++i) {
            const bool is_largest = double(p[i]) == largest;
            count += is_largest ? 1.0 : 0.0;
            rest += is_largest ? 0.0 : double(p[i]);
        }
        part.weight = 1;
        part.top = row.largest(begin, end, scratch);
        part.conjugate = largest == 0 ? rest : std::log(count) + std::log1p(rest / (count * largest));
        return true;
    }

    bool finish(const Row<T>&, Part*, int, Scratch<T>&) const { return true; }

    bool emit(const Row<T>& row, int64_t, int64_t, const Part& part, Scratch<T>&) const { return emit_given(row, p, part.weight); }

    // Of one class, to more digits than p has.
    Likelihood likelihood(const Row<T>& row, int64_t c, const Part& part) const {
        return p[c] == 0 ? Likelihood{0, 1} : Likelihood::of_log(row.gap_above(c, part.top) - part.conjugate);
    }
};

// V(x) = ⟨p, x⟩, whose gradient is taken for p.
template <class T>
struct Linear {
    struct Part {
        double weight, top, conjugate;
    };

    const T* p;  // of the row
    bool with_conjugate = false;

    struct Nothing {
        double operator()(double) const { return 0; }
    };

    static Nothing regulariser(const Row<T>&) { return {}; }

    // The origin of values is 0, for neither p nor y need add up to 1.
    bool scan(const Row<T>& row, int64_t, int64_t, Part& part, Scratch<T>&) const {
        constexpr int64_t lanes = LANES<T>;
        const T *x = row.x, *shares = p;
        const int64_t whole = row.n / lanes * lanes, rest = row.n - whole;
        Vector<double> sums[2] = {};
        const auto add = [&](Vector<T> share, Vector<T> score) __attribute__((always_inline)) {
            score = share != all(T(0)) ? score : Vector<T>{};
            if constexpr (sizeof(T) == sizeof(double)) {
                sums[0] += share * score;
            } else {
                Vector<double> shares[2] = {}, scores[2] = {};
                SOFTMAXIMA_ISA::add(share, shares);
                SOFTMAXIMA_ISA::add(score, scores);
                for (int half = 0; half < 2; ++half) sums[half] += shares[half] * scores[half];
            }
        };
        for (int64_t i = 0; i < whole; i += lanes) add(load(shares + i), load(x + i));
        if (rest) add(load(shares + whole, rest, T(0)), load(x + whole, rest, T(0)));
        part = {1, 0, reduce<LANES<double>>(sums[0] + sums[1], [](auto a, auto b) __attribute__((always_inline)) { return a + b; })};
        return true;
    }

    bool finish(const Row<T>&, Part*, int, Scratch<T>&) const { return true; }

    bool emit(const Row<T>& row, int64_t, int64_t, const Part& part, Scratch<T>&) const { return emit_given(row, p, part.weight); }

    // What p, rounded, lacks of 1 is left to be added up of the others.
    Likelihood likelihood(const Row<T>&, int64_t c, const Part&) const { return {double(p[c]), 0}; }
};

// The same of p that need not add up to 1.
template <class T>
struct LinearOfAnyMass : Linear<T> {
    Likelihood likelihood(const Row<T>&, int64_t c, const typename Linear<T>::Part&) const { return {double(this->p[c]), 1 - double(this->p[c])}; }
};

}  // namespace

template <class T>
constexpr bool is_nonnegative<Linear<T>> = false;

template <class T>
constexpr bool is_nonnegative<LinearOfAnyMass<T>> = false;

template <class T>
constexpr bool knows_lack<LinearOfAnyMass<T>> = true;

namespace {

template <template <class> class Kernel>
int given_losses(const SoftmaximaGivenLoss* call) {
    const SoftmaximaLoss* loss = &call->loss;
    const auto of_dtype = [=](auto type) {
        using T = std::remove_pointer_t<decltype(type)>;
        const T* inputs[] = {static_cast<const T*>(loss->soft), static_cast<const T*>(call->p)};
        return for_each_whole_row<T>(loss->rows, inputs, 2, loss->out, 1.0, [=](const Row<T>& row, const T* const* others, Scratch<T>& scratch) {
            return row_loss(loss, Kernel<T>{others[1]}, row, others[0], scratch);
        });
    };
    return (loss->rows.dtype == 0 ? of_dtype(static_cast<double*>(nullptr)) : of_dtype(static_cast<float*>(nullptr))) ? 0 : 1;
}

}  // namespace

SOFTMAXIMA_LOSS(softmax_loss, 1.0, Softmax<T, Kind::softmax>)
SOFTMAXIMA_LOSS(elastic_softmax_loss, 1.0, Softmax<T, Kind::elastic>)
SOFTMAXIMA_LOSS(sparsemax_loss, 1.0, ThresholdMap<T, Sparsemax>)
SOFTMAXIMA_LOSS(entmax15_loss, 1.0, ThresholdMap<T, Entmax15>)
SOFTMAXIMA_LOSS(entmax_loss, 5.0, ThresholdMap<T, Entmax>)

int selected_loss(const SoftmaximaGivenLoss* call) { return given_losses<Selected>(call); }

int surrogate_loss(const SoftmaximaGivenLoss* call) { return given_losses<Linear>(call); }

int surrogate_loss_of_any_mass(const SoftmaximaGivenLoss* call) { return given_losses<LinearOfAnyMass>(call); }

}  // namespace SOFTMAXIMA_ISA

SOFTMAXIMA_KERNEL(selected_loss, GivenLoss)
SOFTMAXIMA_KERNEL(surrogate_loss, GivenLoss)
SOFTMAXIMA_KERNEL(surrogate_loss_of_any_mass, GivenLoss)
SOFTMAXIMA_KERNEL(softmax_loss, Loss)
SOFTMAXIMA_KERNEL(elastic_softmax_loss, Loss)
SOFTMAXIMA_KERNEL(sparsemax_loss, Loss)
SOFTMAXIMA_KERNEL(entmax15_loss, Loss)
SOFTMAXIMA_KERNEL(entmax_loss, Loss)
