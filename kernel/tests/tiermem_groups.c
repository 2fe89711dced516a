// SPDX-License-Identifier: GPL-2.0
/*
 * Exchange and memory control groups: pages of two groups, and pages of a group that is
 * removed while they are freed.
 */
#include "tiermem_test.h"

#define ROOT	"/sys/fs/cgroup"

static const char * const groups[2] = { ROOT "/tiermem-a", ROOT "/tiermem-b" };

/* A counter of a group's file: its only one, or of a line by name and node. */
static long counter(int group, const char *file, const char *name, int node)
{
	char path[128], line[512], key[16];
	long value = -1;
	FILE *f;

	/* What processors have not yet reported is counted when this one is read. */
	snprintf(path, sizeof(path), "%s/cpu.stat", groups[group]);
	f = fopen(path, "r");
	while (f && fgets(line, sizeof(line), f))
		;
	if (f)
		fclose(f);
	snprintf(path, sizeof(path), "%s/%s", groups[group], file);
	snprintf(key, sizeof(key), "N%d=", node);
	f = fopen(path, "r");
	while (f && fgets(line, sizeof(line), f)) {
		char *at = line;

		if (name) {
			if (strncmp(line, name, strlen(name)) || line[strlen(name)] != ' ')
				continue;
			at = strstr(line, key);
			at = at ? at + strlen(key) : NULL;
		}
		value = at ? atol(at) : -1;
	}
	if (f)
		fclose(f);
	return value;
}

static void becomes(int group, int node, long expected, const char *when)
{
	double begun = now();
	long is;

	while ((is = counter(group, "memory.numa_stat", "anon", node)) != expected &&
	       now() - begun < 20)
		usleep(50000);
	CHECK(is == expected, "%s: group %d has %ld bytes on node %d, not %ld", when, group, is,
	      node, expected);
}

static bool enter(const char *group)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/cgroup.procs", group);
	return put(path, "0");
}

static bool have_groups(void)
{
	put(ROOT "/cgroup.subtree_control", "+memory");
	if (access(ROOT "/cgroup.controllers", R_OK)) {
		skip("no control groups at " ROOT);
		return false;
	}
	return true;
}

static long dying(void)
{
	long value = -1, v;
	char key[64];
	FILE *f = fopen(ROOT "/cgroup.stat", "r");

	while (f && fscanf(f, "%63s %ld", key, &v) == 2)
		if (!strcmp(key, "nr_dying_descendants"))
			value = v;
	if (f)
		fclose(f);
	return value;
}

/* Until groups that were removed before are gone, as far as they go. */
static void settle(void)
{
	for (double begun = now(); dying() > 0 && now() - begun < 20;)
		usleep(10000);
}

/* --- two groups ---------------------------------------------------------- */

/* Exchanges pages of one group with those of another: each content keeps its group. */
static void between(bool huge)
{
	const unsigned long step = huge ? HUGE : PAGE, n = huge ? 4 : 1024, bytes = n * step;
	uint64_t *a = calloc(n, sizeof(*a)), *b = calloc(n, sizeof(*b));
	int32_t *status = calloc(n, sizeof(*status));
	long before[2][NR_NODES], current[2], after[2];
	char *p[2];
	int done;

	for (int group = 0; group < 2; group++) {
		CHECK(enter(groups[group]), "cannot enter %s: %s", groups[group], strerror(errno));
		p[group] = map(bytes, huge);
		for (unsigned long i = 0; i < n; i++)
			*(uint64_t *)(p[group] + i * step) = i << 1 | group;
		move_range(p[group], bytes, step, group);
	}
	/* What this itself takes from now on is charged elsewhere. */
	CHECK(enter(ROOT), "cannot leave: %s", strerror(errno));
	drain(p[0]);
	for (unsigned long i = 0; i < n; i++) {
		a[i] = (uintptr_t)p[0] + i * step;
		b[i] = (uintptr_t)p[1] + i * step;
	}
	for (int group = 0; group < 2; group++)
		for (int node = 0; node < NR_NODES; node++)
			before[group][node] = counter(group, "memory.numa_stat", "anon", node);
	CHECK(before[0][0] >= (long)bytes && before[1][1] >= (long)bytes,
	      "%ld and %ld bytes charged before, not %lu", before[0][0], before[1][1], bytes);

	done = exchange(a, b, n, status);
	CHECK(done == (int)n, "%d of %lu pairs of two groups exchanged, the first says %d", done, n,
	      status[0]);
	for (int group = 0; group < 2; group++) {
		becomes(group, group, before[group][group] - bytes, "exchanged");
		becomes(group, !group, before[group][!group] + bytes, "exchanged");
	}
	for (int group = 0; group < 2; group++)
		for (unsigned long i = 0; i < n; i++)
			if (*(uint64_t *)(p[group] + i * step) != (i << 1 | group))
				fail("page %lu of group %d reads %lx", i, group,
				     (long)*(uint64_t *)(p[group] + i * step));

	/* The counters, which know no nodes: what is freed is given back to its own group. */
	for (int group = 0; group < 2; group++)
		current[group] = counter(group, "memory.current", NULL, 0);
	madvise(p[0], bytes, MADV_DONTNEED);
	becomes(0, 1, before[0][1], "freed");
	for (int group = 0; group < 2; group++)
		after[group] = counter(group, "memory.current", NULL, 0);
	/* Charges are made in advance, some 64 pages for each processor. */
	CHECK(current[0] - after[0] > (long)bytes * 3 / 4 &&
	      current[1] - after[1] < (long)bytes / 4,
	      "freed %lu bytes of one group: %ld given back to it, %ld to the other", bytes,
	      current[0] - after[0], current[1] - after[1]);

	/* What is left outlives its group. */
	for (int group = 0; group < 2; group++)
		CHECK(!rmdir(groups[group]), "rmdir: %s", strerror(errno));
	for (unsigned long i = 0; i < n; i++)
		if (*(uint64_t *)(p[1] + i * step) != (i << 1 | 1))
			fail("page %lu reads %lx without its group", i,
			     (long)*(uint64_t *)(p[1] + i * step));
}

static void between_base(void)
{
	between(false);
}

static void between_huge(void)
{
	between(true);
}

/* --- a group that is removed --------------------------------------------- */

/* Kernels that hand lists over let some time pass between two nodes. */
static bool handed_over;

/*
 * Lists of a group that goes away are handed to its parent node by node. A page on a node whose
 * turn has come, but which holds what belongs to the other node, is on one list and is taken for
 * one of another.
 */
static void removed_group(void)
{
	enum { PAGES = 4096 };
	static uint64_t a[PAGES], b[PAGES];
	static int32_t status[PAGES];
	long before = dying();
	double begun;
	char *p[2];
	int done, i;

	CHECK(!mkdir(groups[0], 0755) && enter(groups[0]), "%s: %s", groups[0], strerror(errno));
	for (int side = 0; side < 2; side++) {
		p[side] = map(PAGES * PAGE, false);
		memset(p[side], side + 1, PAGES * PAGE);
		move_range(p[side], PAGES * PAGE, PAGE, side);
	}
	CHECK(enter(ROOT), "cannot leave: %s", strerror(errno));
	for (i = 0; i < PAGES; i++) {
		a[i] = (uintptr_t)p[0] + i * PAGE;
		b[i] = (uintptr_t)p[1] + i * PAGE;
	}
	done = exchange(a, b, PAGES, status);
	CHECK(done == PAGES, "%d of %d pairs exchanged, the first says %d", done, PAGES, status[0]);
	drain(p[0]);
	CHECK(!rmdir(groups[0]), "rmdir: %s", strerror(errno));
	/* One of either node at a time, until the group is gone. */
	begun = now();
	for (i = 0; i < PAGES && dying() > before && now() - begun < (handed_over ? 60 : 1); i++) {
		madvise(p[0] + i * PAGE, PAGE, MADV_DONTNEED);
		madvise(p[1] + i * PAGE, PAGE, MADV_DONTNEED);
		usleep(2000);
	}
	printf("# %d of %d pages of either node freed in %.1f s\n", i, PAGES, now() - begun);
	CHECK(!handed_over || i < PAGES, "the group has not gone before its pages: the test is void");
}

void removed_groups(void)
{
	handed_over = debug("delay_reparent_us", "200000");
	for (int round = 0; round < 2 && !failures; round++) {
		settle();
		run_apart(removed_group);
	}
	debug("delay_reparent_us", "0");
}

void test_exchange_groups(void)
{
	static void (* const parts[])(void) = { between_base, between_huge };
	long before, after;
	double begun;

	if (!have_groups())
		return;
	before = dying();
	for (unsigned int i = 0; i < ARRAY_SIZE(parts); i++) {
		for (int group = 0; group < 2; group++)
			CHECK(!mkdir(groups[group], 0755), "mkdir %s: %s", groups[group],
			      strerror(errno));
		run_apart(parts[i]);
		for (int group = 0; group < 2; group++)
			rmdir(groups[group]);
	}
	removed_groups();
	/* A charge or a reference that is not given back keeps its group for ever. */
	for (begun = now(); (after = dying()) > before && now() - begun < 60;)
		usleep(100000);
	CHECK(after <= before, "%ld removed groups are still charged", after - before);
}
