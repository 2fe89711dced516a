// SPDX-License-Identifier: GPL-2.0
/*
 * Tables that follow data: what is counted of it, that none is left behind, that locks
 * which are contended are not waited for, and what a trace shows.
 */
#include "tiermem_test.h"

/* How many of the tables of a range are on a node. */
static unsigned long tables_on(void *p, unsigned long bytes, int node)
{
	uint64_t counts[TM_PT_NR_LEVELS][NR_NODES] = {};

	tables(p, bytes, counts);
	return counts[0][node];
}

/* Only pages that have migrated are counted as such. */
void test_pt_notes(void)
{
	const unsigned long n = 64;
	void *pages[64];
	int nodes[64], status[64], ends[2], refused = 0;
	struct iovec iov;
	char *p, *huge;
	long before;

	CHECK(!policy(TM_PT_MODE_DEFAULT, 0, 0, TM_PT_POLICY_FOLLOW), "set follow");
	p = map(HUGE, false);
	memset(p, 1, HUGE);
	move_range(p, HUGE, PAGE, 0);

	before = vmstat("pt_migrate_data_pages");
	move_range(p, n * PAGE, PAGE, 1);
	CHECK(vmstat("pt_migrate_data_pages") == before + (long)n, "%ld data pages of %lu are counted",
	      vmstat("pt_migrate_data_pages") - before, n);

	/* What is held by a pipe is unmapped, cannot be moved, and is mapped again. */
	if (pipe(ends) || fcntl(ends[1], F_SETPIPE_SZ, (int)(n * PAGE)) < 0) {
		fail("pipe: %s", strerror(errno));
		return;
	}
	iov = (struct iovec){ .iov_base = p + 128 * PAGE, .iov_len = n * PAGE };
	if (syscall(SYS_vmsplice, ends[1], &iov, 1UL, 0) != (long)(n * PAGE))
		fail("vmsplice: %s", strerror(errno));
	for (unsigned long i = 0; i < n; i++) {
		pages[i] = p + (128 + i) * PAGE;
		nodes[i] = 1;
	}
	before = vmstat("pt_migrate_data_pages");
	syscall(SYS_move_pages, 0, n, pages, nodes, status, MOVE);
	for (unsigned long i = 0; i < n; i++)
		refused += node_of(pages[i]) == 0;
	CHECK(refused == (int)n, "%d of %lu pages that are pinned stay", refused, n);
	CHECK(vmstat("pt_migrate_data_pages") == before,
	      "%ld data pages are counted, of %lu that could not be moved",
	      vmstat("pt_migrate_data_pages") - before, n);
	close(ends[0]);
	close(ends[1]);

	/* Nor is a huge page that is split a migration. */
	huge = map(HUGE, true);
	memset(huge, 1, HUGE);
	before = vmstat("pt_migrate_data_pages");
	madvise(huge, HUGE / 2, MADV_COLD);
	CHECK(vmstat("pt_migrate_data_pages") == before, "a split is counted as %ld data pages",
	      vmstat("pt_migrate_data_pages") - before);
	policy(TM_PT_MODE_DEFAULT, 0, 0, 0);
	munmap(huge, HUGE);
	munmap(p, HUGE);
}

/*
 * More tables are to follow than can be noted, each for its only page: no other will ask
 * again.
 */
void test_pt_many(void)
{
	const unsigned long n = 700, bytes = n * HUGE;
	long no_room = vmstat("pt_migrate_no_room");
	double begun;
	char *p;

	CHECK(!policy(TM_PT_MODE_DEFAULT, 0, 0, TM_PT_POLICY_FOLLOW), "set follow");
	p = map(bytes, false);
	for (unsigned long at = 0; at < bytes; at += HUGE)
		*(unsigned long *)(p + at) = at + 1;
	move_range(p, bytes, HUGE, 1);
	CHECK(!tables_to(p, bytes, 1, 0, NULL), "tables to node 1");
	CHECK(tables_on(p, bytes, 1) == n, "%lu of %lu tables on node 1", tables_on(p, bytes, 1),
	      n);

	/* The worker is slower than the data. */
	debug("delay_pt_switch_us", "10000");
	move_range(p, bytes, HUGE, 0);
	debug("delay_pt_switch_us", "0");
	for (begun = now(); tables_on(p, bytes, 0) < n && now() - begun < 60;)
		usleep(100000);
	printf("# %lu of %lu tables followed, %ld could not be noted\n", tables_on(p, bytes, 0), n,
	       vmstat("pt_migrate_no_room") - no_room);
	CHECK(tables_on(p, bytes, 0) == n, "%lu of %lu tables are left behind",
	      n - tables_on(p, bytes, 0), n);
	for (unsigned long at = 0; at < bytes; at += HUGE)
		if (*(unsigned long *)(p + at) != at + 1)
			fail("page %lu is wrong", at / HUGE);
	policy(TM_PT_MODE_DEFAULT, 0, 0, 0);
	munmap(p, bytes);
}

/* --- locks that are contended --------------------------------------------- */

/* Holds the lock of the table, again and again, and no other. */
static void *cold(void *arg)
{
	while (!st.stop)
		madvise(arg, HUGE, MADV_COLD);
	return NULL;
}

/* Wants the mmap_lock for itself. */
static void *writer(void *arg)
{
	(void)arg;
	while (!st.stop)
		munmap(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), PAGE);
	return NULL;
}

void test_pt_try(void)
{
	unsigned long busy = 0, again = 0, calls = 0;
	struct tm_pt_migrate out;
	double begun;
	char *p;

	memset(&st, 0, sizeof(st));
	p = map(HUGE, false);
	memset(p, 1, HUGE);
	start(cold, p);
	start(cold, p);
	for (begun = now(); !busy && now() - begun < 60; calls++) {
		tables_to(p, HUGE, calls & 1, TM_PT_MIGRATE_TRY, &out);
		busy += out.busy;
	}
	finish();
	printf("# the lock of the table was contended in call %lu\n", calls);
	CHECK(busy, "of %lu calls all waited for the lock of the table", calls);

	start(writer, NULL);
	start(writer, NULL);
	calls = 0;
	for (begun = now(); !again && now() - begun < 60; calls++)
		again += tables_to(p, HUGE, calls & 1, TM_PT_MIGRATE_TRY, &out) == -EAGAIN;
	finish();
	printf("# the mmap_lock was contended in call %lu\n", calls);
	CHECK(again, "of %lu calls all waited for the mmap_lock", calls);
	munmap(p, HUGE);
}

/* Memory by 1 GB, so that nothing else takes a lock of its tables. */
static char *map_apart(unsigned long gbs)
{
	const unsigned long gb = 1UL << 30;
	char *p = mmap(NULL, (gbs + 1) * gb, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED) {
		fail("mmap: %s", strerror(errno));
		return NULL;
	}
	p = (char *)(((uintptr_t)p + gb - 1) & ~(gb - 1));
	madvise(p, gbs * gb, MADV_NOHUGEPAGE);
	return p;
}

/* Waits, for as long as it takes, until the counter says so much. */
static bool reaches(const char *name, long value)
{
	double begun = now();

	while (vmstat(name) < value) {
		if (now() - begun > 60)
			return false;
		usleep(1000);
	}
	return true;
}

/* A table that is contended follows when it no longer is, whatever is noted meanwhile. */
void test_pt_patient(void)
{
	const unsigned long n = 64, bytes = (n + 1) * HUGE;
	long dropped = vmstat("pt_migrate_dropped"), busy;
	double begun;
	char *p;

	CHECK(dropped >= 0, "no counter of notes that are dropped");
	CHECK(!policy(TM_PT_MODE_DEFAULT, 0, 0, TM_PT_POLICY_FOLLOW), "set follow");
	p = map(bytes, false);
	for (unsigned long at = 0; at < bytes; at += HUGE)
		p[at] = 1;
	move_range(p, bytes, HUGE, 1);
	CHECK(!tables_to(p, bytes, 1, 0, NULL), "tables to node 1");
	CHECK(tables_on(p, bytes, 1) == n + 1, "%lu tables on node 1", tables_on(p, bytes, 1));

	CHECK(debug("fault_pt_busy", "1"), "no fault_pt_busy");
	begun = now();
	move_range(p, PAGE, PAGE, 0);
	/* Each new one is tried at once, which is no reason to try the first one again. */
	for (unsigned long i = 1; i <= n; i++) {
		busy = vmstat("pt_migrate_busy");
		move_range(p + i * HUGE, PAGE, PAGE, 0);
		CHECK(reaches("pt_migrate_busy", busy + 1), "table %lu is not tried", i);
	}
	printf("# %lu other tables asked meanwhile, in %.1f s\n", n, now() - begun);
	debug("fault_pt_busy", "0");
	for (begun = now(); tables_on(p, bytes, 0) != n + 1 && now() - begun < 60;)
		usleep(10000);
	CHECK(tables_on(p, bytes, 0) == n + 1, "%lu tables are left behind, %ld notes were dropped",
	      n + 1 - tables_on(p, bytes, 0), vmstat("pt_migrate_dropped") - dropped);

	/* That comes to an end, which is counted. */
	debug("fault_pt_busy", "1");
	dropped = vmstat("pt_migrate_dropped");
	begun = now();
	move_range(p, PAGE, PAGE, 1);
	CHECK(reaches("pt_migrate_dropped", dropped + 1), "it is tried for ever");
	printf("# given up after %.1f s\n", now() - begun);
	CHECK(now() - begun > 5, "it is given up after %.1f s", now() - begun);
	CHECK(tables_on(p, HUGE, 0) == 1, "the table has moved");
	debug("fault_pt_busy", "0");
	policy(TM_PT_MODE_DEFAULT, 0, 0, 0);
	munmap(p, bytes);
}

/* --- what else is seen of it ---------------------------------------------- */

#define TRACING	"/sys/kernel/tracing/"

void test_pt_trace(void)
{
	const unsigned long n = 8;
	unsigned long reported = 0, wrong = 0;
	struct tm_pt_migrate out;
	char line[512];
	FILE *f;
	char *p;

	if (access(TRACING "trace", W_OK)) {
		skip("no " TRACING);
		return;
	}
	p = map(n * HUGE, false);
	for (unsigned long at = 0; at < n * HUGE; at += HUGE)
		p[at] = 1;
	tables_to(p, n * HUGE, 0, 0, NULL);
	put(TRACING "trace", "\n");
	if (!put(TRACING "events/tiermem/tiermem_pt_migrate/enable", "1")) {
		fail("no tracepoint tiermem_pt_migrate");
		return;
	}
	tables_to(p, n * HUGE, 1, 0, &out);
	put(TRACING "events/tiermem/tiermem_pt_migrate/enable", "0");
	f = fopen(TRACING "trace", "r");
	while (f && fgets(line, sizeof(line), f)) {
		char *at = strstr(line, " addr=");
		unsigned long addr;
		int from, to;

		if (!strstr(line, "tiermem_pt_migrate: ") || !at)
			continue;
		if (sscanf(at, " addr=%lx from=%d to=%d", &addr, &from, &to) != 3 || from != 0 ||
		    to != 1 || addr < (uintptr_t)p || addr >= (uintptr_t)p + n * HUGE)
			wrong++;
		reported++;
	}
	if (f)
		fclose(f);
	CHECK(out.moved == n && reported == n && !wrong, "%u moves, %lu in the trace, %lu of them wrong",
	      out.moved, reported, wrong);
	munmap(p, n * HUGE);
}

/* A count of all tables lets go of the mmap_lock on its way, and misses and doubles none. */
#define LOCKED	"events/mmap_lock/mmap_lock_acquire_returned/enable"

void test_pt_stat(void)
{
	const unsigned long gb = 1UL << 30, n = 16, of_each = 16;
	uint64_t counts[TM_PT_NR_LEVELS][NR_NODES] = {};
	unsigned long locked = 0;
	char line[512], pid[16];
	FILE *f;
	char *p;

	if (access(TRACING LOCKED, W_OK)) {
		skip("no " TRACING LOCKED);
		return;
	}
	p = mmap(NULL, (n + 1) * gb, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED) {
		fail("mmap: %s", strerror(errno));
		return;
	}
	p = (char *)(((uintptr_t)p + gb - 1) & ~(gb - 1));
	madvise(p, n * gb, MADV_NOHUGEPAGE);
	for (unsigned long i = 0; i < n; i++)
		for (unsigned long k = 0; k < of_each; k++)
			p[i * gb + k * HUGE] = 1;
	snprintf(pid, sizeof(pid), "%d", getpid());
	put(TRACING "set_event_pid", pid);
	put(TRACING "trace", "\n");
	if (!put(TRACING LOCKED, "1"))
		fail(TRACING LOCKED ": %s", strerror(errno));
	tables(p, n * gb, counts);
	put(TRACING LOCKED, "0");
	f = fopen(TRACING "trace", "r");
	while (f && fgets(line, sizeof(line), f))
		locked += !!strstr(line, "mmap_lock_acquire_returned: ");
	if (f)
		fclose(f);
	f = fopen(TRACING "set_event_pid", "w");
	if (f)
		fclose(f);
	printf("# the mmap_lock was taken %lu times for %lu GB\n", locked, n);
	CHECK(locked >= n, "the mmap_lock was taken %lu times for %lu GB, expected once for each",
	      locked, n);
	CHECK(counts[0][0] + counts[0][1] == n * of_each && counts[1][0] + counts[1][1] == n &&
	      counts[4][0] + counts[4][1] == 1, "%lu tables, %lu above them, %lu roots",
	      (long)(counts[0][0] + counts[0][1]), (long)(counts[1][0] + counts[1][1]),
	      (long)(counts[4][0] + counts[4][1]));
	munmap(p, n * gb);
}

/* Where there are no tables above, nothing is looked at below. */
void test_pt_sparse(void)
{
	const unsigned long gb = 1UL << 30, gbs = 4096;
	struct tm_pt_migrate out = {};
	unsigned long locked = 0;
	char line[512], pid[16];
	FILE *f;
	char *p;

	if (access(TRACING LOCKED, W_OK)) {
		skip("no " TRACING LOCKED);
		return;
	}
	p = map_apart(gbs);
	if (!p)
		return;
	p[3 * gb] = 1;
	p[(gbs - 1) * gb + 5 * HUGE] = 1;
	tables_to(p, gbs * gb, 0, 0, NULL);
	snprintf(pid, sizeof(pid), "%d", getpid());
	put(TRACING "set_event_pid", pid);
	put(TRACING "trace", "\n");
	if (!put(TRACING LOCKED, "1"))
		fail(TRACING LOCKED ": %s", strerror(errno));
	CHECK(!tables_to(p, gbs * gb, 1, 0, &out) && out.moved == 2, "%u tables moved", out.moved);
	put(TRACING LOCKED, "0");
	f = fopen(TRACING "trace", "r");
	while (f && fgets(line, sizeof(line), f))
		locked += !!strstr(line, "mmap_lock_acquire_returned: ");
	if (f)
		fclose(f);
	f = fopen(TRACING "set_event_pid", "w");
	if (f)
		fclose(f);
	/* Each 2 MB of a GB with a table, each GB of 512 with one, and 512 GB of all others. */
	printf("# the mmap_lock was taken %lu times for %lu GB\n", locked, gbs);
	CHECK(locked < 2 * (512 + 512) + 16, "the mmap_lock was taken %lu times for %lu GB", locked,
	      gbs);
	munmap(p, gbs * gb);
}
