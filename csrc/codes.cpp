// How often each code of 16 bits occurs: of so many scores there are few values.

#include "rows.h"

namespace SOFTMAXIMA_ISA {

int count_codes(const SoftmaximaCodes* call) {
    constexpr int64_t WORD = 4, SAME = 0x0001000100010001;
    const uint16_t* codes = call->codes;
    const auto code = [](uint64_t word, int64_t k) { return 2 * ((word >> (16 * k)) & 0xffff); };
    int64_t i = 0;
    for (; i + 2 * WORD <= call->n; i += 2 * WORD) {
        uint64_t one, other;
        std::memcpy(&one, codes + i, sizeof one);
        std::memcpy(&other, codes + i + WORD, sizeof other);
        if (one == other && one == SAME * (one & 0xffff)) {  // a count would wait for the one before
            call->counts[code(one, 0)] += 2 * WORD;
            continue;
        }
        for (int64_t k = 0; k < WORD; ++k) ++call->counts[code(one, k) + (k & 1)];
        for (int64_t k = 0; k < WORD; ++k) ++call->counts[code(other, k) + (k & 1)];
    }
    for (; i < call->n; ++i) ++call->counts[2 * int64_t(codes[i])];
    return 0;
}

}  // namespace SOFTMAXIMA_ISA

SOFTMAXIMA_KERNEL(count_codes, Codes)
