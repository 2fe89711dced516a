// SPDX-License-Identifier: GPL-2.0
/*
 * How fast pages migrate, in time: the microbenchmarks of "Nimble Page Management for
 * Tiered Memory Systems" (figures 2, 3 and 8 to 11) on the kernel's own code.
 *
 * usage: migration_time [-m MOST] PART...	(base, copy, whole, threads, concurrent, exchange)
 *
 * MOST: pages of a list at most, in the last two parts.
 *
 * Runs as root in a machine whose clock knows its memory ("terrace lab --clock memory").
 * Prints one line for each figure: its part, row, column, and GB/s.  A page counts once
 * for each way that it goes: an exchange of two pages moves two.
 */
#include "moves.h"
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>

#define ROUNDS		2
#define FAST		0
#define SLOW		1
#define MOST_THREADS	8
#define CACHES		(64UL << 20)	/* more than the last level holds */
#define MOST_HUGE	32	/* pages of a list: more takes the emulation long, and is no faster */

static unsigned long most_pages = 512;

static double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static void tell(const char *part, unsigned long row, const char *column, double gb_per_s)
{
	printf("%s\t%lu\t%s\t%.3f\n", part, row, column, gb_per_s);
}

/* What is moved was used long ago: the caches have other data. */
static void forget(void)
{
	static char *other;

	if (!other)
		other = pages(CACHES / HUGE, HUGE);
	for (unsigned long at = 0; at < CACHES; at += 64)
		*(volatile char *)(other + at);
}

/* How a list is moved. */
struct way {
	const char *name;
	unsigned int threads;	/* that copy; 0: by move_pages */
	unsigned int batch;	/* base pages unmapped and copied together */
	unsigned int call;	/* pages of a call; 0: all */
	bool split;		/* huge pages are split first */
};

static void use(const struct way *way)
{
	char batch[16];

	snprintf(batch, sizeof(batch), "%u", way->batch);
	must_put("/sys/kernel/mm/tiermem/copy_min_kb", "4");
	must_put("/sys/kernel/mm/tiermem/copy_batch_pages", batch);
	must_put("/sys/kernel/mm/tiermem/copy_threads_max", "8");
}

static void move(const struct way *way, uint64_t *addrs, unsigned long n, int node)
{
	unsigned long call = way->call ? way->call : n;

	for (unsigned long i = 0; i < n; i += call) {
		unsigned long many = n - i < call ? n - i : call;

		if (way->threads)
			by_device_with(addrs + i, many, node, way->threads);
		else
			by_move_pages(addrs + i, many, node);
	}
}

/* GB/s of n pages that go to the slow node and back; the first turn warms up. */
static double rate(const struct way *way, unsigned long n, unsigned long size)
{
	static uint64_t addrs[MOST];
	char *p = pages(n, size);
	double spent = 0;

	if (way->batch)
		use(way);
	addresses(addrs, p, n, size);
	by_move_pages(addrs, n, FAST);
	for (int turn = -1; turn < ROUNDS; turn++)
		for (int node = SLOW; node >= FAST; node--) {
			double begun;

			forget();
			begun = now_ns();
			move(way, addrs, n, node);
			if (turn >= 0)
				spent += now_ns() - begun;
			if (at_node(addrs, n, node) != n)
				die("not all pages were moved");
		}
	munmap(p, n * size);
	return 2.0 * ROUNDS * n * size / spent;
}

/* --- base pages (figure 2) ------------------------------------------------ */

static void base(void)
{
	static const struct way way = { .name = "move_pages" };

	for (unsigned long n = 1; n <= 512; n *= 2)
		tell("base", n, way.name, rate(&way, n, PAGE));
}

/* --- copying alone (figure 3) --------------------------------------------- */

struct share {
	char *to, *from;
	unsigned long bytes;
	int processor;
};

static pthread_barrier_t together;

static void *copier(void *arg)
{
	struct share *share = arg;
	cpu_set_t own;

	CPU_ZERO(&own);
	CPU_SET(share->processor, &own);
	if (sched_setaffinity(0, sizeof(own), &own))
		die("sched_setaffinity");
	for (int turn = -1; turn < ROUNDS; turn++) {
		char *to = share->to, *from = share->from;
		unsigned long words = share->bytes / 8;

		pthread_barrier_wait(&together);
		asm volatile("rep movsq" : "+D"(to), "+S"(from), "+c"(words) : : "memory");
		pthread_barrier_wait(&together);
	}
	return NULL;
}

static double rate_of_copies(char *to, char *from, unsigned long bytes, unsigned int threads)
{
	pthread_t others[MOST_THREADS];
	struct share shares[MOST_THREADS];
	double spent = 0;

	pthread_barrier_init(&together, NULL, threads + 1);
	for (unsigned int t = 0; t < threads; t++) {
		unsigned long at = t * (bytes / threads);

		shares[t] = (struct share){ to + at, from + at, bytes / threads, t };
		if (pthread_create(&others[t], NULL, copier, &shares[t]))
			die("pthread_create");
	}
	for (int turn = -1; turn < ROUNDS; turn++) {
		double begun;

		forget();
		begun = now_ns();
		pthread_barrier_wait(&together);
		pthread_barrier_wait(&together);
		if (turn >= 0)
			spent += now_ns() - begun;
	}
	for (unsigned int t = 0; t < threads; t++)
		pthread_join(others[t], NULL);
	pthread_barrier_destroy(&together);
	return (double)ROUNDS * bytes / spent;
}

static void copy(void)
{
	static const char * const names[] = { [1] = "1 thread", [2] = "2 threads", [4] = "4 threads" };
	const unsigned long most = 32UL << 20;
	char *from = pages(most / HUGE, HUGE), *to = pages(most / HUGE, HUGE);
	static uint64_t addrs[MOST];

	addresses(addrs, from, most / HUGE, HUGE);
	by_move_pages(addrs, most / HUGE, FAST);
	addresses(addrs, to, most / HUGE, HUGE);
	by_move_pages(addrs, most / HUGE, SLOW);
	for (unsigned int threads = 1; threads <= 4; threads *= 2)
		for (unsigned long kib = 512; kib <= most >> 10; kib *= 4)
			tell("copy", kib, names[threads],
			     rate_of_copies(to, from, kib << 10, threads));
	munmap(from, most);
	munmap(to, most);
}

/* --- huge pages whole (figure 8) ------------------------------------------ */

/* A page can be split once: new ones each turn. */
static double rate_of_split(void)
{
	static uint64_t addrs[MOST];
	double spent = 0;

	for (int turn = -1; turn < ROUNDS; turn++) {
		char *p = pages(1, HUGE);
		double begun;

		addresses(addrs, p, 1, HUGE);
		by_move_pages(addrs, 1, FAST);
		addresses(addrs, p, HUGE / PAGE, PAGE);
		forget();
		begun = now_ns();
		split(p, 1);
		by_move_pages(addrs, HUGE / PAGE, SLOW);
		if (turn >= 0)
			spent += now_ns() - begun;
		if (at_node(addrs, HUGE / PAGE, SLOW) != HUGE / PAGE)
			die("not all pages were moved");
		munmap(p, HUGE);
	}
	return (double)ROUNDS * HUGE / spent;
}

static void whole(void)
{
	static const struct way way = { .name = "move_pages" };

	tell("whole", 512, "512 base pages", rate(&way, 512, PAGE));
	tell("whole", 1, "huge page, split", rate_of_split());
	tell("whole", 1, "huge page", rate(&way, 1, HUGE));
}

/* --- threads that copy (figure 9) ----------------------------------------- */

static void threads(void)
{
	for (unsigned int n = 1; n <= MOST_THREADS; n *= 2) {
		struct way way = { .threads = n, .batch = 512 };

		tell("threads", n, "huge page", rate(&way, 1, HUGE));
		tell("threads", n, "base page", rate(&way, 1, PAGE));
	}
}

/* --- pages under way (figure 10) ------------------------------------------ */

static void concurrent(void)
{
	static const struct way huge[] = {
		{ "huge, one thread" },
		{ "huge, 4 threads", .threads = 4, .batch = 512 },
		{ "huge, 4 threads, concurrent", .threads = 4, .batch = 8192 },
	}, small[] = {
		{ "base, one thread" },
		{ "base, 4 threads", .threads = 4, .batch = 512, .call = 1 },
		{ "base, 4 threads, concurrent", .threads = 4, .batch = 512 },
	};

	for (unsigned long n = 2; n <= most_pages; n *= 4)
		for (int i = 0; i < 3; i++) {
			if (n <= MOST_HUGE)
				tell("concurrent", n, huge[i].name, rate(&huge[i], n, HUGE));
			tell("concurrent", n, small[i].name, rate(&small[i], n, PAGE));
		}
}

/* --- exchange (figure 11) ------------------------------------------------- */

static void swap(uint64_t *a, uint64_t *b, unsigned long n, unsigned int threads)
{
	struct tm_exchange arg = {
		.size = sizeof(arg), .pidfd = TM_SELF, .count = n, .a = (uintptr_t)a,
		.b = (uintptr_t)b, .status = (uintptr_t)status, .threads = threads,
	};

	if (ioctl(device, TM_EXCHANGE, &arg) || arg.exchanged != n)
		die("TM_EXCHANGE");
}

/* GB/s of n pairs that trade places, by an exchange or by a move each way. */
static double rate_of_pairs(const struct way *way, bool exchanged, unsigned long n,
			    unsigned long size)
{
	static uint64_t a[MOST], b[MOST];
	char *p = pages(2 * n, size);
	double spent = 0;

	addresses(a, p, n, size);
	addresses(b, p + n * size, n, size);
	by_move_pages(a, n, FAST);
	by_move_pages(b, n, SLOW);
	if (way->batch)
		use(way);
	for (int turn = 0; turn <= 2 * ROUNDS; turn++) {
		int node = turn & 1 ? FAST : SLOW;
		double begun;

		forget();
		begun = now_ns();
		if (exchanged) {
			swap(a, b, n, way->threads);
		} else {
			move(way, a, n, node);
			move(way, b, n, !node);
		}
		/* The first turn warms up. */
		if (turn)
			spent += now_ns() - begun;
		if (at_node(a, n, node) != n || at_node(b, n, !node) != n)
			die("not all pages have traded places");
	}
	munmap(p, 2 * n * size);
	return 2.0 * ROUNDS * 2 * n * size / spent;
}

static void exchange(void)
{
	static const struct way plain = { .name = "move_pages" };
	static const struct way four = { .threads = 4, .batch = 8192 };

	for (unsigned long n = 2; n <= most_pages; n *= 4) {
		if (n <= MOST_HUGE) {
			tell("exchange", n, "huge, two migrations", rate_of_pairs(&four, false, n, HUGE));
			tell("exchange", n, "huge, exchange", rate_of_pairs(&four, true, n, HUGE));
		}
		tell("exchange", n, "base, one thread", rate_of_pairs(&plain, false, n, PAGE));
		tell("exchange", n, "base, two migrations", rate_of_pairs(&four, false, n, PAGE));
		tell("exchange", n, "base, exchange", rate_of_pairs(&four, true, n, PAGE));
	}
}

/* --- */

static const struct {
	const char *name;
	void (*run)(void);
} parts[] = {
	{ "base", base },	{ "copy", copy },		{ "whole", whole },
	{ "threads", threads },	{ "concurrent", concurrent },	{ "exchange", exchange },
};

int main(int argc, char **argv)
{
	struct tm_info info = { .size = sizeof(info) };

	setvbuf(stdout, NULL, _IOLBF, 0);
	put("/sys/kernel/mm/transparent_hugepage/enabled", "madvise");
	put("/sys/kernel/mm/transparent_hugepage/khugepaged/defrag", "0");
	device = open("/dev/tiermem", O_RDWR);
	if (device < 0 || ioctl(device, TM_INFO, &info))
		die("/dev/tiermem");
	for (int i = 1; i < argc; i++) {
		unsigned int k;

		if (!strcmp(argv[i], "-m") && i + 1 < argc) {
			most_pages = strtoul(argv[++i], NULL, 10);
			continue;
		}
		for (k = 0; k < sizeof(parts) / sizeof(parts[0]); k++)
			if (!strcmp(argv[i], parts[k].name))
				break;
		if (k == sizeof(parts) / sizeof(parts[0])) {
			fprintf(stderr, "migration_time: got '%s', expected base, copy, whole, threads, "
				"concurrent or exchange\n", argv[i]);
			return 2;
		}
		parts[k].run();
	}
	return 0;
}
