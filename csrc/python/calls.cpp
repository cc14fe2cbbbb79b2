// Calls of kernels on plain arguments, in C: on a few scores the same in Python takes ten times as long as the kernel. What is not
// plain is left to Python: None is returned, and nothing has happened.
//
// Tensors are read through their Python attributes, and arrays through the buffer protocol, by the limited API of Python 3.11: so
// one binary serves every later Python, every torch and every NumPy.
#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cfloat>
#include <cstring>
#include <memory>
#include <new>

#include "../kernels.h"
#include "../pages.h"

namespace {

constexpr int64_t ALONE = 512;            // as many scores are worth neither a second thread nor a release of the interpreter's lock
constexpr Py_ssize_t PARAMETERS = 8;      // more make a call none for this file
constexpr size_t SIZES[] = {8, 4, 2, 2};  // of numbers of each dtype

// What is asked of tensors and of torch, once.
struct Names {
    PyObject *dtype, *is_cpu, *layout, *is_nested, *requires_grad, *shape;
    PyObject *is_contiguous, *contiguous, *stride, *is_neg, *data_ptr, *level, *cpu;
} name;

PyObject *tensor_type, *parameter_type, *array_type, *strided, *boolean, *int64;
PyObject* dtypes[4];  // in the order of kernels.h
PyObject *empty_like, *empty_array, *threads, *forward_mode;
PyObject *dispatched, *tracing, *transforming, *learning, *autocast;
PyObject* fail;
thread_local bool failed;  // a kernel, of which an error tells that is nobody's refusal

// An owned reference.
class Owned {
   public:
    Owned() = default;
    explicit Owned(PyObject* object) : object_(object) {}
    Owned(const Owned&) = delete;
    Owned& operator=(const Owned&) = delete;
    ~Owned() { Py_XDECREF(object_); }

    void reset(PyObject* object) {
        Py_XDECREF(object_);
        object_ = object;
    }
    PyObject* get() const { return object_; }
    PyObject* release() {
        PyObject* object = object_;
        object_ = nullptr;
        return object;
    }
    explicit operator bool() const { return object_; }

   private:
    PyObject* object_ = nullptr;
};

// Whether what Python says is this; an error is kept, and is no.
bool is(PyObject* said, PyObject* expected) {
    const Owned owned(said);
    return said == expected;
}

bool attribute_is(PyObject* object, PyObject* what, PyObject* expected) { return is(PyObject_GetAttr(object, what), expected); }

bool method_says(PyObject* object, PyObject* method, PyObject* expected) { return is(PyObject_CallMethodObjArgs(object, method, nullptr), expected); }

bool integer(PyObject* said, int64_t& value) {
    const Owned owned(said);
    if (!said) return false;
    value = PyLong_AsLongLong(said);
    return !(value == -1 && PyErr_Occurred());
}

bool is_tensor(PyObject* x) { return Py_TYPE(x) == (PyTypeObject*)tensor_type || Py_TYPE(x) == (PyTypeObject*)parameter_type; }

// Whether nobody looks on: no recorder, no transform, no forward mode.
bool unobserved() {
    int64_t count;
    if (!integer(PyObject_CallNoArgs(dispatched), count) || count > 0) return false;
    if (!is(PyObject_CallNoArgs(tracing), Py_None) || !is(PyObject_CallNoArgs(transforming), Py_False)) return false;
    return integer(PyObject_GetAttr(forward_mode, name.level), count) && count < 0;
}

// Whether autograd is to know what is made of a tensor.
bool must_record(PyObject* x) { return attribute_is(x, name.requires_grad, Py_True) && is(PyObject_CallNoArgs(learning), Py_True); }

// The memory of a tensor or an array: contiguous, on the CPU, and just what it seems.
class Memory {
   public:
    ~Memory() {
        if (buffer_.obj) PyBuffer_Release(&buffer_);
    }

    // The axes of scores; false where they are not plain.
    bool read(PyObject* x) {
        if (is_tensor(x)) {
            const Owned its(PyObject_GetAttr(x, name.dtype));
            while (dtype < 4 && dtypes[dtype] != its.get()) ++dtype;
            return dtype < 4 && read_tensor(x) && axes(PyObject_GetAttr(x, name.shape));
        }
        if (!read_array(x, PyBUF_FORMAT)) return false;
        const char* format = buffer_.format;
        dtype = std::strcmp(format, "d") == 0 ? 0 : std::strcmp(format, "f") == 0 ? 1 : std::strcmp(format, "e") == 0 ? 3 : 4;
        return dtype < 4 && axes(nullptr);
    }

    // A mask with the axes of the scores.
    bool read_mask(PyObject* mask, const Memory& scores) {
        if (scores.is_array() ? !read_array(mask, PyBUF_FORMAT) || std::strcmp(buffer_.format, "?") != 0
                              : !is_tensor(mask) || !attribute_is(mask, name.dtype, boolean) || !read_tensor(mask))
            return false;
        return axes(scores.is_array() ? nullptr : PyObject_GetAttr(mask, name.shape)) && is_like(scores);
    }

    // One int64 a row.
    bool read_labels(PyObject* x, const Memory& scores) {
        if (!attribute_is(x, name.dtype, int64) || !read_tensor(x) || !axes(PyObject_GetAttr(x, name.shape), 0)) return false;
        return ndim == scores.ndim - 1 && std::memcmp(shape, scores.shape, ndim * sizeof *shape) == 0;
    }

    // One number of a tensor in the place of all that it was expanded to, as the gradient of a sum is: written out into the room.
    bool read_spread(PyObject* x, const Memory& like, char* room) {
        const Owned its(PyObject_GetAttr(x, name.dtype)), strides(PyObject_CallMethodObjArgs(x, name.stride, nullptr));
        if (its.get() != dtypes[like.dtype] || !strides || like.outer * like.n > ALONE) return false;
        if (!is_ordinary(x) || !axes(PyObject_GetAttr(x, name.shape)) || !is_like(like)) return false;
        for (int64_t i = 0; i < ndim; ++i) {
            if (PyLong_AsLongLong(PyTuple_GetItem(strides.get(), Py_ssize_t(i))) != 0) return false;
        }
        if (!address_of(x)) return false;
        const size_t size = SIZES[like.dtype];
        for (int64_t i = 0; i < outer * n; ++i) std::memcpy(room + size_t(i) * size, address, size);
        address = room;
        return true;
    }

    // A new tensor or array like x, whose memory this is to be.
    bool make(PyObject* x, const Memory& scores, Owned& made) {
        made.reset(PyObject_CallFunctionObjArgs(scores.is_array() ? empty_array : empty_like, x, nullptr));
        if (!made) return false;
        if (!scores.is_array()) {
            if (!address_of(made.get())) return false;
            prefer_large_pages(address, size_t(scores.outer * scores.n) * SIZES[scores.dtype]);  // NumPy does so itself
            return true;
        }
        if (PyObject_GetBuffer(made.get(), &buffer_, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)) return false;
        address = buffer_.buf;
        return true;
    }

    bool is_array() const { return buffer_.obj; }
    bool is_like(const Memory& other) const { return ndim == other.ndim && std::memcmp(shape, other.shape, ndim * sizeof *shape) == 0; }

    int64_t dtype = 0, n = 0, outer = 1, ndim = 0, shape[64];
    void* address = nullptr;

   private:
    bool read_tensor(PyObject* x) { return method_says(x, name.is_contiguous, Py_True) && is_ordinary(x) && address_of(x); }

    static bool is_ordinary(PyObject* x) {
        return attribute_is(x, name.is_cpu, Py_True) && attribute_is(x, name.layout, strided) && attribute_is(x, name.is_nested, Py_False) &&
               method_says(x, name.is_neg, Py_False);
    }

    bool address_of(PyObject* x) {
        int64_t value;
        if (!integer(PyObject_CallMethodObjArgs(x, name.data_ptr, nullptr), value)) return false;
        address = reinterpret_cast<void*>(value);  // NOLINT(performance-no-int-to-ptr): so Python says it
        return address;
    }

    bool read_array(PyObject* x, int flags) {
        if (Py_TYPE(x) != (PyTypeObject*)array_type) return false;
        if (PyObject_GetBuffer(x, &buffer_, PyBUF_C_CONTIGUOUS | flags)) {
            PyErr_Clear();  // it lies elsewise
            buffer_.obj = nullptr;
            return false;
        }
        address = buffer_.buf;
        return reinterpret_cast<intptr_t>(address) % buffer_.itemsize == 0;
    }

    // Of a torch.Size, or of the buffer: at least so many, and none of them empty.
    bool axes(PyObject* sizes, int64_t least = 1) {
        const Owned owned(sizes);
        if (!is_array() && !sizes) return false;
        ndim = is_array() ? buffer_.ndim : int64_t(PyTuple_Size(sizes));
        if (ndim < least || ndim > 64) return false;
        for (int64_t i = 0; i < ndim; ++i) {
            shape[i] = is_array() ? int64_t(buffer_.shape[i]) : int64_t(PyLong_AsLongLong(PyTuple_GetItem(sizes, Py_ssize_t(i))));
            if (shape[i] <= 0) return false;
            if (i < ndim - 1) outer *= shape[i];
        }
        if (ndim) n = shape[ndim - 1];
        return true;
    }

    Py_buffer buffer_ = {};
};

// θ, numbers all.
bool read_theta(PyObject* tuple, double* theta) {
    const Py_ssize_t count = PyTuple_Size(tuple);
    if (count < 0 || count > PARAMETERS) return false;
    for (Py_ssize_t i = 0; i < count; ++i) {
        theta[i] = PyFloat_AsDouble(PyTuple_GetItem(tuple, i));
        if (theta[i] == -1.0 && PyErr_Occurred()) return false;
    }
    return true;
}

bool fill(SoftmaximaRows& rows, const Memory& scores, const void* x, const void* mask, double tau, const double* theta) {
    rows = {scores.dtype, scores.outer, scores.n, 1, 1, x, scores.n, tau, nullptr, theta, 0, static_cast<const uint8_t*>(mask), nullptr};
    return scores.outer * scores.n <= ALONE || integer(PyObject_CallNoArgs(threads), rows.threads);
}

template <class Structure>
const SoftmaximaRows& rows_of(const Structure& structure) {
    return structure.rows;
}

const SoftmaximaRows& rows_of(const SoftmaximaGivenLoss& structure) { return structure.loss.rows; }

template <class Structure>
bool run(PyObject* function, const Structure& structure) {
    using Function = int (*)(const Structure*);
    const auto call = reinterpret_cast<Function>(PyLong_AsVoidPtr(function));
    if (!call) return false;
    const SoftmaximaRows& rows = rows_of(structure);
    PyThreadState* state = rows.outer * rows.n > ALONE ? PyEval_SaveThread() : nullptr;
    const int status = call(&structure);
    if (state) PyEval_RestoreThread(state);
    if (status) {
        const Owned nothing(PyObject_CallFunction(fail, "s", "softmaxima"));  // raises
        failed = true;
    }
    return !status;
}

// What the function made, or None where the arguments were not plain, as those are not that torch or Python refuse. What else is
// raised, such as an interruption, is not theirs.
PyObject* done(bool all, Owned& made) {
    if (!PyErr_Occurred()) {
        if (all) return made.release();
        Py_RETURN_NONE;
    }
    if (failed) {
        failed = false;
        return nullptr;
    }
    PyObject* const refusals[] = {PyExc_RuntimeError, PyExc_TypeError, PyExc_ValueError, PyExc_OverflowError, PyExc_AttributeError};
    for (PyObject* refusal : refusals) {
        if (!PyErr_ExceptionMatches(refusal)) continue;
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    return nullptr;
}

// Whether half precision stays what it is.
bool is_kept(const Memory& scores) { return scores.dtype < 2 || is(PyObject_CallFunctionObjArgs(autocast, name.cpu, nullptr), Py_False); }

// Scores that a kernel takes as they are, along their last axis and over this τ.
bool read_scores(PyObject* x, PyObject* dim, PyObject* tau, Memory& scores, double& number) {
    if (!PyLong_CheckExact(dim) || !PyFloat_CheckExact(tau) || !scores.read(x)) return false;
    int64_t axis;
    if (!integer(Py_NewRef(dim), axis)) return false;
    number = PyFloat_AsDouble(tau);
    return number >= DBL_MIN && number <= DBL_MAX && (axis == -1 || axis == scores.ndim - 1) && is_kept(scores);
}

// is_plain(x, dim, tau) → whether x is a tensor of such scores, and nobody looks on
PyObject* is_plain(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    if (count != 3) return PyErr_Format(PyExc_TypeError, "is_plain takes 3 arguments, got %zd", count);
    Memory scores;
    double tau;
    Owned said(Py_NewRef(Py_True));
    return done(is_tensor(arguments[0]) && unobserved() && read_scores(arguments[0], arguments[1], arguments[2], scores, tau), said);
}

// forward(function, x, dim, tau, mask, theta) → map(x/τ); NotImplemented where autograd is to record it
PyObject* forward(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    if (count != 6) return PyErr_Format(PyExc_TypeError, "forward takes 6 arguments, got %zd", count);
    PyObject *function = arguments[0], *x = arguments[1], *mask = arguments[4];
    Memory scores, allowed, result;
    Owned made;
    double tau, theta[PARAMETERS];
    SoftmaximaForward call = {};
    const auto compute = [&] {
        if (is_tensor(x)) {
            if (!unobserved()) return false;
            if (must_record(x)) {
                made.reset(Py_NewRef(Py_NotImplemented));
                return true;
            }
        }
        if (!read_scores(x, arguments[2], arguments[3], scores, tau)) return false;
        if (mask != Py_None && !allowed.read_mask(mask, scores)) return false;
        if (!read_theta(arguments[5], theta) || !result.make(x, scores, made)) return false;
        if (!fill(call.rows, scores, scores.address, allowed.address, tau, theta)) return false;
        call.out = result.address;
        return run(function, call);
    };
    return done(compute(), made);
}

// backward(function, p, g, x, tau, mask, theta) → ∂⟨g, p⟩/∂x; x and the mask may be None
PyObject* backward(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    if (count != 7) return PyErr_Format(PyExc_TypeError, "backward takes 7 arguments, got %zd", count);
    PyObject *function = arguments[0], *p = arguments[1], *x = arguments[3], *mask = arguments[5];
    Memory shares, slopes, spread, scores, allowed, result;
    Owned made, g;
    alignas(64) char room[ALONE * sizeof(double)];
    double theta[PARAMETERS];
    SoftmaximaBackward call = {};
    const auto compute = [&] {
        if (!is_tensor(p) || !is_tensor(arguments[2]) || !unobserved() || !shares.read(p)) return false;
        if (!spread.read_spread(arguments[2], shares, room)) {
            g.reset(PyErr_Occurred() ? nullptr : PyObject_CallMethodObjArgs(arguments[2], name.contiguous, nullptr));
            if (!g || !slopes.read(g.get()) || slopes.dtype != shares.dtype || !slopes.is_like(shares)) return false;
        }
        if (x != Py_None && (!scores.read(x) || scores.dtype != shares.dtype || !scores.is_like(shares))) return false;
        if (mask != Py_None && !allowed.read_mask(mask, shares)) return false;
        if (!read_theta(arguments[6], theta) || !result.make(p, shares, made)) return false;
        if (!fill(call.rows, shares, scores.address, allowed.address, PyFloat_AsDouble(arguments[4]), theta)) return false;
        call.p = shares.address;
        call.g = g ? slopes.address : spread.address;
        call.out = result.address;
        return run(function, call);
    };
    return done(compute(), made);
}

// The fields of a margin, numbers all.
bool read_margin(PyObject* tuple, SoftmaximaMargin& margin) {
    double fields[4];
    for (Py_ssize_t i = 0; i < 4; ++i) {
        fields[i] = PyFloat_AsDouble(PyTuple_GetItem(tuple, i));
        if (fields[i] == -1.0 && PyErr_Occurred()) return false;
    }
    margin = {fields[0], fields[1], fields[2] != 0, fields[3]};
    return true;
}

// loss(function, x, labels, theta, smoothing, ignore_index, fenchel, mean, margin, map, gradient) → (Σ of the losses of x [n] or
// [rows, n], or their mean; its gradient by x, or None); NotImplemented where autograd is to record it and no gradient is asked for.
// With a map the function is of its probabilities.
PyObject* loss(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    if (count != 11) return PyErr_Format(PyExc_TypeError, "loss takes 11 arguments, got %zd", count);
    PyObject *x = arguments[1], *target = arguments[2], *map = arguments[9];
    const bool gradient = arguments[10] == Py_True, of_map = map != Py_None;
    Memory scores, labels, result;
    Owned made, slope;
    double theta[PARAMETERS];
    SoftmaximaGivenLoss given = {};
    SoftmaximaLoss& call = given.loss;
    const auto compute = [&] {
        if (!is_tensor(x) || !is_tensor(target) || !unobserved()) return false;
        if (!scores.read(x) || scores.ndim > 2 || !labels.read_labels(target, scores)) return false;
        if (!is_kept(scores) || !read_margin(arguments[8], call.margin)) return false;
        const double scale = call.margin.scale;
        if ((scale != 0 || of_map) && scores.dtype >= 2) return false;
        int64_t ignored;
        if (!PyLong_CheckExact(arguments[5]) || !integer(Py_NewRef(arguments[5]), ignored)) return false;
        const int64_t* label = static_cast<const int64_t*>(labels.address);
        int64_t counted = 0;
        for (int64_t i = 0; i < scores.outer; ++i) {
            if (label[i] >= 0 ? label[i] >= scores.n || label[i] == ignored : label[i] != ignored) return false;
            counted += label[i] >= 0;
        }
        if (counted == 0) return false;
        if (!read_theta(arguments[3], theta)) return false;
        if (!gradient && must_record(x)) {
            made.reset(Py_NewRef(Py_NotImplemented));
            return true;
        }
        if (!fill(call.rows, scores, scores.address, nullptr, 1.0, theta)) return false;
        if ((gradient || of_map) && !result.make(x, scores, slope)) return false;
        std::unique_ptr<double[]> values(new (std::nothrow) double[scores.outer]);
        if (!values) return PyErr_NoMemory() != nullptr;
        call.labels = label;
        call.smoothing = PyFloat_AsDouble(arguments[4]);
        const double share = arguments[7] == Py_True ? 1 / double(counted) : 1.0;
        call.scale = scale == 0 ? share : share * scale;
        call.fenchel = arguments[6] == Py_True;
        call.values = values.get();
        call.out = gradient ? result.address : nullptr;
        if (of_map) {
            SoftmaximaForward forward = {};
            forward.rows = call.rows;
            forward.out = result.address;
            given.p = result.address;
            if (!run(map, forward) || !run(arguments[0], given)) return false;
        } else if (!run(arguments[0], call)) {
            return false;
        }
        double sum = 0;
        for (int64_t i = 0; i < scores.outer; ++i) {
            if (scale != 0 && values[i] < -DBL_MAX) return false;  // a cosine is beyond the margin's limit
            sum += values[i];
        }
        const double reduced = scores.dtype == 0 ? sum * share : double(float(sum * share));  // ±∞ where a float has no such number
        made.reset(Py_BuildValue("dO", reduced, gradient ? slope.get() : Py_None));
        return bool(made);
    };
    return done(compute(), made);
}

PyMethodDef functions[] = {
    {"forward", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(forward)), METH_FASTCALL, nullptr},
    {"backward", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(backward)), METH_FASTCALL, nullptr},
    {"is_plain", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(is_plain)), METH_FASTCALL, nullptr},
    {"loss", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(loss)), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_calls", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};

bool found(PyObject*& to, PyObject* from, const char* attribute) {
    to = from ? PyObject_GetAttrString(from, attribute) : nullptr;
    return to;
}

bool import() {
    const Owned torch(PyImport_ImportModule("torch")), numpy(PyImport_ImportModule("numpy")), inner(PyImport_ImportModule("torch._C"));
    const Owned parameters(PyImport_ImportModule("torch.nn")), interface(PyImport_ImportModule("softmaxima.kernels.interface"));
    forward_mode = PyImport_ImportModule("torch.autograd.forward_ad");
    const char* kinds[] = {"float64", "float32", "bfloat16", "float16"};
    for (int i = 0; i < 4; ++i) {
        if (!found(dtypes[i], torch.get(), kinds[i])) return false;
    }
    PyObject** interned[] = {&name.dtype,      &name.is_cpu, &name.layout, &name.is_nested, &name.requires_grad, &name.shape, &name.is_contiguous,
                             &name.contiguous, &name.stride, &name.is_neg, &name.data_ptr,  &name.level,         &name.cpu};
    const char* texts[] = {"dtype",      "is_cpu", "layout", "is_nested", "requires_grad",  "shape", "is_contiguous",
                           "contiguous", "stride", "is_neg", "data_ptr",  "_current_level", "cpu"};
    for (int i = 0; i < 13; ++i) {
        *interned[i] = PyUnicode_InternFromString(texts[i]);
        if (!*interned[i]) return false;
    }
    return forward_mode && found(tensor_type, torch.get(), "Tensor") && found(strided, torch.get(), "strided") && found(boolean, torch.get(), "bool") &&
           found(int64, torch.get(), "int64") && found(empty_like, torch.get(), "empty_like") && found(learning, torch.get(), "is_grad_enabled") &&
           found(autocast, torch.get(), "is_autocast_enabled") && found(parameter_type, parameters.get(), "Parameter") &&
           found(array_type, numpy.get(), "ndarray") && found(empty_array, numpy.get(), "empty_like") && found(threads, torch.get(), "get_num_threads") &&
           found(fail, interface.get(), "fail") && found(dispatched, inner.get(), "_len_torch_dispatch_stack") &&
           found(tracing, inner.get(), "_get_tracing_state") && found(transforming, inner.get(), "_are_functorch_transforms_active");
}

}  // namespace

PyMODINIT_FUNC PyInit__calls() { return import() ? PyModule_Create(&definition) : nullptr; }
