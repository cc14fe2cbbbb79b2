// Which elements belong together: an index is looked at, and its elements are put in order of their segments.
//
// Elements that are anywhere are moved in two steps. First to windows of segments, among whose elements order stays: of a few hundred places that
// are written to one after the other the cache holds the lines, of a million it does not. What is left to do is within a window.

#include <algorithm>

#include "rows.h"

namespace SOFTMAXIMA_ISA {
namespace {

constexpr double NANOSECONDS = 3;  // that a number takes, roughly

// Elements [inner] to their places.
template <class V>
void move_to(const int32_t* places, const V* from, int64_t elements, int64_t inner, int team, V* to) {
    if (inner == 1) {
#pragma omp parallel for num_threads(team)
        for (int64_t k = 0; k < elements; ++k) to[places[k]] = from[k];
    } else {
#pragma omp parallel for num_threads(team)
        for (int64_t k = 0; k < elements; ++k) std::copy_n(from + k * inner, inner, to + int64_t(places[k]) * inner);
    }
}

// And back.
template <class V>
void move_back(const int32_t* places, const V* from, int64_t elements, int64_t inner, int team, V* to) {
    if (inner == 1) {
#pragma omp parallel for num_threads(team)
        for (int64_t k = 0; k < elements; ++k) to[k] = from[places[k]];
    } else {
#pragma omp parallel for num_threads(team)
        for (int64_t k = 0; k < elements; ++k) std::copy_n(from + int64_t(places[k]) * inner, inner, to + k * inner);
    }
}

template <class V>
void move_all(const SoftmaximaMove& call) {
    const int64_t size = call.elements * call.inner;
    const int team = team_size(call.threads, NANOSECONDS * double(size));
    const auto* from = static_cast<const V*>(call.source);
    auto* to = static_cast<V*>(call.to);
    for (int64_t outer = 0; outer < call.outer; ++outer) {
        if (call.back) {
            move_back(call.places, from + outer * size, call.elements, call.inner, team, to + outer * size);
        } else {
            move_to(call.places, from + outer * size, call.elements, call.inner, team, to + outer * size);
        }
    }
}

}  // namespace

int index_range(const SoftmaximaIndex* call) {
    const int64_t *index = call->index, elements = call->elements;
    const int team = team_size(call->threads, double(elements));
    int64_t least = std::numeric_limits<int64_t>::max(), most = -1, falls = 0;
#pragma omp parallel for num_threads(team) reduction(min : least) reduction(max : most) reduction(+ : falls)
    for (int64_t k = 0; k < elements; ++k) {
        least = minimum(least, index[k]);
        most = index[k] > most ? index[k] : most;
        falls += k > 0 && index[k] < index[k - 1];
    }
    call->found[0] = least, call->found[1] = most, call->found[2] = falls == 0;
    return 0;
}

int partition(const SoftmaximaPartition* call) {
    const int64_t *index = call->index, elements = call->elements, windows = call->windows, shift = call->shift;
    const int64_t parts = team_size(call->threads, 3.0 * double(elements)), each = (elements + parts - 1) / parts;
    Array<int64_t> memory;
    int64_t* counts = memory.at_least(parts * windows);  // of each part and window, and then where these begin
    if (!counts) return 1;
#pragma omp parallel for num_threads(int(parts)) schedule(static, 1)
    for (int64_t part = 0; part < parts; ++part) {
        int64_t* own = counts + part * windows;
        std::fill_n(own, windows, 0);
        for (int64_t k = part * each; k < minimum((part + 1) * each, elements); ++k) ++own[index[k] >> shift];
    }
    int64_t sum = 0;
    for (int64_t window = 0; window < windows; ++window) {
        call->bounds[window] = sum;
        for (int64_t part = 0; part < parts; ++part) {
            const int64_t count = counts[part * windows + window];
            counts[part * windows + window] = sum;
            sum += count;
        }
    }
    call->bounds[windows] = sum;
#pragma omp parallel for num_threads(int(parts)) schedule(static, 1)
    for (int64_t part = 0; part < parts; ++part) {
        int64_t* own = counts + part * windows;
        for (int64_t k = part * each; k < minimum((part + 1) * each, elements); ++k) {
            const int64_t place = own[index[k] >> shift]++;
            call->places[k] = int32_t(place);
            call->numbers[place] = int32_t(index[k]);
        }
    }
    return 0;
}

int grouping(const SoftmaximaGrouping* call) {
    const int64_t elements = call->elements, segments = call->segments;
    const Team team = team_size(call->threads, 2.0 * double(elements));
    int64_t* starts = call->starts;
    if (!call->numbers) {  // no window, nor any element
        const int64_t* index = call->index;
#pragma omp parallel for num_threads(team.size)
        for (int64_t k = 0; k <= elements; ++k) {
            const int64_t before = k == 0 ? -1 : index[k - 1], own = k == elements ? segments : index[k];
            for (int64_t s = before + 1; s <= own; ++s) starts[s] = k;
        }
        return 0;
    }
    starts[segments] = elements;
    const int32_t* numbers = call->numbers;
    const bool done = share_out<float>(call->windows, team, [&](int64_t window, Scratch<float>&) {
        Array<int64_t>& memory = own_of_thread<Array<int64_t>>();
        const int64_t first = window << call->shift, last = minimum(first + (int64_t(1) << call->shift), segments);
        const int64_t begin = call->bounds[window], end = call->bounds[window + 1];
        int64_t* places = memory.at_least(last - first + 1);
        if (!places) return false;
        std::fill_n(places, last - first + 1, 0);
        for (int64_t k = begin; k < end; ++k) ++places[numbers[k] - first + 1];
        places[0] = begin;
        for (int64_t s = first; s < last; ++s) {
            starts[s] = places[s - first];
            places[s - first + 1] += places[s - first];
        }
        for (int64_t k = begin; k < end; ++k) call->order[places[numbers[k] - first]++] = k;
        memory.release_if_large();
        return true;
    });
    return done ? 0 : 1;
}

int move(const SoftmaximaMove* call) {
    switch (call->size) {
        case 1: move_all<uint8_t>(*call); break;
        case 2: move_all<uint16_t>(*call); break;
        case 4: move_all<uint32_t>(*call); break;
        default: move_all<uint64_t>(*call);
    }
    return 0;
}

}  // namespace SOFTMAXIMA_ISA

SOFTMAXIMA_KERNEL(index_range, Index)
SOFTMAXIMA_KERNEL(partition, Partition)
SOFTMAXIMA_KERNEL(grouping, Grouping)
SOFTMAXIMA_KERNEL(move, Move)
