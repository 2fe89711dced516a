// SPDX-License-Identifier: GPL-2.0
/*
 * Memory in pages of a size, and the ways to have it moved.
 */
#include "moves.h"
#include <stdio.h>
#include <sys/syscall.h>

#define MOVE		2	/* MPOL_MF_MOVE */

int device = -1;

void die(const char *what)
{
	fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, strerror(errno));
	exit(1);
}

/* A figure is the median of its rounds: ticks of the clock fall into some. */
static int order(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double median(double *values, unsigned int n)
{
	qsort(values, n, sizeof(*values), order);
	return values[n / 2];
}

bool put(const char *path, const char *value)
{
	int fd = open(path, O_WRONLY | O_TRUNC);
	bool done = fd >= 0 && write(fd, value, strlen(value)) == (ssize_t)strlen(value);

	if (fd >= 0)
		close(fd);
	return done;
}

void must_put(const char *path, const char *value)
{
	if (!put(path, value))
		die(path);
}

char *map(unsigned long bytes, bool huge)
{
	char *raw = mmap(NULL, bytes + HUGE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *p;

	if (raw == MAP_FAILED)
		die("mmap");
	p = (char *)(((uintptr_t)raw + HUGE - 1) & ~(HUGE - 1));
	madvise(p, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	return p;
}

/* n pages of a size, all there. */
char *pages(unsigned long n, unsigned long size)
{
	char *p = map(n * size, size == HUGE);

	memset(p, 1, n * size);
	return p;
}

void addresses(uint64_t *to, char *p, unsigned long n, unsigned long size)
{
	for (unsigned long i = 0; i < n; i++)
		to[i] = (uintptr_t)p + i * size;
}

int status[MOST];

unsigned long at_node(uint64_t *addrs, unsigned long n, int node)
{
	unsigned long there = 0;

	if (syscall(SYS_move_pages, 0, n, addrs, NULL, status, 0))
		die("move_pages");
	for (unsigned long i = 0; i < n; i++)
		there += status[i] == node;
	return there;
}

void by_move_pages(uint64_t *addrs, unsigned long n, int node)
{
	static int nodes[MOST];

	for (unsigned long i = 0; i < n; i++)
		nodes[i] = node;
	if (syscall(SYS_move_pages, 0, n, addrs, nodes, status, MOVE) < 0)
		die("move_pages");
}

/* threads: that copy; 0: as the administrator has it. */
void by_device_with(uint64_t *addrs, unsigned long n, int node, unsigned int threads)
{
	struct tm_migrate arg = {
		.size = sizeof(arg), .pidfd = TM_SELF, .count = n, .node = node,
		.addrs = (uintptr_t)addrs, .status = (uintptr_t)status, .threads = threads,
	};

	if (ioctl(device, TM_MIGRATE, &arg) || arg.moved != n)
		die("TM_MIGRATE");
}

void by_device(uint64_t *addrs, unsigned long n, int node)
{
	by_device_with(addrs, n, node, 0);
}

/* n huge pages, into base pages. */
void split(char *p, unsigned long n)
{
	char range[128];

	snprintf(range, sizeof(range), "%d,0x%lx,0x%lx", getpid(), (long)p, (long)(p + n * HUGE));
	must_put("/sys/kernel/debug/split_huge_pages", range);
}

void copying(const char *threads, const char *batch)
{
	must_put("/sys/kernel/mm/tiermem/copy_min_kb", "64");
	must_put("/sys/kernel/mm/tiermem/copy_batch_pages", batch);
	must_put("/sys/kernel/mm/tiermem/copy_threads", threads);
}

