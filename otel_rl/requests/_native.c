/* The loops over finished requests that are worth C: rows into columns, and what bulk_plain.py defines of columns.

   A row is a tuple, one field of which is at the same place in all rows. A column is a bytes object of whole numbers of
   64 bits, or -1 where a number is not known. The functions give what columns.py and bulk_plain.py give, to the last bit
   (tests/test_requests_bulk.py). No code of Python runs inside but what a value has of its own for __index__: texts are
   no subclass's, which may have == and hash() of their own. ``note`` alone runs on the engines' threads. Only the limited
   API is used, so that one build serves every CPython from 3.10 on. */

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define FORM 3 /* of what these take and give: requests.py uses no other, which an earlier build may have left behind */
#define UNKNOWN (-1)
#define REVERSED (-2)
#define LOW_BITS 20 /* that are summed apart, so that no sum leaves 64 bits */
#define GIVEN 9
#define DERIVED 12
#define MOST_FIELDS 64
#define MANY 10000 /* values; to go through fewer is over before another thread wakes up; */
#define MANY_ROWS 400 /* likewise, to look for them */

/* --- what is handed over ------------------------------------------------------------------------------------------ */

/* The numbers of a column, else NULL with an exception set. */
static const int64_t *numbers(PyObject *column, Py_ssize_t *count) {
    char *data;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(column, &data, &size)) return NULL;
    *count = size / (Py_ssize_t)sizeof(int64_t);
    return (const int64_t *)data;
}

/* A new column and the place of its numbers; NULL with an exception set. */
static PyObject *column_new(Py_ssize_t count, int64_t **data) {
    PyObject *column = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(int64_t));
    *data = column == NULL ? NULL : (int64_t *)PyBytes_AsString(column);
    return column;
}

/* A field of a row, borrowed; NULL with an exception set. */
static PyObject *field_of(PyObject *rows, Py_ssize_t number, Py_ssize_t place) {
    PyObject *row = PyList_GetItem(rows, number);
    return row == NULL ? NULL : PyTuple_GetItem(row, place);
}

static int is_called_with(Py_ssize_t given, Py_ssize_t wanted, const char *name) {
    if (given == wanted) return 1;
    PyErr_Format(PyExc_TypeError, "%s() takes %zd arguments", name, wanted);
    return 0;
}

static PyObject *too_many_fields(void) {
    PyErr_SetString(PyExc_ValueError, "a row has too many fields");
    return NULL;
}

static int add_number(PyObject *list, int64_t number) {
    PyObject *made = PyLong_FromLongLong(number);
    int failed = made == NULL || PyList_Append(list, made);
    Py_XDECREF(made);
    return failed;
}

/* --- rows --------------------------------------------------------------------------------------------------------- */

/* A whole number; 0, or -1 where it is none of 64 bits. */
static int read_number(PyObject *value, int64_t *number) {
    int overflow = 0;
    if (PyLong_CheckExact(value) || PyLong_Check(value)) {
        *number = PyLong_AsLongLongAndOverflow(value, &overflow);
    } else {
        PyObject *whole = PyNumber_Index(value);
        if (whole == NULL) return -1;
        *number = PyLong_AsLongLongAndOverflow(whole, &overflow);
        Py_DECREF(whole);
    }
    return overflow || (*number == -1 && PyErr_Occurred()) ? -1 : 0;
}

PyDoc_STRVAR(columns_doc,
             "columns(rows, kind, layout)\n--\n\n"
             "Give a column of each field that ``layout`` calls ``q``, where every row is of the kind or a plain tuple, and\n"
             "every field as good as what it should be (``q``: a whole number of 64 bits, of any type; ``i``: one of\n"
             "Python's own; ``s``: a text of Python's own; ``b``: a bool), else None.");

static PyObject *columns(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    PyObject *made[MOST_FIELDS], *found = NULL;
    int64_t *data[MOST_FIELDS], number;
    Py_ssize_t count, fields, row, place, wide = 0;
    char *layout;
    int is_good = 1;
    (void)module;
    if (!is_called_with(given, 3, "columns") || PyBytes_AsStringAndSize(args[2], &layout, &fields)) return NULL;
    count = PyList_Size(args[0]);
    if (count < 0) return NULL;
    if (fields > MOST_FIELDS) return too_many_fields();
    for (place = 0; place < fields; place++) {
        if (layout[place] != 'q') continue;
        made[wide] = column_new(count, &data[wide]);
        if (made[wide] == NULL) goto done;
        wide++;
    }
    for (row = 0; is_good && row < count; row++) {
        PyObject *one = PyList_GetItem(args[0], row);
        Py_ssize_t column = 0;
        if (one == NULL) goto done; /* the list has become shorter */
        Py_INCREF(one); /* for what __index__ may do */
        is_good = ((PyObject *)Py_TYPE(one) == args[1] || PyTuple_CheckExact(one)) && PyTuple_Size(one) == fields;
        for (place = 0; is_good && place < fields; place++) {
            PyObject *value = PyTuple_GetItem(one, place);
            switch (layout[place]) {
            case 'q': is_good = !read_number(value, &data[column++][row]); break;
            case 'i': is_good = PyLong_CheckExact(value) && !read_number(value, &number); break;
            case 's': is_good = PyUnicode_CheckExact(value); break;
            default: is_good = PyBool_Check(value);
            }
        }
        Py_DECREF(one);
    }
    PyErr_Clear();
    if (!is_good) {
        found = Py_NewRef(Py_None);
        goto done;
    }
    found = PyTuple_New(wide);
    for (place = 0; found != NULL && place < wide; place++) PyTuple_SetItem(found, place, Py_NewRef(made[place]));
done:
    while (wide) Py_DECREF(made[--wide]);
    return found;
}

PyDoc_STRVAR(alike_doc,
             "alike(rows, places)\n--\n\n"
             "Say whether the values at each of these places (bytes) are equal in all rows.");

static PyObject *alike(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    PyObject *firsts[MOST_FIELDS];
    Py_ssize_t count, fields, row, field;
    char *places;
    (void)module;
    if (!is_called_with(given, 2, "alike") || PyBytes_AsStringAndSize(args[1], &places, &fields)) return NULL;
    count = PyList_Size(args[0]);
    if (count < 0) return NULL;
    if (fields > MOST_FIELDS) return too_many_fields();
    for (field = 0; count && field < fields; field++) {
        firsts[field] = field_of(args[0], 0, places[field]);
        if (firsts[field] == NULL) return NULL;
    }
    for (row = 1; row < count; row++) {
        PyObject *one = PyList_GetItem(args[0], row);
        for (field = 0; field < fields; field++) {
            PyObject *other = one == NULL ? NULL : PyTuple_GetItem(one, places[field]);
            int is_equal = other == NULL ? -1 : firsts[field] == other;
            if (!is_equal) is_equal = PyObject_RichCompareBool(firsts[field], other, Py_EQ);
            if (is_equal < 0) return NULL;
            if (!is_equal) return Py_NewRef(Py_False);
        }
    }
    return Py_NewRef(Py_True);
}

static int add_count(PyObject *counts, PyObject *value, Py_ssize_t more) {
    PyObject *before = PyDict_GetItemWithError(counts, value), *number;
    int failed;
    if (before == NULL && PyErr_Occurred()) return -1;
    number = PyLong_FromSsize_t(more + (before == NULL ? 0 : PyLong_AsSsize_t(before)));
    failed = number == NULL || PyDict_SetItem(counts, value, number);
    Py_XDECREF(number);
    return failed;
}

PyDoc_STRVAR(count_doc,
             "count(rows, place)\n--\n\n"
             "Give how many rows have which value at a place.");

static PyObject *count(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    PyObject *counts, *value, *same = NULL;
    Py_ssize_t rows, row, place, number = 0;
    (void)module;
    if (!is_called_with(given, 2, "count")) return NULL;
    place = PyLong_AsSsize_t(args[1]);
    rows = PyList_Size(args[0]);
    counts = PyErr_Occurred() ? NULL : PyDict_New();
    for (row = 0; counts != NULL && row < rows; row++, number++) {
        value = field_of(args[0], row, place);
        if (value != NULL && value == same) continue;
        if (value == NULL || (number && add_count(counts, same, number))) Py_CLEAR(counts);
        same = value;
        number = 0;
    }
    if (counts != NULL && number && add_count(counts, same, number)) Py_CLEAR(counts);
    return counts;
}

static uint64_t mixed(uint64_t value) { /* the finalizer of MurmurHash3 (public domain) */
    value = (value ^ value >> 33) * UINT64_C(0xFF51AFD7ED558CCD);
    value = (value ^ value >> 33) * UINT64_C(0xC4CEB9FE1A85EC53);
    return value ^ value >> 33;
}

/* What of a row is hashed: its values at these places, and of the last ones their hashes, since most come again. */
typedef struct {
    const char *places;
    Py_ssize_t fields;
    PyObject *last[MOST_FIELDS];
    Py_hash_t hashes[MOST_FIELDS];
} Key;

/* A number of a scope and a row, equal for equal ones; -1 with an exception set. */
static int64_t key_of(Key *of, PyObject *row, int64_t scope) {
    uint64_t key = (uint64_t)scope;
    Py_ssize_t field;
    for (field = 0; field < of->fields; field++) {
        PyObject *value = PyTuple_GetItem(row, of->places[field]);
        if (value == NULL) return -1;
        if (value != of->last[field]) {
            of->hashes[field] = PyObject_Hash(value);
            if (of->hashes[field] == -1) return -1;
            of->last[field] = value;
        }
        key = mixed(key ^ (uint64_t)of->hashes[field]);
    }
    return (int64_t)(key >> 1);
}

/* What was seen: slots of a key, 0 where it is free, and an attempt; as many as a power of 2, at most half of them taken.
   A number of 64 bits stands for what it was made of: of a million two are equal by chance in one of 18 million cases. */
typedef struct {
    int64_t key, attempt;
} Slot;

#define FIRST_SLOTS 64

static Slot *slot_of(Slot *slots, size_t count, int64_t key) {
    size_t place = (size_t)key & (count - 1);
    while (slots[place].key && slots[place].key != key) place = (place + 1) & (count - 1);
    return slots + place;
}

/* Take the slots over into more of them. */
static void move(const Slot *from, size_t before, Slot *to, size_t count) {
    size_t place;
    memset(to, 0, count * sizeof *to);
    for (place = 0; place < before; place++)
        if (from[place].key) *slot_of(to, count, from[place].key) = from[place];
}

/* Keys of rows, 0 of one without a name; NULL with an exception set. */
static int64_t *keys_of(PyObject *rows, Py_ssize_t count, Key *of, const int64_t *scopes) {
    int64_t *keys = malloc(((size_t)count + 1) * sizeof *keys);
    Py_ssize_t row;
    if (keys == NULL) PyErr_NoMemory();
    for (row = 0; keys != NULL && row < count; row++) {
        PyObject *one = PyList_GetItem(rows, row), *name = one == NULL ? NULL : PyTuple_GetItem(one, of->places[0]);
        int is_named = name == NULL ? -1 : PyObject_IsTrue(name);
        int64_t key = is_named > 0 ? key_of(of, one, scopes == NULL ? 0 : scopes[row]) : is_named;
        if (key < 0) {
            free(keys);
            return NULL;
        }
        keys[row] = key + (is_named && !key); /* 0 is a free slot's */
    }
    return keys;
}

PyDoc_STRVAR(see_doc,
             "see(seen, taken, most, rows, places, submitted, ended, scopes)\n--\n\n"
             "Look for rows by the values at these places (bytes), of which the first is empty where a row has no name,\n"
             "and by its scope, where there are any; and remember them. Gives what was seen, how many are remembered,\n"
             "and of each row 0 where it is new or has no name, 1 where it was seen with another attempt, 2 with the same.\n\n"
             "seen: a bytearray, empty at first. taken: how many are remembered; most: may be. submitted, ended: columns,\n"
             "of which the first that is not 0 tells attempts apart. scopes: a column, or empty. Nobody else may look at\n"
             "what was seen meanwhile: where rows are many, the interpreter is let go of.");

static PyObject *see(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    const int64_t *columns[3] = {NULL, NULL, NULL};
    Py_ssize_t rows, row, lengths[3] = {0, 0, 0}, taken, most, field;
    size_t before, count;
    Key of = {0};
    int64_t *keys;
    PyObject *seen, *verdicts;
    PyThreadState *others = NULL;
    Slot *slots, *slot;
    char *verdict;
    (void)module;
    if (!is_called_with(given, 8, "see") || PyBytes_AsStringAndSize(args[4], (char **)&of.places, &of.fields)) return NULL;
    if (of.fields > MOST_FIELDS) return too_many_fields();
    taken = PyLong_AsSsize_t(args[1]);
    most = PyLong_AsSsize_t(args[2]);
    rows = PyList_Size(args[3]);
    for (field = 0; field < 3 && !PyErr_Occurred(); field++) columns[field] = numbers(args[5 + field], &lengths[field]);
    if (PyErr_Occurred()) return NULL;
    if (!PyByteArray_CheckExact(args[0]) || lengths[0] != rows || lengths[1] != rows
        || (lengths[2] && lengths[2] != rows)) {
        PyErr_SetString(PyExc_ValueError, "see() takes a bytearray, and columns that are as long as the rows are many");
        return NULL;
    }
    keys = keys_of(args[3], rows, &of, lengths[2] ? columns[2] : NULL);
    if (keys == NULL) return NULL;
    before = (size_t)PyByteArray_Size(args[0]) / sizeof(Slot);
    for (count = before ? before : FIRST_SLOTS; count < 2 * (size_t)(taken + rows); count *= 2) {}
    seen = count == before ? Py_NewRef(args[0]) : PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(count * sizeof *slots));
    verdicts = PyBytes_FromStringAndSize(NULL, rows);
    if (seen == NULL || verdicts == NULL) {
        free(keys);
        Py_XDECREF(seen);
        Py_XDECREF(verdicts);
        return NULL;
    }
    slots = (Slot *)PyByteArray_AsString(seen);
    verdict = PyBytes_AsString(verdicts);
    if (rows >= MANY_ROWS) others = PyEval_SaveThread();
    if (count != before) move((const Slot *)PyByteArray_AsString(args[0]), before, slots, count);
    for (row = 0; row < rows; row++) {
        int64_t attempt = columns[0][row] ? columns[0][row] : (int64_t)(0 - (uint64_t)columns[1][row]);
        verdict[row] = 0;
        if (!keys[row]) continue;
        slot = slot_of(slots, count, keys[row]);
        if (slot->key) {
            verdict[row] = slot->attempt == attempt ? 2 : 1;
        } else if (taken < most) {
            slot->key = keys[row];
            taken++;
        } else {
            continue;
        }
        slot->attempt = attempt;
    }
    if (others != NULL) PyEval_RestoreThread(others);
    free(keys);
    return Py_BuildValue("NnN", seen, taken, verdicts);
}

/* --- handing over ------------------------------------------------------------------------------------------------- */

enum bound { STATE, CURRENT, MOST, SLOW, BOUND };

static PyObject *word_on, *word_noted, *word_get;

/* Add to what waits where nothing is out of the ordinary, in one piece: nobody else runs meanwhile. 1, 0 where something
   is, or -1 with an exception set. */
static int note_fast(PyObject *bound, PyObject *noted, PyObject *parent, PyObject *const *args, Py_ssize_t given) {
    Py_ssize_t most = PyLong_AsSsize_t(PyTuple_GetItem(bound, MOST)), size, place;
    PyObject *number;
    int failed;
    if (!PyList_Check(noted)) return 0;
    size = PyList_Size(noted);
    if (PyErr_Occurred()) return -1;
    if (parent == Py_None || !size || size >= most) return 0;
    number = PyLong_FromSsize_t(given - 1);
    failed = number == NULL || PyList_Append(noted, args[0]) || PyList_Append(noted, parent)
             || PyList_Append(noted, number);
    for (place = 1; !failed && place < given; place++) failed = PyList_Append(noted, args[place]);
    Py_XDECREF(number);
    if (failed) PyList_SetSlice(noted, size, PyList_Size(noted), NULL); /* a part would put all others out of place */
    return failed ? -1 : 1;
}

/* Call what does the same in Python, with arguments as this was called. */
static PyObject *call_slow(PyObject *slow, PyObject *const *args, Py_ssize_t given, PyObject *names) {
    Py_ssize_t named = names == NULL ? 0 : PyTuple_Size(names), place;
    PyObject *arguments = PyTuple_New(given), *keywords = PyDict_New(), *result = NULL;
    int failed = arguments == NULL || keywords == NULL;
    for (place = 0; !failed && place < given; place++) PyTuple_SetItem(arguments, place, Py_NewRef(args[place]));
    for (place = 0; !failed && place < named; place++)
        failed = PyDict_SetItem(keywords, PyTuple_GetItem(names, place), args[given + place]);
    if (!failed) result = PyObject_Call(slow, arguments, keywords);
    Py_XDECREF(arguments);
    Py_XDECREF(keywords);
    return result;
}

PyDoc_STRVAR(note_doc,
             "note(read, *arguments, parent=None)\n--\n\n"
             "Hand finished requests to the flusher; see ``otel_rl.requests.queue``.");

static PyObject *note(PyObject *bound, PyObject *const *args, Py_ssize_t given, PyObject *names) {
    PyObject *state = PyTuple_GetItem(bound, STATE), *on = PyObject_GetAttr(state, word_on);
    PyObject *noted = NULL, *parent = NULL;
    int done = on == NULL ? -1 : 0;
    if (on == Py_True && given && names == NULL) {
        parent = PyObject_CallMethodObjArgs(PyTuple_GetItem(bound, CURRENT), word_get, NULL);
        if (parent != NULL) noted = PyObject_GetAttr(state, word_noted);
        done = noted == NULL ? -1 : note_fast(bound, noted, parent, args, given);
    }
    Py_XDECREF(on);
    Py_XDECREF(noted);
    Py_XDECREF(parent);
    if (done < 0) return NULL;
    return done ? Py_NewRef(Py_None) : call_slow(PyTuple_GetItem(bound, SLOW), args, given, names);
}

static PyMethodDef note_method = {
    "note", (PyCFunction)(void (*)(void))note, METH_FASTCALL | METH_KEYWORDS, note_doc,
};

PyDoc_STRVAR(noter_doc,
             "noter(state, current, most, slow)\n--\n\n"
             "Return ``note`` as ``requests.py`` defines it: if nothing else waits, or more than ``most`` pieces do, if there\n"
             "is no current stage, or a parent is given, it calls ``slow``.");

static PyObject *noter(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    PyObject *bound, *made;
    Py_ssize_t place;
    (void)module;
    if (!is_called_with(given, BOUND, "noter")) return NULL;
    bound = PyTuple_New(BOUND);
    for (place = 0; bound != NULL && place < BOUND; place++) PyTuple_SetItem(bound, place, Py_NewRef(args[place]));
    made = bound == NULL ? NULL : PyCFunction_NewEx(&note_method, bound, NULL);
    Py_XDECREF(bound);
    return made;
}

PyDoc_STRVAR(run_doc,
             "run(pieces, size)\n--\n\n"
             "Say how many of the first ones, each of so many pieces, have the same three in front.");

static PyObject *run(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    Py_ssize_t all, size, place, front;
    (void)module;
    if (!is_called_with(given, 2, "run")) return NULL;
    size = PyLong_AsSsize_t(args[1]);
    all = PyList_Size(args[0]);
    if (PyErr_Occurred()) return NULL;
    if (size < 3) {
        PyErr_SetString(PyExc_ValueError, "so few pieces are no request");
        return NULL;
    }
    for (place = 0; place + size <= all; place += size)
        for (front = 0; front < 3; front++)
            if (PyList_GetItem(args[0], place + front) != PyList_GetItem(args[0], front)) goto done;
done:
    return PyLong_FromSsize_t(place / size);
}

/* --- columns ------------------------------------------------------------------------------------------------------ */

/* The time between two known times; UNKNOWN where one is not, REVERSED where they are. */
static int64_t between(int64_t begin, int64_t end, int64_t slack) {
    if (begin <= 0 || end <= 0) return UNKNOWN;
    if (end < begin) return begin - end <= slack ? 0 : REVERSED;
    return end - begin;
}

static int64_t known(int64_t span, int *is_reversed) {
    if (span != REVERSED) return span;
    *is_reversed = 1;
    return UNKNOWN;
}

static int64_t usable(int64_t tokens, int64_t least, int64_t limit, int *is_wrong) {
    if (tokens >= least && tokens < limit) return tokens;
    if (tokens != UNKNOWN) *is_wrong = 1;
    return UNKNOWN;
}

PyDoc_STRVAR(derive_doc,
             "derive(columns, failed, begun, now, slack, limit)\n--\n\n"
             "Derive the columns of ``Numbers``; see ``bulk_plain.derive``.\n\n"
             "columns: submitted, ended, scheduled, first and last token; tokens of input, output and cache;\n"
             "preemptions. failed: a byte of each request, not 0 where it may have no output; empty where none may.\n"
             "limit: of tokens. Gives the columns, and how many requests have an impossible time, no end, times that\n"
             "are reversed, tokens that cannot be.");

static PyObject *derive(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    const int64_t *in[GIVEN];
    int64_t *out[DERIVED], begun, now, slack, limit;
    Py_ssize_t rows = 0, row, failing, bad[4] = {0, 0, 0, 0};
    PyObject *made, *found = NULL;
    char *failed;
    int field;
    (void)module;
    if (!is_called_with(given, 6, "derive") || PyBytes_AsStringAndSize(args[1], &failed, &failing)) return NULL;
    begun = PyLong_AsLongLong(args[2]);
    now = PyLong_AsLongLong(args[3]);
    slack = PyLong_AsLongLong(args[4]);
    limit = PyLong_AsLongLong(args[5]);
    if (PyErr_Occurred()) return NULL;
    for (field = 0; field < GIVEN; field++) {
        PyObject *column = PyTuple_GetItem(args[0], field);
        Py_ssize_t length;
        in[field] = column == NULL ? NULL : numbers(column, &length);
        if (in[field] == NULL) return NULL;
        if (field == 0) rows = length;
        if (length != rows || (failing && failing != rows)) {
            PyErr_SetString(PyExc_ValueError, "the columns are not of one length");
            return NULL;
        }
    }
    made = PyTuple_New(DERIVED);
    for (field = 0; made != NULL && field < DERIVED; field++) {
        PyObject *column = column_new(rows, &out[field]);
        if (column == NULL) {
            Py_CLEAR(made);
        } else {
            PyTuple_SetItem(made, field, column);
        }
    }
    if (made == NULL) return NULL;
    for (row = 0; row < rows; row++) {
        int64_t times[5], input, output, cached, evicted, decode;
        int is_impossible = 0, is_reversed = 0, is_wrong = 0;
        for (field = 0; field < 5; field++) {
            times[field] = in[field][row];
            if (times[field] == 0 || (times[field] >= begun && times[field] <= now)) continue;
            times[field] = 0;
            is_impossible = 1;
        }
        out[0][row] = known(between(times[0], times[1], slack), &is_reversed);
        out[1][row] = known(between(times[0], times[3], slack), &is_reversed);
        out[2][row] = known(between(times[0], times[2], slack), &is_reversed);
        out[3][row] = known(between(times[2], times[3], 0), &is_reversed);
        out[4][row] = decode = known(between(times[3], times[4], 0), &is_reversed);
        known(between(times[4], times[1], slack), &is_reversed);
        out[6][row] = input = usable(in[5][row], 1, limit, &is_wrong);
        out[7][row] = output = usable(in[6][row], failing && failed[row] ? 0 : 1, limit, &is_wrong);
        cached = usable(in[7][row], 0, limit, &is_wrong);
        if (input != UNKNOWN && cached > input) {
            cached = UNKNOWN;
            is_wrong = 1;
        }
        out[8][row] = cached;
        out[5][row] = output > 1 && decode >= 0 ? decode / (output - 1) : UNKNOWN;
        evicted = in[8][row];
        out[9][row] = evicted >= 0 && evicted < limit ? evicted : UNKNOWN;
        out[10][row] = times[2];
        out[11][row] = times[1];
        bad[0] += is_impossible;
        bad[1] += in[1][row] == 0;
        bad[2] += is_reversed;
        bad[3] += is_wrong;
    }
    found = Py_BuildValue("N(nnnn)", made, bad[0], bad[1], bad[2], bad[3]);
    return found;
}

/* How many of the boundaries are less. Without a branch: where values lie is as good as random. */
static Py_ssize_t bucket_of(const int64_t *bounds, Py_ssize_t count, int64_t value) {
    const int64_t *first = bounds;
    while (count > 1) {
        Py_ssize_t half = count / 2;
        first += first[half - 1] < value ? half : 0;
        count -= half;
    }
    return first - bounds + (count && *first < value);
}

typedef struct {
    const int64_t *values;
    Py_ssize_t rows;
} Part;

typedef struct {
    const Part *parts;
    const int64_t *bounds;
    Py_ssize_t count, limits, *filled;
    int64_t low, high, above, below;
} Histogram;

static void fill(Histogram *one) {
    Py_ssize_t part, row;
    one->low = INT64_MAX;
    one->high = UNKNOWN;
    one->above = one->below = 0;
    for (part = 0; part < one->count; part++) {
        for (row = 0; row < one->parts[part].rows; row++) {
            int64_t value = one->parts[part].values[row];
            if (value < 0) continue;
            if (value < one->low) one->low = value;
            if (value > one->high) one->high = value;
            one->above += value >> LOW_BITS;
            one->below += value & ((INT64_C(1) << LOW_BITS) - 1);
            one->filled[bucket_of(one->bounds, one->limits, value)]++;
        }
    }
}

/* What ``histograms`` says of one. */
static PyObject *told(const Histogram *one) {
    PyObject *counts;
    Py_ssize_t bucket;
    if (one->high < 0) return Py_NewRef(Py_None);
    counts = PyList_New(0);
    for (bucket = 0; counts != NULL && bucket <= one->limits; bucket++)
        if (add_number(counts, one->filled[bucket])) Py_CLEAR(counts);
    if (counts == NULL) return NULL;
    return Py_BuildValue("NLLLL", counts, (long long)one->above, (long long)one->below, (long long)one->low,
                         (long long)one->high);
}

PyDoc_STRVAR(histograms_doc,
             "histograms(columns, bounds)\n--\n\n"
             "Sort known values into buckets; the interpreter is let go of meanwhile, where they are many.\n\n"
             "columns: a tuple of each histogram, with the parts of its column. bounds: of each the boundaries, ascending,\n"
             "a column, too. Gives of each the count of each bucket, the sum of the values in two parts, of which the\n"
             "first counts 2**20 times, the least and the greatest; None where no value is known.");

static PyObject *histograms(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    Histogram made[MOST_FIELDS];
    Part *parts = NULL, *part;
    PyThreadState *others = NULL;
    PyObject *found = NULL;
    Py_ssize_t count, place, number, all = 0, buckets = 0, rows = 0, *filled = NULL;
    (void)module;
    if (!is_called_with(given, 2, "histograms")) return NULL;
    count = PyTuple_Size(args[0]);
    if (count < 0) return NULL;
    if (count > MOST_FIELDS) {
        PyErr_SetString(PyExc_ValueError, "these are too many histograms");
        return NULL;
    }
    for (place = 0; place < count; place++) {
        PyObject *column = PyTuple_GetItem(args[0], place), *bounds = PyTuple_GetItem(args[1], place);
        made[place].count = column == NULL ? -1 : PyTuple_Size(column);
        made[place].bounds = bounds == NULL ? NULL : numbers(bounds, &made[place].limits);
        if (PyErr_Occurred()) return NULL;
        all += made[place].count;
        buckets += made[place].limits + 1;
    }
    parts = malloc(((size_t)all + 1) * sizeof *parts);
    filled = calloc((size_t)buckets + 1, sizeof *filled);
    if (parts == NULL || filled == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (place = 0, part = parts, buckets = 0; place < count; place++) {
        made[place].parts = part;
        made[place].filled = filled + buckets;
        buckets += made[place].limits + 1;
        for (number = 0; number < made[place].count; number++, part++) {
            part->values = numbers(PyTuple_GetItem(PyTuple_GetItem(args[0], place), number), &part->rows);
            if (part->values == NULL) goto done;
            rows += part->rows;
        }
    }
    if (rows >= MANY) others = PyEval_SaveThread(); /* tuples and bytes do not change meanwhile */
    for (place = 0; place < count; place++) fill(&made[place]);
    if (others != NULL) PyEval_RestoreThread(others);
    found = PyList_New(0);
    for (place = 0; found != NULL && place < count; place++) {
        PyObject *one = told(&made[place]);
        if (one == NULL || PyList_Append(found, one)) Py_CLEAR(found);
        Py_XDECREF(one);
    }
done:
    free(parts);
    free(filled);
    return found;
}

/* Let the least of a heap sink to where it belongs. */
static void sink(int64_t *heap, Py_ssize_t size) {
    Py_ssize_t place = 0, child;
    int64_t value = heap[0];
    while ((child = 2 * place + 1) < size) {
        if (child + 1 < size && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= value) break;
        heap[place] = heap[child];
        place = child;
    }
    heap[place] = value;
}

static void rise(int64_t *heap, Py_ssize_t place) {
    int64_t value = heap[place];
    while (place && heap[(place - 1) / 2] > value) {
        heap[place] = heap[(place - 1) / 2];
        place = (place - 1) / 2;
    }
    heap[place] = value;
}

PyDoc_STRVAR(largest_doc,
             "largest(column, floor, count)\n--\n\n"
             "Find the places of at least the ``count`` largest values above ``floor``; of ties all.");

static PyObject *largest(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    const int64_t *values;
    int64_t floor, *heap;
    Py_ssize_t rows, row, most, size = 0, above = 0;
    PyObject *places;
    (void)module;
    if (!is_called_with(given, 3, "largest")) return NULL;
    values = numbers(args[0], &rows);
    if (values == NULL) return NULL;
    floor = PyLong_AsLongLong(args[1]);
    most = PyLong_AsSsize_t(args[2]);
    if (PyErr_Occurred()) return NULL;
    if (most < 1) {
        PyErr_SetString(PyExc_ValueError, "there is no largest one of none");
        return NULL;
    }
    if (most > rows) most = rows;
    heap = malloc(((size_t)most + 1) * sizeof *heap); /* of the largest so far, the least of them first */
    if (heap == NULL) return PyErr_NoMemory();
    for (row = 0; row < rows; row++) {
        int64_t value = values[row];
        if (value <= floor) continue;
        above++;
        if (size < most) {
            heap[size] = value;
            rise(heap, size++);
        } else if (value > heap[0]) {
            heap[0] = value;
            sink(heap, size);
        }
    }
    if (above > most) floor = heap[0] - 1;
    free(heap);
    places = PyList_New(0);
    for (row = 0; places != NULL && row < rows; row++)
        if (values[row] > floor && add_number(places, row)) Py_CLEAR(places);
    return places;
}

static uint32_t table_of_crc[256];

static void make_table_of_crc(void) {
    uint32_t byte, value;
    int bit;
    for (byte = 0; byte < 256; byte++) {
        for (value = byte, bit = 0; bit < 8; bit++) value = value & 1 ? value >> 1 ^ UINT32_C(0xEDB88320) : value >> 1;
        table_of_crc[byte] = value;
    }
}

PyDoc_STRVAR(scores_doc,
             "scores(ids, seed)\n--\n\n"
             "Give each id, as bytes, a number of 63 bits; see ``bulk_plain.scores``.");

static PyObject *scores(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    uint64_t seed;
    int64_t *data;
    Py_ssize_t rows, row, size;
    PyObject *made;
    (void)module;
    if (!is_called_with(given, 2, "scores")) return NULL;
    seed = PyLong_AsUnsignedLongLong(args[1]);
    rows = PyErr_Occurred() ? -1 : PyList_Size(args[0]);
    made = rows < 0 ? NULL : column_new(rows, &data);
    for (row = 0; made != NULL && row < rows; row++) {
        PyObject *one = PyList_GetItem(args[0], row);
        const char *text = NULL;
        uint32_t crc = UINT32_C(0xFFFFFFFF);
        if (one != NULL) text = PyUnicode_AsUTF8AndSize(one, &size);
        if (text == NULL) {
            Py_CLEAR(made);
            break;
        }
        while (size--) crc = crc >> 8 ^ table_of_crc[(crc ^ (unsigned char)*text++) & 0xFF];
        data[row] = (int64_t)(mixed((crc ^ UINT32_C(0xFFFFFFFF)) ^ seed) >> 1);
    }
    return made;
}

PyDoc_STRVAR(finished_doc,
             "finished(durations, started, ended)\n--\n\n"
             "Look at the requests whose duration is known; see ``bulk_plain.finished``.");

static PyObject *finished(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    const int64_t *in[3];
    int64_t *data, submitted = INT64_MAX, first = INT64_MAX, last = INT64_MIN, over = INT64_MIN;
    Py_ssize_t rows = 0, row, length, field, number = 0;
    PyObject *ends;
    (void)module;
    if (!is_called_with(given, 3, "finished")) return NULL;
    for (field = 0; field < 3; field++) {
        in[field] = numbers(args[field], &length);
        if (in[field] == NULL) return NULL;
        if (field == 0) rows = length;
        if (length != rows) {
            PyErr_SetString(PyExc_ValueError, "the columns are not of one length");
            return NULL;
        }
    }
    for (row = 0; row < rows; row++) number += in[0][row] >= 0;
    if (!number) return Py_NewRef(Py_None);
    ends = column_new(number, &data);
    if (ends == NULL) return NULL;
    for (row = 0; row < rows; row++) {
        int64_t started = in[1][row], ended = in[2][row];
        if (in[0][row] < 0) continue;
        *data++ = ended;
        if (ended - in[0][row] < submitted) submitted = ended - in[0][row];
        if (started < first) first = started;
        if (started > last) last = started;
        if (ended > over) over = ended;
    }
    return Py_BuildValue("NLLLL", ends, (long long)submitted, (long long)first, (long long)last, (long long)over);
}

static int compare(const void *one, const void *other) {
    int64_t first = *(const int64_t *)one, second = *(const int64_t *)other;
    return (first > second) - (first < second);
}

PyDoc_STRVAR(ordered_doc,
             "ordered(column)\n--\n\n"
             "Sort; the interpreter is let go of meanwhile.");

static PyObject *ordered(PyObject *module, PyObject *column) {
    const int64_t *values;
    int64_t *data;
    Py_ssize_t rows;
    PyObject *made;
    (void)module;
    values = numbers(column, &rows);
    made = values == NULL ? NULL : column_new(rows, &data);
    if (made == NULL) return NULL;
    Py_BEGIN_ALLOW_THREADS
    memcpy(data, values, (size_t)rows * sizeof *data);
    qsort(data, (size_t)rows, sizeof *data, compare);
    Py_END_ALLOW_THREADS
    return made;
}

#define FAST(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, name##_doc}

static PyMethodDef methods[] = {
    FAST(columns),
    FAST(alike),
    FAST(count),
    FAST(see),
    FAST(run),
    FAST(noter),
    FAST(derive),
    FAST(histograms),
    FAST(largest),
    FAST(scores),
    FAST(finished),
    {"ordered", ordered, METH_O, ordered_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *module;
    word_on = PyUnicode_InternFromString("on");
    word_noted = PyUnicode_InternFromString("noted");
    word_get = PyUnicode_InternFromString("get");
    if (word_on == NULL || word_noted == NULL || word_get == NULL) return NULL;
    module = PyModule_Create(&definition);
    make_table_of_crc();
    if (module != NULL && PyModule_AddIntConstant(module, "FORM", FORM)) Py_CLEAR(module);
    return module;
}
