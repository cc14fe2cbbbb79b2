// The C interface. Every kernel takes one structure of 8-byte fields, and returns 0, or 1 where memory ran out.
//
// Scores are [outer, n, inner], inner contiguous: rows of n scores along the middle axis, row r = outer · inner + i. The rows
// of a tensor with inner = 1 may lie `stride` scores apart, and so may the lines [inner] of one whose logsumexp is asked for without a
// mask; all else is contiguous. A pointer that is null means: none.
#pragma once

#include <atomic>
#include <cstdint>

extern "C" {

struct SoftmaximaRows {
    int64_t dtype;  // 0 float64, 1 float32, 2 bfloat16, 3 float16: of all arrays of scores and probabilities
    int64_t outer, n, inner;
    int64_t threads;
    const void* x;
    int64_t stride;         // from one row of x to the next where inner is 1, else from one line to the next, 0 for inner
    double tau;             // τ of every row, or
    const double* taus;     // τ, one a row
    const double* theta;    // θ, what the map's `Kernel` makes of its parameters; null where there are none
    int64_t distance;       // from those of one row to those of the next; 0 for the same
    const uint8_t* mask;    // 0 leaves a score out: blocks [n, inner],
    const int64_t* blocks;  // the offset of the block of each outer index; null where they follow one another
};

struct SoftmaximaForward {
    SoftmaximaRows rows;
    void* out;       // [outer, n, inner]; for logsumexp [outer, inner]
    double* states;  // of logsumexp and logcumsumexp [2, …]: the largest x, and LSE(x/τ) less that over τ; of logsumexp_rest, which
                     // has no out, the largest x and Σ exp((x − that)/τ) − 1
};

// out = ∂⟨g, map(x/τ)⟩/∂x
struct SoftmaximaBackward {
    SoftmaximaRows rows;    // x only where the derivative depends on it
    const void* p;          // what the forward kernel returned; null for logsumexp and logcumsumexp
    const double* states;   // what those kept
    const void* g;          // [outer, n, inner]; for logsumexp [outer, inner]
    void* out;              // [outer, n, inner], which may be the memory of p
    const int64_t* labels;  // [outer, inner]: g is [outer, inner], of this class, and 0 of all others; negative for a row left out
};

// s times cosines that a margin has moved: c − m y, or cos(arccos c + m y) and −2 − that past θ = π − m y, where y is the target
// without its smoothing.
struct SoftmaximaMargin {
    double scale;     // s, 0 where there is no margin
    double size;      // m
    int64_t angular;  // whether it is added to the angle
    double limit;     // the value of a row with a larger |x| is −∞
};

// values = w · (U·V(x) + Ω(y) − ⟨u, x⟩) and out = w · (U·p − u), where V has the gradient p. For cross-entropy u is y times the
// class weights, U its sum over the classes that are not −∞, and Ω is left out; for Fenchel–Young losses u = y and U = 1.
struct SoftmaximaLoss {
    SoftmaximaRows rows;
    const int64_t* labels;       // [outer, inner]; negative for a row that is left out: or
    const void* soft;            // probabilities [outer, n, inner], not of perturb_max_loss
    const double* class_weight;  // [n]
    double smoothing;
    double scale;             // a factor of out
    int64_t fenchel;          // whether this is a Fenchel–Young loss
    double square;            // z: every value, before its weight, has z·V(x)² more
    double* values;           // [outer, inner]
    void* out;                // [outer, n, inner], null where no gradient is wanted; may be the memory of x where inner is 1
    SoftmaximaMargin margin;  // of the scores of softmax_loss, of dtype 0 or 1, whose `scale` above includes s
};

// A loss of probabilities p [outer, n, inner] that are known: that of softmax over a part of each row's scores, which is where they are
// not 0, or ⟨p − y, x⟩ for any. `out` may be the same memory. dtype 0 or 1.
struct SoftmaximaGivenLoss {
    SoftmaximaLoss loss;
    const void* p;
};

// What a state of logsumexp is made of, of each row.
struct SoftmaximaState {
    SoftmaximaRows rows;
    double* rests;    // [outer, inner]: Σ exp((x − M)/τ) over the others, M the largest x; NaN where one is, 0 where M is infinite
    double* maxima;   // [outer, inner]: M; NaN where an x is
    int64_t* counts;  // [outer, inner]: how many x are the largest; 0 of −∞ and NaN
};

// log|S| and the sign of S = Σ b exp(x/τ), of rows with inner = 1. The sign is 2, and S not known, where a score that counts is +∞
// or NaN, or a weight is neither 0 nor of a size from 2^-100 to 2^100. Or, where g is given, out = g · ∂log|S|/∂x, from signs and states.
struct SoftmaximaWeighted {
    SoftmaximaRows rows;
    const void* weights;  // b, n of them a row, of the dtype of the scores, or
    const double* wide;   // in double
    int64_t distance;     // from those of one row to those of the next; 0 for the same
    double* values;       // [outer]
    double* signs;        // [outer]
    double* states;       // [2, outer]: the largest x that has a weight, and log|S| less that over τ; may be null for the value
    const double* g;      // [outer]
    void* out;            // [outer, n]
};

// What bounds of logsumexp ask of the gaps δ = (M − x)/τ of each row from its largest score M; where M is not finite, only M counts.
struct SoftmaximaGaps {
    SoftmaximaRows rows;
    double width;     // of a bin, in units of τ
    int64_t bins;     // beside the last, which has everything beyond
    int64_t k;        // at most n
    double* summary;  // [outer, inner, 6]: M, NaN where a score is; how many scores are above −∞; how many of them are M; Σδ of them; a score
                      // near M − τ log of their number, and how many are no less
    double* largest;  // [outer, inner, k]: the largest scores, in order
    double* counts;   // [outer, inner, bins + 1]: how many gaps there are in each bin, without those of M and of −∞
};

// The terms of a row that are no further than `reach` from the largest score M.
struct SoftmaximaKept {
    SoftmaximaRows rows;
    double reach;     // in units of τ
    double* summary;  // [outer, inner, 5]: M and two numbers as above; how many scores are kept; Σ exp(−δ) of those that are not M
};

// logsumexp and softmax of scale · (q − zero), q bytes [outer, n, inner], all contiguous.
struct SoftmaximaQuantized {
    int64_t dtype;      // of out
    int64_t is_signed;  // whether the bytes are int8
    int64_t outer, n, inner;
    int64_t threads;
    const void* q;
    double scale, zero;    // of every row, or
    const double* scales;  // one a row
    const double* zeros;   // one a row
    const uint8_t* mask;   // [outer, n, inner]: 0 leaves a score out
    double* values;        // [outer, inner]: logsumexp
    void* out;             // [outer, n, inner]: softmax, null where it is not wanted
};

// o_i = Σ_j p_ij v_j, p_i = map(x_i/τ), x_ij = scale ⟨q_i, k_j⟩ + bias_ij, of queries and keys that lie `distance` apart, each matrix
// at its own offset, in elements. Numbers of a query are [matrices, queries].
struct SoftmaximaMatrices {
    const void* data;
    int64_t distance;        // from one row to the next; 0 for the same
    const int64_t* offsets;  // [matrices]
};

struct SoftmaximaAttention {
    SoftmaximaMatrices q, k, v;
    SoftmaximaMatrices mask;  // bytes, 0 leaves a score out; null where there is none
    SoftmaximaMatrices bias;  // of the dtype that is computed in; likewise
    int64_t dtype;            // of queries, keys, values and out
    int64_t matrices, queries, keys, size, value_size;
    int64_t threads;
    int64_t parts;           // that the queries of a matrix are shared out in
    const int64_t* lengths;  // [matrices]: how many keys there are; null for all
    int64_t left, right;     // how many keys before and after its own place a query sees
    int64_t first;           // the place of the first query of all matrices, or
    const int64_t* firsts;   // [matrices]: of each; may be null
    double scale;
    double softcap;        // c of c tanh(scale ⟨q, k⟩/c), to which bias and slopes are added; 0 where there is none
    const double* slopes;  // [matrices]: m of −m |distance of query and key|; null where there are none
    double tau;            // τ of all, or
    const double* taus;    // τ of each query
    const double* theta;   // of the map, as in SoftmaximaRows
    int64_t distance;      // from that of one query to the next
    const double* sinks;   // the score of one key more, whose value is 0, of each query; null where there is none
    int64_t sparse;        // whether many p may be 0
    const void* map;       // a kernel of SoftmaximaForward
    void* out;             // [matrices, queries, value_size]
    void* lse;             // [matrices, queries], of the dtype that is computed in: LSE_j(x_ij/τ) without the sink; may be null
    // [2, matrices, queries]: of softmax the largest x, and log(Σ e^{(x − it)/τ} + e^{θ − it/τ}), from which p is known key by key; may
    // be null, and is for gradients what the forward pass left.
    double* states;
};

// The gradients of ⟨g, o⟩ + ⟨g_lse, lse⟩, of the dtype that is computed in.
struct SoftmaximaAttentionBackward {
    SoftmaximaAttention attention;
    const void* derivative;  // a kernel of SoftmaximaBackward
    int64_t uses_scores;     // whether it needs x
    int64_t on_support;      // whether it is 0 where p is 0, and the same of the others alone
    const void* g;           // [matrices, queries, value_size], of the dtype of values
    const void* g_lse;       // [matrices, queries], of the dtype that is computed in; may be null
    void* dq;                // [matrices, queries, size]
    void* dk;                // [parts, matrices, keys, size]
    void* dv;                // [parts, matrices, keys, value_size]
};

// The scores of a linear layer, (s ⊙ (hidden weightᵀ) + bias)/τ.
struct SoftmaximaLinear {
    int64_t dtype;  // of weight and bias; all else is of the dtype that is computed in
    int64_t rows, classes, features;
    int64_t threads;
    const void* hidden;    // [rows, features]
    const void* weight;    // [classes, features]
    const double* scales;  // s [classes]; null for 1
    const void* bias;      // [classes]; null where there is none
    double tau;
    void* scores;  // [rows, classes]
};

// The derivatives of ⟨g, s ⊙ (hidden weightᵀ) + bias⟩. Zeros in g cost next to nothing.
struct SoftmaximaLinearBackward {
    SoftmaximaLinear linear;  // whose scores are g
    int64_t adds;             // whether weight_grad and bias_grad have something, to which these are added
    void* hidden_grad;        // [rows, features]; each of the three may be null
    void* weight_grad;        // [classes, features]
    void* bias_grad;          // [classes]
};

// Scores [outer, elements, inner] whose elements are in segments of any lengths: those of segment s stand, in order, at order[k] for k
// from starts[s] to starts[s + 1]. Each segment of each outer and inner index is a row of `forward` or `derivative`; numbers of a row are
// [outer, segments, inner]. Without g, out is what `forward` returns; with g, what `derivative` does.
struct SoftmaximaSegments {
    int64_t dtype, outer, elements, inner, segments;
    int64_t threads;
    const int64_t* starts;   // [segments + 1]
    const int64_t* order;    // [elements]; null where each k stands at k
    const void* x;           // null where `derivative` does without
    const uint8_t* mask;     // [outer, elements, inner]: 0 leaves a score out; may be null
    double tau;              // τ of all, or
    const double* taus;      // of each row
    const double* theta;     // of the map, as in SoftmaximaRows
    int64_t distance;        // from that of one row to the next
    int64_t sums;            // whether `forward` gives one number a row, as logsumexp does
    const void* forward;     // a kernel of SoftmaximaForward
    const void* derivative;  // a kernel of SoftmaximaBackward: of sums with the states that `forward` leaves, else with p
    const void* p;           // [outer, elements, inner], of maps
    const void* g;           // [outer, elements, inner]; of sums [outer, segments, inner]
    void* out;               // [outer, elements, inner]; of sums without g [outer, segments, inner]
};

// What an index says of itself.
struct SoftmaximaIndex {
    int64_t elements, threads;
    const int64_t* index;
    int64_t* found;  // [3]: the smallest number, the largest, and whether they are in order
};

// Segments of an index in any order are in windows, 2^shift of them each: the elements of a window stand together, in their order.
struct SoftmaximaPartition {
    int64_t elements, windows, shift;
    int64_t threads;
    const int64_t* index;  // [elements]: the segment of each
    int64_t* bounds;       // [windows + 1]: where windows begin
    int32_t* places;       // [elements]: where each goes
    int32_t* numbers;      // [elements]: the segment of what stands at each place
};

// The elements of each segment, in order, of an index that is in order or of its windows: starts and order as above.
struct SoftmaximaGrouping {
    int64_t elements, segments, windows, shift;
    int64_t threads;
    const int64_t* index;    // [elements], in order, where numbers are null
    const int64_t* bounds;   // as above
    const int32_t* numbers;  // likewise
    int64_t* starts;         // [segments + 1]
    int64_t* order;          // [elements]; null where the index is in order
};

// to[places[k]] = source[k] of the elements k of arrays [outer, elements, inner], or to[k] = source[places[k]] where `back`.
struct SoftmaximaMove {
    int64_t size;  // of a number, in bytes
    int64_t outer, elements, inner;
    int64_t threads, back;
    const int32_t* places;
    const void* source;
    void* to;
};

// softmax or logsumexp of segments, of dtype 1 to 3, whose elements are in order or in windows, or, where g is given, its derivative.
struct SoftmaximaIndexed {
    int64_t dtype, outer, elements, inner, segments;
    int64_t threads;
    const int64_t* starts;   // [segments + 1], of elements in order; or null, and
    const int32_t* numbers;  // as above
    const int64_t* bounds;
    int64_t windows, shift;
    const void* x;        // null for the derivative of softmax
    const uint8_t* mask;  // [outer, elements, inner]: 0 leaves a score out; may be null
    double tau;           // τ of all, or
    const double* taus;   // [outer, segments, inner]
    const void* p;        // [outer, elements, inner]: what softmax was, for its derivative
    const void* g;        // [outer, elements, inner]; of logsumexp [outer, segments, inner]
    void* out;            // [outer, elements, inner]; logsumexp itself is [outer, segments, inner]
};

// log(e^x + e^y) over n pairs, or, where g is given, its gradients.
struct SoftmaximaPairs {
    int64_t dtype, n, threads;
    const void* x;
    const void* y;
    const void* g;  // null for the value
    void* out;      // the value, or g · ∂/∂x
    void* other;    // g · ∂/∂y
};

// How often each of n codes occurs, added to what is there: the sum of two counters, between which scores that repeat alternate.
struct SoftmaximaCodes {
    int64_t n;
    const uint16_t* codes;
    uint32_t* counts;  // [65536, 2]
};

// y = f(x) over n numbers, of dtype 0 or 1
struct SoftmaximaElementwise {
    int64_t dtype, n;
    const void* x;
    void* y;
};
}

#define SOFTMAXIMA_INTERFACE 17

// In dispatch.cpp.
// Whether Python's main thread runs handlers of signals, in the middle of a call.
extern __attribute__((visibility("hidden"))) std::atomic<bool> softmaxima_is_handling;
bool softmaxima_is_main();
// Whether this is the thread in which Python runs handlers of signals, and none is run.
bool softmaxima_hears();
// Has Python run them there, if it was not asked just now: whether one raised, which whoever called the kernel raises then.
bool softmaxima_heard();

// A kernel is a function of its structure in the namespace SOFTMAXIMA_ISA, whose file is compiled once for each instruction set.
//   SOFTMAXIMA_KERNEL(name, Forward)
// below that namespace exports softmaxima_name(const SoftmaximaForward*) and softmaxima_name_takes(), which says "Forward". CMake
// collects these lines, and dispatch.cpp exports them, of the instruction sets that there are.
extern const int softmaxima_level;  // of x86-64: 4, 3, or 0 for the baseline

#define SOFTMAXIMA_EXPORT extern "C" __attribute__((visibility("default")))
#define SOFTMAXIMA_EXPORT_KERNEL(name, kind, chosen)                                                 \
    SOFTMAXIMA_EXPORT int softmaxima_##name(const Softmaxima##kind* call) { return (chosen)(call); } \
    SOFTMAXIMA_EXPORT const char* softmaxima_##name##_takes() { return #kind; }

#ifdef SOFTMAXIMA_COLLECTED
#define SOFTMAXIMA_KERNEL(name, kind)
#else
#define SOFTMAXIMA_KERNEL(name, kind) SOFTMAXIMA_EXPORT_KERNEL(name, kind, SOFTMAXIMA_ISA::name)
#endif
