// SPDX-License-Identifier: GPL-2.0
/*
 * Deliberate faults: each takes one ingredient of a mechanism away, and a stress has to
 * notice.  What it notices is its own sign, which kernel/test or a reader compares with the
 * one that is expected; with -c the fault is left off, and nothing may be noticed.
 */
#include "tiermem_test.h"

bool control;

/*
 * The stress runs in a process of its own, so that what the kernel says when that exits counts.
 * @us: how long the races are widened that @delay names, if any.
 */
static void faulty(const char *fault, const char *delay, const char *us, void (*stress)(void))
{
	double begun = now();

	if (fault && !control && !debug(fault, "1")) {
		fail("no /sys/kernel/debug/tiermem/%s: is CONFIG_TIERMEM_DEBUG on?", fault);
		return;
	}
	if (delay && !debug(delay, us))
		fail("no /sys/kernel/debug/tiermem/%s", delay);
	run_apart(stress);
	if (delay)
		debug(delay, "0");
	if (fault)
		debug(fault, "0");
	check_log();
	printf("# %s: the stress noticed %s, in %.0f s\n",
	       control ? "control" : fault ? fault : "fault",
	       failures ? "it" : "nothing", now() - begun);
	if (control)
		return;
	if (failures)
		failures = 0;
	else
		fail("the stress did not notice %s", fault ? fault : "it");
}

/* Until it is noticed or time is up; a control is not so patient. */
static unsigned long patience(unsigned long of_control)
{
	return count ? count : control ? of_control : 1000000;
}

/* --- tables --------------------------------------------------------------- */

void test_fault_policy(void)
{
	faulty("fault_pt_policy", NULL, NULL, test_policy);
}

static void lazy_stress(void)
{
	unsigned long moved;

	begin_lazy();
	moved = move_lazy_table(patience(100));
	end_stress();
	printf("# %lu table moves\n", moved);
}

void test_fault_order(void)
{
	faulty("fault_pt_order", "delay_pt_switch_us", "3000", lazy_stress);
}

void test_fault_merge(void)
{
	faulty("fault_pt_merge", "delay_pt_switch_us", "3000", lazy_stress);
}

static void stale_stress(void)
{
	unsigned long moved = move_stale_table(patience(200), seconds);

	printf("# %lu table moves, %lu data moves\n", moved, st.moves);
}

/*
 * Software emulation keeps translations and no pointers to tables, and sets a bit by a walk of
 * its own from the root: what it can show of a flush that is left out are translations that
 * outlive their table, not the bits that hardware would set in it.
 */
static void flush_stress(void)
{
	const unsigned long rounds = count ? count : 200;
	unsigned long stale = stale_translations(rounds);

	CHECK(!stale, "%lu of %lu reads used a translation from before the move", stale, rounds);
}

void test_fault_flush(void)
{
	faulty("fault_pt_flush", NULL, NULL, flush_stress);
}

/* A walk reads a table that has been freed: this one the kernel notices. */
void test_fault_free(void)
{
	faulty("fault_pt_free", "delay_pt_lookup_us", "2000", stale_stress);
}

void test_fault_follow(void)
{
	faulty("fault_pt_follow", NULL, NULL, test_pt_follow);
}

/* --- rechecks ------------------------------------------------------------- */

/*
 * Two nets catch a walk that is late: the PMD entry, which is looked at again, and the old
 * table, which is empty.  With neither, the walk edits the table that has gone and believes the
 * page unmapped.
 */
static void both_nets(void)
{
	debug("fault_pt_poison", control ? "0" : "1");
	stale_stress();
	debug("fault_pt_poison", "0");
}

void test_fault_stale(void)
{
	faulty("fault_map_pte", "delay_map_pte_us", "2000", both_nets);
}

static void on_processor(unsigned int number)
{
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(number, &cpus);
	sched_setaffinity(0, sizeof(cpus), &cpus);
}

#define FEW_PAGES	16

static bool is_present(void *p)
{
	uint64_t entry = 0;
	int fd = open("/proc/self/pagemap", O_RDONLY);

	if (fd < 0 || pread(fd, &entry, 8, (uintptr_t)p / PAGE * 8) != 8)
		fail("pagemap: %s", strerror(errno));
	close(fd);
	return entry >> 63;
}

/*
 * With the old table emptied, a walk that does not look at the PMD entry again finds nothing in
 * it, and the page is not unmapped.  Migration tries again; reclaim does not.
 */
static void reclaim_stress(void)
{
	const unsigned long most = patience(20);
	unsigned long round, stayed = 0;
	double begun = now();
	char *p = map(HUGE, false);

	memset(&st, 0, sizeof(st));
	/* Longer than the delay, or the walk meets a move each time that it begins again. */
	st.pause_us = 5000;
	/* The table is there for the mover, which may run anywhere. */
	p[FEW_PAGES * PAGE] = 1;
	start(table_mover, p);
	/* Pages that wait elsewhere for their place on a list are not reclaimed. */
	on_processor(0);
	memset(p, 1, FEW_PAGES * PAGE);
	for (round = 0; round < most && !stayed && now() - begun < seconds; round++) {
		for (int i = 0; i < FEW_PAGES; i++)
			*(volatile char *)(p + i * PAGE) = round;
		madvise(p, FEW_PAGES * PAGE, MADV_PAGEOUT);
		for (int i = 0; i < FEW_PAGES; i++)
			stayed += is_present(p + i * PAGE);
	}
	finish();
	printf("# %lu rounds, %lu table moves\n", round, st.tables);
	CHECK(!stayed, "%lu of %d pages that were to be paged out are mapped still", stayed,
	      FEW_PAGES);
	munmap(p, HUGE);
}

void test_fault_recheck(void)
{
	faulty("fault_map_pte", "delay_map_pte_us", "2000", reclaim_stress);
}

/*
 * A fault that has read an entry, and gets the table's lock when the table has gone, has to find
 * it changed, and begin again.  Else it makes the page writable in a table that nobody reads, and
 * then once more in the right one.
 */
static void reuse_stress(void)
{
	enum { PAGES = 64, NOISE = 16 };	/* by other threads, in each round */
	const unsigned long most = patience(10);
	unsigned long round;
	double begun = now();
	char *p = map(HUGE, false);
	long before, reused = 0;

	memset(&st, 0, sizeof(st));
	/* Longer than the delay, or the fault meets a move each time that it begins again. */
	st.pause_us = 5000;
	memset(p, 1, PAGES * PAGE);
	start(table_mover, p);
	for (round = 0; round < most && !failures && now() - begun < seconds; round++) {
		pid_t pid = fork();

		/* The child's exit leaves the pages this process' alone, and read-only. */
		if (!pid)
			_exit(0);
		waitpid(pid, NULL, 0);
		/* What reads the counters faults, too: the first time. */
		vmstat("pgreuse");
		before = vmstat("pgreuse");
		for (int i = 0; i < PAGES; i++)
			*(volatile char *)(p + i * PAGE) = round;
		reused = vmstat("pgreuse") - before;
		CHECK(reused <= PAGES + NOISE, "%d pages were made writable %ld times", PAGES,
		      reused);
	}
	finish();
	printf("# %lu rounds, %lu table moves, the last time %ld of %d pages made writable\n",
	       round, st.tables, reused, PAGES);
	munmap(p, HUGE);
}

void test_fault_poison(void)
{
	faulty("fault_pt_poison", "delay_fault_us", "2000", reuse_stress);
}

/*
 * The entry of a new table is taken for that of the old one, which is empty: its pages count as
 * mapped for good, which the kernel finds when their file goes.
 */
static void collapse_stress(void)
{
	collapse_beside_moves(count ? count : control ? 20 : 100);
}

void test_fault_collapse(void)
{
	faulty("fault_collapse", NULL, NULL, collapse_stress);
}

static void move_stress(void)
{
	uffd_stress(patience(200));
}

void test_fault_uffd(void)
{
	faulty("fault_uffd_move", "delay_uffd_move_us", "2000", move_stress);
}

/* --- pages ---------------------------------------------------------------- */

static void copy_stress(void)
{
	unsigned long done;

	copying("4", "16", "2048");
	begin_stress(4096, false);
	done = migrate_randomly(patience(2000));
	end_stress();
	copying("0", "1024", "512");
	printf("# %lu pages, %ld of them copied in batches\n", done,
	       vmstat("migrate_batch_copy"));
}

void test_fault_copy(void)
{
	faulty("fault_copy", NULL, NULL, copy_stress);
}

static void exchange_stress(void)
{
	unsigned long done;

	begin_stress(4096, false);
	done = exchange_randomly(patience(500));
	end_stress();
	printf("# %lu pairs\n", done);
}

void test_fault_exchange(void)
{
	faulty("fault_exchange_copy", NULL, NULL, exchange_stress);
}

/* Of kernels whose folios are charged by node. */
void test_fault_charge(void)
{
	faulty("fault_exchange_charge", NULL, NULL, removed_groups);
}

/* Without the watch, bits that reclaim clears are lost. */
static void scan_stress(void)
{
	unsigned long reads, lost;

	begin_stress(512, false);
	lost = read_and_scan(count ? count : 2000, control ? TM_SCAN_WATCH : 0, &reads);
	end_stress();
	CHECK(!lost, "%lu of %lu reads were reported by no scan", lost, reads);
}

void test_fault_scan(void)
{
	faulty(NULL, NULL, NULL, scan_stress);
}
