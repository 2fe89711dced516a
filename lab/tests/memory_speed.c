/* How fast memory is, by the clock of the machine that this runs on.
 *
 *   memory-speed chase|stream NODE MIB ACCESSES [PROCESSES]
 *   memory-speed compute - - INSTRUCTIONS [PROCESSES]
 *   memory-speed sleep - - MICROSECONDS
 *   memory-speed faults|moves|calls - MIB CALLS
 *   memory-speed turns - - MICROSECONDS PROCESSES
 *   memory-speed begin - - -
 *
 * Memory is bound to the node and in huge pages where there are any. Where the node is '-' it is bound
 * to none, and each process has an idle thread: of one without, NUMA balancing leaves alone what is in
 * the node that it runs in. All of it is read once before what is measured, so that caches that are
 * smaller hold nothing of it that was written or that is needed again soon. Each process is pinned to a
 * processor of its own and prints nanoseconds an access (of a stream: GB/s); they measure at once, and
 * marks for the plug-in are around that. At the end comes the time from the first fork to the last
 * wait, in microseconds.
 *
 * Three kinds let the kernel work: base pages of so many MiB are touched for the first time, or moved to
 * node 1, or a system call that does nothing is made so often. Marks are around that.
 *
 * Turns are those of emulated processors that run one at a time: each process reads the clock for so
 * long and prints for how many microseconds others go on, in the mean over the time in which they do.
 * The last kind marks the beginning of the memory clock. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* For the plug-in: a window ends here and the next begins. */
static void mark(void) { __asm__ volatile(".byte 0x0f,0x1f,0x84,0x00,2,0x54,0x45,0x52" ::: "memory"); }

/* How many processes are ready, shared by all. */
static volatile int *ready;

static void all_ready(int processes) {
    __atomic_add_fetch(ready, 1, __ATOMIC_SEQ_CST);
    while (*ready < processes) __asm__ volatile("pause");
}

static void mark_begin(void) { __asm__ volatile(".byte 0x0f,0x1f,0x84,0x00,1,0x54,0x45,0x52" ::: "memory"); }

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static void *idle(void *nothing) {
    for (;;) pause();
    return nothing;
}

static uint64_t *bound_memory(const char *node, size_t bytes) {
    size_t huge = 2ul << 20;
    char *memory = mmap(0, bytes + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) exit(2);
    memory = (char *)(((uintptr_t)memory + huge - 1) & ~(huge - 1));
    unsigned long nodes = 1ul << atoi(node);
    pthread_t thread;
    if (*node == '-' && pthread_create(&thread, 0, idle, 0)) exit(6);
    if (*node != '-' && syscall(SYS_mbind, memory, bytes, 2, &nodes, 64, 0)) exit(3);
    madvise(memory, bytes, MADV_HUGEPAGE);
    return (uint64_t *)memory;
}

/* One cycle through all lines, in an order without a pattern (Sattolo). */
static void cycle(uint64_t *memory, uint64_t lines) {
    for (uint64_t i = 0; i < lines; i++) memory[i * 8] = i;
    uint64_t state = 88172645463325252ull;
    for (uint64_t i = lines - 1; i > 0; i--) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        uint64_t j = state % i, t = memory[i * 8];
        memory[i * 8] = memory[j * 8];
        memory[j * 8] = t;
    }
    for (uint64_t i = 0; i < lines; i++) memory[i * 8] = (uint64_t)&memory[memory[i * 8] * 8];
}

static volatile uint64_t sink;

static double chase(uint64_t *memory, uint64_t accesses) {
    uint64_t *at = memory;
    double start = now_ns();
    for (uint64_t i = 0; i < accesses; i++) at = (uint64_t *)*at;
    double end = now_ns();
    sink = (uint64_t)at;
    return (end - start) / accesses;
}

static double stream(uint64_t *memory, uint64_t lines, uint64_t accesses) {
    uint64_t sum = 0;
    double start = now_ns();
    for (uint64_t i = 0; i < accesses; i++) sum += memory[i % lines * 8];
    double end = now_ns();
    sink = sum;
    return 64.0 * accesses / (end - start);
}

static double compute(uint64_t instructions) {
    double start = now_ns();
    for (uint64_t i = 0; i < instructions / 4; i++)
        __asm__ volatile("xor %%eax, %%eax\n\tnop" ::: "eax");
    return (now_ns() - start) / instructions;
}

/* In microseconds; what the kernel does for this processor is shorter. */
static double turns(uint64_t microseconds) {
    double start = now_ns(), last = start, sum = 0, squares = 0;
    while (last < start + 1e3 * microseconds) {
        double now = now_ns(), gap = (now - last) / 1e3;
        last = now;
        if (gap < 50) continue;
        sum += gap;
        squares += gap * gap;
    }
    return sum ? squares / sum : 0;
}

static int kernel(const char *kind, size_t bytes, uint64_t calls) {
    enum { PAGE = 4096 };
    if (!strcmp(kind, "calls")) {
        mark();
        for (uint64_t i = 0; i < calls; i++) syscall(SYS_getppid);
        mark();
        return 0;
    }
    char *memory = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 2;
    madvise(memory, bytes, MADV_NOHUGEPAGE);
    int moves = !strcmp(kind, "moves");
    if (!moves) mark();
    for (size_t at = 0; at < bytes; at += PAGE) memory[at] = 1;
    if (moves) {
        unsigned long from = 1, to = 2;
        mark();
        if (syscall(SYS_migrate_pages, 0, 64, &from, &to)) return 3;
    }
    mark();
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 5) return 64;
    const char *kind = argv[1];
    uint64_t accesses = strtoull(argv[4], 0, 0);
    int processes = argc > 5 ? atoi(argv[5]) : 1;
    if (!strcmp(kind, "sleep")) {
        double start = now_ns();
        usleep(accesses);
        printf("sleep %.0f\n", (now_ns() - start) / 1000);
        return 0;
    }
    if (!strcmp(kind, "faults") || !strcmp(kind, "moves") || !strcmp(kind, "calls"))
        return kernel(kind, strtoull(argv[3], 0, 0) << 20, accesses);
    if (!strcmp(kind, "begin")) {
        mark_begin();
        return 0;
    }
    ready = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (ready == MAP_FAILED) return 5;
    double begin = now_ns();
    for (int p = 0; p < processes; p++) {
        if (fork()) continue;
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(p, &set);
        if (sched_setaffinity(0, sizeof set, &set)) exit(4);
        double result;
        if (!strcmp(kind, "compute")) {
            result = compute(accesses);
        } else if (!strcmp(kind, "turns")) {
            all_ready(processes);
            result = turns(accesses);
        } else {
            uint64_t bytes = strtoull(argv[3], 0, 0) << 20, lines = bytes / 64;
            uint64_t *memory = bound_memory(argv[2], bytes);
            cycle(memory, lines);
            int is_chase = !strcmp(kind, "chase");
            is_chase ? chase(memory, lines) : stream(memory, lines, lines);
            all_ready(processes);
            if (!p) mark();
            result = is_chase ? chase(memory, accesses) : stream(memory, lines, accesses);
            if (!p) mark();
        }
        printf("%s %.3f\n", kind, result);
        fflush(stdout);
        _exit(0);
    }
    int failed = 0, status;
    while (wait(&status) > 0) failed |= status;
    printf("elapsed_us %.0f\n", (now_ns() - begin) / 1000);
    return failed != 0;
}
