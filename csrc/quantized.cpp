// logsumexp and softmax of quantised scores x = scale · (q − zero), q a byte:
//
//   LSE = scale · (M − zero) + log m + log1p(r/m),   r = Σ_{b<M} c_b t_{M−b},   t_k = exp(−scale · k),   p = t_{M−q} / (m + r),
//
// M the largest byte, c_b how many are b, m = c_M. There are 256 exponentials, however long the row.

#include "rows.h"

namespace SOFTMAXIMA_ISA {
namespace {

constexpr int BINS = 256;
constexpr int64_t SHORT = 2048;         // the longest row whose terms are looked up and summed without counting
constexpr int64_t LONG = 1 << 16;       // the shortest that threads share
constexpr int64_t COUNTABLE = 1 << 30;  // bytes that 32 bits count

// Bytes of a row; `flip` makes those of signed numbers ascend.
struct ByteRow {
    const uint8_t* q;
    const uint8_t* mask;  // may be null
    int64_t n;
    uint8_t flip;
};

struct Counts {
    int64_t of[BINS] = {};

    // Four tables, for a byte that follows an equal one has to wait until that is written.
    void add(const ByteRow& row, int64_t begin, int64_t end) {
        uint32_t tables[4][BINS];
        for (int64_t start = begin; start < end; start += COUNTABLE) {
            const int64_t stop = minimum(start + COUNTABLE, end);
            std::memset(tables, 0, sizeof tables);
            int64_t i = start;
            if (row.mask) {
                for (; i < stop; ++i) tables[i % 4][row.q[i]] += row.mask[i] != 0;
            } else {
                for (; i + 8 <= stop; i += 8) {
                    uint64_t word;
                    std::memcpy(&word, row.q + i, 8);
                    for (int byte = 0; byte < 8; ++byte) ++tables[byte % 4][word >> 8 * byte & 255];
                }
                for (; i < stop; ++i) ++tables[0][row.q[i]];
            }
            for (int b = 0; b < BINS; ++b) of[b ^ row.flip] += int64_t(tables[0][b]) + tables[1][b] + tables[2][b] + tables[3][b];
        }
    }
};

// t with its index reversed, so that t_{M−b} is at(M)[b], and 0 for t_0: the terms below the maximum.
struct Terms {
    double reversed[BINS];

    void set(double scale) {
        for (int i = 0; i < BINS; ++i) reversed[i] = exp(-scale * double(BINS - 1 - i));
        reversed[BINS - 1] = 0;
    }

    const double* at(int maximum) const { return reversed + (BINS - 1 - (maximum < 0 ? 0 : maximum)); }
};

// M, m and r of a row.
struct ByteSum {
    int maximum = -1;  // none
    double count = 0, rest = 0;

    static ByteSum of(const Counts& counts, const Terms& terms) {
        ByteSum sum;
        for (int b = 0; b < BINS; ++b)
            if (counts.of[b]) sum.maximum = b;
        if (sum.maximum < 0) return sum;
        const double* term = terms.at(sum.maximum);
        double parts[4] = {};
        for (int b = 0; b < sum.maximum; ++b) parts[b % 4] += double(counts.of[b]) * term[b];
        sum.count = double(counts.of[sum.maximum]);
        sum.rest = (parts[0] + parts[1]) + (parts[2] + parts[3]);
        return sum;
    }

    // In bytes, of which SHORT is too short to need more.
    static int64_t occurrences(const ByteRow& row, uint8_t byte) {
        constexpr int64_t lanes = 32;
        static_assert(SHORT / lanes < 256, "a lane counts in 8 bits");
        uint8_t found[lanes] = {};
        int64_t count = 0, i = 0;
        for (; i + lanes <= row.n; i += lanes)
            for (int64_t j = 0; j < lanes; ++j) found[j] = uint8_t(found[j] + (row.q[i + j] == byte));
        for (; i < row.n; ++i) count += row.q[i] == byte;
        for (int64_t j = 0; j < lanes; ++j) count += found[j];
        return count;
    }

    static ByteSum of_short(const ByteRow& row, const Terms& terms) {
        ByteSum sum;
        uint8_t highest = 0;
        for (int64_t i = 0; i < row.n; ++i) {
            const uint8_t b = row.q[i] ^ row.flip;
            highest = b > highest ? b : highest;
        }
        const int64_t count = occurrences(row, uint8_t(highest ^ row.flip));
        const double* term = terms.at(highest);
        const uint64_t flips = uint64_t(row.flip) * 0x0101010101010101u;
        double parts[8] = {};
        int64_t i = 0;
        for (; i + 8 <= row.n; i += 8) {
            uint64_t word;
            std::memcpy(&word, row.q + i, 8);
            word ^= flips;
            for (int byte = 0; byte < 8; ++byte) parts[byte] += term[word >> 8 * byte & 255];
        }
        for (; i < row.n; ++i) parts[0] += term[row.q[i] ^ row.flip];
        sum.maximum = highest;
        sum.count = double(count);
        sum.rest = ((parts[0] + parts[1]) + (parts[2] + parts[3])) + ((parts[4] + parts[5]) + (parts[6] + parts[7]));
        return sum;
    }

    // Bytes that ascend are those that are meant plus `flip`.
    double value(double scale, double zero, int flip) const {
        if (maximum < 0) return -std::numeric_limits<double>::infinity();
        return scale * (double(maximum - flip) - zero) + ((count == 1 ? 0.0 : std::log(count)) + std::log1p(rest / count));
    }
};

// softmax: p of a byte that ascends is t_{M−b} / (m + r).
template <class T>
void write_looked_up(const ByteRow& row, const ByteSum& sum, const Terms& terms, T* out) {
    const double* term = terms.at(sum.maximum);
    const double share = 1 / (sum.count + sum.rest);
    for (int64_t i = 0; i < row.n; ++i) {
        const int b = row.q[i] ^ row.flip;
        narrow(b == sum.maximum ? share : term[b] * share, out[i]);
    }
}

// The same from a table of every p, by the byte as it is in memory.
template <class T>
struct Probabilities {
    T of[BINS];

    Probabilities(const ByteSum& sum, const Terms& terms, uint8_t flip) {
        T ascending[BINS];
        const double share = 1 / (sum.count + sum.rest);
        const double* term = terms.at(sum.maximum);
        for (int b = 0; b < sum.maximum; ++b) narrow(term[b] * share, ascending[b]);
        for (int b = sum.maximum < 0 ? 0 : sum.maximum; b < BINS; ++b) narrow(b == sum.maximum ? share : 0.0, ascending[b]);
        for (int half = 0; half < BINS; half += 128) std::memcpy(of + (half ^ flip), ascending + half, sizeof of / 2);
    }

    void write(const ByteRow& row, int64_t begin, int64_t end, T* out) const {
        T nothing;
        narrow(0.0, nothing);
        if (row.mask) {
            for (int64_t i = begin; i < end; ++i) out[i] = row.mask[i] ? of[row.q[i]] : nothing;
        } else {
            int64_t i = begin;
            for (; i + 8 <= end; i += 8) {
                uint64_t word;
                std::memcpy(&word, row.q + i, 8);
                for (int byte = 0; byte < 8; ++byte) out[i + byte] = of[word >> 8 * byte & 255];
            }
            for (; i < end; ++i) out[i] = of[row.q[i]];
        }
    }
};

// The scales and zeros of rows, and what is the same for all of them.
struct Scales {
    const SoftmaximaQuantized& call;
    Terms common;
    uint8_t flip;

    explicit Scales(const SoftmaximaQuantized& call) : call(call), flip(call.is_signed ? 128 : 0) {
        if (!call.scales) common.set(call.scale);
    }

    double scale(int64_t index) const { return call.scales ? call.scales[index] : call.scale; }

    double zero(int64_t index) const { return call.zeros ? call.zeros[index] : call.zero; }

    double value(const ByteSum& sum, int64_t index) const { return sum.value(scale(index), zero(index), flip); }

    const Terms& terms(int64_t index, Terms& own) const {
        if (!call.scales) return common;
        own.set(call.scales[index]);
        return own;
    }
};

template <class T>
void whole_row(const Scales& scales, const ByteRow& row, int64_t index, T* out) {
    Terms own;
    const Terms& terms = scales.terms(index, own);
    ByteSum sum;
    if (row.n <= SHORT && !row.mask) {
        sum = ByteSum::of_short(row, terms);
    } else {
        Counts counts;
        counts.add(row, 0, row.n);
        sum = ByteSum::of(counts, terms);
    }
    scales.call.values[index] = scales.value(sum, index);
    if (!out) return;
    if (row.n <= BINS && !row.mask) {
        write_looked_up(row, sum, terms, out);
    } else {
        Probabilities<T>(sum, terms, row.flip).write(row, 0, row.n, out);
    }
}

template <class T>
void split_row(const Scales& scales, const ByteRow& row, int64_t index, T* out, int team) {
    Counts counts;
    const int64_t blocks = (row.n + LONG - 1) / LONG;
#pragma omp parallel num_threads(team)
    {
        Counts own;
#pragma omp for nowait
        for (int64_t block = 0; block < blocks; ++block) own.add(row, block * LONG, minimum((block + 1) * LONG, row.n));
#pragma omp critical
        for (int b = 0; b < BINS; ++b) counts.of[b] += own.of[b];
    }
    Terms own;
    const Terms& terms = scales.terms(index, own);
    const ByteSum sum = ByteSum::of(counts, terms);
    scales.call.values[index] = scales.value(sum, index);
    if (!out) return;
    const Probabilities<T> p(sum, terms, row.flip);
#pragma omp parallel for num_threads(team)
    for (int64_t block = 0; block < blocks; ++block) p.write(row, block * LONG, minimum((block + 1) * LONG, row.n), out);
}

template <class T>
bool for_each_byte_row(const SoftmaximaQuantized& call, T* out) {
    using C = compute_t<T>;
    const Scales scales(call);
    const int64_t n = call.n, inner = call.inner, rows = call.outer * inner;
    const uint8_t* q = static_cast<const uint8_t*>(call.q);
    const Team team = team_size(call.threads, (call.out ? 0.8 : 0.4) * double(rows) * double(n) + 100.0 * double(rows));
    if (inner == 1 && rows < team && n >= 2 * LONG) {
        for (int64_t index = 0; index < rows; ++index) {
            const ByteRow row = {q + index * n, call.mask ? call.mask + index * n : nullptr, n, scales.flip};
            split_row(scales, row, index, out ? out + index * n : nullptr, team);
        }
        return true;
    }
    if (inner == 1)
        return share_out<C>(rows, team, [&](int64_t index, Scratch<C>&) {
            const ByteRow row = {q + index * n, call.mask ? call.mask + index * n : nullptr, n, scales.flip};
            whole_row(scales, row, index, out ? out + index * n : nullptr);
            return true;
        });
    // Columns as rows, a line of the cache at a time.
    const int64_t tiles = (inner + TILE<uint8_t> - 1) / TILE<uint8_t>, size = n * TILE<uint8_t>;
    return share_out<C>(call.outer * tiles, team, [&](int64_t task, Scratch<C>& scratch) {
        const int64_t o = task / tiles, first = task % tiles * TILE<uint8_t>, columns = minimum(TILE<uint8_t>, inner - first);
        char* memory = scratch.tile.at_least(size * int64_t(sizeof(T) + 2));
        if (!memory) return false;
        T* results = reinterpret_cast<T*>(memory);
        uint8_t* bytes = reinterpret_cast<uint8_t*>(results + size);
        uint8_t* allowed = bytes + size;
        const int64_t offset = o * n * inner + first;
        to_rows(q + offset, n, inner, columns, bytes);
        if (call.mask) to_rows(call.mask + offset, n, inner, columns, allowed);
        for (int64_t j = 0; j < columns; ++j) {
            const ByteRow row = {bytes + j * n, call.mask ? allowed + j * n : nullptr, n, scales.flip};
            whole_row(scales, row, o * inner + first + j, out ? results + j * n : nullptr);
        }
        if (out) to_columns(results, n, inner, columns, out + offset);
        return true;
    });
}

}  // namespace

int quantized(const SoftmaximaQuantized* call) {
    return with_dtype(call->dtype, [&](auto* type) {
        using T = std::remove_pointer_t<decltype(type)>;
        return for_each_byte_row(*call, static_cast<T*>(call->out));
    });
}

}  // namespace SOFTMAXIMA_ISA

SOFTMAXIMA_KERNEL(quantized, Quantized)
