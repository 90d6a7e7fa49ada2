/* Stacks of all threads into a file that is open only while they are written.

   faulthandler writes them in a handler of a signal, to the number of a descriptor that it keeps. The program may close
   this number and give it to a file of its own, so none is kept: install() puts a handler before that of faulthandler,
   which opens the file under the number if it is free, and closes it afterwards. It calls only what a handler may. Only
   the limited API is used, so that one build serves every CPython from 3.10 on. */

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#define FORM 1 /* of what these take and give: c_stacks.py uses no other, which an earlier build may have left behind */

static char path[PATH_MAX]; /* empty: no file */
static int number = -1;     /* what faulthandler writes to */
static void (*write_stacks)(int) = SIG_DFL; /* faulthandler's handler */

static void on_signal(int signal_number) {
    int before = errno, own = -1, file = path[0] ? open(path, O_WRONLY | O_APPEND | O_CLOEXEC) : -1;
    if (file >= 0) {
        own = fcntl(file, F_DUPFD_CLOEXEC, number);
        close(file);
    }
    /* Under a free number nothing is written, unless the program has registered a file of its own since. */
    if (own == number || fcntl(number, F_GETFD) < 0) write_stacks(signal_number);
    if (own >= 0) close(own);
    errno = before;
}

static PyObject *install(PyObject *module, PyObject *args) {
    struct sigaction action;
    int signal_number, kept;
    if (!PyArg_ParseTuple(args, "ii", &signal_number, &kept)) return NULL;
    if (sigaction(signal_number, NULL, &action) < 0) return PyErr_SetFromErrno(PyExc_OSError);
    if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN || action.sa_flags & SA_SIGINFO) {
        PyErr_SetString(PyExc_ValueError, "faulthandler has no handler for this signal");
        return NULL;
    }
    if (action.sa_handler != on_signal) write_stacks = action.sa_handler;
    number = kept;
    action.sa_handler = on_signal;
    if (sigaction(signal_number, &action, NULL) < 0) return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

static PyObject *write_to(PyObject *module, PyObject *args) {
    const char *data;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "y#", &data, &size)) return NULL;
    if (size >= PATH_MAX) {
        PyErr_SetString(PyExc_ValueError, "the path is too long");
        return NULL;
    }
    path[0] = 0; /* a signal meanwhile finds no file */
    if (size) {
        memcpy(path + 1, data + 1, (size_t)size - 1);
        path[size] = 0;
        path[0] = data[0];
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"install", install, METH_VARARGS, "Stand before the handler of faulthandler, which writes to a number."},
    {"write_to", write_to, METH_VARARGS, "Open this file when the signal comes; none if it is empty."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_stacks", .m_size = -1, .m_methods = methods};

PyMODINIT_FUNC PyInit__stacks(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "FORM", FORM) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
