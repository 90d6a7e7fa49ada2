/* The one loop of the flusher that is worth C: a finished span into the bytes that its scope holds of it.

   It does what templates.py does, for the same spans and to the same bytes (tests/test_journal_native.py), and refuses
   the same ones by the same kinds of exceptions: those take the slow way through clean.py. No Python code runs inside
   and nothing is kept, so a dict that another thread changes is never seen half-changed.

   Field numbers: opentelemetry/proto/trace/v1/trace.proto and common/v1/common.proto. Only the limited API is used, so
   that one build serves every CPython from 3.10 on. */

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LOCAL_BYTES 4096
#define FORM 2 /* of what span() takes and gives: encode.py uses no other, which an earlier build may have left behind */
#define FLAGS 0x100 /* what the stock encoder sets: the flags say whether the parent is remote, and it is not */
#define NUMBER_BYTES 10 /* of a varint, at most */
#define HEAD_BYTES (1 + NUMBER_BYTES) /* in front of a message, for its tag and its length */

enum wire { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };
#define TAG(field, wire) ((uint64_t)((field) << 3 | (wire)))

/* --- a message that grows ----------------------------------------------------------------------------------------- */

typedef struct {
    unsigned char *data, *end, *limit;
    unsigned char local[LOCAL_BYTES];
} Message;

static void message_begin(Message *message) {
    message->data = message->local;
    message->end = message->local + HEAD_BYTES;
    message->limit = message->local + LOCAL_BYTES;
}

static void message_free(Message *message) {
    if (message->data != message->local) free(message->data);
}

/* Make room for so many bytes more; 0, or -1 with an exception set. */
static int message_reserve(Message *message, size_t more) {
    size_t used = (size_t)(message->end - message->data), size = (size_t)(message->limit - message->data);
    unsigned char *data;
    if (size - used >= more) return 0;
    size = 2 * (used + more);
    data = message->data == message->local ? malloc(size) : realloc(message->data, size);
    if (data == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (message->data == message->local) memcpy(data, message->local, used);
    message->data = data;
    message->end = data + used;
    message->limit = data + size;
    return 0;
}

static size_t number_size(uint64_t number) {
    size_t size = 1;
    while (number >>= 7) size++;
    return size;
}

/* These write without asking: their callers have reserved. */

static void put_number(Message *message, uint64_t number) {
    for (; number >> 7; number >>= 7) *message->end++ = (unsigned char)(number | 0x80);
    *message->end++ = (unsigned char)number;
}

static void put_fixed(Message *message, uint64_t number, int size) {
    for (; size; size--, number >>= 8) *message->end++ = (unsigned char)number;
}

static void put_reversed(Message *message, uint64_t number) { /* ids are big-endian */
    int shift;
    for (shift = 56; shift >= 0; shift -= 8) *message->end++ = (unsigned char)(number >> shift);
}

static void put_bytes(Message *message, uint64_t tag, const char *data, size_t size) {
    put_number(message, tag);
    put_number(message, size);
    memcpy(message->end, data, size);
    message->end += size;
}

/* --- values ------------------------------------------------------------------------------------------------------- */

/* The text of a str of at most ``most`` characters, else NULL with an exception set. */
static const char *text_of(PyObject *value, Py_ssize_t most, size_t *size) {
    Py_ssize_t length = 0;
    const char *text;
    if (!PyUnicode_Check(value)) {
        PyErr_SetString(PyExc_TypeError, "not a string");
        return NULL;
    }
    if (PyUnicode_GetLength(value) > most) {
        PyErr_SetString(PyExc_ValueError, "the string is too long");
        return NULL;
    }
    text = PyUnicode_AsUTF8AndSize(value, &length);
    *size = (size_t)length;
    return text;
}

/* Write the field ``value`` of an attribute, an AnyValue; 0, or -1 with an exception set. */
static int put_value(Message *message, PyObject *value, Py_ssize_t max_text) {
    PyTypeObject *kind = Py_TYPE(value);
    PyObject *only = value;
    const char *text;
    size_t size, inner;
    uint64_t bits;
    double number;

    if (kind == &PyFloat_Type) {
        number = PyFloat_AsDouble(value);
        memcpy(&bits, &number, sizeof bits);
        put_number(message, TAG(2, BYTES));
        put_number(message, 9);
        put_number(message, TAG(4, FIXED64));
        put_fixed(message, bits, 8);
        return 0;
    }
    if (kind == &PyLong_Type) {
        bits = (uint64_t)PyLong_AsLongLong(value);
        if (bits == (uint64_t)-1 && PyErr_Occurred()) return -1;
        put_number(message, TAG(2, BYTES));
        put_number(message, 1 + number_size(bits));
        put_number(message, TAG(3, VARINT));
        put_number(message, bits);
        return 0;
    }
    if (kind == &PyBool_Type) {
        put_number(message, TAG(2, BYTES));
        put_number(message, 2);
        put_number(message, TAG(2, VARINT));
        put_number(message, value == Py_True);
        return 0;
    }
    if (kind == &PyTuple_Type) { /* a list of one text, as the finish reasons of a request are; others are cleaned */
        if (PyTuple_Size(value) != 1) {
            PyErr_SetString(PyExc_ValueError, "not a list of one text");
            return -1;
        }
        only = PyTuple_GetItem(value, 0);
    }
    if (Py_TYPE(only) != &PyUnicode_Type) {
        PyErr_SetString(PyExc_TypeError, "not a value that is written as it is");
        return -1;
    }
    text = text_of(only, max_text, &size);
    if (text == NULL || message_reserve(message, size + 8 * NUMBER_BYTES)) return -1;
    inner = 1 + number_size(size) + size;
    put_number(message, TAG(2, BYTES));
    if (only != value) {
        size_t element = 1 + number_size(inner) + inner;
        put_number(message, 1 + number_size(element) + element);
        put_number(message, TAG(5, BYTES));
        put_number(message, element);
        put_number(message, TAG(1, BYTES));
    }
    put_number(message, inner);
    put_bytes(message, TAG(1, BYTES), text, size);
    return 0;
}

/* Write the attributes; 0, or -1 with an exception set. */
static int put_attributes(Message *message, PyObject *attributes, Py_ssize_t most, Py_ssize_t max_text,
                          Py_ssize_t max_name) {
    PyObject *key, *value;
    Py_ssize_t place = 0;
    if (attributes == Py_None) return 0;
    if (!PyDict_Check(attributes)) {
        PyErr_SetString(PyExc_TypeError, "the attributes are not a dict");
        return -1;
    }
    if (PyDict_Size(attributes) > most) {
        PyErr_SetString(PyExc_ValueError, "too many attributes");
        return -1;
    }
    while (PyDict_Next(attributes, &place, &key, &value)) {
        size_t size, length, head;
        const char *text = text_of(key, max_name, &size);
        if (text == NULL) return -1;
        if (size == 0) {
            PyErr_SetString(PyExc_ValueError, "an attribute without a name");
            return -1;
        }
        if (message_reserve(message, size + 8 * NUMBER_BYTES)) return -1;
        /* The length of the pair stands in front of it and is known behind it: of less than 128 bytes, as most are, it
           takes the one byte that is left for it; else what stands behind it is moved. */
        put_number(message, TAG(9, BYTES));
        length = (size_t)(message->end - message->data);
        message->end++;
        put_bytes(message, TAG(1, BYTES), text, size);
        if (put_value(message, value, max_text)) return -1;
        size = (size_t)(message->end - message->data) - length - 1;
        head = number_size(size);
        if (head > 1) {
            if (message_reserve(message, NUMBER_BYTES)) return -1;
            memmove(message->data + length + head, message->data + length + 1, size);
        }
        message->end = message->data + length;
        put_number(message, size);
        message->end += size;
    }
    return 0;
}

/* --- the span ----------------------------------------------------------------------------------------------------- */

/* Read a whole number that is not negative; 0, or -1 with an exception set. */
static int read_number(PyObject *value, uint64_t *number) {
    *number = (uint64_t)PyLong_AsUnsignedLongLong(value);
    return *number == (uint64_t)-1 && PyErr_Occurred() ? -1 : 0;
}

/* The same for an enum, which has 32 bits and no negative values here. */
static int read_enum(PyObject *value, uint64_t *number) {
    if (read_number(value, number)) return -1;
    if (*number <= INT32_MAX) return 0;
    PyErr_SetString(PyExc_ValueError, "beyond what an enum holds");
    return -1;
}

static PyObject *sixty_four; /* for shifting trace ids */

static int read_trace_id(PyObject *value, uint64_t *high, uint64_t *low) {
    int failed;
    PyObject *shifted;
    if (!PyLong_Check(value)) {
        PyErr_SetString(PyExc_TypeError, "the trace id is not a whole number");
        return -1;
    }
    *low = (uint64_t)PyLong_AsUnsignedLongLongMask(value);
    shifted = PyNumber_Rshift(value, sixty_four);
    if (shifted == NULL) return -1;
    failed = read_number(shifted, high);
    Py_DECREF(shifted);
    return failed;
}

/* Write the status, which is there even when it says nothing; 0, or -1 with an exception set. */
static int put_status(Message *message, PyObject *status, Py_ssize_t max_text) {
    uint64_t code = 0;
    const char *text = "";
    size_t size = 0;
    if (status != Py_None) {
        if (!PyTuple_Check(status) || PyTuple_Size(status) != 2) {
            PyErr_SetString(PyExc_TypeError, "the status is not a code and a text");
            return -1;
        }
        if (read_enum(PyTuple_GetItem(status, 0), &code)) return -1;
        text = text_of(PyTuple_GetItem(status, 1), max_text, &size);
        if (text == NULL) return -1;
    }
    if (message_reserve(message, size + 6 * NUMBER_BYTES)) return -1;
    put_number(message, TAG(15, BYTES));
    put_number(message, (size ? 1 + number_size(size) + size : 0) + (code ? 1 + number_size(code) : 0));
    if (size) put_bytes(message, TAG(2, BYTES), text, size);
    if (code) {
        put_number(message, TAG(3, VARINT));
        put_number(message, code);
    }
    return 0;
}

enum argument { MOST, MAX_TEXT, MAX_NAME, TRACE_ID, SPAN_ID, PARENT_ID, NAME, KIND, START, END, STATUS, ATTRIBUTES, COUNT };

static int put_span(Message *message, PyObject *const *arguments) {
    uint64_t high, low, span_id, parent_id, kind, start, end;
    Py_ssize_t most, max_text, max_name;
    const char *name;
    size_t size;
    if (read_trace_id(arguments[TRACE_ID], &high, &low) || read_number(arguments[SPAN_ID], &span_id)
        || read_number(arguments[PARENT_ID], &parent_id) || read_enum(arguments[KIND], &kind)
        || read_number(arguments[START], &start) || read_number(arguments[END], &end))
        return -1;
    most = PyLong_AsSsize_t(arguments[MOST]);
    max_text = PyLong_AsSsize_t(arguments[MAX_TEXT]);
    max_name = PyLong_AsSsize_t(arguments[MAX_NAME]);
    if (PyErr_Occurred()) return -1;
    name = text_of(arguments[NAME], max_name, &size);
    if (name == NULL || message_reserve(message, size + 16 * NUMBER_BYTES)) return -1;
    put_number(message, TAG(1, BYTES));
    put_number(message, 16);
    put_reversed(message, high);
    put_reversed(message, low);
    put_number(message, TAG(2, BYTES));
    put_number(message, 8);
    put_reversed(message, span_id);
    if (parent_id) {
        put_number(message, TAG(4, BYTES));
        put_number(message, 8);
        put_reversed(message, parent_id);
    }
    if (size) put_bytes(message, TAG(5, BYTES), name, size);
    if (kind) {
        put_number(message, TAG(6, VARINT));
        put_number(message, kind);
    }
    if (start) {
        put_number(message, TAG(7, FIXED64));
        put_fixed(message, start, 8);
    }
    if (end) {
        put_number(message, TAG(8, FIXED64));
        put_fixed(message, end, 8);
    }
    if (put_attributes(message, arguments[ATTRIBUTES], most, max_text, max_name)) return -1;
    if (put_status(message, arguments[STATUS], max_text)) return -1;
    put_number(message, TAG(16, FIXED32)); /* in the room that the status has reserved */
    put_fixed(message, FLAGS, 4);
    return 0;
}

/* Give the message as field 2 of its scope: what stands in front of it is known last. */
static PyObject *message_record(Message *message) {
    size_t size = (size_t)(message->end - message->data) - HEAD_BYTES;
    unsigned char *begin = message->data + HEAD_BYTES - 1 - number_size(size), *end = message->end;
    message->end = begin;
    put_number(message, TAG(2, BYTES));
    put_number(message, size);
    return PyBytes_FromStringAndSize((const char *)begin, end - begin);
}

PyDoc_STRVAR(span_doc, "Encode one finished span as a record of its scope; raises TypeError, ValueError or OverflowError where it\n"
                       "must be cleaned first.");

static PyObject *span(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Message message;
    PyObject *encoded = NULL;
    (void)module;
    if (count != COUNT) {
        PyErr_Format(PyExc_TypeError, "span() takes %d arguments", (int)COUNT);
        return NULL;
    }
    message_begin(&message);
    if (!put_span(&message, arguments)) encoded = message_record(&message);
    message_free(&message);
    return encoded;
}

static PyMethodDef methods[] = {
    {"span", (PyCFunction)(void (*)(void))span, METH_FASTCALL, span_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *module;
    sixty_four = PyLong_FromLong(64);
    module = sixty_four == NULL ? NULL : PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "FORM", FORM)) Py_CLEAR(module);
    return module;
}
