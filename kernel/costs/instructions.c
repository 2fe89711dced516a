// SPDX-License-Identifier: GPL-2.0
/*
 * What /dev/tiermem and page migration cost, in instructions.
 *
 * usage: instructions workload|migrate|steps|exchange|tables|scan...
 *
 * Runs as root in a machine of one processor whose time stamp counter counts
 * instructions ("terrace lab --instructions-as-time --cpus 1").  Prints one line for
 * each figure: its group, its name, and instructions, divided by what the name says.
 * "workload" needs no device: it is for comparing kernels.
 */
#include "moves.h"
#include <stdio.h>
#include <sys/wait.h>

#define ROUNDS		3
#define TRACING		"/sys/kernel/tracing/"

static uint64_t now(void)
{
	return __builtin_ia32_rdtsc();
}

static void tell(const char *group, const char *name, double instructions)
{
	printf("%s\t%s\t%.0f\n", group, name, instructions);
}

/* To and fro, in calls of so many pages each; instructions for one page. */
static double cost_of_moves(mover move, char *p, unsigned long n, unsigned long size,
			    unsigned long call)
{
	static uint64_t addrs[4096];
	double cost[2 * ROUNDS];

	addresses(addrs, p, n, size);
	by_move_pages(addrs, n, 0);
	for (int round = 0; round < 2 * ROUNDS; round++) {
		int node = !(round & 1);
		uint64_t begun = now();

		for (unsigned long i = 0; i < n; i += call)
			move(addrs + i, call, node);
		cost[round] = (double)(now() - begun) / n;
		if (at_node(addrs, n, node) != n)
			die("not all pages were moved");
	}
	return median(cost, 2 * ROUNDS);
}

/* --- the same work on any kernel ------------------------------------------ */

static void workload(void)
{
	const unsigned long n = 4096;
	double touch[ROUNDS], huge[ROUNDS], forks[ROUNDS], readonly[ROUNDS], writable[ROUNDS];
	double unmap[ROUNDS], cow[ROUNDS], there[ROUNDS], back[ROUNDS], remap[ROUNDS];
	static uint64_t addrs[4096];

	for (int i = 0; i < ROUNDS; i++) {
		char *p = map(n * PAGE, false), *h = map(8 * HUGE, true), *q;
		uint64_t t = now();
		pid_t pid;

		for (unsigned long at = 0; at < n; at++)
			p[at * PAGE] = 1;
		touch[i] = (double)(now() - t) / n;

		t = now();
		for (unsigned long at = 0; at < 8; at++)
			h[at * HUGE] = 1;
		huge[i] = (double)(now() - t) / 8;

		addresses(addrs, p, n, PAGE);
		t = now();
		by_move_pages(addrs, n, 1);
		there[i] = (double)(now() - t) / n;
		t = now();
		by_move_pages(addrs, n, 0);
		back[i] = (double)(now() - t) / n;
		if (at_node(addrs, n, 0) != n)
			die("not all pages were moved");

		t = now();
		pid = fork();
		if (!pid)
			_exit(0);
		waitpid(pid, NULL, 0);
		forks[i] = now() - t;

		t = now();
		for (unsigned long at = 0; at < n; at++)
			p[at * PAGE] = 2;
		cow[i] = (double)(now() - t) / n;

		t = now();
		mprotect(p, n * PAGE, PROT_READ);
		readonly[i] = (double)(now() - t) / n;
		t = now();
		mprotect(p, n * PAGE, PROT_READ | PROT_WRITE);
		writable[i] = (double)(now() - t) / n;

		/* Apart by less than a table covers: page by page. */
		q = map(n * PAGE + HUGE, false) + 16 * PAGE;
		t = now();
		if (mremap(p, n * PAGE, n * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, q) != q)
			die("mremap");
		remap[i] = (double)(now() - t) / n;

		t = now();
		munmap(q, n * PAGE);
		unmap[i] = (double)(now() - t) / n;
		munmap(h, 8 * HUGE);
	}
	tell("workload", "first touch of a base page", median(touch, ROUNDS));
	tell("workload", "first touch of a huge page", median(huge, ROUNDS));
	tell("workload", "fork, exit and wait with 16 MB of base and of huge pages",
	     median(forks, ROUNDS));
	tell("workload", "write after fork, a base page", median(cow, ROUNDS));
	tell("workload", "mprotect to read-only, a base page", median(readonly, ROUNDS));
	tell("workload", "mprotect to writable, a base page", median(writable, ROUNDS));
	tell("workload", "mremap, a base page", median(remap, ROUNDS));
	tell("workload", "munmap, a base page", median(unmap, ROUNDS));
	tell("workload", "move_pages to slow, a base page", median(there, ROUNDS));
	tell("workload", "move_pages to fast, a base page", median(back, ROUNDS));
}

/* --- migration ------------------------------------------------------------ */

/* Instructions for splitting a huge page. */
static double cost_of_splits(char *p, unsigned long n)
{
	uint64_t begun = now();

	split(p, n);
	return (double)(now() - begun) / n;
}

static void migrate(void)
{
	const unsigned long n = 2048, nr_huge = 8;
	char *base = pages(n, PAGE), *huge = pages(nr_huge, HUGE), *parts = pages(nr_huge, HUGE);
	char name[96];

	tell("migrate", "base page, move_pages, a call each",
	     cost_of_moves(by_move_pages, base, n, PAGE, 1));
	tell("migrate", "base page, move_pages, 512 a call",
	     cost_of_moves(by_move_pages, base, n, PAGE, 512));
	copying("0", "512");
	tell("migrate", "base page, TM_MIGRATE, a call each",
	     cost_of_moves(by_device, base, n, PAGE, 1));
	tell("migrate", "base page, TM_MIGRATE, 512 a call, copied one by one",
	     cost_of_moves(by_device, base, n, PAGE, 512));
	for (unsigned long batch = 512; batch <= 2048; batch *= 2) {
		snprintf(name, sizeof(name), "%lu", batch);
		copying("1", name);
		snprintf(name, sizeof(name), "base page, TM_MIGRATE, %lu a call, copied together", batch);
		tell("migrate", name, cost_of_moves(by_device, base, n, PAGE, batch));
	}
	copying("4", "2048");
	tell("migrate", "base page, TM_MIGRATE, 2048 a call, copied by 4 threads",
	     cost_of_moves(by_device, base, n, PAGE, 2048));

	copying("0", "512");
	tell("migrate", "huge page, move_pages, a call each",
	     cost_of_moves(by_move_pages, huge, nr_huge, HUGE, 1));
	tell("migrate", "huge page, TM_MIGRATE, 8 a call, copied one by one",
	     cost_of_moves(by_device, huge, nr_huge, HUGE, nr_huge));
	copying("1", "8192");
	tell("migrate", "huge page, TM_MIGRATE, 8 a call, copied together",
	     cost_of_moves(by_device, huge, nr_huge, HUGE, nr_huge));
	copying("4", "8192");
	tell("migrate", "huge page, TM_MIGRATE, 8 a call, copied by 4 threads",
	     cost_of_moves(by_device, huge, nr_huge, HUGE, nr_huge));
	copying("0", "512");
	tell("migrate", "huge page, split, alone", cost_of_splits(parts, nr_huge));
	tell("migrate", "huge page that was split, move_pages of its 512 base pages",
	     512 * cost_of_moves(by_move_pages, parts, 2048, PAGE, 512));
}

/* --- its steps ------------------------------------------------------------ */

enum event { ALLOC, SET, FLUSH, REMOVE, NR_EVENTS };

struct traced {
	uint64_t when;
	enum event event;
};

static struct traced trace[16384];

static void tracing(bool on)
{
	static const char * const enable[] = {
		TRACING "events/kmem/mm_page_alloc/enable",
		TRACING "events/migrate/set_migration_pte/enable",
		TRACING "events/migrate/remove_migration_pte/enable",
		TRACING "events/thp/set_migration_pmd/enable",
		TRACING "events/thp/remove_migration_pmd/enable",
		TRACING "events/tlb/tlb_flush/enable",
	};

	if (on) {
		must_put(TRACING "trace_clock", "x86-tsc");
		must_put(TRACING "buffer_size_kb", "8192");
		put(TRACING "trace", "");
	}
	for (unsigned int i = 0; i < sizeof(enable) / sizeof(enable[0]); i++)
		must_put(enable[i], on ? "1" : "0");
}

/* Lines are "instructions-60 [000] d..1. 123456789: tlb_flush: ...". */
static unsigned int read_trace(uint64_t from, uint64_t to)
{
	char line[512], what[64];
	FILE *f = fopen(TRACING "trace", "r");
	unsigned int n = 0;
	uint64_t when;

	if (!f)
		die(TRACING "trace");
	while (fgets(line, sizeof(line), f)) {
		char *at = strchr(line, ']');

		if (!at || sscanf(at + 1, "%*s %lu: %63[^:]", &when, what) != 2)
			continue;
		if (when < from || when > to || n == sizeof(trace) / sizeof(trace[0]))
			continue;
		trace[n].when = when;
		if (!strcmp(what, "mm_page_alloc"))
			trace[n++].event = ALLOC;
		else if (!strncmp(what, "set_migration", 13))
			trace[n++].event = SET;
		else if (!strncmp(what, "remove_migration", 16))
			trace[n++].event = REMOVE;
		else if (!strcmp(what, "tlb_flush"))
			trace[n++].event = FLUSH;
	}
	fclose(f);
	return n;
}

/*
 * The events of a call divide it into steps.  Recording one costs the same each
 * time: what the call costs more than without is divided among them.
 */
static void steps_of(const char *kind, unsigned long n, unsigned long size)
{
	static uint64_t addrs[4096];
	char *p = pages(n, size), group[64];
	uint64_t begun, ended, last, first_remove = 0, last_remove = 0, last_set = 0, flushed = 0;
	double alloc = 0, unmap = 0, remap, find, copy, flush, end, each, plain;
	unsigned int nr, removes = 0, k, sets = 0;

	copying("1", "8192");
	plain = cost_of_moves(by_device, p, n, size, n) * n;
	addresses(addrs, p, n, size);
	tracing(true);
	/* The first round warms up what tracing allocates. */
	for (int round = 0; round < 2; round++) {
		put(TRACING "trace", "");
		begun = now();
		by_device(addrs, n, 1);
		ended = now();
		if (!round)
			by_device(addrs, n, 0);
	}
	tracing(false);
	nr = read_trace(begun, ended);
	if (nr < 3 * n)
		die("the trace is not complete");
	each = ((double)(ended - begun) - plain) / nr;

	last = begun;
	find = 0;
	for (k = 0; k < nr; k++) {
		double since = (double)(trace[k].when - last) - each;

		switch (trace[k].event) {
		case ALLOC:
			/* The first comes after all were looked up and isolated. */
			if (sets)
				alloc += since;
			else
				find += since;
			break;
		case SET:
			unmap += since;
			last_set = trace[k].when;
			sets++;
			break;
		case FLUSH:
			if (sets >= n && !flushed && last == last_set)
				flushed = trace[k].when;
			break;
		case REMOVE:
			if (!removes++)
				first_remove = trace[k].when;
			last_remove = trace[k].when;
			break;
		default:
			break;
		}
		last = trace[k].when;
	}
	if (sets < n || removes < n) {
		fprintf(stderr, "instructions: %u pages unmapped and %u mapped in the trace, expected "
			"%lu\n", sets, removes, n);
		exit(1);
	}
	/* A flush that finds nothing to do leaves no event: it is with the copy then. */
	if (!flushed)
		flushed = last_set;
	/* One allocation is in what comes before. */
	alloc = alloc * n / (n - 1);
	remap = ((double)(last_remove - first_remove) / (removes - 1) - each) * n;
	find -= alloc / n;
	flush = flushed > last_set ? (double)(flushed - last_set) - each : 0;
	copy = (double)(first_remove - flushed) - each - remap / n;
	end = (double)(ended - last_remove) - each;
	snprintf(group, sizeof(group), "steps, %s", kind);
	tell(group, "look up and isolate", find / n);
	tell(group, "allocate", alloc / n);
	tell(group, "unmap", unmap / n);
	tell(group, "flush, for all", flush);
	tell(group, "copy", copy / n);
	tell(group, "move over and map", remap / n);
	tell(group, "put back and report", end / n);
	tell(group, "all, without tracing", plain / n);
	munmap(p, n * size);
}

static void steps(void)
{
	steps_of("a base page of 512", 512, PAGE);
	steps_of("a huge page of 8", 8, HUGE);
	copying("0", "512");
}

/* --- exchange ------------------------------------------------------------- */

/* Pages of the one list on node 0, those of the other on node 1. */
static void apart(uint64_t *a, char *p, uint64_t *b, char *q, unsigned long n, unsigned long size)
{
	addresses(a, p, n, size);
	addresses(b, q, n, size);
	by_move_pages(a, n, 0);
	by_move_pages(b, n, 1);
}

static double cost_of_exchanges(char *p, char *q, unsigned long n, unsigned long size)
{
	static uint64_t a[1024], b[1024];
	double cost[ROUNDS];

	apart(a, p, b, q, n, size);
	for (int round = 0; round < ROUNDS; round++) {
		struct tm_exchange arg = {
			.size = sizeof(arg), .pidfd = TM_SELF, .count = n, .a = (uintptr_t)a,
			.b = (uintptr_t)b, .status = (uintptr_t)status,
		};
		uint64_t begun = now();

		if (ioctl(device, TM_EXCHANGE, &arg) || arg.exchanged != n)
			die("TM_EXCHANGE");
		cost[round] = (double)(now() - begun) / n;
	}
	return median(cost, ROUNDS);
}

static double cost_of_two_moves(mover move, char *p, char *q, unsigned long n, unsigned long size)
{
	static uint64_t a[1024], b[1024];
	double cost[ROUNDS];

	apart(a, p, b, q, n, size);
	for (int round = 0; round < ROUNDS; round++) {
		uint64_t begun = now();

		move(a, n, !(round & 1));
		move(b, n, round & 1);
		cost[round] = (double)(now() - begun) / n;
	}
	return median(cost, ROUNDS);
}

static void exchange(void)
{
	const unsigned long n = 512, nr_huge = 8;
	char *p = pages(2 * n, PAGE), *h = pages(2 * nr_huge, HUGE);

	tell("exchange", "pair of base pages, 512 a call",
	     cost_of_exchanges(p, p + n * PAGE, n, PAGE));
	tell("exchange", "pair of base pages, two calls of move_pages",
	     cost_of_two_moves(by_move_pages, p, p + n * PAGE, n, PAGE));
	copying("1", "512");
	tell("exchange", "pair of base pages, two calls of TM_MIGRATE, copied together",
	     cost_of_two_moves(by_device, p, p + n * PAGE, n, PAGE));
	tell("exchange", "pair of huge pages, 8 a call",
	     cost_of_exchanges(h, h + nr_huge * HUGE, nr_huge, HUGE));
	tell("exchange", "pair of huge pages, two calls of move_pages",
	     cost_of_two_moves(by_move_pages, h, h + nr_huge * HUGE, nr_huge, HUGE));
	copying("1", "8192");
	tell("exchange", "pair of huge pages, two calls of TM_MIGRATE, copied together",
	     cost_of_two_moves(by_device, h, h + nr_huge * HUGE, nr_huge, HUGE));
	copying("0", "512");
}

/* --- tables and scans ----------------------------------------------------- */

static void tables_with(const char *name, unsigned long step)
{
	const unsigned long n = 32;
	char *p = map(n * HUGE, false);
	double cost[2 * ROUNDS];

	for (unsigned long at = 0; at < n * HUGE; at += step)
		p[at] = 1;
	for (int round = -2; round < 2 * ROUNDS; round++) {
		struct tm_pt_migrate arg = {
			.size = sizeof(arg), .pidfd = TM_SELF, .start = (uintptr_t)p,
			.len = n * HUGE, .node = !(round & 1),
		};
		uint64_t begun = now();

		if (ioctl(device, TM_PT_MIGRATE, &arg))
			die("TM_PT_MIGRATE");
		if (round < 0)
			continue;
		cost[round] = (double)(now() - begun) / n;
		if (arg.moved != n)
			die("not all tables were moved");
	}
	tell("tables", name, median(cost, 2 * ROUNDS));
	munmap(p, n * HUGE);
}

static void tables(void)
{
	tables_with("table with 512 pages, TM_PT_MIGRATE, 32 a call", PAGE);
	tables_with("table with one page, TM_PT_MIGRATE, 32 a call", HUGE);
}

static void scan_of(const char *name, unsigned long n, unsigned long size)
{
	char *p = pages(n, size);
	struct tm_scan_entry *entries = calloc(64, sizeof(*entries));
	double cost[ROUNDS];

	for (int round = 0; round < ROUNDS; round++) {
		struct tm_scan arg = {
			.size = sizeof(arg), .pidfd = TM_SELF, .start = (uintptr_t)p,
			.len = n * size, .entries = (uintptr_t)entries, .nr_entries = 64,
			.flags = TM_SCAN_CLEAR, .entry_size = sizeof(*entries),
		};
		uint64_t begun = now();

		if (ioctl(device, TM_SCAN, &arg) || arg.filled != n * size / HUGE)
			die("TM_SCAN");
		cost[round] = (double)(now() - begun) / (n * size / HUGE);
	}
	tell("scan", name, median(cost, ROUNDS));
	munmap(p, n * size);
	free(entries);
}

static void scan(void)
{
	scan_of("2 MB of base pages, TM_SCAN, 32 MB a call", 8192, PAGE);
	scan_of("huge page, TM_SCAN, 32 MB a call", 16, HUGE);
}

/* --- */

static const struct {
	const char *name;
	void (*run)(void);
	bool needs_device;
} parts[] = {
	{ "workload", workload, false },	{ "migrate", migrate, true },
	{ "steps", steps, true },		{ "exchange", exchange, true },
	{ "tables", tables, true },		{ "scan", scan, true },
};

/* A million turns of a loop of two instructions. */
static void check_clock(void)
{
	uint64_t turns = 1000000, begun = now();
	double per;

	asm volatile("1: dec %0; jnz 1b" : "+r"(turns));
	per = (double)(now() - begun) / 2e6;
	/* Ticks of the kernel's clock fall in between. */
	if (per < 0.99 || per > 1.10) {
		fprintf(stderr, "instructions: the clock counts %.3f an instruction, expected 1; "
			"run it with 'terrace lab --instructions-as-time --cpus 1'\n", per);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	struct tm_info info = { .size = sizeof(info) };

	setvbuf(stdout, NULL, _IOLBF, 0);
	check_clock();
	put("/sys/kernel/mm/transparent_hugepage/enabled", "madvise");
	put("/sys/kernel/mm/transparent_hugepage/khugepaged/defrag", "0");
	for (int i = 1; i < argc; i++) {
		unsigned int k;

		for (k = 0; k < sizeof(parts) / sizeof(parts[0]); k++)
			if (!strcmp(argv[i], parts[k].name))
				break;
		if (k == sizeof(parts) / sizeof(parts[0])) {
			fprintf(stderr, "instructions: no part '%s'\n", argv[i]);
			return 2;
		}
		if (parts[k].needs_device && device < 0) {
			device = open("/dev/tiermem", O_RDWR);
			if (device < 0 || ioctl(device, TM_INFO, &info))
				die("/dev/tiermem");
		}
		parts[k].run();
	}
	return 0;
}
