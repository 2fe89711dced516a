// SPDX-License-Identifier: GPL-2.0
/*
 * What is around the mechanisms: allocations that fail, memory that goes off line, and
 * memory control groups, whose charges have to be right and which have to go away.
 */
#include "tiermem_test.h"

#include <dirent.h>
#include <sys/rseq.h>

/* A bit of everything that the device does, on the pages of the stress. */
static int anything(uint64_t *seed, unsigned long *refused)
{
	uint64_t a[64], b[64];
	int32_t status[64];
	struct tm_scan_entry e[8];
	struct tm_pt_migrate out;
	int err, node = next(seed) & 1;

	for (int i = 0; i < 64; i++) {
		a[i] = (uintptr_t)words(next(seed) % st.pages);
		b[i] = (uintptr_t)words(next(seed) % st.pages);
		status[i] = 0;
	}
	switch (next(seed) % 4) {
	case 0:
		err = migrate(a, 64, node, status);
		break;
	case 1:
		err = exchange(a, b, 64, status);
		break;
	case 2:
		err = tables_to(st.p, st.pages * PAGE, node, 0, &out);
		break;
	default:
		err = scan(st.p, 8 * HUGE, TM_SCAN_CLEAR | TM_SCAN_WATCH, e, 8);
		scan(st.p, 8 * HUGE, TM_SCAN_UNWATCH, NULL, 0);
	}
	for (int i = 0; i < 64; i++)
		*refused += status[i] == -ENOMEM;
	return err;
}

/* --- allocations --------------------------------------------------------- */

/* Lets allocations of tasks that ask for it fail, one in so many percent; false: cannot. */
static bool inject(const char *percent)
{
	static const char * const kinds[] = { "fail_page_alloc", "failslab" };
	static const char * const keys[][2] = {
		{ "task-filter", "Y" }, { "ignore-gfp-wait", "N" }, { "verbose", "0" },
		{ "times", "-1" }, { "interval", "1" }, { "space", "0" },
	};
	char path[128];

	for (int i = 0; i < 2; i++) {
		for (int k = 0; k < 6; k++) {
			snprintf(path, sizeof(path), "/sys/kernel/debug/%s/%s", kinds[i],
				 keys[k][0]);
			if (!put(path, keys[k][1]))
				return false;
		}
		snprintf(path, sizeof(path), "/sys/kernel/debug/%s/probability", kinds[i]);
		if (!put(path, percent))
			return false;
	}
	/* Of order 0, too, and those for pages of programs. */
	return put("/sys/kernel/debug/fail_page_alloc/min-order", "0") &&
	       put("/sys/kernel/debug/fail_page_alloc/ignore-gfp-highmem", "N");
}

/* Pages that no longer fit on a node stay where they are, whole, and each is reported. */
static void check_full_node(void)
{
	const unsigned long n = 16384;
	uint64_t *addrs = calloc(n, sizeof(*addrs));
	int32_t *status = calloc(n, sizeof(*status));
	unsigned long refused = 0, wrong = 0;
	/* Without it reclaim makes room. */
	bool swap = !swapoff("/dev/ram0");
	/* Before the pages are there: what it maps too cannot be moved. */
	pid_t tenant = fill_node(1);
	char *p = map(n * PAGE, false);
	int moved;

	if (tenant < 0) {
		fail("cannot fill the node");
		return;
	}
	for (unsigned long i = 0; i < n; i++) {
		*(uint64_t *)(p + i * PAGE) = i;
		addrs[i] = (uintptr_t)p + i * PAGE;
	}
	moved = migrate(addrs, n, 1, status);
	for (unsigned long i = 0; i < n; i++) {
		refused += status[i] == -ENOMEM;
		wrong += status[i] && status[i] != -ENOMEM;
		wrong += node_of((void *)addrs[i]) != !status[i];
		wrong += *(uint64_t *)(p + i * PAGE) != i;
	}
	printf("# onto a full node: %d moved, %lu refused for want of memory\n", moved, refused);
	CHECK(moved >= 0 && refused > 0, "%d moved, %lu refused, the first says %d", moved, refused,
	      status[0]);
	CHECK(!wrong, "%lu pages are wrong, or their status", wrong);
	kill(tenant, SIGKILL);
	waitpid(tenant, NULL, 0);
	if (swap)
		swapon("/dev/ram0", 0);
	munmap(p, n * PAGE);
	free(addrs);
	free(status);
}

/*
 * As this thread returns from the kernel, that writes to its area for restartable sequences, and
 * kills it where the page is shared with a child and cannot be copied.
 */
static bool unregister_rseq(void)
{
	return !__rseq_size ||
	       !syscall(SYS_rseq, (char *)__builtin_thread_pointer() + __rseq_offset,
			sizeof(struct rseq), RSEQ_FLAG_UNREGISTER, RSEQ_SIG);
}

void test_no_memory(void)
{
	const unsigned long wanted = count ? count : 1000;
	unsigned long calls = 0, refused = 0, failed = 0, unreported = 0;
	uint64_t seed = 20;
	double begun;
	int switch_fd;

	check_full_node();
	begun = now();
	/* Open throughout: opening it to switch allocations on again would fail, too. */
	switch_fd = open("/proc/thread-self/make-it-fail", O_WRONLY);
	if (switch_fd < 0 || !inject("20")) {
		printf("# no fault injection in this kernel\n");
		return;
	}
	CHECK(unregister_rseq(), "rseq: %s", strerror(errno));
	begin_stress(4096, true);
	while (calls < wanted && failures < 20 && now() - begun < seconds) {
		int err;

		CHECK(pwrite(switch_fd, "1", 1, 0) == 1, "make-it-fail");
		err = anything(&seed, &refused);
		CHECK(pwrite(switch_fd, "0", 1, 0) == 1, "make-it-fail");
		failed += err == -ENOMEM;
		/* The page for its answer is shared with a child and could not be copied. */
		unreported += err == -EFAULT;
		CHECK(err >= 0 || err == -ENOMEM || err == -EFAULT, "a call fails with %s",
		      strerror(-err));
		calls++;
		usleep(500);
	}
	close(switch_fd);
	inject("0");
	/* Nothing is left in the way. */
	for (int i = 0; i < 50; i++) {
		int err = anything(&seed, &refused);

		CHECK(err >= 0, "and now: %s", strerror(-err));
	}
	end_stress();
	printf("# %lu calls, of which %lu failed and %lu could not answer, %lu pages refused, %lu checks in %.0f s\n",
	       calls, failed, unreported, refused, st.checks, now() - begun);
	CHECK(calls >= wanted, "only %lu calls in time", calls);
	CHECK(failed && refused, "no allocation failed: the test is void");
}

/* --- memory off line ----------------------------------------------------- */

static struct {
	unsigned long offline, online, busy;
	bool done;
} blocks;

static bool block_state(const char *block, const char *state)
{
	char path[300];

	snprintf(path, sizeof(path), "/sys/devices/system/memory/%s/state", block);
	return put(path, state);
}

/* Takes each block of the slow node off line and brings it back. */
static void *offliner(void *arg)
{
	DIR *folder = opendir("/sys/devices/system/node/node1");
	struct dirent *entry;
	double begun = now();
	(void)arg;

	while (folder && (entry = readdir(folder)) && now() - begun < seconds) {
		if (strncmp(entry->d_name, "memory", 6) || entry->d_name[6] < '0' ||
		    entry->d_name[6] > '9')
			continue;
		if (!block_state(entry->d_name, "offline")) {
			blocks.busy++;
			continue;
		}
		blocks.offline++;
		usleep(20000);
		if (block_state(entry->d_name, "online"))
			blocks.online++;
		else
			fail("%s does not come back: %s", entry->d_name, strerror(errno));
	}
	if (folder)
		closedir(folder);
	__atomic_store_n(&blocks.done, true, __ATOMIC_RELEASE);
	return NULL;
}

void test_offline(void)
{
	unsigned long calls = 0, refused = 0;
	double begun = now();
	uint64_t seed = 21;

	memset(&blocks, 0, sizeof(blocks));
	begin_stress(4096, true);
	start(offliner, NULL);
	while (!__atomic_load_n(&blocks.done, __ATOMIC_ACQUIRE) && failures < 20) {
		int err = anything(&seed, &refused);

		CHECK(err >= 0 || err == -ENOMEM, "a call fails with %s", strerror(-err));
		calls++;
		usleep(500);
	}
	end_stress();
	printf("# %lu blocks went off line, %lu came back, %lu would not go; %lu calls, %lu checks in %.0f s\n",
	       blocks.offline, blocks.online, blocks.busy, calls, st.checks, now() - begun);
	CHECK(blocks.offline, "no block of the slow node goes off line: the test is void");
}

/* --- control groups ------------------------------------------------------ */

#define GROUP	"/sys/fs/cgroup/tiermem-test"

/* A value of a file of the group's, by name and, if there is one, by node. */
static long group_value(const char *file, const char *name, int node)
{
	char path[128], line[512], key[16];
	long value = -1;
	FILE *f;

	/* What processors have not yet reported is counted when this one is read. */
	f = fopen(GROUP "/cpu.stat", "r");
	while (f && fgets(line, sizeof(line), f))
		;
	if (f)
		fclose(f);
	snprintf(path, sizeof(path), GROUP "/%s", file);
	snprintf(key, sizeof(key), "N%d=", node);
	f = fopen(path, "r");
	while (f && fgets(line, sizeof(line), f)) {
		size_t length = strlen(name);
		char *at = line + length;

		if (strncmp(line, name, length) || *at != ' ')
			continue;
		if (node >= 0)
			at = strstr(at, key);
		value = at ? atol(at + (node >= 0 ? strlen(key) : 1)) : -1;
	}
	if (f)
		fclose(f);
	return value;
}

static unsigned long pages_on(const char *p, unsigned long n, int node)
{
	unsigned long found = 0;
	void *pages[512];
	int status[512];

	for (unsigned long i = 0; i < n; i += 512) {
		unsigned long some = n - i < 512 ? n - i : 512;

		for (unsigned long k = 0; k < some; k++)
			pages[k] = (void *)(p + (i + k) * PAGE);
		if (syscall(SYS_move_pages, 0, some, pages, NULL, status, 0))
			fail("move_pages: %s", strerror(errno));
		for (unsigned long k = 0; k < some; k++)
			found += status[k] == node;
	}
	return found;
}

static long own_bytes(const char *p, unsigned long n, const char *huge, int node)
{
	return (pages_on(p, n, node) + pages_on(huge, 1024, node)) * PAGE;
}

/* It does, in a moment: an old table is given back when nobody can walk it any more. */
static void becomes(const char *file, const char *name, int node, long expected)
{
	double begun = now();
	long is;

	while ((is = group_value(file, name, node)) != expected && now() - begun < 20)
		usleep(50000);
	CHECK(is == expected, "%s of node %d: %ld bytes charged, not %ld", name, node, is,
	      expected);
}

/* A stack that grows later is charged, too. */
static __attribute__((noinline)) void grow_stack(void)
{
	char room[1 << 16];

	memset(room, 1, sizeof(room));
	__asm__ volatile("" : : "r"(room) : "memory");
}

/* In a group of its own: everything moves, and the group's counters move with it. */
static int charged(int number)
{
	const unsigned long n = 2048;
	uint64_t seed = 30 + number, a[64], b[64];
	long before[NR_NODES] = {}, tables;
	struct tm_pt_migrate out;
	int32_t status[64];
	char *p, *huge;

	failures = 0;
	if (!put(GROUP "/cgroup.procs", "0")) {
		fail("cannot enter " GROUP ": %s", strerror(errno));
		return 1;
	}
	grow_stack();
	p = map(n * PAGE, false);
	huge = map(2 * HUGE, true);
	memset(huge, 1, 2 * HUGE);
	for (unsigned long i = 0; i < n; i++)
		*(uint64_t *)(p + i * PAGE) = i;
	tables = group_value("memory.stat", "pagetables", -1);
	CHECK(tables > 0, "no counter of tables");
	for (int turn = 0; turn < 40 && !failures; turn++) {
		bool gone = turn >= 20;

		/* Half-way the group is removed; what is charged to it stays. */
		if (turn == 20) {
			CHECK(put("/sys/fs/cgroup/cgroup.procs", "0"), "cannot leave: %s",
			      strerror(errno));
			CHECK(!rmdir(GROUP), "rmdir: %s", strerror(errno));
		}
		for (int i = 0; i < 64; i++) {
			a[i] = (uintptr_t)p + next(&seed) % n * PAGE;
			b[i] = (uintptr_t)p + next(&seed) % n * PAGE;
		}
		migrate(a, 64, turn & 1, status);
		exchange(a, b, 64, status);
		a[0] = (uintptr_t)huge;
		b[0] = (uintptr_t)huge + HUGE;
		migrate(a, 1, 0, status);
		migrate(b, 1, 1, status);
		exchange(a, b, 1, status);
		tables_to(p, n * PAGE, turn & 1, 0, &out);
		/* After a turn all is there that asking and moving take in memory. */
		if (!turn) {
			for (int node = 0; node < NR_NODES; node++)
				before[node] = group_value("memory.numa_stat", "anon", node) -
					       own_bytes(p, n, huge, node);
			CHECK(before[0] >= 0 && before[1] >= 0, "no counters: %ld, %ld", before[0],
			      before[1]);
		}
		for (int node = 0; node < NR_NODES && !gone; node++)
			becomes("memory.numa_stat", "anon", node,
				before[node] + own_bytes(p, n, huge, node));
		if (!gone)
			becomes("memory.stat", "pagetables", -1, tables);
	}
	for (unsigned long i = 0; i < n; i++)
		if (*(uint64_t *)(p + i * PAGE) != i)
			fail("page %lu reads %lx", i, (long)*(uint64_t *)(p + i * PAGE));
	return failures != 0;
}

static long dying(void)
{
	long value = -1, v;
	char key[64];
	FILE *f = fopen("/sys/fs/cgroup/cgroup.stat", "r");

	while (f && fscanf(f, "%63s %ld", key, &v) == 2)
		if (!strcmp(key, "nr_dying_descendants"))
			value = v;
	if (f)
		fclose(f);
	return value;
}

void test_memcg(void)
{
	const int groups = 8;
	long before = dying(), after;
	double begun;

	put("/sys/fs/cgroup/cgroup.subtree_control", "+memory");
	if (before < 0 || access("/sys/fs/cgroup/cgroup.controllers", R_OK)) {
		printf("# no control groups at /sys/fs/cgroup\n");
		return;
	}
	for (int i = 0; i < groups; i++) {
		int status;
		pid_t pid;

		if (mkdir(GROUP, 0755)) {
			fail("mkdir " GROUP ": %s", strerror(errno));
			return;
		}
		fflush(stdout);
		pid = fork();
		if (!pid) {
			status = charged(i);
			fflush(stdout);
			_exit(status);
		}
		waitpid(pid, &status, 0);
		CHECK(!status, "group %d: its counters or pages are wrong", i);
		rmdir(GROUP);
	}
	/* A charge that is not given back keeps its group for ever. */
	for (begun = now(); (after = dying()) > before && now() - begun < 60;)
		usleep(100000);
	printf("# %d groups removed under their pages, %ld left after %.1f s\n", groups,
	       after - before, now() - begun);
	CHECK(after <= before, "%ld removed groups are still charged", after - before);
}
