// SPDX-License-Identifier: GPL-2.0
/*
 * Batches of pages: how many are unmapped together and how often that flushes TLBs, who copies
 * them, and that a huge page goes whole or stays whole.
 */
#include "tiermem_test.h"

#define TRACING	"/sys/kernel/tracing/"
#define SETTING	"/sys/kernel/mm/tiermem/"

/* Pages of the range that are on a node. */
static unsigned long pages_at(char *p, unsigned long n, int node)
{
	void *pages[512];
	int status[512];
	unsigned long found = 0;

	for (unsigned long i = 0; i < n; i += 512) {
		unsigned long some = n - i < 512 ? n - i : 512;

		for (unsigned long k = 0; k < some; k++)
			pages[k] = p + (i + k) * PAGE;
		if (syscall(SYS_move_pages, 0, some, pages, NULL, status, 0))
			fail("move_pages: %s", strerror(errno));
		for (unsigned long k = 0; k < some; k++)
			found += status[k] == node;
	}
	return found;
}

/* --- whole or not at all -------------------------------------------------- */

/*
 * A child that takes all of a node's memory and gives back some base pages of each 2 MB.  What it
 * keeps is locked, and compaction is set to leave such pages where they are.
 */
static pid_t crumble_node(int node)
{
	const unsigned long left = 12;
	int ready[2];
	char c = 0;
	pid_t pid;

	if (pipe(ready))
		return -1;
	pid = fork();
	if (!pid) {
		static char *taken[4096];
		unsigned long mask = 1UL << node, n = 0, i, at;

		close(ready[0]);
		do {
			taken[n] = map(HUGE, false);
			syscall(SYS_mbind, taken[n], HUGE, 1 /* MPOL_PREFERRED */, &mask, 64UL,
				0UL);
			memset(taken[n], 1, HUGE);
		} while (node_of(taken[n++] + HUGE - PAGE) == node && n < 4096);
		for (i = 0; i < n; i++) {
			for (at = 0; at < HUGE; at += left * PAGE)
				madvise(taken[i] + at, PAGE, MADV_DONTNEED);
			/* Those that are there. */
			c |= syscall(SYS_mlock2, taken[i], HUGE, 1 /* MLOCK_ONFAULT */) != 0;
		}
		c = write(ready[1], c ? "n" : "y", 1) != 1;
		pause();
		_exit(c);
	}
	close(ready[1]);
	if (read(ready[0], &c, 1) != 1 || c != 'y') {
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		pid = -1;
	}
	close(ready[0]);
	return pid;
}

/* Without a free huge page on the node, a huge page stays, and is not reported as moved. */
void test_migrate_whole(void)
{
	const unsigned long n = 32, base = 64;
	char *huge = map(n * HUGE, true), *p = map(HUGE, false);
	uint64_t addrs[96];
	int32_t status[96];
	unsigned long halves = 0, untrue = 0, whole = 0, gone = 0;
	long split;
	bool swap;
	pid_t tenant;
	int moved;

	/* What the tenant does not map is not shared with it. */
	madvise(huge, n * HUGE, MADV_DONTFORK);
	madvise(p, HUGE, MADV_DONTFORK);
	for (unsigned long i = 0; i < n * 512; i++)
		*(uint64_t *)(huge + i * PAGE) = i;
	memset(p, 1, base * PAGE);
	move_range(huge, n * HUGE, HUGE, 0);
	move_range(p, base * PAGE, PAGE, 0);
	CHECK(pages_at(huge, n * 512, 0) == n * 512, "the pages do not begin on the fast node");
	for (unsigned long i = 0; i < n; i++)
		addrs[i] = (uintptr_t)huge + i * HUGE;
	for (unsigned long i = 0; i < base; i++)
		addrs[n + i] = (uintptr_t)p + i * PAGE;

	/* Neither reclaim nor compaction makes room. */
	put("/proc/sys/vm/compact_unevictable_allowed", "0");
	swap = !swapoff("/dev/ram0");
	tenant = crumble_node(1);
	if (tenant < 0) {
		fail("cannot fill the node");
		return;
	}
	split = vmstat("thp_migration_split");
	moved = migrate(addrs, n + base, 1, status);
	split = vmstat("thp_migration_split") - split;
	for (unsigned long i = 0; i < n; i++) {
		unsigned long there = pages_at(huge + i * HUGE, 512, 1);

		halves += there && there != 512;
		whole += there == 512;
		untrue += !status[i] != (there == 512);
		CHECK(!status[i] || status[i] == -ENOMEM, "huge page %lu: status %d", i, status[i]);
	}
	for (unsigned long i = 0; i < n * 512; i++)
		gone += *(uint64_t *)(huge + i * PAGE) != i;
	printf("# of %lu huge pages %lu moved, %lu in part, %lu with another status; %ld were split\n",
	       n, whole, halves, untrue, split);
	CHECK(moved >= 0, "TM_MIGRATE: %s", strerror(-moved));
	CHECK(!untrue, "%lu huge pages are not where their status says", untrue);
	CHECK(!halves && !split, "%lu huge pages went in part, %ld were split", halves, split);
	CHECK(!gone, "%lu pages are wrong", gone);
	CHECK(whole < n, "all huge pages found room: the test is void");
	/* There is room for smaller ones, also behind those in the list. */
	CHECK(pages_at(p, base, 1) == base, "%lu of %lu base pages moved", pages_at(p, base, 1),
	      base);
	kill(tenant, SIGKILL);
	waitpid(tenant, NULL, 0);
	if (swap)
		swapon("/dev/ram0", 0);
	put("/proc/sys/vm/compact_unevictable_allowed", "1");
	munmap(huge, n * HUGE);
	munmap(p, HUGE);
}

/* --- how many at once ----------------------------------------------------- */

static struct {
	bool stop;
	long most;
} sampled;

static void *sample_isolated(void *arg)
{
	(void)arg;
	while (!__atomic_load_n(&sampled.stop, __ATOMIC_ACQUIRE)) {
		long isolated = vmstat("nr_isolated_anon");

		if (isolated > sampled.most)
			sampled.most = isolated;
		usleep(500);
	}
	return NULL;
}

/* Pairs of huge pages, on either node. */
static char *huge_pairs(unsigned long n, uint64_t *a, uint64_t *b)
{
	char *p = map(2 * n * HUGE, true);

	for (unsigned long i = 0; i < 2 * n * 512; i++)
		*(uint64_t *)(p + i * PAGE) = i;
	move_range(p, n * HUGE, HUGE, 0);
	move_range(p + n * HUGE, n * HUGE, HUGE, 1);
	for (unsigned long i = 0; i < n; i++) {
		a[i] = (uintptr_t)p + i * HUGE;
		b[i] = (uintptr_t)p + (n + i) * HUGE;
	}
	return p;
}

static unsigned long wrong_words(char *p, unsigned long pages)
{
	unsigned long wrong = 0;

	for (unsigned long i = 0; i < pages; i++)
		wrong += *(uint64_t *)(p + i * PAGE) != i;
	return wrong;
}

/* Of huge pages, too, no more are out of reach at a time than of base pages. */
void test_exchange_bounded(void)
{
	const unsigned long n = 16;
	uint64_t a[16], b[16];
	int32_t status[16];
	char *p = huge_pairs(n, a, b);
	pthread_t sampler;
	int done;

	memset(&sampled, 0, sizeof(sampled));
	pthread_create(&sampler, NULL, sample_isolated, NULL);
	/* Long enough for each batch to be seen. */
	debug("delay_exchange_us", "20000");
	done = exchange(a, b, n, status);
	debug("delay_exchange_us", "0");
	__atomic_store_n(&sampled.stop, true, __ATOMIC_RELEASE);
	pthread_join(sampler, NULL);
	printf("# %d of %lu huge pairs; at most %ld pages were isolated at a time\n", done, n,
	       sampled.most);
	CHECK(done == (int)n, "%d of %lu pairs, the first says %d", done, n, status[0]);
	CHECK(sampled.most >= 512, "nothing was seen isolated: the test is void");
	/* A pair, and what counters by processor do not yet tell. */
	CHECK(sampled.most <= 2 * 512 + 512, "%ld pages were isolated at a time", sampled.most);
	CHECK(!wrong_words(p, 2 * n * 512), "words are wrong");
	munmap(p, 2 * n * HUGE);
}

/* --- flushes -------------------------------------------------------------- */

static bool spinning, stop_spinning;

/* Keeps the address space in use on another processor, without touching what moves. */
static void *spin(void *arg)
{
	cpu_set_t cpus;
	(void)arg;

	CPU_ZERO(&cpus);
	CPU_SET(1, &cpus);
	sched_setaffinity(0, sizeof(cpus), &cpus);
	__atomic_store_n(&spinning, true, __ATOMIC_RELEASE);
	while (!__atomic_load_n(&stop_spinning, __ATOMIC_RELAXED))
		;
	return NULL;
}

static void clear_trace(void)
{
	int fd = open(TRACING "trace", O_WRONLY | O_TRUNC);

	if (fd >= 0)
		close(fd);
}

static bool tracing(const char *event, bool on)
{
	char path[160];

	if (on) {
		snprintf(path, sizeof(path), "%d", (int)gettid());
		put(TRACING "set_event_pid", path);
		clear_trace();
	}
	snprintf(path, sizeof(path), TRACING "events/%s/enable", event);
	return put(path, on ? "1" : "0");
}

/*
 * Lines of the trace that say so, in capitals or not, as kernels differ, and the largest
 * number after a key in them.
 */
static unsigned int traced(const char *what, const char *key, long *largest)
{
	char line[512];
	unsigned int n = 0;
	FILE *f = fopen(TRACING "trace", "r");

	while (f && fgets(line, sizeof(line), f)) {
		char *at;

		if (line[0] == '#' || !strcasestr(line, what))
			continue;
		n++;
		at = key ? strstr(line, key) : NULL;
		if (at && atol(at + strlen(key)) > *largest)
			*largest = atol(at + strlen(key));
	}
	if (f)
		fclose(f);
	return n;
}

/*
 * Flushes are traced, of this thread on one processor while another keeps the address space in
 * use; false where there are no trace events.
 */
static bool begin_flushes(pthread_t *other)
{
	cpu_set_t cpus;

	if (!tracing("tlb/tlb_flush", true)) {
		printf("# no trace events\n");
		return false;
	}
	CPU_ZERO(&cpus);
	CPU_SET(0, &cpus);
	sched_setaffinity(0, sizeof(cpus), &cpus);
	spinning = false;
	stop_spinning = false;
	pthread_create(other, NULL, spin, NULL);
	while (!__atomic_load_n(&spinning, __ATOMIC_ACQUIRE))
		usleep(1000);
	copying("1", "1024", "8192");
	return true;
}

static void end_flushes(pthread_t other)
{
	cpu_set_t cpus;

	tracing("tlb/tlb_flush", false);
	copying("0", "1024", "512");
	stop_spinning = true;
	pthread_join(other, NULL);
	CPU_ZERO(&cpus);
	CPU_SET(0, &cpus);
	CPU_SET(1, &cpus);
	sched_setaffinity(0, sizeof(cpus), &cpus);
}

/* Huge pages of a batch are flushed together: one message to the other processors. */
void test_batch_flush(void)
{
	const unsigned long n = 4;
	uint64_t a[4], b[4];
	int32_t status[4];
	char *p = huge_pairs(n, a, b);
	unsigned int flushes;
	pthread_t other;
	int done;

	if (!begin_flushes(&other))
		return;

	clear_trace();
	done = migrate(a, n, 1, status);
	flushes = traced("remote ipi send", NULL, NULL);
	printf("# %d huge pages moved with %u flushes of other processors\n", done, flushes);
	CHECK(done == (int)n, "%d of %lu moved", done, n);
	CHECK(flushes == 1, "%u flushes for %lu huge pages", flushes, n);

	move_range(p, n * HUGE, HUGE, 0);
	clear_trace();
	done = exchange(a, b, n, status);
	flushes = traced("remote ipi send", NULL, NULL);
	printf("# %d huge pairs exchanged with %u\n", done, flushes);
	CHECK(done == (int)n, "%d of %lu pairs, the first says %d", done, n, status[0]);
	CHECK(flushes == 1, "%u flushes for %lu huge pairs", flushes, n);

	end_flushes(other);
	CHECK(!wrong_words(p, 2 * n * 512), "words are wrong");
	munmap(p, 2 * n * HUGE);
}

/* Flushes of other processors as base pages of a range go to a node, so many in a call. */
static unsigned int flushes_of(char *p, unsigned long pages, unsigned long in_a_call, int node)
{
	uint64_t addrs[512];
	int32_t status[512];
	unsigned long done = 0;

	for (unsigned long i = 0; i < pages; i++)
		addrs[i] = (uintptr_t)p + i * PAGE;
	clear_trace();
	for (unsigned long i = 0; i < pages; i += in_a_call) {
		int moved = migrate(addrs + i, in_a_call, node, status + i);

		done += moved > 0 ? moved : 0;
	}
	CHECK(done == pages, "%lu of %lu pages moved", done, pages);
	return traced("remote ipi send", NULL, NULL);
}

/*
 * A range of virtual memory goes in one operation with one flush, whatever its length and
 * wherever its pages are; page by page it takes one each.
 */
void test_range_flush(void)
{
	static const unsigned long lengths[] = { 1, 3, 16, 512 };
	char *p = map(HUGE, false);
	pthread_t other;

	for (unsigned long i = 0; i < 512; i++)
		*(uint64_t *)(p + i * PAGE) = i;
	move_range(p, HUGE, PAGE, 0);
	/* Physical memory without order: each third page has been away. */
	move_range(p, HUGE, 3 * PAGE, 1);
	move_range(p, HUGE, 3 * PAGE, 0);
	if (!begin_flushes(&other))
		return;
	/* Of pages that are still its parent's the first write is a flush, too. */
	flushes_of(p, 1, 1, 1);
	move_range(p, PAGE, PAGE, 0);
	for (unsigned int i = 0; i < ARRAY_SIZE(lengths); i++) {
		unsigned long pages = lengths[i];
		unsigned int together = flushes_of(p, pages, pages, 1);
		unsigned int each;

		move_range(p, pages * PAGE, PAGE, 0);
		each = flushes_of(p, pages, 1, 1);
		move_range(p, pages * PAGE, PAGE, 0);
		printf("# %lu pages moved with %u flushes of other processors, page by page with %u\n",
		       pages, together, each);
		CHECK(together == 1, "%u flushes for a range of %lu pages", together, pages);
		CHECK(each == pages, "%u flushes for %lu pages, one by one", each, pages);
	}
	end_flushes(other);
	CHECK(!wrong_words(p, 512), "words are wrong");
	munmap(p, HUGE);
}

/*
 * What a processor still reaches through its TLB while a huge page is under migration goes away
 * with mprotect() and mremap(): a page that was made read-only is not written to any more.
 */
static struct {
	volatile uint64_t *word;
	bool stop;
	unsigned long writes;
} writer;

static sigjmp_buf refused;

static void on_refusal(int signal)
{
	(void)signal;
	siglongjmp(refused, 1);
}

static void *write_on(void *arg)
{
	(void)arg;
	while (!__atomic_load_n(&writer.stop, __ATOMIC_ACQUIRE)) {
		if (sigsetjmp(refused, 1)) {
			usleep(200);
			continue;
		}
		for (;;) {
			(*writer.word)++;
			writer.writes++;
			if (__atomic_load_n(&writer.stop, __ATOMIC_ACQUIRE))
				break;
		}
	}
	return NULL;
}

static void *migrate_on(void *arg)
{
	uint64_t *addrs = arg;
	int32_t status[8];

	for (int node = 1; !__atomic_load_n(&writer.stop, __ATOMIC_ACQUIRE); node = !node)
		migrate(addrs, 8, node, status);
	return NULL;
}

void test_batch_protect(void)
{
	char *p = map(8 * HUGE, true);
	struct sigaction action = { .sa_handler = on_refusal }, before;
	unsigned long rounds = 0, late = 0;
	pthread_t threads[2];
	uint64_t addrs[8];
	double begun = now();

	memset(p, 0, 8 * HUGE);
	for (int i = 0; i < 8; i++)
		addrs[i] = (uintptr_t)p + i * HUGE;
	sigaction(SIGSEGV, &action, &before);
	copying("1", "1024", "8192");
	memset(&writer, 0, sizeof(writer));
	writer.word = (volatile uint64_t *)p;
	pthread_create(&threads[0], NULL, write_on, NULL);
	pthread_create(&threads[1], NULL, migrate_on, addrs);
	while (now() - begun < 10 && rounds < 300) {
		uint64_t first;

		mprotect(p, HUGE, PROT_READ);
		first = *writer.word;
		for (volatile int spin = 0; spin < 20000; spin++)
			;
		late += *writer.word != first;
		mprotect(p, HUGE, PROT_READ | PROT_WRITE);
		usleep(500);
		rounds++;
	}
	__atomic_store_n(&writer.stop, true, __ATOMIC_RELEASE);
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	sigaction(SIGSEGV, &before, NULL);
	copying("0", "1024", "512");
	printf("# %lu times made read-only beside migration, %lu writes\n", rounds, writer.writes);
	CHECK(!late, "%lu of %lu times it was written to after mprotect()", late, rounds);
	CHECK(*writer.word == writer.writes, "%lu writes, of which %lu arrived", writer.writes,
	      (long)*writer.word);
	munmap(p, 8 * HUGE);
}

/* --- threads by call ------------------------------------------------------ */

static int migrate_with(uint64_t *addrs, unsigned int n, int node, int32_t *status,
			unsigned int with)
{
	struct tm_migrate arg = {
		.size = sizeof(arg), .pidfd = TM_SELF, .count = n, .node = node, .threads = with,
		.addrs = (uintptr_t)addrs, .status = (uintptr_t)status,
	};

	return ioctl(device, TM_MIGRATE, &arg) ? -errno : (int)arg.moved;
}

static int exchange_with(uint64_t *a, uint64_t *b, unsigned int n, int32_t *status,
			 unsigned int with)
{
	struct tm_exchange arg = {
		.size = sizeof(arg), .pidfd = TM_SELF, .count = n, .a = (uintptr_t)a,
		.b = (uintptr_t)b, .status = (uintptr_t)status, .threads = with,
	};

	return ioctl(device, TM_EXCHANGE, &arg) ? -errno : (int)arg.exchanged;
}

/* A call gets the threads that it asks for, up to the limit, and nobody else any. */
void test_threads(void)
{
	static const struct {
		const char *by_default, *most;
		unsigned int asked;
		long given;
	} rows[] = {
		{ "0", "4", 4, 4 }, { "0", "2", 8, 2 }, { "3", "4", 0, 3 }, { "8", "4", 0, 4 },
		{ "0", "8", 1, 1 }, { "2", "8", 8, 8 },
	};
	const unsigned long n = 4;
	uint64_t a[4], b[4];
	int32_t status[4];
	char *p = huge_pairs(n, a, b);
	long early, threads, helped = 0;
	int done;

	copying("0", "64", "8192");
	if (!tracing("tiermem/tiermem_batch", true)) {
		fail("no trace event of a batch");
		return;
	}
	for (unsigned int i = 0; i < ARRAY_SIZE(rows); i++) {
		CHECK(put(SETTING "copy_threads", rows[i].by_default) &&
		      put(SETTING "copy_threads_max", rows[i].most), "settings");
		move_range(p, n * HUGE, HUGE, 0);
		clear_trace();
		threads = 0;
		done = migrate_with(a, n, 1, status, rows[i].asked);
		CHECK(done == (int)n, "%d of %lu moved: %d", done, n, status[0]);
		traced("tiermem_batch: copy", "threads=", &threads);
		CHECK(threads == rows[i].given, "row %u: copied by %ld threads", i, threads);
		move_range(p, n * HUGE, HUGE, 0);
		clear_trace();
		threads = 0;
		done = exchange_with(a, b, n, status, rows[i].asked);
		CHECK(done == (int)n, "%d of %lu pairs: %d", done, n, status[0]);
		traced("tiermem_batch: exchange", "threads=", &threads);
		CHECK(threads == rows[i].given, "row %u: exchanged by %ld threads", i, threads);
		traced("tiermem_batch: exchange", "helped=", &helped);
		done = exchange_with(a, b, n, status, rows[i].asked);
		CHECK(done == (int)n, "%d of %lu pairs back: %d", done, n, status[0]);
	}
	CHECK(helped > 0, "no helper ever helped to exchange");
	tracing("tiermem/tiermem_batch", false);
	/* Others migrate as they ever did. */
	CHECK(put(SETTING "copy_threads", "4"), "settings");
	early = vmstat("migrate_batch_copy");
	move_range(p, n * HUGE, HUGE, 1);
	CHECK(vmstat("migrate_batch_copy") == early, "move_pages() copied %ld pages in batches",
	      vmstat("migrate_batch_copy") - early);
	put(SETTING "copy_threads_max", "4");
	copying("0", "1024", "512");
	CHECK(!wrong_words(p, 2 * n * 512), "words are wrong");
	munmap(p, 2 * n * HUGE);
}

/* Memory that cannot be read in the middle of an exchange: all is as it was. */
void test_exchange_broken(void)
{
	const unsigned long n = 3;
	uint64_t a[3], b[3];
	int32_t status[3];
	char *p = huge_pairs(n, a, b);

	copying("0", "64", "4096");
	for (unsigned int with = 1; with <= 4; with += 3) {
		int done;

		if (!debug("fault_exchange_broken", "1")) {
			fail("is CONFIG_TIERMEM_DEBUG on?");
			break;
		}
		done = exchange_with(a, b, n, status, with);
		debug("fault_exchange_broken", "0");
		CHECK(!done, "%d pairs were exchanged", done);
		for (unsigned long i = 0; i < n; i++) {
			CHECK(status[i] == -EHWPOISON, "pair %lu: status %d", i, status[i]);
			CHECK(pages_at((char *)a[i], 512, 0) == 512 &&
			      pages_at((char *)b[i], 512, 1) == 512, "pair %lu has moved", i);
		}
		CHECK(!wrong_words(p, 2 * n * 512), "with %u threads, %lu words are wrong", with,
		      wrong_words(p, 2 * n * 512));
	}
	/* And they can still be exchanged. */
	CHECK(exchange_with(a, b, n, status, 4) == (int)n, "afterwards: %d", status[0]);
	CHECK(!wrong_words(p, 2 * n * 512), "words are wrong");
	copying("0", "1024", "512");
	munmap(p, 2 * n * HUGE);
}
