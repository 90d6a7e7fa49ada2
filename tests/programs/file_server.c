/* A file server whose clock is wrong: what lies on the device of $SERVER was modified $AHEAD seconds later than it was. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

static int shifted(int result, struct stat64 *status) {
    static dev_t server;
    static int asking;
    const char *path = getenv("SERVER"), *ahead = getenv("AHEAD");
    if (!server && path && !asking) {
        struct stat64 found;
        asking = 1;
        if (!stat64(path, &found)) server = found.st_dev;
        asking = 0;
    }
    if (!result && !asking && server && ahead && status->st_dev == server) status->st_mtim.tv_sec += atol(ahead);
    return result;
}

#define WRAP(name, takes, gives)                                                                                       \
    int name takes {                                                                                                   \
        static int(*real) takes;                                                                                       \
        if (!real) real = (int(*) takes)dlsym(RTLD_NEXT, #name);                                                       \
        return shifted(real gives, status);                                                                            \
    }

WRAP(stat64, (const char *path, struct stat64 *status), (path, status))
WRAP(lstat64, (const char *path, struct stat64 *status), (path, status))
WRAP(fstat64, (int descriptor, struct stat64 *status), (descriptor, status))
WRAP(fstatat64, (int directory, const char *path, struct stat64 *status, int flags), (directory, path, status, flags))
