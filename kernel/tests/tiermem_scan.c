// SPDX-License-Identifier: GPL-2.0
/* Scans of accessed bits: right, and none lost whatever else happens to the pages. */
#include "tiermem_test.h"

int scan(void *start, unsigned long len, unsigned int flags,
	 struct tm_scan_entry *entries, unsigned int n)
{
	struct tm_scan arg = {
		.size = sizeof(arg), .pidfd = TM_SELF, .start = (uintptr_t)start, .len = len,
		.entries = (uintptr_t)entries, .nr_entries = n, .flags = flags,
		.entry_size = sizeof(*entries),
	};
	int err = ioctl(device, TM_SCAN, &arg);

	if (!err && arg.filled < n)
		CHECK(arg.next == (uintptr_t)start + len, "stopped at %lx", (long)arg.next);
	return err ? -errno : (int)arg.filled;
}

/* Bits are set by those who miss in the TLB: let everybody miss. */
void forget(char *p, unsigned long len)
{
	mprotect(p, len, PROT_READ);
	mprotect(p, len, PROT_READ | PROT_WRITE);
}

/* Lets all folios that wait for it join their lists. */
void drain(char *p)
{
	void *page = p;
	int node = -1, status;

	/* Moves nothing, for there is no such node. */
	syscall(SYS_move_pages, 0, 1, &page, &node, &status, MOVE);
}

/* Lets multi-gen LRU look at, and clear, all accessed bits. */
bool age(void)
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

bool is_set(const __u64 *bits, unsigned long i)
{
	return bits[i / 64] >> i % 64 & 1;
}

static unsigned int nr_active(const struct tm_scan_entry *entry)
{
	unsigned int n = 0;

	for (int k = 0; k < 8; k++)
		n += __builtin_popcountll(entry->active[k]);
	return n;
}

/* Entries of any size are filled as far as both sides know them, and no further. */
static void entries_of_other_sizes(char *p)
{
	struct {
		struct tm_scan_entry known;
		uint64_t later[3], guard;
	} e[2];
	struct tm_scan arg = {
		.size = sizeof(arg), .pidfd = TM_SELF, .start = (uintptr_t)p, .len = 2 * HUGE,
		.entries = (uintptr_t)e, .nr_entries = 2, .entry_size = sizeof(e[0]),
	};

	memset(e, 0xff, sizeof(e));
	CHECK(!ioctl(device, TM_SCAN, &arg) && arg.filled == 2, "larger entries: %s",
	      strerror(errno));
	for (int i = 0; i < 2; i++)
		CHECK(e[i].known.addr == (uintptr_t)p + i * HUGE && e[i].known.present == 512 &&
		      !e[i].later[0] && !e[i].guard, "entry %d is not in its place", i);
	arg.start = (uintptr_t)p;
	arg.entry_size = TM_SCAN_ENTRY_SIZE_VER0 - 8;
	CHECK(ioctl(device, TM_SCAN, &arg) && errno == EINVAL, "entries that are too small");
	arg.entry_size = 2 * PAGE;
	CHECK(ioctl(device, TM_SCAN, &arg) && errno == EINVAL, "entries that are too large");
}

/* On the lists of before multi-gen LRU, too. Every fifth page is active to begin with. */
static void classic_lists(char *p)
{
	static const char *enabled = "/sys/kernel/mm/lru_gen/enabled";
	struct tm_scan_entry e[2];
	unsigned long wrong = 0;

	if (!put(enabled, "0"))
		return;
	if (madvise(p, HUGE, MADV_COLD))
		fail("MADV_COLD: %s", strerror(errno));
	drain(p);
	CHECK(scan(p, 2 * HUGE, 0, e, 2) == 2, "entries");
	CHECK(!nr_active(&e[0]), "%u pages are active that were made cold", nr_active(&e[0]));
	for (unsigned long i = 0; i < 512; i++)
		wrong += is_set(e[1].active, i) != ((i + 512) % 5 == 0);
	CHECK(!wrong, "%lu pages are on the wrong list", wrong);
	put(enabled, "y");
}

void test_scan(void)
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
	CHECK(e[1].present == 512 && e[1].fast == 0, "%u present, %u fast", e[1].present,
	      e[1].fast);
	forget(p, windows * HUGE);
	for (i = 0; i < pages; i += 5)
		((volatile char *)p)[i * PAGE]++;
	/* Without clearing it can be asked again. */
	for (int round = 0; round < 2; round++) {
		CHECK(scan(p, windows * HUGE, round ? TM_SCAN_CLEAR : 0, e, 8) == (int)windows,
		      "entries");
		for (i = 0; i < pages; i++)
			wrong += is_set(e[i / 512].bits, i % 512) != (i % 5 == 0);
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

	/*
	 * Reclaim clears the bits first; under watch they are not lost.  What it finds
	 * accessed stays in the second youngest generation, where its first look left all.
	 */
	CHECK(scan(p, windows * HUGE, TM_SCAN_CLEAR | TM_SCAN_WATCH, e, 8) == (int)windows,
	      "watch");
	drain(p);
	if (!age()) {
		printf("# no multi-gen LRU to compete with\n");
	} else {
		scan(p, windows * HUGE, TM_SCAN_CLEAR, e, 8);
		forget(p, windows * HUGE);
		for (i = 0; i < pages; i += 5)
			((volatile char *)p)[i * PAGE]++;
		saved = vmstat("tiermem_scan_saved");
		age();
		wrong = 0;
		scan(p, windows * HUGE, TM_SCAN_CLEAR, e, 8);
		for (i = 0; i < pages; i++)
			wrong += is_set(e[i / 512].bits, i % 512) != (i % 5 == 0);
		CHECK(!wrong, "%lu bits are wrong after reclaim has looked at them", wrong);
		wrong = 0;
		for (i = 0; i < pages; i++)
			wrong += is_set(e[i / 512].active, i % 512) != (i % 5 == 0);
		CHECK(!wrong, "%lu pages are on the wrong list", wrong);
		CHECK(vmstat("tiermem_scan_saved") > saved, "reclaim took none: the test is void");
		printf("# %ld bits were kept from reclaim\n", vmstat("tiermem_scan_saved") - saved);
		classic_lists(p);
	}
	CHECK(scan(p, windows * HUGE, TM_SCAN_UNWATCH, e, 0) == 0, "unwatch");
	entries_of_other_sizes(p);
	munmap(p, windows * HUGE);
	munmap(huge, 2 * HUGE);
}

/*
 * The stress beside scans, and pages that are read once between two of them: whatever
 * moves those, exchanges them, moves their tables, collapses, splits and ages them
 * meanwhile, the next scan has to say that they were read.
 */
#define BEATS		4UL			/* windows of 2 MB */

static struct {
	char *p;
	pthread_mutex_t at_work;	/* held during each change of the pages */
	unsigned long changes;
} beats = { .at_work = PTHREAD_MUTEX_INITIALIZER };

/* Changes all that can be changed about the pages, but not what is in them. */
static void *shaker(void *arg)
{
	uint64_t seed = 12, a[64], b[64];
	int32_t status[64];
	(void)arg;

	while (!st.stop) {
		char *window = beats.p + next(&seed) % BEATS * HUGE;
		int node = next(&seed) & 1, err = 0;

		pthread_mutex_lock(&beats.at_work);
		switch (next(&seed) % 5) {
		case 0:
			for (int i = 0; i < 64; i++)
				a[i] = (uintptr_t)window + next(&seed) % 512 * PAGE;
			err = migrate(a, 64, node, status);
			break;
		case 1:
			for (int i = 0; i < 64; i++) {
				a[i] = (uintptr_t)beats.p + next(&seed) % (BEATS * 512) * PAGE;
				b[i] = (uintptr_t)beats.p + next(&seed) % (BEATS * 512) * PAGE;
			}
			err = exchange(a, b, 64, status);
			break;
		case 2:
			err = tables_to(window, HUGE, node, 0, NULL);
			break;
		case 3:
			madvise(window, HUGE, MADV_COLLAPSE);
			/* One that cannot be mapped with the others splits them. */
			mprotect(window, PAGE, PROT_READ);
			mprotect(window, PAGE, PROT_READ | PROT_WRITE);
			break;
		default:
			age();
		}
		pthread_mutex_unlock(&beats.at_work);
		if (err < 0)
			fail("the shaker: %s", strerror(-err));
		__atomic_add_fetch(&beats.changes, 1, __ATOMIC_RELAXED);
		usleep(200);
	}
	return NULL;
}

/* Scans everything else that there is, and what a child has until it exits. */
static void *scanner(void *arg)
{
	static struct tm_scan_entry e[64];
	uint64_t seed = 13;
	(void)arg;

	while (!st.stop) {
		struct tm_scan scan = { .size = sizeof(scan), .pidfd = TM_SELF };
		pid_t pid;

		scan.start = (uintptr_t)st.p;
		scan.len = st.pages * PAGE;
		scan.entries = (uintptr_t)e;
		scan.nr_entries = 64;
		scan.entry_size = sizeof(e[0]);
		scan.flags = TM_SCAN_CLEAR;
		if (ioctl(device, TM_SCAN, &scan))
			fail("TM_SCAN: %s", strerror(errno));
		for (unsigned int i = 0; i < scan.filled; i++) {
			unsigned int sum = 0, bits = 0;

			for (int k = 0; k < 32; k++)
				sum += e[i].by_64k[k];
			for (int k = 0; k < 8; k++)
				bits += __builtin_popcountll(e[i].bits[k]);
			CHECK(sum == e[i].accessed && bits == sum && e[i].accessed <= 512 &&
			      e[i].fast <= e[i].present && e[i].present <= 512 &&
			      nr_active(&e[i]) <= e[i].present,
			      "of %u pages %u accessed, %u by 64 KB, %u by bits, %u fast",
			      e[i].present, e[i].accessed, sum, bits, e[i].fast);
		}
		/* Watches someone who comes to an end at any moment. */
		pid = fork();
		if (!pid) {
			for (uint64_t left = next(&seed) % 2000; left; left--)
				*(volatile char *)words(left % st.pages);
			_exit(0);
		}
		next(&seed);
		scan.start = (uintptr_t)st.p;
		scan.len = st.pages * PAGE;
		scan.flags = TM_SCAN_CLEAR | TM_SCAN_WATCH;
		scan.pidfd = syscall(SYS_pidfd_open, pid, 0);
		for (int turn = 0; turn < 4 && !ioctl(device, TM_SCAN, &scan); turn++) {
			scan.start = (uintptr_t)st.p;
			scan.len = st.pages * PAGE;
		}
		CHECK(scan.pidfd >= 0, "pidfd_open: %s", strerror(errno));
		close(scan.pidfd);
		waitpid(pid, NULL, 0);
		usleep(3000);
	}
	return NULL;
}

/* Scans the pages' windows; says by window which were accessed, and of which it does not know. */
static void scan_beats(unsigned int flags, uint64_t accessed[BEATS][8], bool unknown[BEATS])
{
	struct tm_scan_entry e[BEATS];
	int n = scan(beats.p, BEATS * HUGE, flags, e, BEATS);

	if (n < 0)
		fail("TM_SCAN: %s", strerror(-n));
	for (int i = 0; i < n; i++) {
		unsigned long window = (e[i].addr - (uintptr_t)beats.p) / HUGE;

		for (int k = 0; k < 8; k++)
			accessed[window][k] |= e[i].bits[k];
		unknown[window] |= e[i].flags & TM_SCAN_UNKNOWN;
	}
}

/*
 * Reads and scans until enough were read and, where bits are kept from reclaim, it has tried to
 * take one; says how many reads no scan reported.
 */
unsigned long read_and_scan(unsigned long wanted, unsigned int watch, unsigned long *reads)
{
	const uint64_t tag = 0x5ca0000;
	long saved = vmstat("tiermem_scan_saved");
	unsigned long lost = 0, changes;
	double begun = now();
	uint64_t seed = 14;

	beats.changes = 0;
	beats.p = map(BEATS * HUGE, false);
	/* May be collapsed. */
	madvise(beats.p, BEATS * HUGE, MADV_HUGEPAGE);
	put("/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs", "3600000");
	for (unsigned long i = 0; i < BEATS * 512; i++)
		*(uint64_t *)(beats.p + i * PAGE) = tag + i;
	*reads = 0;
	start(shaker, NULL);
	while ((*reads < wanted || (watch && vmstat("tiermem_scan_saved") == saved)) &&
	       failures < 20 && now() - begun < seconds) {
		uint64_t before[BEATS][8] = {}, after[BEATS][8] = {}, chosen[BEATS][8] = {};
		bool unknown[BEATS] = {}, late[BEATS] = {};

		scan_beats(TM_SCAN_CLEAR | watch, before, unknown);
		/* Changes every entry, so that no translation is left. */
		pthread_mutex_lock(&beats.at_work);
		mprotect(beats.p, BEATS * HUGE, PROT_NONE);
		mprotect(beats.p, BEATS * HUGE, PROT_READ | PROT_WRITE);
		pthread_mutex_unlock(&beats.at_work);
		memset(unknown, 0, sizeof(unknown));
		for (int i = 0; i < 100; i++) {
			unsigned long page = next(&seed) % (BEATS * 512);
			uint64_t word = *(volatile uint64_t *)(beats.p + page * PAGE);

			if (word != tag + page)
				fail("page %lu reads %lx", page, (long)word);
			chosen[page / 512][page % 512 / 64] |= 1ULL << page % 64;
		}
		/* One change at least comes between, and another meets the scan. */
		for (changes = beats.changes; *(volatile unsigned long *)&beats.changes == changes;)
			usleep(100);
		scan_beats(TM_SCAN_CLEAR, after, unknown);
		/* What was under migration then is not now. */
		pthread_mutex_lock(&beats.at_work);
		for (unsigned long i = 0; i < BEATS; i++)
			if (unknown[i])
				scan_beats(0, after, late);
		pthread_mutex_unlock(&beats.at_work);
		for (unsigned long i = 0; i < BEATS; i++)
			for (int k = 0; k < 8; k++) {
				*reads += __builtin_popcountll(chosen[i][k]);
				lost += __builtin_popcountll(chosen[i][k] & ~after[i][k]);
			}
	}
	return lost;
}

void test_scan_stress(void)
{
	const unsigned long wanted = count ? count : 5000;
	unsigned long reads, lost;
	double begun = now();
	long saved = vmstat("tiermem_scan_saved");

	begin_stress(4096, true);
	start(scanner, NULL);
	lost = read_and_scan(wanted, TM_SCAN_WATCH, &reads);
	end_stress();
	scan(beats.p, BEATS * HUGE, TM_SCAN_UNWATCH, NULL, 0);
	munmap(beats.p, BEATS * HUGE);
	saved = vmstat("tiermem_scan_saved") - saved;
	printf("# %lu reads, %lu of them lost, %ld bits kept from reclaim, %lu changes, %lu checks, %lu data moves, %lu forks in %.0f s\n",
	       reads, lost, saved, beats.changes, st.checks, st.moves, st.forks, now() - begun);
	CHECK(!lost, "%lu of %lu reads were reported by no scan", lost, reads);
	CHECK(reads >= wanted, "only %lu reads in time", reads);
	CHECK(saved > 0, "reclaim took no bit: the test is void");
}
