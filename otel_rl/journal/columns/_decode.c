/* The loop of the readers that is worth C: OTLP requests of spans and points into columns.

   spans() and points() read many requests at once. Each record becomes a row of fixed size; fallback.py says what it
   holds, and decode.py is its reader. An attribute of a span whose key is known becomes a cell (row, value) of a column
   of its own, any other one a cell (row, key, type, value) of the column of others. Texts, and messages that are kept as
   they are ("blobs": resources, attributes of points, histograms, arrays), are numbers in two tables.

   A request that is not understood leaves nothing in the columns and is named: protobuf decides whether it is damage.
   The interpreter's lock is held only while arguments are read and results are made.

   Field numbers: opentelemetry/proto/{trace,metrics,common}/v1. Only the limited API is used, as in _native.c. */

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define FORM 1 /* of what these take and give: decode.py uses no other */
#define MOST_KEYS 250
#define NO_CODE UINT32_MAX

enum wire { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };
enum { BAD = -1, END = 0, READ = 1, NO_MEMORY = -2 };

typedef struct {
    const unsigned char *at, *end;
} Slice;

#define SIZE(slice) ((size_t)((slice).end - (slice).at))

static inline int is_equal(Slice one, Slice other) {
    return SIZE(one) == SIZE(other) && (SIZE(one) == 0 || memcmp(one.at, other.at, SIZE(one)) == 0);
}

/* --- arrays that grow --------------------------------------------------------------------------------------------- */

typedef struct {
    unsigned char *data;
    size_t size, room;
} Array;

static int grow(Array *array, size_t more) {
    size_t room = 2 * array->room + more + 4096;
    unsigned char *data = realloc(array->data, room);
    if (data == NULL) return NO_MEMORY;
    array->data = data;
    array->room = room;
    return 0;
}

static inline int add(Array *array, const void *value, size_t size) {
    if (array->room - array->size <= size && grow(array, size)) return NO_MEMORY;
    if (size) memcpy(array->data + array->size, value, size);
    array->size += size;
    return 0;
}

/* --- texts and their numbers -------------------------------------------------------------------------------------- */

typedef struct {
    Array letters, ends; /* all in a row, and where each ends (u32) */
    uint32_t *slots, mask;
} Texts;

static inline uint64_t hash_of(Slice text) {
    uint64_t hash = SIZE(text) * UINT64_C(0x9E3779B97F4A7C15), part;
    for (; SIZE(text) >= 8; text.at += 8) {
        memcpy(&part, text.at, 8);
        hash = (hash ^ part) * UINT64_C(0xD6E8FEB86659FD93);
        hash ^= hash >> 32;
    }
    part = 0;
    if (SIZE(text)) memcpy(&part, text.at, SIZE(text));
    hash = (hash ^ part) * UINT64_C(0xD6E8FEB86659FD93);
    return hash ^ hash >> 32;
}

static inline uint32_t count_of(const Texts *texts) { return (uint32_t)(texts->ends.size / sizeof(uint32_t)); }

static inline Slice text_at(const Texts *texts, uint32_t code) {
    const uint32_t *ends = (const uint32_t *)texts->ends.data;
    Slice text = {texts->letters.data + (code ? ends[code - 1] : 0), texts->letters.data + ends[code]};
    return text;
}

static int is_utf8(Slice text) {
    while (text.at < text.end) {
        unsigned char c = *text.at++;
        int more = c < 0x80 ? 0 : c >= 0xC2 && c < 0xE0 ? 1 : c >= 0xE0 && c < 0xF0 ? 2 : c >= 0xF0 && c < 0xF5 ? 3 : -1;
        if (more < 0 || SIZE(text) < (size_t)more) return 0;
        if ((c == 0xE0 && *text.at < 0xA0) || (c == 0xED && *text.at > 0x9F) || (c == 0xF0 && *text.at < 0x90)
            || (c == 0xF4 && *text.at > 0x8F))
            return 0;
        while (more--)
            if ((*text.at++ & 0xC0) != 0x80) return 0;
    }
    return 1;
}

/* Give the table of slots twice the room; it is never more than half full. */
static int rehash(Texts *texts) {
    uint32_t mask = texts->mask ? 2 * texts->mask + 1 : 255, code, slot;
    uint32_t *slots = malloc(sizeof *slots * ((size_t)mask + 1));
    if (slots == NULL) return NO_MEMORY;
    memset(slots, 0xFF, sizeof *slots * ((size_t)mask + 1));
    for (code = 0; code < count_of(texts); code++) {
        for (slot = (uint32_t)hash_of(text_at(texts, code)) & mask; slots[slot] != NO_CODE;) slot = (slot + 1) & mask;
        slots[slot] = code;
    }
    free(texts->slots);
    texts->slots = slots;
    texts->mask = mask;
    return 0;
}

/* Return the slot of a text, or the empty one where it belongs. */
static inline uint32_t slot_of(const Texts *texts, Slice text) {
    uint32_t slot = (uint32_t)hash_of(text) & texts->mask;
    while (texts->slots[slot] != NO_CODE && !is_equal(text_at(texts, texts->slots[slot]), text))
        slot = (slot + 1) & texts->mask;
    return slot;
}

/* Find the number of a text, or give it one; BAD if it should be UTF-8 and is not. */
static int intern(Texts *texts, Slice text, int is_text, uint32_t *code) {
    uint32_t slot, end;
    if (2 * count_of(texts) >= texts->mask && rehash(texts)) return NO_MEMORY;
    slot = slot_of(texts, text);
    *code = texts->slots[slot];
    if (*code != NO_CODE) return 0;
    if ((is_text && !is_utf8(text)) || texts->letters.size + SIZE(text) > INT32_MAX) return BAD;
    end = (uint32_t)(texts->letters.size + SIZE(text));
    *code = count_of(texts);
    if (add(&texts->letters, text.at, SIZE(text)) || add(&texts->ends, &end, sizeof end)) return NO_MEMORY;
    texts->slots[slot] = *code;
    return 0;
}

/* --- protobuf ----------------------------------------------------------------------------------------------------- */

typedef struct {
    uint32_t number;
    int wire;
    uint64_t value;
    Slice bytes;
} Field;

static inline int read_varint(Slice *from, uint64_t *value) {
    int shift;
    if (from->at < from->end && *from->at < 0x80) { /* as most are */
        *value = *from->at++;
        return READ;
    }
    *value = 0;
    for (shift = 0; shift < 70 && from->at < from->end; shift += 7) {
        unsigned char byte = *from->at++;
        *value |= shift < 64 ? (uint64_t)(byte & 0x7F) << shift : 0;
        if (byte < 0x80) return READ;
    }
    return BAD;
}

static inline int read_field(Slice *from, Field *field) {
    uint64_t tag;
    size_t size;
    if (from->at == from->end) return END;
    if (read_varint(from, &tag) != READ || tag >> 3 == 0 || tag > UINT32_MAX) return BAD;
    field->number = (uint32_t)(tag >> 3);
    field->wire = (int)(tag & 7);
    switch (field->wire) {
    case VARINT: return read_varint(from, &field->value);
    case BYTES:
        if (read_varint(from, &field->value) != READ || field->value > SIZE(*from)) return BAD;
        field->bytes.at = from->at;
        from->at = field->bytes.end = from->at + field->value;
        return READ;
    case FIXED64:
    case FIXED32:
        size = field->wire == FIXED64 ? 8 : 4;
        if (SIZE(*from) < size) return BAD;
        field->value = 0;
        memcpy(&field->value, from->at, size); /* little endian, as all machines that we know */
        from->at += size;
        return READ;
    default: return BAD; /* groups: protobuf knows them */
    }
}

#define IS(field, expected, type) ((field).number == (expected) && (field).wire == (type))

/* Take a message that stands once; protobuf would merge two. */
static inline int take_once(Slice *place, Slice bytes) {
    if (place->at != NULL) return BAD;
    *place = bytes;
    return 0;
}

/* --- rows --------------------------------------------------------------------------------------------------------- */

typedef struct { /* decode.SPAN */
    unsigned char trace[16], id[8], parent[8];
    uint64_t start, end;
    uint32_t name, resource, request;
    int32_t status;
    uint32_t is_own, unused;
} Span;

typedef struct { /* decode.POINT */
    uint64_t time, start, value;
    uint32_t name, unit, resource, attributes, body, request, kind, number;
} Point;

typedef struct { /* decode.OTHER */
    uint32_t row, key, type, value[2];
} Other;

typedef struct { /* the cells of a known key */
    uint32_t row, value[2];
} Cell;

enum type { INT, DOUBLE, TEXT, BOOL, LIST, NOTHING }; /* decode.TYPES; NOTHING: what records do not have */
#define ROWS 0
#define OTHERS 1
#define OF_KEY(key) (2 + (key))

typedef struct Decoder Decoder;
struct Decoder {
    Array columns[OF_KEY(MOST_KEYS)];
    Texts texts, blobs, keys;
    unsigned char types[MOST_KEYS], next[MOST_KEYS + 1];
    uint32_t recent[MOST_KEYS + 1]; /* the text that a key had last */
    uint32_t known, row, last;      /* last: the key before this one, which predicts it */
    uint32_t resource, request, is_own;
    Array attributes;
    int (*put)(Decoder *, Slice); /* takes a span, or a metric */
};

/* --- attributes of spans ------------------------------------------------------------------------------------------ */

static int text_of(Decoder *decoder, uint32_t key, Slice text, uint64_t *value) {
    uint32_t code = decoder->recent[key];
    int failed = 0;
    if (code >= count_of(&decoder->texts) || !is_equal(text_at(&decoder->texts, code), text))
        failed = intern(&decoder->texts, text, 1, &code);
    if (!failed) decoder->recent[key] = code;
    *value = code;
    return failed;
}

/* Read an AnyValue; an array is kept as a blob, which is the AnyValue. */
static int read_value(Decoder *decoder, uint32_t key, Slice from, int *type, uint64_t *value) {
    Slice whole = from;
    Field field;
    uint32_t code;
    int found = read_field(&from, &field);
    *type = NOTHING;
    if (found != READ) return found;
    if (from.at != from.end) return BAD; /* of several, protobuf takes the last, or merges them */
    *value = field.value;
    if (IS(field, 3, VARINT)) *type = INT;
    else if (IS(field, 4, FIXED64)) *type = DOUBLE;
    else if (IS(field, 2, VARINT)) {
        *type = BOOL;
        *value = field.value != 0;
    } else if (IS(field, 1, BYTES)) {
        *type = TEXT;
        return text_of(decoder, key, field.bytes, value);
    } else if (IS(field, 5, BYTES)) {
        *type = LIST;
        found = intern(&decoder->blobs, whole, 0, &code);
        *value = code;
        return found == 0 ? 0 : found;
    }
    return 0;
}

/* Find the number of a key, which mostly follows the one before as it did in the last span. */
static inline uint32_t key_of(Decoder *decoder, Slice key) {
    uint32_t place = decoder->next[decoder->last];
    if (place >= decoder->known || !is_equal(text_at(&decoder->keys, place), key)) {
        place = decoder->keys.slots[slot_of(&decoder->keys, key)];
        if (place == NO_CODE) return MOST_KEYS;
        decoder->next[decoder->last] = (unsigned char)place;
    }
    return decoder->last = place;
}

/* Find key and value of a KeyValue; mostly both are short, and the key is first. */
static inline int split_attribute(Slice from, Slice *key, Slice *value) {
    const unsigned char *at = from.at;
    Field field;
    int found;
    if (SIZE(from) >= 4 && at[0] == 0x0A && SIZE(from) >= 4u + at[1] && at[1] < 0x80 && at[2 + at[1]] == 0x12
        && at[3 + at[1]] < 0x80 && SIZE(from) == 4u + at[1] + at[3 + at[1]]) {
        key->at = at + 2;
        key->end = key->at + at[1];
        value->at = key->end + 2;
        value->end = from.end;
        return 0;
    }
    while ((found = read_field(&from, &field)) == READ) {
        if (IS(field, 1, BYTES)) *key = field.bytes;
        else if (IS(field, 2, BYTES) && take_once(value, field.bytes)) return BAD;
    }
    return found == END && key->at != NULL ? 0 : BAD;
}

static int put_attribute(Decoder *decoder, Slice from) {
    Slice key = {NULL, NULL}, any = {NULL, NULL};
    Other other = {decoder->row, 0, 0, {0, 0}};
    Cell cell = {decoder->row, {0, 0}};
    uint64_t value = 0;
    uint32_t place;
    int failed = split_attribute(from, &key, &any), type = NOTHING;
    if (failed) return failed;
    place = key_of(decoder, key);
    if (any.at != NULL && (failed = read_value(decoder, place, any, &type, &value))) return failed;
    if (type == NOTHING) return 0;
    if (place < decoder->known && decoder->types[place] == DOUBLE && type == INT) { /* a whole number of seconds */
        double number = (double)(int64_t)value;
        memcpy(&value, &number, sizeof value);
        type = DOUBLE;
    }
    if (place < decoder->known && decoder->types[place] == type) {
        memcpy(cell.value, &value, sizeof value);
        return add(&decoder->columns[OF_KEY(place)], &cell, sizeof cell);
    }
    if ((failed = intern(&decoder->texts, key, 1, &other.key))) return failed;
    other.type = (uint32_t)type;
    memcpy(other.value, &value, sizeof value);
    return add(&decoder->columns[OTHERS], &other, sizeof other);
}

/* --- spans -------------------------------------------------------------------------------------------------------- */

static inline int read_id(unsigned char *id, size_t size, Slice from) { /* none is zeros */
    memset(id, 0, size);
    if (SIZE(from) == size) memcpy(id, from.at, size);
    return SIZE(from) == size || SIZE(from) == 0 ? 0 : BAD;
}

static int read_status(Slice from, int32_t *status) {
    Field field;
    int found;
    while ((found = read_field(&from, &field)) == READ)
        if (IS(field, 3, VARINT)) *status = (int32_t)field.value;
    return found;
}

static int put_span(Decoder *decoder, Slice from) {
    Span span = {.resource = decoder->resource, .request = decoder->request, .is_own = decoder->is_own};
    Slice name = {from.at, from.at}, status = {NULL, NULL};
    Field field;
    int found, failed;
    decoder->last = MOST_KEYS;
    while ((found = read_field(&from, &field)) == READ) {
        failed = 0;
        if (IS(field, 9, BYTES)) failed = put_attribute(decoder, field.bytes);
        else if (IS(field, 1, BYTES)) failed = read_id(span.trace, sizeof span.trace, field.bytes);
        else if (IS(field, 2, BYTES)) failed = read_id(span.id, sizeof span.id, field.bytes);
        else if (IS(field, 4, BYTES)) failed = read_id(span.parent, sizeof span.parent, field.bytes);
        else if (IS(field, 5, BYTES)) name = field.bytes;
        else if (IS(field, 7, FIXED64)) span.start = field.value;
        else if (IS(field, 8, FIXED64)) span.end = field.value;
        else if (IS(field, 15, BYTES)) failed = take_once(&status, field.bytes) || read_status(field.bytes, &span.status);
        if (failed) return failed == NO_MEMORY ? NO_MEMORY : BAD;
    }
    if (found != END) return found;
    if ((failed = intern(&decoder->texts, name, 1, &span.name))) return failed;
    decoder->row++;
    return add(&decoder->columns[ROWS], &span, sizeof span);
}

/* --- points ------------------------------------------------------------------------------------------------------- */

enum kind { GAUGE = 5, SUM = 7, HISTOGRAM = 9, EXPONENTIAL = 10, SUMMARY = 11 }; /* fields of a Metric */

/* Add an attribute to a KeyValueList. */
static int collect_attribute(Array *list, Slice attribute) {
    unsigned char head[12] = {0x0A};
    size_t size = 1;
    uint64_t rest = SIZE(attribute);
    for (; rest >> 7; rest >>= 7) head[size++] = (unsigned char)(rest | 0x80);
    head[size++] = (unsigned char)rest;
    return add(list, head, size) || add(list, attribute.at, SIZE(attribute)) ? NO_MEMORY : 0;
}

static int put_point(Decoder *decoder, Point *point, Slice from) {
    int is_number = point->kind == GAUGE || point->kind == SUM, found, failed = 0;
    uint32_t attributes = is_number ? 7 : point->kind == HISTOGRAM ? 9 : 1;
    Slice whole = from, list;
    Field field;
    point->time = point->start = point->value = 0;
    point->number = point->body = 0;
    decoder->attributes.size = 0;
    while (!failed && (found = read_field(&from, &field)) == READ) {
        if (IS(field, attributes, BYTES)) failed = collect_attribute(&decoder->attributes, field.bytes);
        else if (IS(field, 2, FIXED64)) point->start = field.value;
        else if (IS(field, 3, FIXED64)) point->time = field.value;
        else if (is_number && (IS(field, 4, FIXED64) || IS(field, 6, FIXED64))) {
            point->value = field.value;
            point->number = field.number;
        }
    }
    if (failed || found != END) return failed ? failed : found;
    list.at = decoder->attributes.data;
    list.end = list.at + decoder->attributes.size;
    if ((failed = intern(&decoder->blobs, list, 0, &point->attributes))) return failed;
    if (!is_number && (failed = intern(&decoder->blobs, whole, 0, &point->body))) return failed;
    decoder->row++;
    return add(&decoder->columns[ROWS], point, sizeof *point);
}

static int put_metric(Decoder *decoder, Slice from) {
    Point point = {.resource = decoder->resource, .request = decoder->request};
    Slice name = {from.at, from.at}, unit = name, data = {NULL, NULL};
    Field field;
    int found, failed;
    while ((found = read_field(&from, &field)) == READ) {
        if (IS(field, 1, BYTES)) name = field.bytes;
        else if (IS(field, 3, BYTES)) unit = field.bytes;
        else if (field.wire == BYTES && field.number >= GAUGE && field.number <= SUMMARY) {
            if (take_once(&data, field.bytes)) return BAD;
            point.kind = field.number;
        }
    }
    if (found != END) return found;
    if (data.at == NULL || point.kind == SUMMARY) return 0;
    if ((failed = intern(&decoder->texts, name, 1, &point.name))) return failed;
    if ((failed = intern(&decoder->texts, unit, 1, &point.unit))) return failed;
    while ((found = read_field(&data, &field)) == READ)
        if (IS(field, 1, BYTES) && (failed = put_point(decoder, &point, field.bytes))) return failed;
    return found;
}

/* --- requests ----------------------------------------------------------------------------------------------------- */

static int put_scope(Decoder *decoder, Slice from) {
    static const unsigned char ours[] = {'o', 't', 'e', 'l', '_', 'r', 'l'};
    const Slice own = {ours, ours + sizeof ours};
    Slice again = from, scope = {NULL, NULL};
    Field field;
    int found, failed;
    while ((found = read_field(&again, &field)) == READ)
        if (IS(field, 1, BYTES) && take_once(&scope, field.bytes)) return BAD;
    if (found != END) return found;
    decoder->is_own = 0;
    while (scope.at != NULL && (found = read_field(&scope, &field)) == READ)
        if (IS(field, 1, BYTES)) decoder->is_own = (uint32_t)is_equal(field.bytes, own);
    if (found != END) return found;
    while (read_field(&from, &field) == READ)
        if (IS(field, 2, BYTES) && (failed = decoder->put(decoder, field.bytes))) return failed;
    return 0;
}

static int put_group(Decoder *decoder, Slice from) {
    Slice again = from, resource = {NULL, NULL};
    Field field;
    int found, failed;
    while ((found = read_field(&again, &field)) == READ)
        if (IS(field, 1, BYTES) && take_once(&resource, field.bytes)) return BAD;
    if (found != END) return found;
    if ((failed = intern(&decoder->blobs, resource, 0, &decoder->resource))) return failed;
    while (read_field(&from, &field) == READ)
        if (IS(field, 2, BYTES) && (failed = put_scope(decoder, field.bytes))) return failed;
    return 0;
}

/* Read one request; if it is BAD, nothing of it remains but texts. */
static int put_request(Decoder *decoder, Slice from, size_t *sizes) {
    uint32_t row = decoder->row, place, count = OF_KEY(decoder->known);
    Field field;
    int found;
    for (place = 0; place < count; place++) sizes[place] = decoder->columns[place].size;
    while ((found = read_field(&from, &field)) == READ)
        if (IS(field, 1, BYTES) && (found = put_group(decoder, field.bytes))) break;
    if (found == END) return END;
    for (place = 0; place < count; place++) decoder->columns[place].size = sizes[place];
    decoder->row = row;
    return found;
}

/* --- Python ------------------------------------------------------------------------------------------------------- */

static PyObject *take_bytes(Array *array) { /* the array is empty then */
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)array->data, (Py_ssize_t)array->size);
    free(array->data);
    memset(array, 0, sizeof *array);
    return bytes;
}

static PyObject *take_all(Array *arrays, int count) {
    PyObject *tuple = PyTuple_New(count), *bytes;
    int place;
    for (place = 0; place < count && tuple != NULL; place++) {
        if ((bytes = take_bytes(&arrays[place])) == NULL) Py_CLEAR(tuple);
        else PyTuple_SetItem(tuple, place, bytes);
    }
    return tuple;
}

static int read_keys(Decoder *decoder, PyObject *keys) {
    Py_ssize_t count = PyList_Size(keys), place;
    if (count > MOST_KEYS || rehash(&decoder->keys)) return -1;
    for (place = 0; place < count; place++) {
        const char *text;
        Py_ssize_t size;
        int type;
        uint32_t code;
        Slice key;
        if (!PyArg_ParseTuple(PyList_GetItem(keys, place), "s#i", &text, &size, &type) || type < 0 || type >= NOTHING) return -1;
        key.at = (const unsigned char *)text;
        key.end = key.at + size;
        if (intern(&decoder->keys, key, 1, &code) || code != (uint32_t)place) return -1;
        decoder->types[place] = (unsigned char)type;
    }
    decoder->known = (uint32_t)count;
    memset(decoder->next, MOST_KEYS, sizeof decoder->next);
    return 0;
}

/* Read all requests without the interpreter's lock; `made` gets the number of rows of each, or -1. */
static int put_requests(Decoder *decoder, const Slice *requests, Py_ssize_t count, size_t *sizes, Array *made) {
    Py_ssize_t number;
    int found = 0;
    Py_BEGIN_ALLOW_THREADS
    for (number = 0; number < count && found != NO_MEMORY; number++) {
        uint32_t before = decoder->row;
        int32_t rows;
        decoder->request = (uint32_t)number;
        found = put_request(decoder, requests[number], sizes);
        rows = found == BAD ? -1 : (int32_t)(decoder->row - before);
        if (found != NO_MEMORY) found = add(made, &rows, sizeof rows);
    }
    Py_END_ALLOW_THREADS
    return found;
}

static void free_decoder(Decoder *decoder) {
    Texts *texts[] = {&decoder->texts, &decoder->blobs, &decoder->keys};
    int place;
    for (place = 0; place < OF_KEY(MOST_KEYS); place++) free(decoder->columns[place].data);
    for (place = 0; place < 3; place++) {
        free(texts[place]->letters.data);
        free(texts[place]->ends.data);
        free(texts[place]->slots);
    }
    free(decoder->attributes.data);
    free(decoder);
}

static PyObject *decode(PyObject *given, PyObject *keys, int (*put)(Decoder *, Slice)) {
    PyObject *result = NULL, *kept = PyList_GetSlice(given, 0, PyList_Size(given)); /* another thread may change it */
    Py_ssize_t count = kept == NULL ? 0 : PyList_Size(kept), number;
    Decoder *decoder = calloc(1, sizeof *decoder);
    size_t *sizes = malloc(OF_KEY(MOST_KEYS) * sizeof *sizes);
    Slice *requests = malloc((size_t)(count + 1) * sizeof *requests);
    Array made = {NULL, 0, 0};
    if (kept == NULL || decoder == NULL || sizes == NULL || requests == NULL) goto end;
    decoder->put = put;
    if (keys != NULL && read_keys(decoder, keys)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "keys are different texts of known types");
        goto end;
    }
    for (number = 0; number < count; number++) {
        char *data;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(PyList_GetItem(kept, number), &data, &size)) goto end;
        requests[number].at = (const unsigned char *)data;
        requests[number].end = requests[number].at + size;
    }
    if (put_requests(decoder, requests, count, sizes, &made) != NO_MEMORY)
        result = Py_BuildValue("NNNN", take_bytes(&made), take_all(&decoder->texts.letters, 2),
                               take_all(&decoder->blobs.letters, 2),
                               take_all(decoder->columns, keys == NULL ? 1 : OF_KEY((int)decoder->known)));
end:
    if (result == NULL && !PyErr_Occurred()) PyErr_NoMemory();
    if (decoder != NULL) free_decoder(decoder);
    Py_XDECREF(kept);
    free(made.data);
    free(requests);
    free(sizes);
    return result;
}

#define RESULT "(rows of each request or -1, (letters, ends) of texts, the same of blobs, columns)"

PyDoc_STRVAR(spans_doc, "spans(requests: list[bytes], keys: list[tuple[str, int]]) -> " RESULT);

static PyObject *decode_spans(PyObject *module, PyObject *const *arguments, Py_ssize_t given) {
    (void)module;
    if (given == 2 && PyList_Check(arguments[0]) && PyList_Check(arguments[1]))
        return decode(arguments[0], arguments[1], put_span);
    PyErr_SetString(PyExc_TypeError, "spans() takes a list of bytes and a list of keys");
    return NULL;
}

PyDoc_STRVAR(points_doc, "points(requests: list[bytes]) -> " RESULT);

static PyObject *decode_points(PyObject *module, PyObject *const *arguments, Py_ssize_t given) {
    (void)module;
    if (given == 1 && PyList_Check(arguments[0])) return decode(arguments[0], NULL, put_metric);
    PyErr_SetString(PyExc_TypeError, "points() takes a list of bytes");
    return NULL;
}

static PyMethodDef methods[] = {
    {"spans", (PyCFunction)(void (*)(void))decode_spans, METH_FASTCALL, spans_doc},
    {"points", (PyCFunction)(void (*)(void))decode_points, METH_FASTCALL, points_doc},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_decode", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__decode(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "FORM", FORM)) Py_CLEAR(module);
    return module;
}
