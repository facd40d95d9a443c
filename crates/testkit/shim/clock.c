/*
 * A wall clock under a test's control, preloaded into a server.
 *
 * The file named by LEASEHOLD_CLOCK holds four 64-bit words in native order:
 *   [0] mode: 1 frozen, 2 shifted
 *   [1] microseconds: the time itself, or what is added to the real time
 *   [2] the complement of [1]: a reader that meets a half-done write sees it and reads again
 *   [3] unused
 * Only the wall clock is replaced. CLOCK_MONOTONIC stays real, for the server's event loop sleeps by it.
 *
 * Valkey 9 reads the wall clock now and then, and counts with the processor in between, if /proc/cpuinfo says that it can.
 * So that file is missing for the server, which then reads the wall clock each time.
 *
 * The real clocks are read by system call and not through dlsym(RTLD_NEXT): the allocator asks for the time before
 * the loader is ready for a look-up.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { FROZEN = 1, SHIFTED = 2 };

static const volatile int64_t *page;

__attribute__((constructor)) static void open_clock(void) {
    const char *path = getenv("LEASEHOLD_CLOCK");
    if (!path) return;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    void *map = fd < 0 ? MAP_FAILED : mmap(NULL, 32, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        /* A server that ran on by the real time would make its test pass or fail by luck. */
        perror("leasehold clock shim: LEASEHOLD_CLOCK");
        _exit(127);
    }
    close(fd);
    page = map;
}

static int64_t word(int at) { return __atomic_load_n(&page[at], __ATOMIC_ACQUIRE); }

static int64_t setting(void) {
    for (;;) {
        int64_t value = word(1);
        if (word(2) == ~value && word(1) == value) return value;
        sched_yield();
    }
}

static int wall(struct timespec *out) {
    if (page && word(0) == FROZEN) {
        int64_t us = setting();
        out->tv_sec = us / 1000000;
        out->tv_nsec = us % 1000000 * 1000;
        return 0;
    }
    int rc = (int)syscall(SYS_clock_gettime, CLOCK_REALTIME, out);
    if (rc == 0 && page && word(0) == SHIFTED) {
        int64_t us = (int64_t)out->tv_sec * 1000000 + out->tv_nsec / 1000 + setting();
        out->tv_sec = us / 1000000;
        out->tv_nsec = us % 1000000 * 1000;
    }
    return rc;
}

int clock_gettime(clockid_t clock, struct timespec *out) {
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) return wall(out);
    return (int)syscall(SYS_clock_gettime, clock, out);
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    struct timespec now;
    (void)zone;
    int rc = wall(&now);
    if (rc == 0) {
        out->tv_sec = now.tv_sec;
        out->tv_usec = now.tv_nsec / 1000;
    }
    return rc;
}

time_t time(time_t *out) {
    struct timespec now;
    if (wall(&now) != 0) return (time_t)-1;
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

static FILE *open_unless_processor(const char *function, const char *path, const char *mode) {
    FILE *(*real)(const char *, const char *);
    if (page && strcmp(path, "/proc/cpuinfo") == 0) {
        errno = ENOENT;
        return NULL;
    }
    *(void **)&real = dlsym(RTLD_NEXT, function);
    return real(path, mode);
}

FILE *fopen(const char *restrict path, const char *restrict mode) {
    return open_unless_processor("fopen", path, mode);
}

FILE *fopen64(const char *restrict path, const char *restrict mode) {
    return open_unless_processor("fopen64", path, mode);
}
