/* A program whose reads are known by page: each page of 2 MiB has a share of them, drawn at random.
 *
 *   known-reads PAGES EXPONENT_PERCENT READS PAUSE [SPOTS]
 *
 * Pages take turns between the two nodes; page 0 is the first by address. Their shares are those of a
 * Zipf distribution, which page has which is drawn. Each read is of a line of the page drawn at random,
 * with a pause of PAUSE us after it. It prints its memory's address, waits for SIGUSR1, makes
 * READS reads (0: until SIGUSR2), prints how many each page had, and waits to be ended.
 *
 * With SPOTS a page is a range of base pages, and all but one of 16 reads are of so many of them, as far
 * apart as they can be, and it has a second thread, as servers have, which does nothing: of a program of
 * one thread Linux makes no page fault that is on the thread's own node. It prints of 100,000 of its reads
 * how many are of base pages that are on node 0 then, too. */
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#define PAGE (2ul << 20)
#define MOST 1024

static volatile sig_atomic_t go, stop;
static void on_go(int n) { go = 1; }
static void on_stop(int n) { stop = 1; }

static uint64_t state = 88172645463325252ull;
static uint64_t draw(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state * 2685821657736338717ull;
}

#define BASE 4096ul
#define BASES (PAGE / BASE)

/* Of 100,000 reads those of base pages on node 0. */
static unsigned long on_node_0(char *memory, uint64_t pages, const uint64_t *counts) {
    uint64_t all = 0, fast = 0;
    for (uint64_t page = 0; page < pages; page++) {
        void *addresses[BASES];
        int nodes[BASES];
        for (uint64_t base = 0; base < BASES; base++) addresses[base] = memory + page * PAGE + base * BASE;
        if (syscall(SYS_move_pages, 0, BASES, addresses, 0, nodes, 0)) return 0;
        for (uint64_t base = 0; base < BASES; base++) {
            all += counts[page * BASES + base];
            if (nodes[base] == 0) fast += counts[page * BASES + base];
        }
    }
    return all ? fast * 100000 / all : 0;
}

static void *wait_for_ever(void *nothing) {
    for (;;) pause();
    return nothing;
}

int main(int argc, char **argv) {
    uint64_t pages = strtoull(argv[1], 0, 0), reads = strtoull(argv[3], 0, 0), pause_us = strtoull(argv[4], 0, 0);
    uint64_t spots = argc > 5 ? strtoull(argv[5], 0, 0) : 0;
    static uint64_t until[MOST], counts[MOST], order[MOST], of_bases[MOST * BASES];
    if (pages < 2 || pages > MOST || spots > BASES) return 2;
    signal(SIGUSR1, on_go), signal(SIGUSR2, on_stop);
    char *memory = mmap(0, (pages + 1) * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 3;
    memory = (char *)(((uintptr_t)memory + PAGE - 1) & ~(PAGE - 1));
    madvise(memory, pages * PAGE, spots ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
    for (uint64_t page = 0; page < pages; page++) {
        unsigned long node = 1ul << page % 2;
        if (syscall(SYS_mbind, memory + page * PAGE, PAGE, 2, &node, 64, 0)) return 4;
        for (uint64_t at = 0; at < PAGE; at += 4096) memory[page * PAGE + at] = 1;
        /* From here on pages may be moved. */
        if (syscall(SYS_mbind, memory + page * PAGE, PAGE, 0, 0, 0, 0)) return 5;
        order[page] = page;
    }
    double sum = 0, so_far = 0, exponent = atof(argv[2]) / 100;
    for (uint64_t page = pages - 1; page > 0; page--) {
        uint64_t other = draw() % (page + 1), kept = order[page];
        order[page] = order[other], order[other] = kept;
    }
    for (uint64_t page = 0; page < pages; page++) sum += 1 / pow(order[page] + 1, exponent);
    for (uint64_t page = 0; page < pages; page++) {
        so_far += 1 / pow(order[page] + 1, exponent);
        until[page] = so_far / sum * 4294967296.0;
    }
    until[pages - 1] = 4294967296ull;
    pthread_t thread;
    if (spots && pthread_create(&thread, 0, wait_for_ever, 0)) return 6;
    printf("at %lu\n", (unsigned long)memory), fflush(stdout);
    while (!go) usleep(1000);
    uint64_t seen = 0;
    for (uint64_t n = 0; (reads == 0 || n < reads) && !stop; n++) {
        uint64_t drawn = draw(), share = drawn >> 32, low = 0, high = pages - 1;
        while (low < high) {
            uint64_t middle = (low + high) / 2;
            if (share < until[middle]) high = middle;
            else low = middle + 1;
        }
        counts[low]++;
        uint64_t line = (drawn & 0xffffffff) % (PAGE / 64);
        if (spots && line % 16) {
            uint64_t spot = (line / 16) % spots * (BASES / spots);
            line = spot * (BASE / 64) + (line >> 8) % (BASE / 64);
        }
        if (spots) of_bases[low * BASES + line / (BASE / 64)]++;
        seen += *(volatile uint64_t *)(memory + low * PAGE + line * 64);
        if (pause_us) usleep(pause_us);
    }
    for (uint64_t page = 0; page < pages; page++) printf("reads %lu %lu\n", (unsigned long)(uintptr_t)(memory + page * PAGE), (unsigned long)counts[page]);
    if (spots) printf("fast %lu\n", on_node_0(memory, pages, of_bases));
    printf("done\n"), fflush(stdout);
    for (;;) pause();
    return seen == 42;
}
