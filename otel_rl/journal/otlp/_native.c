/* The one loop of the flusher that is worth C: finished spans into the bytes that their scope holds of them.

   span() writes the same bytes as encode.py does in Python (tests/journal/test_native.py). It refuses a span whose values
   have to be cleaned first, by an exception of clean.UNENCODABLE. stages() encodes many at once, up to the first one that
   it refuses. No Python code runs inside and nothing is kept, so a dict that
   another thread changes is never seen half-changed.

   Field numbers: opentelemetry/proto/trace/v1/trace.proto and common/v1/common.proto. Only the limited API is used, so
   that one build serves every CPython from 3.10 on. */

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LOCAL_BYTES 4096
#define FORM 3 /* of what these take and give: encode.py uses no other, which an earlier build may have left behind */
#define FLAGS 0x100 /* what the stock encoder sets: the flags say whether the parent is remote, and it is not */
#define NUMBER_BYTES 10 /* of a varint, at most */
#define TIMES (INT64_C(1) << 61) /* what lies beyond is no time; below it a sum of two cannot overflow */

enum wire { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };
#define TAG(field, wire) ((uint64_t)((field) << 3 | (wire)))

/* --- a message that grows ----------------------------------------------------------------------------------------- */

typedef struct {
    unsigned char *data, *end, *limit;
    unsigned char local[LOCAL_BYTES];
} Message;

static void message_begin(Message *message) {
    message->data = message->local;
    message->end = message->local;
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

/* The length of a message stands in front of it and is known behind it: of less than 128 bytes, as attributes mostly
   have, it takes the one byte that is left for it; else what stands behind that is moved. */

static size_t message_open(Message *message, uint64_t tag) {
    put_number(message, tag);
    message->end++;
    return (size_t)(message->end - message->data);
}

/* 0, or -1 with an exception set. */
static int message_close(Message *message, size_t begin) {
    size_t size = (size_t)(message->end - message->data) - begin, head = number_size(size);
    if (head > 1) {
        if (message_reserve(message, NUMBER_BYTES)) return -1;
        memmove(message->data + begin + head - 1, message->data + begin, size);
    }
    message->end = message->data + begin - 1;
    put_number(message, size);
    message->end += size;
    return 0;
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

typedef struct {
    Py_ssize_t attributes, text, name; /* how many, and characters at most */
} Limits;

/* Write the attributes; 0, or -1 with an exception set. */
static int put_attributes(Message *message, PyObject *attributes, const Limits *limits) {
    PyObject *key, *value;
    Py_ssize_t place = 0;
    if (attributes == Py_None) return 0;
    if (!PyDict_Check(attributes)) {
        PyErr_SetString(PyExc_TypeError, "the attributes are not a dict");
        return -1;
    }
    if (PyDict_Size(attributes) > limits->attributes) {
        PyErr_SetString(PyExc_ValueError, "too many attributes");
        return -1;
    }
    while (PyDict_Next(attributes, &place, &key, &value)) {
        size_t size, begin;
        const char *text = text_of(key, limits->name, &size);
        if (text == NULL) return -1;
        if (size == 0) {
            PyErr_SetString(PyExc_ValueError, "an attribute without a name");
            return -1;
        }
        if (message_reserve(message, size + 8 * NUMBER_BYTES)) return -1;
        begin = message_open(message, TAG(9, BYTES));
        put_bytes(message, TAG(1, BYTES), text, size);
        if (put_value(message, value, limits->text) || message_close(message, begin)) return -1;
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

typedef struct {
    uint64_t high, low, span_id, parent_id, kind, start, end; /* ns since 1970 */
    PyObject *name, *status, *attributes;
} Span;

/* Write the span as its scope holds it, which is in field 2; 0, or -1 with an exception set. */
static int put_span(Message *message, const Span *span, const Limits *limits) {
    size_t size, begin;
    const char *name = text_of(span->name, limits->name, &size);
    if (name == NULL || message_reserve(message, size + 16 * NUMBER_BYTES)) return -1;
    begin = message_open(message, TAG(2, BYTES));
    put_number(message, TAG(1, BYTES));
    put_number(message, 16);
    put_reversed(message, span->high);
    put_reversed(message, span->low);
    put_number(message, TAG(2, BYTES));
    put_number(message, 8);
    put_reversed(message, span->span_id);
    if (span->parent_id) {
        put_number(message, TAG(4, BYTES));
        put_number(message, 8);
        put_reversed(message, span->parent_id);
    }
    if (size) put_bytes(message, TAG(5, BYTES), name, size);
    if (span->kind) {
        put_number(message, TAG(6, VARINT));
        put_number(message, span->kind);
    }
    if (span->start) {
        put_number(message, TAG(7, FIXED64));
        put_fixed(message, span->start, 8);
    }
    if (span->end) {
        put_number(message, TAG(8, FIXED64));
        put_fixed(message, span->end, 8);
    }
    if (put_attributes(message, span->attributes, limits)) return -1;
    if (put_status(message, span->status, limits->text)) return -1;
    put_number(message, TAG(16, FIXED32)); /* in the room that the status has reserved */
    put_fixed(message, FLAGS, 4);
    return message_close(message, begin);
}

static PyObject *message_bytes(const Message *message) {
    return PyBytes_FromStringAndSize((const char *)message->data, message->end - message->data);
}

/* Read the limits, the first three arguments of every function; 0, or -1 with an exception set. */
static int read_limits(Limits *limits, PyObject *const *arguments) {
    limits->attributes = PyLong_AsSsize_t(arguments[0]);
    limits->text = PyLong_AsSsize_t(arguments[1]);
    limits->name = PyLong_AsSsize_t(arguments[2]);
    return PyErr_Occurred() ? -1 : 0;
}

enum { TRACE_ID = 3, SPAN_ID, PARENT_ID, NAME, KIND, START, END, STATUS, ATTRIBUTES, SPAN_COUNT };

PyDoc_STRVAR(span_doc, "Encode one finished span as a record of its scope; raises TypeError, ValueError or OverflowError where it\n"
                       "must be cleaned first.");

static PyObject *span(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Message message;
    Limits limits;
    Span read;
    PyObject *encoded = NULL;
    (void)module;
    if (count != SPAN_COUNT) {
        PyErr_Format(PyExc_TypeError, "span() takes %d arguments", SPAN_COUNT);
        return NULL;
    }
    if (read_limits(&limits, arguments) || read_trace_id(arguments[TRACE_ID], &read.high, &read.low)
        || read_number(arguments[SPAN_ID], &read.span_id) || read_number(arguments[PARENT_ID], &read.parent_id)
        || read_enum(arguments[KIND], &read.kind) || read_number(arguments[START], &read.start)
        || read_number(arguments[END], &read.end))
        return NULL;
    read.name = arguments[NAME];
    read.status = arguments[STATUS];
    read.attributes = arguments[ATTRIBUTES];
    message_begin(&message);
    if (!put_span(&message, &read, &limits)) encoded = message_bytes(&message);
    message_free(&message);
    return encoded;
}

/* --- many stages ------------------------------------------------------------------------------------------------- */

enum field { F_TRACE, F_SPAN_ID, F_PARENT_ID, F_KIND, F_BEGAN, F_ENDED, F_EVENTS, F_LINKS, F_NAME, F_STATUS,
             F_ATTRIBUTES, FIELDS, F_TRACE_ID = FIELDS, F_ANCHOR, ALL_FIELDS };
static const char *const field_texts[ALL_FIELDS] = {
    "trace", "span_id", "parent_id", "kind", "began", "ended", "events", "links", "name", "status", "attributes",
    "trace_id", "anchor"};
static PyObject *field_names[ALL_FIELDS];

typedef struct {
    PyObject *trace; /* of which these are; NULL at first */
    uint64_t high, low;
    int64_t anchor;
} Trace;

static int read_time(PyObject *value, int64_t *time) {
    *time = PyLong_AsLongLong(value);
    if (*time == -1 && PyErr_Occurred()) return -1;
    if (*time > -TIMES && *time < TIMES) return 0;
    PyErr_SetString(PyExc_OverflowError, "not a time");
    return -1;
}

/* Read what the stages of a trace share, unless the last one had the same; 0, or -1 with an exception set. */
static int read_trace(PyObject *trace, Trace *read) {
    PyObject *id, *anchor;
    int failed;
    if (trace == read->trace) return 0;
    Py_CLEAR(read->trace);
    id = PyObject_GetAttr(trace, field_names[F_TRACE_ID]);
    anchor = id == NULL ? NULL : PyObject_GetAttr(trace, field_names[F_ANCHOR]);
    failed = anchor == NULL || read_trace_id(id, &read->high, &read->low) || read_time(anchor, &read->anchor);
    Py_XDECREF(id);
    Py_XDECREF(anchor);
    if (failed) return -1;
    Py_INCREF(trace);
    read->trace = trace;
    return 0;
}

/* Write a stage of which the fields were read; 0, or -1 with an exception set. */
static int put_stage(Message *message, PyObject *const *fields, Trace *trace, const Limits *limits, Span *read) {
    int64_t began, ended;
    if (fields[F_EVENTS] != Py_None || fields[F_LINKS] != Py_None) {
        PyErr_SetString(PyExc_ValueError, "events or links");
        return -1;
    }
    if (read_trace(fields[F_TRACE], trace) || read_number(fields[F_SPAN_ID], &read->span_id)
        || read_number(fields[F_PARENT_ID], &read->parent_id) || read_enum(fields[F_KIND], &read->kind)
        || read_time(fields[F_BEGAN], &began) || read_time(fields[F_ENDED], &ended))
        return -1;
    if (began + trace->anchor < 0 || ended < began) {
        PyErr_SetString(PyExc_ValueError, "not an interval");
        return -1;
    }
    read->high = trace->high;
    read->low = trace->low;
    read->start = (uint64_t)(began + trace->anchor);
    read->end = (uint64_t)(ended + trace->anchor);
    read->name = fields[F_NAME];
    read->status = fields[F_STATUS];
    read->attributes = fields[F_ATTRIBUTES];
    return put_span(message, read, limits);
}

/* Whether what was raised says that a span must be cleaned first; it is forgotten then. */
static int is_refused(void) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError) && !PyErr_ExceptionMatches(PyExc_ValueError)
        && !PyErr_ExceptionMatches(PyExc_OverflowError) && !PyErr_ExceptionMatches(PyExc_AttributeError))
        return 0;
    PyErr_Clear();
    return 1;
}

enum { STAGE_TYPE = 3, ROOM, STAGES, FIRST, BEHIND, STAGES_COUNT };

PyDoc_STRVAR(stages_doc, "Encode the stages of a list from one place to another, of exactly this type, one after the other; stop in\n"
                         "front of one that must be encoded otherwise, and where there is no more room. Gives the bytes, the\n"
                         "place where it stopped, the first begin and the last end.");

static PyObject *stages(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Message message;
    Limits limits;
    Trace trace = {NULL, 0, 0, 0};
    Py_ssize_t room, place, behind;
    uint64_t first = UINT64_MAX, last = 0;
    PyObject *encoded = NULL;
    int is_over = 0;
    (void)module;
    if (count != STAGES_COUNT || !PyList_Check(arguments[STAGES])) {
        PyErr_Format(PyExc_TypeError, "stages() takes %d arguments, of them a list", STAGES_COUNT);
        return NULL;
    }
    room = PyLong_AsSsize_t(arguments[ROOM]);
    place = PyLong_AsSsize_t(arguments[FIRST]);
    behind = PyLong_AsSsize_t(arguments[BEHIND]);
    if (PyErr_Occurred() || read_limits(&limits, arguments)) return NULL;
    if (behind > PyList_Size(arguments[STAGES])) behind = PyList_Size(arguments[STAGES]);
    message_begin(&message);
    for (; place < behind && !is_over && !PyErr_Occurred(); place += !is_over) {
        PyObject *stage = PyList_GetItem(arguments[STAGES], place), *fields[FIELDS] = {NULL};
        size_t size = (size_t)(message.end - message.data);
        int field;
        Span read;
        if (stage == NULL) break;
        if (Py_TYPE(stage) != (PyTypeObject *)arguments[STAGE_TYPE]) {
            is_over = 1;
            continue;
        }
        for (field = 0; field < FIELDS; field++) {
            fields[field] = PyObject_GetAttr(stage, field_names[field]);
            if (fields[field] == NULL) break;
        }
        is_over = field < FIELDS || put_stage(&message, fields, &trace, &limits, &read)
                  || (size_t)(message.end - message.data) > (size_t)room;
        if (is_over)
            message.end = message.data + size;
        else {
            if (read.start < first) first = read.start;
            if (read.end > last) last = read.end;
        }
        for (field = 0; field < FIELDS; field++) Py_XDECREF(fields[field]);
        if (PyErr_Occurred() && !is_refused()) break;
    }
    if (!PyErr_Occurred()) {
        PyObject *data = message_bytes(&message);
        if (data != NULL)
            encoded = Py_BuildValue("NnKK", data, place, (unsigned long long)first, (unsigned long long)last);
    }
    message_free(&message);
    Py_XDECREF(trace.trace);
    return encoded;
}

static PyMethodDef methods[] = {
    {"span", (PyCFunction)(void (*)(void))span, METH_FASTCALL, span_doc},
    {"stages", (PyCFunction)(void (*)(void))stages, METH_FASTCALL, stages_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *module;
    int field;
    for (field = 0; field < ALL_FIELDS; field++) {
        field_names[field] = PyUnicode_InternFromString(field_texts[field]);
        if (field_names[field] == NULL) return NULL;
    }
    sixty_four = PyLong_FromLong(64);
    module = sixty_four == NULL ? NULL : PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "FORM", FORM)) Py_CLEAR(module);
    return module;
}
