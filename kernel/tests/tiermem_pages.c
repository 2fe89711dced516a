// SPDX-License-Identifier: GPL-2.0
/* Pages: exchange, and migration of lists that are copied together. */
#include "tiermem_test.h"

#include <linux/userfaultfd.h>
#include <poll.h>

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
		CHECK(node_of((void *)a[i]) == 1, "page %lu is on node %d", i,
		      node_of((void *)a[i]));
		CHECK(node_of((void *)b[i]) == 0, "page %lu is on node %d", i,
		      node_of((void *)b[i]));
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

void test_exchange(void)
{
	check_exchange(false);
}

void test_exchange_huge(void)
{
	check_exchange(true);
}

void test_exchange_refusals(void)
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
	a[0] = (uintptr_t)p;
	a[1] = a[0];
	b[0] = (uintptr_t)p + 64 * PAGE;
	b[1] = (uintptr_t)p + 65 * PAGE;
	CHECK(exchange(a, b, 2, status) == 1 && status[1] == -EBUSY, "twice: %d %d", status[0],
	      status[1]);
	close(fd);
	munmap(file, PAGE);
	munmap(p, 2 * HUGE);
	munmap(huge, 2 * HUGE);
}

unsigned long exchange_randomly(unsigned long wanted)
{
	double begun = now();
	unsigned long done = 0;
	uint64_t seed = 9, a[128], b[128];
	int32_t status[128];

	/* Of threads enough to starve it, the one that the test is about goes first. */
	setpriority(PRIO_PROCESS, gettid(), -10);
	/* Half of the pages on either node, as far as the others let them. */
	move_range(st.p, st.pages / 2 * PAGE, PAGE, 0);
	move_range(st.p + st.pages / 2 * PAGE, st.pages / 2 * PAGE, PAGE, 1);
	while (done < wanted && failures < 20 && now() - begun < seconds) {
		int err;

		for (int i = 0; i < 128; i++) {
			a[i] = (uintptr_t)st.p + next(&seed) % (st.pages / 2) * PAGE;
			b[i] = (uintptr_t)st.p + st.pages / 2 * PAGE +
			       next(&seed) % (st.pages / 2) * PAGE;
		}
		err = exchange(a, b, 128, status);
		if (err < 0) {
			fail("TM_EXCHANGE: %s", strerror(-err));
			break;
		}
		done += err;
		usleep(1000);
	}
	setpriority(PRIO_PROCESS, gettid(), 0);
	return done;
}

void test_exchange_stress(void)
{
	const unsigned long wanted = count ? count : 5000;
	unsigned long done;
	double begun = now();

	debug("delay_exchange_us", "50");
	begin_stress(4096, true);
	done = exchange_randomly(wanted);
	end_stress();
	debug("delay_exchange_us", "0");
	printf("# %lu pairs, %lu checks, %lu data moves, %lu forks, %lu page-outs in %.0f s\n",
	       done, st.checks, st.moves, st.forks, st.pageouts, now() - begun);
	CHECK(done >= wanted, "only %lu exchanges in time", done);
}

#define HUGE_PAGES	16UL
#define SPLIT_EVERY	4UL	/* one of so many is split, and put together again */

/* Of so many pairs, with so many base pages in them, how many were of huge pages. */
unsigned long pairs_of_huge(unsigned long pairs, unsigned long pages)
{
	return (pages - pairs) / (HUGE / PAGE - 1);
}

/* Splits huge pages, by children and by page-outs, and puts them together again. */
static void *splitter(void *arg)
{
	unsigned long turn = 0;
	uint64_t seed = 14;
	(void)arg;

	while (!st.stop) {
		unsigned long first = next(&seed) % HUGE_PAGES / SPLIT_EVERY * SPLIT_EVERY;
		pid_t pid = fork();
		int status;

		/* The owners write meanwhile: what they share is split. */
		if (!pid) {
			for (int i = 0; i < 50; i++) {
				unsigned long page = next(&seed) % HUGE_PAGES /
						     SPLIT_EVERY * SPLIT_EVERY * 512 +
						     next(&seed) % 512;

				if (*(volatile uint64_t *)words(page) >> 32 != page)
					_exit(1);
			}
			_exit(0);
		}
		waitpid(pid, &status, 0);
		CHECK(!status, "a child saw another page's data: status %x", status);
		st.forks++;
		if (++turn % 4 == 0 && !madvise(st.p + first * HUGE, 32 * PAGE, MADV_PAGEOUT))
			st.pageouts += 32;
		for (unsigned long i = 0; i < HUGE_PAGES; i += SPLIT_EVERY)
			madvise(st.p + i * HUGE, HUGE, MADV_COLLAPSE);
		usleep(1000000);
	}
	return NULL;
}

void test_exchange_huge_stress(void)
{
	const unsigned long wanted = count ? count : 200, half = HUGE_PAGES / 2;
	unsigned long done = 0, calls = 0;
	long before;
	uint64_t seed = 13, a[HUGE_PAGES / 2], b[HUGE_PAGES / 2];
	int32_t status[HUGE_PAGES / 2];
	double begun = now();

	debug("delay_exchange_us", "50");
	begin_stress_in(map(HUGE_PAGES * HUGE, true), HUGE_PAGES * HUGE / PAGE, false);
	/* Those that no child shares stay whole: to put all together takes all the time. */
	for (unsigned long i = 0; i < HUGE_PAGES; i++)
		if (i % SPLIT_EVERY)
			madvise(st.p + i * HUGE, HUGE, MADV_DONTFORK);
	start(splitter, NULL);
	while (done < wanted && failures < 20 && now() - begun < seconds) {
		unsigned long turn = next(&seed);
		int err;

		/* Half of them on either node, as far as the others let them. */
		if (calls++ % 16 == 0) {
			move_range(st.p, half * HUGE, HUGE, 0);
			move_range(st.p + half * HUGE, half * HUGE, HUGE, 1);
		}
		for (unsigned long i = 0; i < half; i++) {
			a[i] = (uintptr_t)st.p + i * HUGE;
			b[i] = (uintptr_t)st.p + (half + (i + turn) % half) * HUGE;
		}
		before = vmstat("pgexchange_success");
		err = exchange(a, b, half, status);
		if (err < 0) {
			fail("TM_EXCHANGE: %s", strerror(-err));
			break;
		}
		done += pairs_of_huge(err, vmstat("pgexchange_success") - before);
		usleep(1000);
	}
	end_stress();
	debug("delay_exchange_us", "0");
	printf("# %lu huge pairs in %lu calls, %lu checks, %lu forks, %lu page-outs in %.0f s\n",
	       done, calls, st.checks, st.forks, st.pageouts, now() - begun);
	CHECK(done >= wanted, "only %lu exchanges in time", done);
}

/* --- migration ----------------------------------------------------------- */

int migrate(uint64_t *addrs, unsigned int n, int node, int32_t *status)
{
	struct tm_migrate arg = {
		.size = sizeof(arg), .pidfd = TM_SELF, .count = n, .node = node,
		.addrs = (uintptr_t)addrs, .status = (uintptr_t)status,
	};
	int err = ioctl(device, TM_MIGRATE, &arg);

	return err ? -errno : (int)arg.moved;
}

void copying(const char *threads, const char *min_kb, const char *batch)
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

void test_migrate(void)
{
	static const char * const threads[] = { "0", "1", "4" };

	for (int i = 0; i < 3; i++) {
		check_migrate(false, threads[i]);
		check_migrate(true, threads[i]);
	}
}

/*
 * A page of hugetlb keeps flags of its own where the copying of batches keeps its mark: also
 * one that the kernel allocates for the move, as the pool of the other node is empty.
 */
void test_migrate_hugetlb(void)
{
	static const char *pool =
		"/sys/devices/system/node/node%d/hugepages/hugepages-2048kB/nr_hugepages";
	enum { PAGES = 2 };
	uint64_t addrs[PAGES], version = 0;
	int32_t status[PAGES];
	void *pages[PAGES];
	char path[128], *p;

	for (int node = 0; node < NR_NODES; node++) {
		snprintf(path, sizeof(path), pool, node);
		put(path, node ? "0" : "2");
	}
	p = mmap(NULL, PAGES * HUGE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	if (p == MAP_FAILED) {
		skip("no pages of hugetlb: %s", strerror(errno));
		return;
	}
	/* By either call, with and without threads. */
	for (int turn = 0; turn < 6; turn++) {
		unsigned long at, bad = 0;
		int node = !(turn & 1), moved = 0;

		version++;
		copying(turn < 4 ? "0" : "4", "64", "4096");
		for (at = 0; at < PAGES * HUGE; at += 1024)
			*(uint64_t *)(p + at) = version << 32 | at;
		for (int i = 0; i < PAGES; i++) {
			addrs[i] = (uintptr_t)p + i * HUGE;
			pages[i] = p + i * HUGE;
		}
		if (turn < 2) {
			CHECK(!move_to(pages, PAGES, node), "move_pages: %s", strerror(errno));
		} else {
			moved = migrate(addrs, PAGES, node, status);
			CHECK(moved == PAGES, "TM_MIGRATE: %d, status %d", moved, status[0]);
		}
		for (int i = 0; i < PAGES; i++)
			CHECK(node_of(pages[i]) == node, "page %d is on node %d, not %d", i,
			      node_of(pages[i]), node);
		for (at = 0; at < PAGES * HUGE; at += 1024)
			bad += *(uint64_t *)(p + at) != (version << 32 | at);
		CHECK(!bad, "after the %s to node %d %lu of %lu words are wrong",
		      turn < 2 ? "move_pages" : "TM_MIGRATE", node, bad, PAGES * HUGE / 1024);
	}
	copying("0", "1024", "512");
	munmap(p, PAGES * HUGE);
	snprintf(path, sizeof(path), pool, 0);
	put(path, "0");
}

/* Of the stress's pages, until so many have gone to the other node. */
unsigned long migrate_randomly(unsigned long wanted)
{
	uint64_t addrs[1024], seed = 10;
	int32_t status[1024];
	bool elsewhere[1024];
	unsigned long done = 0;
	double begun = now();

	while (done < wanted && failures < 20 && now() - begun < seconds) {
		unsigned long first = next(&seed);
		int err, node = first & 1;

		/* None twice: their number is a power of two. */
		for (int i = 0; i < 1024; i++) {
			addrs[i] = (uintptr_t)st.p + (first + i * 1021UL) % st.pages * PAGE;
			elsewhere[i] = node_of((void *)addrs[i]) == !node;
		}
		err = migrate(addrs, 1024, node, status);
		if (err < 0) {
			fail("TM_MIGRATE: %s", strerror(-err));
			break;
		}
		/* Neither those that were there already, nor those that stayed. */
		for (int i = 0; i < 1024; i++)
			done += elsewhere[i] && !status[i];
		usleep(1000);
	}
	return done;
}

void test_migrate_stress(void)
{
	const unsigned long wanted = count ? count : 20000;
	unsigned long done;
	double begun = now();

	copying("4", "16", "2048");
	begin_stress(4096, true);
	done = migrate_randomly(wanted);
	end_stress();
	copying("0", "1024", "512");
	printf("# %lu pages, %ld copied in batches, %ld by helpers, %lu checks in %.0f s\n", done,
	       vmstat("migrate_batch_copy"), vmstat("migrate_copy_helped"), st.checks,
	       now() - begun);
	CHECK(done >= wanted, "only %lu pages in time", done);
}

/* --- a list that cannot be read ------------------------------------------- */

#define FRESH	8

/* Pages that are on a list of the LRU as soon as they are there, of some that are new. */
static int fresh_on_lru(void)
{
	int pagemap = open("/proc/self/pagemap", O_RDONLY), found = 0;
	int flags = open("/proc/kpageflags", O_RDONLY);
	char *p = map(FRESH * PAGE, false);
	uint64_t entry, bits;

	memset(p, 1, FRESH * PAGE);
	for (int i = 0; i < FRESH; i++) {
		off_t at = ((uintptr_t)p / PAGE + i) * sizeof(entry);

		if (pread(pagemap, &entry, sizeof(entry), at) != sizeof(entry) ||
		    pread(flags, &bits, sizeof(bits),
			  (entry & ((1ULL << 55) - 1)) * sizeof(bits)) != sizeof(bits)) {
			fail("pagemap, kpageflags: %s", strerror(errno));
			break;
		}
		found += bits >> 5 & 1;		/* KPF_LRU */
	}
	close(pagemap);
	close(flags);
	munmap(p, FRESH * PAGE);
	return found;
}

static void *migrate_list(void *list)
{
	int32_t status[2];

	migrate(list, 2, 1, status);
	return NULL;
}

static void *exchange_list(void *list)
{
	int32_t status[2];

	exchange(list, list, 2, status);
	return NULL;
}

/* While a list cannot be read, new pages of others still join the LRU in batches. */
static void stuck_list(void *(*call)(void *), const char *name)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	struct uffdio_zeropage zero = {};
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK), found;
	struct pollfd fault = { .fd = fd, .events = POLLIN };
	pthread_t caller;
	char *list;

	list = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	reg.range.start = (uintptr_t)list;
	reg.range.len = PAGE;
	if (fd < 0 || ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &reg)) {
		fail("userfaultfd: %s", strerror(errno));
		return;
	}
	found = fresh_on_lru();
	CHECK(found < FRESH, "%s: new pages join the LRU one by one: the test is void", name);
	pthread_create(&caller, NULL, call, list);
	CHECK(poll(&fault, 1, 20000) == 1, "%s: the list is not read", name);
	found = fresh_on_lru();
	CHECK(found < FRESH, "%s: all LRU caches are off while the list is waited for", name);
	zero.range = reg.range;
	CHECK(!ioctl(fd, UFFDIO_ZEROPAGE, &zero), "zeropage: %s", strerror(errno));
	pthread_join(caller, NULL);
	close(fd);
}

void test_lists_stuck(void)
{
	stuck_list(migrate_list, "TM_MIGRATE");
	stuck_list(exchange_list, "TM_EXCHANGE");
}
