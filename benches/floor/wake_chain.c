// The minimum that takes a message from one process to another through a third, all of them asleep: a stamp in shared memory, an
// eventfd for each that waits, nothing else. Two wake-ups, one after the other; with `direct` the sender wakes the receiver itself,
// which is one; with `futex` each waits for a word of the memory instead, which no `poll` can wait for together with a descriptor.
// What `towpath bench latency` takes longer, asleep, is its own.
//
//   usage: wake_chain chain|direct|futex MESSAGES PAUSE-µs, prints the median and the 99th percentile in µs, and the wake-ups a message
//
// Sender and forwarder are on the first processor that the process may use, the receiver on the second, as there.
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// The state that all share. A place holds one message: the sender rests until the receiver has it.
struct shared {
    _Atomic uint64_t to_forwarder, to_receiver, seen;
    _Atomic uint32_t words[2];
    uint64_t ns[];
};

// What a process waits for: an eventfd, or a word of the shared memory.
struct event {
    int fd;
    _Atomic uint32_t *word;
};

static int fail(const char *what) {
    perror(what);
    exit(1);
}

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

// Pins the process to the nth of its processors, or to the last.
static void pin(int nth) {
    cpu_set_t all, one;
    if (sched_getaffinity(0, sizeof all, &all)) fail("sched_getaffinity");
    CPU_ZERO(&one);
    for (int cpu = 0, last = -1; cpu < CPU_SETSIZE && nth >= 0; cpu++) {
        if (!CPU_ISSET(cpu, &all)) continue;
        if (last >= 0) CPU_CLR(last, &one);
        CPU_SET(cpu, &one);
        last = cpu;
        nth--;
    }
    if (sched_setaffinity(0, sizeof one, &one)) fail("sched_setaffinity");
}

static void notify(struct event event) {
    uint64_t one = 1;
    if (event.word) {
        atomic_store(event.word, 1);
        if (syscall(SYS_futex, event.word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0) < 0) fail("futex");
    } else if (write(event.fd, &one, sizeof one) != sizeof one) {
        fail("write");
    }
}

static void wait_for(struct event event) {
    struct pollfd wait = {.fd = event.fd, .events = POLLIN};
    uint64_t count;
    if (event.word) {
        // A wake-up may be spurious, and the word set before the call, which fails then.
        while (!atomic_exchange(event.word, 0)) syscall(SYS_futex, event.word, FUTEX_WAIT, 0, NULL, NULL, 0);
    } else if (poll(&wait, 1, -1) != 1 || read(event.fd, &count, sizeof count) != sizeof count) {
        fail("poll");
    }
}

static int in_order(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

// Begins a process on a processor; returns whether this is it.
static int begins(int processor) {
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child) return 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin(processor);
    return 1;
}

int main(int argc, char **argv) {
    long messages = argc == 4 ? atol(argv[2]) : 0, pause = argc == 4 ? atol(argv[3]) : 0;
    int direct = argc == 4 && !strcmp(argv[1], "direct"), futex = argc == 4 && !strcmp(argv[1], "futex");
    if (messages < 1 || pause < 1 || pause > 999999 || (!direct && !futex && strcmp(argv[1], "chain"))) {
        fprintf(stderr, "usage: wake_chain chain|direct|futex MESSAGES PAUSE-µs\n");
        return 2;
    }
    size_t size = sizeof(struct shared) + (size_t)messages * sizeof(uint64_t);
    struct shared *shared = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) fail("mmap");
    struct event first = {eventfd(0, 0), futex ? &shared->words[0] : NULL};
    struct event second = {eventfd(0, 0), futex ? &shared->words[1] : NULL};
    if (first.fd < 0 || second.fd < 0) fail("eventfd");
    memset(shared->ns, 0, (size_t)messages * sizeof(uint64_t)); // No page fault is measured.
    if (!direct && begins(0)) {
        for (long n = 0; n < messages; n++) {
            wait_for(first);
            atomic_store(&shared->to_receiver, atomic_load(&shared->to_forwarder));
            notify(second);
        }
        return 0;
    }
    if (begins(1)) {
        for (long n = 0; n < messages; n++) {
            wait_for(second);
            shared->ns[n] = now() - atomic_load(&shared->to_receiver);
            atomic_store(&shared->seen, (uint64_t)n + 1);
        }
        return 0;
    }
    pin(0);
    struct timespec rest = {.tv_nsec = pause * 1000};
    for (long n = 0; n < messages; n++) {
        do nanosleep(&rest, NULL);
        while (atomic_load(&shared->seen) < (uint64_t)n);
        atomic_store(direct ? &shared->to_receiver : &shared->to_forwarder, now());
        notify(direct ? second : first);
    }
    int status;
    while (wait(&status) > 0)
        if (status) return 1;
    struct rusage use;
    getrusage(RUSAGE_CHILDREN, &use);
    qsort(shared->ns, (size_t)messages, sizeof(uint64_t), in_order);
    printf("%.1f %.1f %.2f\n", (double)shared->ns[messages / 2] / 1e3, (double)shared->ns[messages * 99 / 100] / 1e3,
           (double)use.ru_nvcsw / (double)messages);
}
