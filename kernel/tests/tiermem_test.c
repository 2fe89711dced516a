// SPDX-License-Identifier: GPL-2.0
/*
 * Tests of /dev/tiermem, for a machine with two memory nodes, as root.
 *
 * usage: tiermem_test [-n COUNT] [-s SECONDS] [TEST...]
 *
 * Without a test's name, all that leave the machine whole.  The tests that are
 * named "fault-..." switch on a deliberate fault (CONFIG_TIERMEM_DEBUG) and pass
 * if the stress notices it; the kernel may not survive some of them.
 *
 * What a stress checks: every page has words that say which page it is and which
 * version of it; the thread that owns the page knows the version.  A page that is
 * lost, doubled, mixed up or stale shows at once.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <linux/tiermem.h>

#define PAGE		4096UL
#define HUGE		(2UL << 20)
#define NR_NODES	2
#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT	21
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE	25
#endif
#define MOVE		2	/* MPOL_MF_MOVE */

static int device = -1;
static unsigned long count;		/* operations of a stress; 0: its own */
static unsigned int seconds = 240;	/* the most that a stress may take */
static unsigned int failures;
static const char *self;

static void fail(const char *format, ...)
{
	va_list args;

	/* The first few say enough. */
	if (__atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED) > 8)
		return;
	printf("# ");
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
	fflush(stdout);
}

#define CHECK(condition, ...)				\
	do {						\
		if (!(condition))			\
			fail(__VA_ARGS__);		\
	} while (0)

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static uint64_t next(uint64_t *state)
{
	/* xorshift64*: the same seed gives the same run, as far as threads do. */
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545f4914f6cdd1dULL >> 16;
}

static long vmstat(const char *name)
{
	char key[64];
	long value = -1, v;
	FILE *f = fopen("/proc/vmstat", "r");

	while (f && fscanf(f, "%63s %ld", key, &v) == 2)
		if (!strcmp(key, name))
			value = v;
	if (f)
		fclose(f);
	return value;
}

static long status_kb(const char *name)
{
	char line[256];
	long value = -1;
	FILE *f = fopen("/proc/self/status", "r");

	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, name, strlen(name)))
			value = atol(line + strlen(name) + 1);
	if (f)
		fclose(f);
	return value;
}

static bool put(const char *path, const char *value)
{
	int fd = open(path, O_WRONLY);
	bool done = fd >= 0 && write(fd, value, strlen(value)) == (ssize_t)strlen(value);

	if (fd >= 0)
		close(fd);
	return done;
}

static bool debug(const char *name, const char *value)
{
	char path[128];

	snprintf(path, sizeof(path), "/sys/kernel/debug/tiermem/%s", name);
	return put(path, value);
}

static char *map(unsigned long bytes, bool huge)
{
	char *raw = mmap(NULL, bytes + HUGE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *p;

	if (raw == MAP_FAILED) {
		perror("# mmap");
		exit(1);
	}
	p = (char *)(((uintptr_t)raw + HUGE - 1) & ~(HUGE - 1));
	madvise(p, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	return p;
}

static int node_of(void *p)
{
	int status = -1;

	if (syscall(SYS_move_pages, 0, 1UL, &p, NULL, &status, 0))
		return -errno;
	return status;
}

static int move_to(void **pages, unsigned long n, int node)
{
	int nodes[512], status[512];
	unsigned long i;

	for (i = 0; i < n; i++)
		nodes[i] = node;
	return syscall(SYS_move_pages, 0, n, pages, nodes, status, MOVE);
}

static void move_range(char *p, unsigned long bytes, unsigned long step, int node)
{
	void *pages[256];
	unsigned long at, n = 0;

	for (at = 0; at < bytes; at += step) {
		pages[n++] = p + at;
		if (n == 256 || at + step >= bytes) {
			move_to(pages, n, node);
			n = 0;
		}
	}
}

static int tables_to(void *start, unsigned long len, int node, unsigned int flags,
		     struct tm_pt_migrate *out)
{
	struct tm_pt_migrate arg = {
		.size = sizeof(arg), .pidfd = TM_SELF, .start = (uintptr_t)start,
		.len = len, .node = node, .flags = flags,
	};
	int err = ioctl(device, TM_PT_MIGRATE, &arg);

	if (out)
		*out = arg;
	return err ? -errno : 0;
}

static void tables(void *start, unsigned long len, uint64_t counts[TM_PT_NR_LEVELS][NR_NODES])
{
	struct tm_pt_stat arg = {
		.size = sizeof(arg), .pidfd = TM_SELF, .start = (uintptr_t)start,
		.len = len, .counts = (uintptr_t)counts, .nr_nodes = NR_NODES,
	};

	CHECK(!ioctl(device, TM_PT_STAT, &arg), "TM_PT_STAT: %s", strerror(errno));
}

static int exchange(uint64_t *a, uint64_t *b, unsigned int n, int32_t *status)
{
	struct tm_exchange arg = {
		.size = sizeof(arg), .pidfd = TM_SELF, .count = n, .a = (uintptr_t)a,
		.b = (uintptr_t)b, .status = (uintptr_t)status,
	};
	int err = ioctl(device, TM_EXCHANGE, &arg);

	return err ? -errno : (int)arg.exchanged;
}

static int policy(unsigned int mode, unsigned int levels, int node, unsigned int flags)
{
	struct tm_pt_policy arg = {
		.size = sizeof(arg), .pidfd = TM_SELF, .flags = TM_PT_POLICY_SET | flags,
		.mode = mode, .levels = levels, .node = node,
	};

	return ioctl(device, TM_PT_POLICY, &arg) ? -errno : 0;
}

/* --- the interface ------------------------------------------------------- */

static void test_abi(void)
{
	struct { struct tm_info info; uint64_t more; } arg = { .info.size = sizeof(arg.info) };
	struct tm_pt_policy get = { .size = sizeof(get), .pidfd = TM_SELF };
	struct tm_pt_migrate mig = { .size = sizeof(mig), .pidfd = TM_SELF };
	int status;
	pid_t pid;

	CHECK(!ioctl(device, TM_INFO, &arg), "TM_INFO: %s", strerror(errno));
	CHECK(arg.info.abi == TM_ABI_VERSION, "abi %u", arg.info.abi);
	CHECK(arg.info.nr_nodes >= NR_NODES, "%u nodes", arg.info.nr_nodes);
	arg.info.size = sizeof(arg);
	CHECK(!ioctl(device, TM_INFO, &arg), "a longer argument of zeros is refused");
	arg.more = 1;
	CHECK(ioctl(device, TM_INFO, &arg) && errno == E2BIG, "unknown fields are accepted");
	arg.info.size = 4;
	CHECK(ioctl(device, TM_INFO, &arg) && errno == EINVAL, "a size of 4 is accepted");
	CHECK(ioctl(device, _IO(TM_TYPE, 0x7f), &arg) && errno == ENOTTY, "command 0x7f");
	CHECK(ioctl(device, TM_INFO, NULL) && errno == EFAULT, "no argument");

	get.pidfd = 1000;
	CHECK(ioctl(device, TM_PT_POLICY, &get) && errno == EBADF, "pidfd 1000");
	get = (struct tm_pt_policy){ .size = sizeof(get), .pidfd = TM_SELF, .flags = 1U << 31 };
	CHECK(ioctl(device, TM_PT_POLICY, &get) && errno == EINVAL, "unknown flag");
	CHECK(policy(9, TM_PT_LEVEL_ALL, 0, 0) == -EINVAL, "mode 9");
	CHECK(policy(TM_PT_MODE_FAST, 1U << 7, 0, 0) == -EINVAL, "level 7");
	CHECK(policy(TM_PT_MODE_NODE, TM_PT_LEVEL_ALL, 77, 0) == -ENODEV, "node 77");
	mig.node = 77;
	CHECK(ioctl(device, TM_PT_MIGRATE, &mig) && errno == ENODEV, "tables to node 77");
	mig.node = 0;
	mig.start = ~0UL;
	mig.len = 8192;
	CHECK(ioctl(device, TM_PT_MIGRATE, &mig) && errno == EINVAL, "a range that wraps");

	/* The device is open, but the target is somebody else's. */
	pid = fork();
	if (!pid) {
		int pidfd = syscall(SYS_pidfd_open, 1, 0);

		if (setgid(65534) || setuid(65534))
			_exit(2);
		get = (struct tm_pt_policy){ .size = sizeof(get), .pidfd = pidfd };
		_exit(ioctl(device, TM_PT_POLICY, &get) && (errno == EACCES || errno == EPERM) ? 0 : 1);
	}
	waitpid(pid, &status, 0);
	CHECK(status == 0, "without rights, another process's policy can be read");

	/* With them, another process can be a target. */
	pid = fork();
	if (!pid) {
		pause();
		_exit(0);
	}
	get = (struct tm_pt_policy){
		.size = sizeof(get), .pidfd = syscall(SYS_pidfd_open, pid, 0),
		.flags = TM_PT_POLICY_SET, .mode = TM_PT_MODE_FAST, .levels = TM_PT_LEVEL_PMD,
	};
	CHECK(!ioctl(device, TM_PT_POLICY, &get), "set by pidfd: %s", strerror(errno));
	get.flags = 0;
	get.levels = 0;
	CHECK(!ioctl(device, TM_PT_POLICY, &get) && get.levels == TM_PT_LEVEL_PMD, "read by pidfd");
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	CHECK(ioctl(device, TM_PT_POLICY, &get) && errno == ESRCH, "a process that is gone");
	close(get.pidfd);
}

/* --- placement ----------------------------------------------------------- */

/* Runs in a process of its own, executed under a policy: says where its tables are. */
static int entry_tables(int node)
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

static void test_policy(void)
{
	long placed = vmstat("pt_policy_placed");

	under_policy(TM_PT_MODE_FAST, 0);
	under_policy(TM_PT_MODE_NODE, 0);
	under_policy(TM_PT_MODE_NODE, 1);
	CHECK(vmstat("pt_policy_placed") >= placed + 3 * 16, "pt_policy_placed does not count");
}

/* --- migration of tables ------------------------------------------------- */

static void test_pt_move(void)
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
static void test_pt_follow(void)
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
#define R3_NAMES (sizeof(r3_names) / sizeof(r3_names[0]))

static pid_t fill_node(int node)
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

static void test_pt_tenants(void)
{
	r3(false);
	r3(true);
}

/* --- the stress ---------------------------------------------------------- */

#define OWNERS	2

struct stress {
	char *p;
	unsigned long pages;
	bool stop;
	unsigned int written;		/* owners that have written all their pages */
	char *lazy;
	unsigned long checks, forks, moves, pageouts;
};

static struct stress st;
static pthread_t threads[16];
static int nr_threads;

static void start(void *(*function)(void *), void *arg)
{
	pthread_create(&threads[nr_threads++], NULL, function, arg);
}

static void finish(void)
{
	st.stop = true;
	while (nr_threads)
		pthread_join(threads[--nr_threads], NULL);
	st.stop = false;
}

static uint64_t *words(unsigned long page)
{
	return (uint64_t *)(st.p + page * PAGE);
}

static void write_page(unsigned long page, uint32_t version)
{
	uint64_t tag = (uint64_t)page << 32 | version;

	words(page)[0] = tag;
	words(page)[511] = ~tag;
	words(page)[page % 509 + 1] = tag + 1;
}

static void check_page(unsigned long page, uint32_t version, const char *who)
{
	uint64_t tag = (uint64_t)page << 32 | version;

	if (words(page)[0] != tag || words(page)[511] != ~tag ||
	    words(page)[page % 509 + 1] != tag + 1)
		fail("%s: page %lu version %u reads %lx %lx %lx", who, page, version,
		     (long)words(page)[0], (long)~words(page)[511],
		     (long)words(page)[page % 509 + 1] - 1);
}

/* Owns every OWNERS-th page: knows what is in it, and changes it. */
static void *owner(void *arg)
{
	unsigned long number = (uintptr_t)arg, page, left = 0;
	uint32_t *versions = calloc(st.pages, sizeof(*versions));
	uint64_t seed = 77 + number;

	for (page = number; page < st.pages; page += OWNERS)
		write_page(page, 0);
	__atomic_add_fetch(&st.written, 1, __ATOMIC_RELEASE);
	while (!st.stop && failures < 20) {
		page = next(&seed) % (st.pages / OWNERS) * OWNERS + number;
		check_page(page, versions[page], "owner");
		write_page(page, ++versions[page]);
		__atomic_add_fetch(&st.checks, 1, __ATOMIC_RELAXED);
		if (++left % 64 == 0)
			usleep(500);
	}
	for (page = number; page < st.pages; page += OWNERS)
		check_page(page, versions[page], "at the end");
	free(versions);
	return NULL;
}

/* Moves data between the nodes. */
static void *mover(void *arg)
{
	uint64_t seed = 5;
	void *pages[64];
	(void)arg;

	while (!st.stop) {
		unsigned long first = next(&seed) % (st.pages - 64);

		for (int i = 0; i < 64; i++)
			pages[i] = st.p + (first + i) * PAGE;
		move_to(pages, 64, next(&seed) & 1);
		__atomic_add_fetch(&st.moves, 64, __ATOMIC_RELAXED);
		usleep(2000);
	}
	return NULL;
}

/* Pushes pages out to swap, whence the owners take them in again. */
static void *reclaimer(void *arg)
{
	uint64_t seed = 6;
	(void)arg;

	while (!st.stop) {
		unsigned long first = next(&seed) % (st.pages - 32);

		madvise(st.p + first * PAGE, 32 * PAGE, MADV_PAGEOUT);
		__atomic_add_fetch(&st.pageouts, 32, __ATOMIC_RELAXED);
		usleep(5000);
	}
	return NULL;
}

/* Children share the pages for a while and look at them; memory is written to meanwhile. */
static void *forker(void *arg)
{
	uint64_t seed = 7;
	(void)arg;

	while (!st.stop) {
		int status;
		pid_t pid = fork();

		if (!pid) {
			for (int i = 0; i < 50; i++) {
				unsigned long page = next(&seed) % st.pages;
				uint64_t word = *(volatile uint64_t *)words(page);

				/* Not yet written, or this page's. */
				if (word && word >> 32 != page)
					_exit(1);
				words(page)[2] = word;
			}
			_exit(0);
		}
		next(&seed);
		waitpid(pid, &status, 0);
		CHECK(!status, "a child saw another page's data");
		__atomic_add_fetch(&st.forks, 1, __ATOMIC_RELAXED);
		usleep(50000);
	}
	return NULL;
}

/* Maps, unmaps, remaps, protects and reads by another way, in the same tables. */
static void *churner(void *arg)
{
	const unsigned long n = 64;
	char *a = map(4 * HUGE, false) + HUGE - n / 2 * PAGE, *b = a + 2 * HUGE;
	uint64_t seed = 8;
	(void)arg;

	while (!st.stop) {
		uint64_t tag = next(&seed);
		char *moved;

		for (unsigned long i = 0; i < n; i++)
			*(uint64_t *)(a + i * PAGE) = tag + i;
		mprotect(a, n * PAGE, PROT_READ);
		mprotect(a, n * PAGE, PROT_READ | PROT_WRITE);
		moved = mremap(a, n * PAGE, n * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, b);
		if (moved != b) {
			fail("mremap: %s", strerror(errno));
			break;
		}
		for (unsigned long i = 0; i < n; i++) {
			uint64_t word = 0;
			struct iovec to = { &word, 8 }, from = { b + i * PAGE, 8 };

			if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) != 8 || word != tag + i)
				fail("after mremap page %lu reads %lx, not %lx", i, (long)word,
				     (long)(tag + i));
		}
		madvise(b, n / 2 * PAGE, MADV_DONTNEED);
		for (unsigned long i = 0; i < n; i++)
			if (*(uint64_t *)(b + i * PAGE) != (i < n / 2 ? 0 : tag + i))
				fail("after DONTNEED page %lu reads %lx", i,
				     (long)*(uint64_t *)(b + i * PAGE));
		munmap(b, n * PAGE);
		if (mmap(a, n * PAGE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != a)
			fail("mmap: %s", strerror(errno));
		usleep(3000);
	}
	return NULL;
}

/*
 * A page freed lazily and then written is dirty, and only a Dirty bit says so.  If
 * it is lost, reclaim drops the page.
 */
static void *lazy(void *arg)
{
	const unsigned long n = 256;
	char *p = map(HUGE, false);
	uint64_t version = 1;
	(void)arg;

	st.lazy = p;
	while (!st.stop) {
		unsigned long i, lost = 0;

		for (i = 0; i < n; i++)
			*(volatile uint64_t *)(p + i * PAGE) = version;
		madvise(p, n * PAGE, MADV_FREE);
		for (i = 0; i < n; i++) {
			*(volatile uint64_t *)(p + i * PAGE) = version + i;
			/* Long enough for a move of the table to come between. */
			for (volatile int spin = 0; spin < 2000; spin++)
				;
		}
		madvise(p, n * PAGE, MADV_PAGEOUT);
		for (i = 0; i < n; i++)
			if (*(volatile uint64_t *)(p + i * PAGE) != version + i)
				lost++;
		if (lost)
			fail("lazy: %lu of %lu writes lost", lost, n);
		version += n;
		usleep(1000);
	}
	return NULL;
}

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
static void begin_lazy(void)
{
	memset(&st, 0, sizeof(st));
	st.pages = 512;
	st.p = map(HUGE, false);
	start(lazy, NULL);
	while (!*(char *volatile *)&st.lazy)
		usleep(1000);
}

static unsigned long move_lazy_table(unsigned long wanted)
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

static void begin_stress(unsigned long pages, bool all)
{
	memset(&st, 0, sizeof(st));
	st.pages = pages;
	st.p = map(pages * PAGE, false);
	for (uintptr_t i = 0; i < OWNERS; i++)
		start(owner, (void *)i);
	/* What is not there yet can be neither moved nor lost. */
	while (__atomic_load_n(&st.written, __ATOMIC_ACQUIRE) < OWNERS)
		usleep(1000);
	start(lazy, NULL);
	if (!all)
		return;
	start(mover, NULL);
	start(reclaimer, NULL);
	start(forker, NULL);
	start(churner, NULL);
}

static void end_stress(void)
{
	finish();
	munmap(st.p, st.pages * PAGE);
}

/*
 * What the kernel complained of since the last time that this was called: a failure, too.
 */
static void check_log(void);

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
static unsigned long move_stale_table(unsigned long wanted, unsigned int most)
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
static void test_pt_stale(void)
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
static void test_pt_late(void)
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

static void test_pt_stress(void)
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

enum scenario { LAZY, STALE };

/* With these faults, the same stress must fail. */
static void faulty(const char *fault, const char *other, const char *delay, const char *us,
		   enum scenario scenario)
{
	unsigned long moved;
	double begun = now();

	if (!debug(fault, "1") || (other && !debug(other, "1"))) {
		fail("no /sys/kernel/debug/tiermem/%s: is CONFIG_TIERMEM_DEBUG on?", fault);
		return;
	}
	debug(delay, us);
	if (scenario == LAZY) {
		begin_lazy();
		moved = move_lazy_table(count ? count : 100000);
		end_stress();
	} else {
		moved = move_stale_table(count ? count : 100000, seconds);
	}
	debug(delay, "0");
	debug(fault, "0");
	if (other)
		debug(other, "0");
	printf("# the stress noticed %u times, after %lu table moves and %.0f s\n", failures, moved,
	       now() - begun);
	if (failures)
		failures = 0;
	else
		fail("the stress did not notice %s", fault);
}

static void test_fault_order(void)
{
	faulty("fault_pt_order", NULL, "delay_pt_switch_us", "3000", LAZY);
}

static void test_fault_merge(void)
{
	faulty("fault_pt_merge", NULL, "delay_pt_switch_us", "3000", LAZY);
}

/* A walk that does not look again edits the table that has gone. */
static void test_fault_poison(void)
{
	faulty("fault_pt_poison", "fault_map_pte", "delay_map_pte_us", "2000", STALE);
}

/* A walk reads a table that has been freed: this one the kernel notices. */
static void test_fault_free(void)
{
	faulty("fault_pt_free", NULL, "delay_pt_lookup_us", "2000", STALE);
}

/* --- exchange ------------------------------------------------------------ */

static void check_exchange(bool huge)
{
	const unsigned long n = huge ? 8 : 512, step = huge ? HUGE : PAGE;
	char *p = map(2 * n * step, huge), *q = p + n * step;
	long done = vmstat("pgexchange_success");
	uint64_t a[512], b[512];
	int32_t status[512];
	unsigned long i, bad = 0, at;
	int exchanged;

	for (i = 0; i < 2 * n; i++)
		for (at = 0; at < step; at += 512)
			*(uint64_t *)(p + i * step + at) = i << 32 | at;
	move_range(p, n * step, step, 0);
	move_range(q, n * step, step, 1);
	for (i = 0; i < n; i++) {
		a[i] = (uintptr_t)p + i * step;
		b[i] = (uintptr_t)q + i * step;
	}
	exchanged = exchange(a, b, n, status);
	CHECK(exchanged == (int)n, "%d of %lu pairs exchanged, the first says %d", exchanged, n,
	      status[0]);
	for (i = 0; i < n; i++) {
		CHECK(node_of((void *)a[i]) == 1, "page %lu is on node %d", i, node_of((void *)a[i]));
		CHECK(node_of((void *)b[i]) == 0, "page %lu is on node %d", i, node_of((void *)b[i]));
	}
	for (i = 0; i < 2 * n; i++)
		for (at = 0; at < step; at += 512)
			bad += *(uint64_t *)(p + i * step + at) != (i << 32 | at);
	CHECK(!bad, "%lu words are wrong", bad);
	CHECK(vmstat("pgexchange_success") - done == (long)(n * step / PAGE), "pgexchange_success");
	/* They can still be written to, shared, and given back. */
	memset(p, 3, 2 * n * step);
	munmap(p, 2 * n * step);
}

static void test_exchange(void)
{
	check_exchange(false);
}

static void test_exchange_huge(void)
{
	check_exchange(true);
}

static void test_exchange_refusals(void)
{
	char *p = map(2 * HUGE, false), *huge = map(2 * HUGE, true), *file;
	uint64_t a[5], b[5];
	int32_t status[5] = {};
	int fd = memfd_create("tiermem", 0);

	if (ftruncate(fd, PAGE))
		fail("ftruncate");
	file = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	file[0] = 1;
	memset(p, 1, HUGE);
	memset(huge, 1, HUGE);
	move_range(p, 64 * PAGE, PAGE, 0);
	move_range(p + 64 * PAGE, 64 * PAGE, PAGE, 1);
	a[0] = (uintptr_t)p;
	b[0] = (uintptr_t)p + PAGE;		/* one node */
	a[1] = (uintptr_t)p + 2 * PAGE;
	b[1] = (uintptr_t)file;			/* not anonymous */
	a[2] = (uintptr_t)p + 3 * PAGE;
	b[2] = 0x1000;				/* no mapping */
	a[3] = (uintptr_t)p + 4 * PAGE;
	b[3] = (uintptr_t)p + HUGE;		/* nothing there */
	a[4] = (uintptr_t)p + 70 * PAGE;
	b[4] = (uintptr_t)huge;			/* another size */
	CHECK(exchange(a, b, 5, status) == 0, "some were exchanged");
	CHECK(status[0] == -EINVAL, "one node: %d", status[0]);
	CHECK(status[1] == -EOPNOTSUPP, "a file: %d", status[1]);
	CHECK(status[2] == -EFAULT, "no mapping: %d", status[2]);
	CHECK(status[3] == -ENOENT, "nothing there: %d", status[3]);
	CHECK(status[4] == -EOPNOTSUPP, "two sizes: %d", status[4]);
	/* The same page twice in a call: the second comes too late. */
	a[0] = a[1] = (uintptr_t)p;
	b[0] = (uintptr_t)p + 64 * PAGE;
	b[1] = (uintptr_t)p + 65 * PAGE;
	CHECK(exchange(a, b, 2, status) == 1 && status[1] == -EBUSY, "twice: %d %d", status[0],
	      status[1]);
	close(fd);
	munmap(file, PAGE);
	munmap(p, 2 * HUGE);
	munmap(huge, 2 * HUGE);
}

static unsigned long exchange_randomly(unsigned long wanted)
{
	double begun = now();
	unsigned long done = 0;
	uint64_t seed = 9, a[128], b[128];
	int32_t status[128];

	/* Half of the pages on either node, as far as the others let them. */
	move_range(st.p, st.pages / 2 * PAGE, PAGE, 0);
	move_range(st.p + st.pages / 2 * PAGE, st.pages / 2 * PAGE, PAGE, 1);
	while (done < wanted && failures < 20 && now() - begun < seconds) {
		int err;

		for (int i = 0; i < 128; i++) {
			a[i] = (uintptr_t)st.p + next(&seed) % (st.pages / 2) * PAGE;
			b[i] = (uintptr_t)st.p + (st.pages / 2 + next(&seed) % (st.pages / 2)) * PAGE;
		}
		err = exchange(a, b, 128, status);
		if (err < 0) {
			fail("TM_EXCHANGE: %s", strerror(-err));
			break;
		}
		done += err;
		usleep(1000);
	}
	return done;
}

static void test_exchange_stress(void)
{
	const unsigned long wanted = count ? count : 5000;
	unsigned long done;
	double begun = now();

	debug("delay_exchange_us", "50");
	begin_stress(4096, true);
	done = exchange_randomly(wanted);
	end_stress();
	debug("delay_exchange_us", "0");
	printf("# %lu pairs, %lu checks, %lu data moves, %lu forks, %lu page-outs in %.0f s\n", done,
	       st.checks, st.moves, st.forks, st.pageouts, now() - begun);
	CHECK(done >= wanted, "only %lu exchanges in time", done);
}

static void test_fault_exchange(void)
{
	unsigned long done;

	if (!debug("fault_exchange_copy", "1")) {
		fail("is CONFIG_TIERMEM_DEBUG on?");
		return;
	}
	begin_stress(4096, false);
	done = exchange_randomly(count ? count : 1000);
	end_stress();
	debug("fault_exchange_copy", "0");
	printf("# the stress noticed %u times, after %lu pairs\n", failures, done);
	if (failures)
		failures = 0;
	else
		fail("the stress did not notice");
}

/* --- migration ----------------------------------------------------------- */

static int migrate(uint64_t *addrs, unsigned int n, int node, int32_t *status)
{
	struct tm_migrate arg = {
		.size = sizeof(arg), .pidfd = TM_SELF, .count = n, .node = node,
		.addrs = (uintptr_t)addrs, .status = (uintptr_t)status,
	};
	int err = ioctl(device, TM_MIGRATE, &arg);

	return err ? -errno : (int)arg.moved;
}

static void copying(const char *threads, const char *min_kb, const char *batch)
{
	CHECK(put("/sys/kernel/mm/tiermem/copy_min_kb", min_kb) &&
	      put("/sys/kernel/mm/tiermem/copy_batch_pages", batch) &&
	      put("/sys/kernel/mm/tiermem/copy_threads", threads), "copy settings");
}

static void check_migrate(bool huge, const char *threads)
{
	const unsigned long n = huge ? 16 : 4096, step = huge ? HUGE : PAGE;
	char *p = map(n * step, huge);
	uint64_t *addrs = malloc(n * sizeof(*addrs));
	int32_t *status = malloc(n * sizeof(*status));
	long early = vmstat("migrate_batch_copy"), helped = vmstat("migrate_copy_helped");
	long split = vmstat("thp_migration_split");
	unsigned long i, at, bad = 0;
	int moved;

	copying(threads, "64", "4096");
	for (i = 0; i < n; i++) {
		addrs[i] = (uintptr_t)p + i * step;
		for (at = 0; at < step; at += 1024)
			*(uint64_t *)(p + i * step + at) = i << 32 | at;
	}
	for (int node = 1; node >= 0; node--) {
		moved = migrate(addrs, n, node, status);
		CHECK(moved == (int)n, "%d of %lu to node %d", moved, n, node);
		for (i = 0; i < n; i++)
			if (status[i] || node_of((void *)addrs[i]) != node) {
				fail("page %lu: status %d, on node %d", i, status[i],
				     node_of((void *)addrs[i]));
				break;
			}
	}
	for (i = 0; i < n; i++)
		for (at = 0; at < step; at += 1024)
			bad += *(uint64_t *)(p + i * step + at) != (i << 32 | at);
	CHECK(!bad, "%lu words are wrong", bad);
	early = vmstat("migrate_batch_copy") - early;
	helped = vmstat("migrate_copy_helped") - helped;
	if (atoi(threads)) {
		/* The first move may have found some pages there already. */
		CHECK(early >= (long)(n * step / PAGE), "%ld pages copied in batches", early);
		CHECK(!helped == (atoi(threads) == 1), "%ld pages copied by helpers", helped);
	} else {
		CHECK(!early, "%ld pages copied in batches although that is off", early);
	}
	CHECK(vmstat("thp_migration_split") == split, "huge pages were split");
	copying("0", "1024", "512");
	free(addrs);
	free(status);
	munmap(p, n * step);
}

static void test_migrate(void)
{
	static const char * const threads[] = { "0", "1", "4" };

	for (int i = 0; i < 3; i++) {
		check_migrate(false, threads[i]);
		check_migrate(true, threads[i]);
	}
}

static void test_migrate_stress(void)
{
	const unsigned long wanted = count ? count : 20000;
	uint64_t addrs[1024], seed = 10;
	int32_t status[1024];
	unsigned long done = 0;
	double begun = now();

	copying("4", "16", "2048");
	begin_stress(4096, true);
	while (done < wanted && failures < 20 && now() - begun < seconds) {
		int err, node = next(&seed) & 1;

		for (int i = 0; i < 1024; i++)
			addrs[i] = (uintptr_t)st.p + next(&seed) % st.pages * PAGE;
		/* Those that were there already are not counted. */
		for (int i = 0; i < 1024; i++)
			done += node_of((void *)addrs[i]) == !node;
		err = migrate(addrs, 1024, node, status);
		if (err < 0) {
			fail("TM_MIGRATE: %s", strerror(-err));
			break;
		}
		usleep(1000);
	}
	end_stress();
	copying("0", "1024", "512");
	printf("# %lu pages, %ld copied in batches, %ld by helpers, %lu checks in %.0f s\n", done,
	       vmstat("migrate_batch_copy"), vmstat("migrate_copy_helped"), st.checks,
	       now() - begun);
	CHECK(done >= wanted, "only %lu pages in time", done);
}

/* --- scans --------------------------------------------------------------- */

static int scan(void *start, unsigned long len, unsigned int flags,
		struct tm_scan_entry *entries, unsigned int n)
{
	struct tm_scan arg = {
		.size = sizeof(arg), .pidfd = TM_SELF, .start = (uintptr_t)start, .len = len,
		.entries = (uintptr_t)entries, .nr_entries = n, .flags = flags,
	};
	int err = ioctl(device, TM_SCAN, &arg);

	if (!err && arg.filled < n)
		CHECK(arg.next == (uintptr_t)start + len, "stopped at %lx", (long)arg.next);
	return err ? -errno : (int)arg.filled;
}

/* Bits are set by those who miss in the TLB: let everybody miss. */
static void forget(char *p, unsigned long len)
{
	mprotect(p, len, PROT_READ);
	mprotect(p, len, PROT_READ | PROT_WRITE);
}

/* Lets multi-gen LRU look at, and clear, all accessed bits. */
static bool age(void)
{
	static char text[1 << 16];
	int fd = open("/sys/kernel/debug/lru_gen", O_RDWR), node = -1;
	unsigned long memcg = 0, gen, newest = 0;
	bool any = false;
	char *line, *at;
	ssize_t n;

	if (fd < 0)
		return false;
	n = read(fd, text, sizeof(text) - 1);
	text[n > 0 ? n : 0] = 0;
	for (line = strtok_r(text, "\n", &at); ; line = strtok_r(NULL, "\n", &at)) {
		bool head = !line || strstr(line, "node") || strstr(line, "memcg");

		if (head && node >= 0) {
			char order[64];

			snprintf(order, sizeof(order), "+ %lu %d %lu 1 1", memcg, node, newest);
			any |= write(fd, order, strlen(order)) > 0;
			node = -1;
		}
		if (!line)
			break;
		if (sscanf(line, " memcg %lu", &memcg) == 1 || sscanf(line, " node %d", &node) == 1)
			newest = 0;
		else if (sscanf(line, "%lu", &gen) == 1 && gen > newest)
			newest = gen;
	}
	close(fd);
	return any;
}

static void test_scan(void)
{
	const unsigned long windows = 4, pages = windows * 512;
	char *p = map(windows * HUGE, false), *huge = map(2 * HUGE, true);
	struct tm_scan_entry e[8];
	unsigned long i, wrong = 0;
	long saved;

	memset(p, 1, windows * HUGE);
	memset(huge, 1, HUGE);
	move_range(p, HUGE, PAGE, 0);
	move_range(p + HUGE, HUGE, PAGE, 1);
	CHECK(scan(p, windows * HUGE, TM_SCAN_CLEAR, e, 8) == (int)windows, "entries");
	CHECK(e[0].present == 512 && e[0].fast == 512 && !e[0].flags, "%u present, %u fast",
	      e[0].present, e[0].fast);
	CHECK(e[1].present == 512 && e[1].fast == 0, "%u present, %u fast", e[1].present, e[1].fast);
	forget(p, windows * HUGE);
	for (i = 0; i < pages; i += 5)
		((volatile char *)p)[i * PAGE]++;
	/* Without clearing it can be asked again. */
	for (int round = 0; round < 2; round++) {
		CHECK(scan(p, windows * HUGE, round ? TM_SCAN_CLEAR : 0, e, 8) == (int)windows,
		      "entries");
		for (i = 0; i < pages; i++)
			wrong += (e[i / 512].bits[i % 512 / 64] >> i % 64 & 1) != (i % 5 == 0);
		CHECK(!wrong, "%lu bits are wrong", wrong);
		for (i = 0; i < windows; i++) {
			unsigned int sum = 0;

			for (int k = 0; k < 32; k++)
				sum += e[i].by_64k[k];
			CHECK(sum == e[i].accessed && sum >= 102 && sum <= 103, "%u, %u", sum,
			      e[i].accessed);
		}
	}
	CHECK(scan(p, windows * HUGE, 0, e, 8) == (int)windows && !e[0].accessed, "not cleared");

	CHECK(scan(huge, 2 * HUGE, TM_SCAN_CLEAR, e, 8) == 1, "one huge page");
	CHECK(e[0].flags == TM_SCAN_HUGE && e[0].present == 512 && e[0].accessed == 512,
	      "flags %u, %u present, %u accessed", e[0].flags, e[0].present, e[0].accessed);
	CHECK(scan(huge, 2 * HUGE, 0, e, 8) == 1 && !e[0].accessed, "huge: not cleared");
	CHECK(scan(p, windows * HUGE, 0, e, 2) == 2, "as many as there is room for");

	/* Reclaim clears the bits first; under watch they are not lost. */
	CHECK(scan(p, windows * HUGE, TM_SCAN_CLEAR | TM_SCAN_WATCH, e, 8) == (int)windows, "watch");
	forget(p, windows * HUGE);
	for (i = 0; i < pages; i += 5)
		((volatile char *)p)[i * PAGE]++;
	saved = vmstat("tiermem_scan_saved");
	if (!age()) {
		printf("# no multi-gen LRU to compete with\n");
	} else {
		age();
		wrong = 0;
		scan(p, windows * HUGE, TM_SCAN_CLEAR, e, 8);
		for (i = 0; i < pages; i++)
			wrong += (e[i / 512].bits[i % 512 / 64] >> i % 64 & 1) != (i % 5 == 0);
		CHECK(!wrong, "%lu bits are wrong after reclaim has looked at them", wrong);
		CHECK(vmstat("tiermem_scan_saved") > saved, "reclaim took none: the test is void");
		printf("# %ld bits were kept from reclaim\n", vmstat("tiermem_scan_saved") - saved);
	}
	CHECK(scan(p, windows * HUGE, TM_SCAN_UNWATCH, e, 0) == 0, "unwatch");
	munmap(p, windows * HUGE);
	munmap(huge, 2 * HUGE);
}

/* The stress alone, as a control: what it finds here is its own fault. */
static void test_control(void)
{
	begin_stress(4096, true);
	sleep(10);
	end_stress();
	printf("# %lu checks, %lu data moves, %lu forks, %lu page-outs\n", st.checks, st.moves,
	       st.forks, st.pageouts);
}

/* --- */

static const struct {
	const char *name;
	void (*run)(void);
	uint64_t feature;
	bool by_name_only;
} tests[] = {
	{ "abi", test_abi, TM_FEATURE_PT_POLICY | TM_FEATURE_PT_MIGRATE, false },
	{ "policy", test_policy, TM_FEATURE_PT_POLICY, false },
	{ "pt-move", test_pt_move, TM_FEATURE_PT_MIGRATE, false },
	{ "pt-follow", test_pt_follow, TM_FEATURE_PT_MIGRATE, false },
	{ "pt-tenants", test_pt_tenants, TM_FEATURE_PT_MIGRATE, false },
	{ "exchange", test_exchange, TM_FEATURE_EXCHANGE, false },
	{ "exchange-huge", test_exchange_huge, TM_FEATURE_EXCHANGE, false },
	{ "exchange-refusals", test_exchange_refusals, TM_FEATURE_EXCHANGE, false },
	{ "migrate", test_migrate, TM_FEATURE_MIGRATE, false },
	{ "scan", test_scan, TM_FEATURE_SCAN, false },
	{ "control", test_control, 0, false },
	{ "migrate-stress", test_migrate_stress, TM_FEATURE_MIGRATE, false },
	{ "pt-late", test_pt_late, TM_FEATURE_PT_MIGRATE | TM_FEATURE_DEBUG, false },
	{ "pt-stale", test_pt_stale, TM_FEATURE_PT_MIGRATE | TM_FEATURE_DEBUG, false },
	{ "pt-stress", test_pt_stress, TM_FEATURE_PT_MIGRATE, false },
	{ "exchange-stress", test_exchange_stress, TM_FEATURE_EXCHANGE, false },
	{ "fault-order", test_fault_order, TM_FEATURE_DEBUG, true },
	{ "fault-merge", test_fault_merge, TM_FEATURE_DEBUG, true },
	{ "fault-poison", test_fault_poison, TM_FEATURE_DEBUG, true },
	{ "fault-free", test_fault_free, TM_FEATURE_DEBUG, true },
	{ "fault-exchange", test_fault_exchange, TM_FEATURE_DEBUG, true },
};

#define NR_TESTS (sizeof(tests) / sizeof(tests[0]))

/* Pages that are pushed out need somewhere to go. */
static void add_swap(void)
{
	static char page[PAGE];
	struct stat s;
	uint32_t *header = (uint32_t *)(page + 1024);
	int fd = open("/dev/ram0", O_RDWR);
	off_t bytes;

	if (fd < 0 || fstat(fd, &s))
		return;
	bytes = lseek(fd, 0, SEEK_END);
	header[0] = 1;				/* version */
	header[1] = bytes / PAGE - 1;		/* last page */
	memcpy(page + PAGE - 10, "SWAPSPACE2", 10);
	if (pwrite(fd, page, PAGE, 0) == (ssize_t)PAGE && !fsync(fd))
		swapon("/dev/ram0", 0);
	close(fd);
}

static void check_log(void)
{
	static const char * const words[] = {
		"BUG:", "WARNING:", "Bad page", "Bad rss-counter", "KASAN", "kernel BUG",
		"possible recursive locking", "circular locking", "soft lockup",
	};
	static int fd = -1;
	char record[8192];
	ssize_t n;

	if (fd < 0)
		fd = open("/dev/kmsg", O_RDONLY | O_NONBLOCK);
	while (fd >= 0 && ((n = read(fd, record, sizeof(record) - 1)) > 0 || errno == EPIPE)) {
		if (n <= 0)
			continue;
		record[n] = 0;
		for (unsigned int i = 0; i < sizeof(words) / sizeof(words[0]); i++)
			if (strstr(record, words[i])) {
				fail("the kernel says %s", record);
				break;
			}
	}
}

int main(int argc, char **argv)
{
	struct tm_info info = { .size = sizeof(info) };
	unsigned int passed = 0, failed = 0, skipped = 0, number = 0;
	int option;

	self = "/proc/self/exe";
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc == 4 && !strcmp(argv[1], "--entry-tables")) {
		device = atoi(argv[3]);
		return entry_tables(atoi(argv[2]));
	}
	while ((option = getopt(argc, argv, "n:s:")) != -1) {
		switch (option) {
		case 'n':
			count = strtoul(optarg, NULL, 0);
			break;
		case 's':
			seconds = atoi(optarg);
			break;
		default:
			fprintf(stderr, "usage: %s [-n COUNT] [-s SECONDS] [TEST...]\n", argv[0]);
			return 2;
		}
	}
	device = open("/dev/tiermem", O_RDWR);
	if (device < 0 || ioctl(device, TM_INFO, &info)) {
		printf("1..0 # SKIP /dev/tiermem: %s\n", strerror(errno));
		return 4;
	}
	/* Nothing that is mapped later is there before it is asked for. */
	add_swap();
	put("/sys/kernel/mm/transparent_hugepage/enabled", "madvise");

	for (unsigned int i = 0; i < NR_TESTS; i++) {
		bool named = optind == argc && !tests[i].by_name_only;

		for (int j = optind; j < argc; j++)
			named |= !strcmp(argv[j], tests[i].name);
		if (!named)
			continue;
		number++;
		if (tests[i].feature & ~info.features) {
			printf("ok %u %s # SKIP this kernel has no such mechanism\n", number,
			       tests[i].name);
			skipped++;
			continue;
		}
		failures = 0;
		tests[i].run();
		if (!tests[i].by_name_only)
			check_log();
		printf("%s %u %s\n", failures ? "not ok" : "ok", number, tests[i].name);
		if (failures)
			failed++;
		else
			passed++;
	}
	if (!number) {
		fprintf(stderr, "no such test\n");
		return 2;
	}
	printf("1..%u\n# %u passed, %u failed, %u skipped\n", number, passed, failed, skipped);
	return failed != 0;
}
