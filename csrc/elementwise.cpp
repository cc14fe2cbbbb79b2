// exp and log of an array: what the tests hold to one unit in the last place.

#include "elementary.h"
#include "kernels.h"

namespace SOFTMAXIMA_ISA {
namespace {

template <class C, class Function>
void each(const SoftmaximaElementwise* call, const Function& function) {
    const C* x = static_cast<const C*>(call->x);
    C* y = static_cast<C*>(call->y);
    for (int64_t i = 0; i < call->n; ++i) y[i] = function(x[i]);
}

}  // namespace

int exp(const SoftmaximaElementwise* call) {
    if (call->dtype == 0) each<double>(call, [](double x) { return exp(x); });
    if (call->dtype == 1) each<float>(call, [](float x) { return exp(x); });
    return 0;
}

int log(const SoftmaximaElementwise* call) {
    if (call->dtype == 0) each<double>(call, [](double x) { return log(x); });
    if (call->dtype == 1) each<float>(call, [](float x) { return log(x); });
    return 0;
}

}  // namespace SOFTMAXIMA_ISA

SOFTMAXIMA_KERNEL(exp, Elementwise)
SOFTMAXIMA_KERNEL(log, Elementwise)
