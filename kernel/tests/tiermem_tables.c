// SPDX-License-Identifier: GPL-2.0
/* Page tables: where they are put, and that they move whole. */
#include "tiermem_test.h"

/* --- placement ----------------------------------------------------------- */

/* Runs in a process of its own, executed under a policy: says where its tables are. */
int entry_tables(int node)
{
	uint64_t counts[TM_PT_NR_LEVELS][NR_NODES] = {};
	struct tm_pt_policy get = { .size = sizeof(get), .pidfd = TM_SELF };
	char *p = map(16 * HUGE, false);
	int level, status = 0;
	pid_t pid;

	for (unsigned long at = 0; at < 16 * HUGE; at += HUGE)
		p[at] = 1;
	CHECK(!ioctl(device, TM_PT_POLICY, &get) && get.levels == TM_PT_LEVEL_ALL,
	      "the policy has not come over exec");
	pid = fork();
	if (!pid) {
		p[PAGE] = 1;
		tables(NULL, 0, counts);
		for (level = 0; level < TM_PT_NR_LEVELS; level++)
			CHECK(!counts[level][!node], "after fork, level %d: %lu on node %d",
			      level, (long)counts[level][!node], !node);
		_exit(failures != 0);
	}
	waitpid(pid, &status, 0);
	CHECK(!status, "tables of the child are elsewhere");
	tables(NULL, 0, counts);
	for (level = 0; level < TM_PT_NR_LEVELS; level++)
		CHECK(!counts[level][!node], "level %d: %lu on node %d", level,
		      (long)counts[level][!node], !node);
	CHECK(counts[0][node] >= 16, "%lu tables of base pages", (long)counts[0][node]);
	CHECK(counts[4][node] == 1, "%lu roots", (long)counts[4][node]);
	return failures != 0;
}

static void under_policy(unsigned int mode, int node)
{
	int status;
	pid_t pid = fork();

	if (!pid) {
		char where[8], fd[16];

		CHECK(!policy(mode, TM_PT_LEVEL_ALL, node, 0), "cannot set the policy");
		snprintf(where, sizeof(where), "%d", node);
		snprintf(fd, sizeof(fd), "%d", device);
		execl(self, self, "--entry-tables", where, fd, NULL);
		_exit(3);
	}
	waitpid(pid, &status, 0);
	CHECK(!status, "mode %u, node %d: status %x", mode, node, status);
}

void test_policy(void)
{
	long placed = vmstat("pt_policy_placed");

	under_policy(TM_PT_MODE_FAST, 0);
	under_policy(TM_PT_MODE_NODE, 0);
	under_policy(TM_PT_MODE_NODE, 1);
	CHECK(vmstat("pt_policy_placed") >= placed + 3 * 16, "pt_policy_placed does not count");
}

/* --- migration of tables ------------------------------------------------- */

void test_pt_move(void)
{
	const unsigned long tables_n = 32, bytes = tables_n * HUGE;
	uint64_t counts[TM_PT_NR_LEVELS][NR_NODES] = {};
	struct tm_pt_migrate out;
	long kb, moved = vmstat("pt_migrate_success");
	char *p = map(bytes, false);
	unsigned long at;
	int node;

	for (at = 0; at < bytes; at += PAGE)
		*(unsigned long *)(p + at) = at ^ 0x5a5a;
	kb = status_kb("VmPTE:");
	for (int round = 0; round < 4; round++) {
		node = !(round & 1);
		CHECK(!tables_to(p, bytes, node, 0, &out), "TM_PT_MIGRATE");
		memset(counts, 0, sizeof(counts));
		tables(p, bytes, counts);
		CHECK(counts[0][node] == tables_n && !counts[0][!node],
		      "%lu and %lu tables on nodes %d and %d", (long)counts[0][node],
		      (long)counts[0][!node], node, !node);
		CHECK(out.moved + out.same_node == tables_n, "%u moved, %u there", out.moved,
		      out.same_node);
		for (at = 0; at < bytes; at += PAGE)
			if (*(unsigned long *)(p + at) != (at ^ 0x5a5a))
				fail("page %lu is wrong", at / PAGE);
	}
	CHECK(status_kb("VmPTE:") == kb, "VmPTE was %ld kB and is %ld", kb, status_kb("VmPTE:"));
	CHECK(vmstat("pt_migrate_success") >= moved + 3 * (long)tables_n, "pt_migrate_success");

	/* Algorithm 1: down only when no fast page is left. */
	CHECK(!tables_to(p, bytes, 0, 0, NULL), "back to node 0");
	CHECK(!tables_to(p, bytes, 1, TM_PT_MIGRATE_RULES, &out), "by rules");
	CHECK(out.has_fast == tables_n, "%u tables have fast pages, expected all", out.has_fast);
	move_range(p, HUGE, PAGE, 1);
	CHECK(!tables_to(p, bytes, 1, TM_PT_MIGRATE_RULES, &out), "by rules");
	CHECK(out.moved == 1 && out.has_fast == tables_n - 1, "%u moved, %u have fast pages",
	      out.moved, out.has_fast);
	munmap(p, bytes);
}

/* Tables follow data that migrates: up with the first page, down with the last. */
void test_pt_follow(void)
{
	const unsigned long bytes = 8 * HUGE;
	uint64_t counts[TM_PT_NR_LEVELS][NR_NODES];
	void *one;
	char *p;
	int i;

	CHECK(!policy(TM_PT_MODE_DEFAULT, 0, 0, TM_PT_POLICY_FOLLOW), "set follow");
	p = map(bytes, false);
	memset(p, 1, bytes);
	tables_to(p, bytes, 0, 0, NULL);
	/* A page left behind keeps each table. */
	for (unsigned long t = 0; t < 8; t++)
		move_range(p + t * HUGE + PAGE, HUGE - PAGE, PAGE, 1);
	usleep(300000);
	memset(counts, 0, sizeof(counts));
	tables(p, bytes, counts);
	CHECK(counts[0][0] == 8, "%lu of 8 tables stay with their last fast page",
	      (long)counts[0][0]);
	for (unsigned long t = 0; t < 8; t++)
		move_range(p + t * HUGE, PAGE, PAGE, 1);
	for (i = 0; i < 100; i++) {
		memset(counts, 0, sizeof(counts));
		tables(p, bytes, counts);
		if (counts[0][1] == 8)
			break;
		usleep(100000);
	}
	CHECK(counts[0][1] == 8, "%lu of 8 tables followed down", (long)counts[0][1]);
	for (unsigned long t = 0; t < 8; t++) {
		one = p + t * HUGE + 77 * PAGE;
		move_to(&one, 1, 0);
	}
	for (i = 0; i < 100; i++) {
		memset(counts, 0, sizeof(counts));
		tables(p, bytes, counts);
		if (counts[0][0] == 8)
			break;
		usleep(100000);
	}
	CHECK(counts[0][0] == 8, "%lu of 8 tables followed up", (long)counts[0][0]);
	for (unsigned long at = 0; at < bytes; at++)
		if (p[at] != 1) {
			fail("byte %lu is wrong", at);
			break;
		}
	policy(TM_PT_MODE_DEFAULT, 0, 0, 0);
	munmap(p, bytes);
}

/*
 * Several tenants: one fills the fast node, so that another's tables and data land
 * on the slow one.  The first goes, the data comes up, and the tables come after
 * it, or, without FOLLOW, stay (Radiant, section 4.3 and table 5).
 */
static const char * const r3_names[] = {
	"pt_migrate_data_pages", "pt_migrate_success", "pt_migrate_same_node",
	"pt_migrate_same_tier", "pt_migrate_has_fast", "pt_migrate_busy", "pt_migrate_fail",
};

#define R3_NAMES ARRAY_SIZE(r3_names)

pid_t fill_node(int node)
{
	int ready[2];
	char c = 0;
	pid_t pid;

	if (pipe(ready))
		return -1;
	pid = fork();
	if (!pid) {
		unsigned long mask = 1UL << node, taken = 0;

		close(ready[0]);
		/* Until the node has none to give: what comes next would go elsewhere. */
		for (;;) {
			char *p = map(HUGE, false);

			syscall(SYS_mbind, p, HUGE, 1 /* MPOL_PREFERRED */, &mask, 64UL, 0UL);
			memset(p, 1, HUGE);
			taken++;
			if (node_of(p + HUGE - PAGE) != node)
				break;
		}
		printf("# the first tenant takes %lu MB\n", taken * 2);
		c = write(ready[1], "x", 1) != 1;
		pause();
		_exit(c);
	}
	close(ready[1]);
	if (read(ready[0], &c, 1) != 1) {
		waitpid(pid, NULL, 0);
		pid = -1;
	}
	close(ready[0]);
	return pid;
}

static void r3(bool follow)
{
	const unsigned long n = 64, bytes = n * HUGE;
	uint64_t counts[TM_PT_NR_LEVELS][NR_NODES] = {};
	unsigned long stranded, slow = 0;
	long before[R3_NAMES];
	pid_t filler;
	char *p;

	CHECK(!policy(TM_PT_MODE_DEFAULT, 0, 0, follow ? TM_PT_POLICY_FOLLOW : 0), "set follow");
	filler = fill_node(0);
	if (filler < 0) {
		fail("the fast node cannot be filled");
		return;
	}
	p = map(bytes, false);
	for (unsigned long at = 0; at < bytes; at += 4 * PAGE)
		*(unsigned long *)(p + at) = at + 1;
	tables(p, bytes, counts);
	stranded = counts[0][1];
	for (unsigned long t = 0; t < n; t++)
		slow += node_of(p + t * HUGE) == 1;
	CHECK(stranded > n / 2, "%lu of %lu tables are on the slow node", stranded, n);
	kill(filler, SIGKILL);
	waitpid(filler, NULL, 0);

	for (unsigned int i = 0; i < R3_NAMES; i++)
		before[i] = vmstat(r3_names[i]);
	/* Places that are not mapped are passed over. */
	move_range(p, bytes, 4 * PAGE, 0);
	for (int i = 0; i < 100; i++) {
		memset(counts, 0, sizeof(counts));
		tables(p, bytes, counts);
		if (!counts[0][1] || !follow)
			break;
		usleep(100000);
	}
	printf("# %s: %lu of %lu tables stranded with the data (%lu of %lu probes), %lu left\n",
	       follow ? "follow" : "stay", stranded, n, slow, n, (long)counts[0][1]);
	for (unsigned int i = 0; i < R3_NAMES; i++)
		printf("#   %-22s %ld\n", r3_names[i], vmstat(r3_names[i]) - before[i]);
	if (follow)
		CHECK(!counts[0][1], "%lu tables stay on the slow node", (long)counts[0][1]);
	else
		CHECK(counts[0][1] == stranded, "tables moved by themselves");
	for (unsigned long at = 0; at < bytes; at += 4 * PAGE)
		if (*(unsigned long *)(p + at) != at + 1) {
			fail("page %lu is wrong", at / PAGE);
			break;
		}
	munmap(p, bytes);
	policy(TM_PT_MODE_DEFAULT, 0, 0, 0);
}

void test_pt_tenants(void)
{
	r3(false);
	r3(true);
}

/* --- tables under stress -------------------------------------------------- */

/* All the tables of the process, to and fro. */
static unsigned long move_tables(unsigned long wanted)
{
	double begun = now();
	unsigned long moved = 0;
	struct tm_pt_migrate out;
	int node = 1, err;

	while (moved < wanted && failures < 20 && now() - begun < seconds) {
		err = tables_to(NULL, 0, node, 0, &out);
		if (err) {
			fail("TM_PT_MIGRATE: %s", strerror(-err));
			break;
		}
		moved += out.moved;
		node = !node;
	}
	return moved;
}

/* Only pages freed lazily, in one table: for what a Dirty bit that is lost does. */
void begin_lazy(void)
{
	memset(&st, 0, sizeof(st));
	st.pages = 512;
	st.p = map(HUGE, false);
	start(lazy, NULL);
	while (!*(char *volatile *)&st.lazy)
		usleep(1000);
}

unsigned long move_lazy_table(unsigned long wanted)
{
	double begun = now();
	unsigned long moved = 0;
	struct tm_pt_migrate out;

	while (moved < wanted && !failures && now() - begun < seconds) {
		tables_to(st.lazy, HUGE, !(moved & 1), 0, &out);
		moved += out.moved;
		usleep(200);
	}
	return moved;
}

/*
 * One table, a thread that moves some of its pages, and nothing else: where the
 * walk to a page is delayed, nearly every one meets a move of the table.
 */
#define STALE_PAGES	16

static void *pusher(void *arg)
{
	void *pages[STALE_PAGES];
	int node = 0;
	(void)arg;

	for (int i = 0; i < STALE_PAGES; i++)
		pages[i] = st.p + i * PAGE;
	while (!st.stop) {
		node = !node;
		move_to(pages, STALE_PAGES, node);
		__atomic_add_fetch(&st.moves, STALE_PAGES, __ATOMIC_RELAXED);
	}
	return NULL;
}

/* Moves the table until something is wrong or time is up. */
unsigned long move_stale_table(unsigned long wanted, unsigned int most)
{
	unsigned long moved = 0, page, round = 0;
	double begun = now();
	struct tm_pt_migrate out;

	memset(&st, 0, sizeof(st));
	st.pages = STALE_PAGES;
	st.p = map(HUGE, false);
	for (page = 0; page < STALE_PAGES; page++)
		write_page(page, 1);
	start(pusher, NULL);
	while (moved < wanted && !failures && now() - begun < most) {
		char *reuse;

		tables_to(st.p, HUGE, !(round & 1), 0, &out);
		moved += out.moved;
		if (++round % 16)
			continue;
		/* Frames that were given back wrongly get other contents. */
		reuse = map(STALE_PAGES * PAGE, false);
		memset(reuse, 0x5a, STALE_PAGES * PAGE);
		munmap(reuse, STALE_PAGES * PAGE);
		for (page = 0; page < STALE_PAGES; page++)
			check_page(page, 1, "stale");
		st.checks += STALE_PAGES;
		if (!(round % 256))
			check_log();
	}
	finish();
	for (page = 0; page < STALE_PAGES; page++)
		check_page(page, 1, "at the end");
	munmap(st.p, HUGE);
	check_log();
	return moved;
}

/* Walks that looked a table up before it moved find that out. */
void test_pt_stale(void)
{
	static const char * const delays[] = { "delay_pt_lookup_us", "delay_map_pte_us" };
	const unsigned long wanted = count ? count : 200;

	for (int i = 0; i < 2; i++) {
		unsigned long moved;

		debug(delays[i], "2000");
		moved = move_stale_table(wanted, seconds / 2);
		debug(delays[i], "0");
		printf("# %s: %lu table moves, %lu data moves, %lu checks\n", delays[i], moved,
		       st.moves, st.checks);
		CHECK(moved >= wanted, "only %lu table moves in time", moved);
	}
}

/* Bits that come late are found, and nothing is lost. */
void test_pt_late(void)
{
	const unsigned long wanted = count ? count : 50;
	long late = vmstat("pt_migrate_late_dirty"), accessed = vmstat("pt_migrate_late_accessed");
	unsigned long moved;

	debug("delay_pt_switch_us", "3000");
	begin_lazy();
	/* As many as it takes for some to come late, too: that depends on the machine. */
	moved = move_lazy_table(wanted);
	for (int i = 0; i < 50 && vmstat("pt_migrate_late_dirty") == late && !failures; i++)
		moved += move_lazy_table(20);
	end_stress();
	debug("delay_pt_switch_us", "0");
	late = vmstat("pt_migrate_late_dirty") - late;
	accessed = vmstat("pt_migrate_late_accessed") - accessed;
	printf("# %lu table moves, %ld late dirty bits, %ld late accessed bits\n", moved, late,
	       accessed);
	CHECK(moved >= wanted, "only %lu table moves in time", moved);
	CHECK(late > 0, "no bit came late: the race was not met");
}

/*
 * A read that misses in the TLB sets the Accessed bit, and one that hits does not.  A scan
 * clears the bit and leaves the TLB alone; the move of the table behind it flushes the entry of
 * the table: its first page, whose address stands for it, has to be looked up again.
 */
unsigned long stale_translations(unsigned long rounds)
{
	char *p = map(HUGE, false);
	volatile char *first = p;
	struct tm_scan_entry e[1];
	struct tm_pt_migrate out;
	unsigned long stale = 0;

	*first = 1;
	for (unsigned long round = 0; round < rounds && failures < 8; round++) {
		int err;

		(void)*first;
		err = scan(p, HUGE, TM_SCAN_CLEAR, e, 1);
		CHECK(err == 1, "scan: %s", strerror(-err));
		err = tables_to(p, HUGE, !(round & 1), 0, &out);
		CHECK(!err && out.moved == 1, "round %lu: %s, %u tables moved", round,
		      strerror(-err), out.moved);
		(void)*first;
		scan(p, HUGE, 0, e, 1);
		stale += !is_set(e[0].bits, 0);
	}
	munmap(p, HUGE);
	return stale;
}

void test_pt_flush(void)
{
	unsigned long stale = stale_translations(200);

	CHECK(!stale, "%lu of 200 reads used a translation from before the move", stale);
}

void test_pt_stress(void)
{
	unsigned long moved;
	double begun = now();

	debug("delay_pt_switch_us", "100");
	begin_stress(4096, true);
	moved = move_tables(count ? count : 2000);
	end_stress();
	debug("delay_pt_switch_us", "0");
	printf("# %lu table moves, %lu checks, %lu data moves, %lu forks, %lu page-outs in %.0f s\n",
	       moved, st.checks, st.moves, st.forks, st.pageouts, now() - begun);
	CHECK(moved >= (count ? count : 2000), "only %lu table moves in time", moved);
}
