// The losses of softmax and its relatives, and of maps with a threshold.

#include "loss.h"

namespace SOFTMAXIMA_ISA {
namespace {

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

    bool emit(const Row<T>& row, int64_t begin, int64_t end, const Part& part, Scratch<T>&) const {
        const T weight = T(part.weight);
        for (int64_t i = begin; i < end; ++i) row.out[i] = p[i] * weight;
        return true;
    }

    // Of one class, to more digits than p has; p may have been emitted into its own place.
    double probability(const Row<T>& row, int64_t c, const Part& part) const {
        return p[c] == 0 ? 0.0 : std::exp(row.gap_above(c, part.top) - part.conjugate);
    }
};

// body(null pointer of float or double) as a status.
template <class Body>
int with_wide_dtype(int64_t dtype, const Body& body) {
    return (dtype == 0 ? body(static_cast<double*>(nullptr)) : body(static_cast<float*>(nullptr))) ? 0 : 1;
}

}  // namespace

SOFTMAXIMA_LOSS(softmax_loss, 1.0, Softmax<T, Kind::softmax>)
SOFTMAXIMA_LOSS(elastic_softmax_loss, 1.0, Softmax<T, Kind::elastic>)
SOFTMAXIMA_LOSS(sparsemax_loss, 1.0, ThresholdMap<T, Sparsemax>)
SOFTMAXIMA_LOSS(entmax15_loss, 1.0, ThresholdMap<T, Entmax15>)
SOFTMAXIMA_LOSS(entmax_loss, 5.0, ThresholdMap<T, Entmax>)

int selected_loss(const SoftmaximaSelectedLoss* call) {
    const SoftmaximaLoss* loss = &call->loss;
    return with_wide_dtype(loss->rows.dtype, [=](auto type) {
        using T = std::remove_pointer_t<decltype(type)>;
        const T* inputs[] = {static_cast<const T*>(loss->soft), static_cast<const T*>(call->p)};
        return for_each_whole_row<T>(loss->rows, inputs, 2, loss->out, 1.0, [=](const Row<T>& row, const T* const* others, Scratch<T>& scratch) {
            return row_loss(loss, Selected<T>{others[1]}, row, others[0], scratch);
        });
    });
}

}  // namespace SOFTMAXIMA_ISA

SOFTMAXIMA_KERNEL(selected_loss, SelectedLoss)
SOFTMAXIMA_KERNEL(softmax_loss, Loss)
SOFTMAXIMA_KERNEL(elastic_softmax_loss, Loss)
SOFTMAXIMA_KERNEL(sparsemax_loss, Loss)
SOFTMAXIMA_KERNEL(entmax15_loss, Loss)
SOFTMAXIMA_KERNEL(entmax_loss, Loss)
