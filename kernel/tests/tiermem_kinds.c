// SPDX-License-Identifier: GPL-2.0
/*
 * All the mechanisms at once, over all the kinds of memory that a program may have.
 *
 * Every kind is an area of its own.  Its owner knows what is in each page; others
 * pin the pages, push them out, collapse them, share them with children.  A page
 * that is lost, doubled, mixed up or stale shows at once.
 */
#include "tiermem_test.h"

#include <linux/userfaultfd.h>
#include <poll.h>

#define DISK		"/dev/ram1"
#define DISK_PAGES	1024UL
#define KIND_PAGES	512UL		/* of each kind; of huge ones HUGE_PAGES */
#define HUGE_PAGES	(16 * 512UL)
#define SPLIT_PAGES	(4 * 512UL)	/* of those, the ones that are split and collapsed */
#define BASE_PAGES	4096UL		/* mostly these are exchanged */
#define BATCH		1024
#define HUGE_CALLS	4		/* for one of base pages */

enum {
	BASE, THP, MTHP, SHMEM, SHMEM_HUGE, FILE_SHARED, FILE_PRIVATE, MEMFD_PRIVATE, MLOCKED, KSM,
	DIRECT, SPLICED, UFFD, MOVED, HUGETLB, NR_KINDS,
};

static struct kind {
	const char *name;
	unsigned long pages;		/* 0: this kernel or machine has none */
	/* --- */
	char *p;
	uint32_t *versions;
	unsigned long checks, migrated, exchanged, refused;
	int last_error;			/* of those that were refused */
} kinds[NR_KINDS] = {
	[BASE] = { "base pages", BASE_PAGES },
	[THP] = { "huge pages", HUGE_PAGES },
	[MTHP] = { "64 KB folios", KIND_PAGES },
	[SHMEM] = { "shared memory", KIND_PAGES },
	[SHMEM_HUGE] = { "huge shared memory", 2 * 512UL },
	[FILE_SHARED] = { "page cache", KIND_PAGES },
	[FILE_PRIVATE] = { "private file pages", KIND_PAGES },
	[MEMFD_PRIVATE] = { "private shared memory", KIND_PAGES },
	[MLOCKED] = { "locked pages", KIND_PAGES },
	[KSM] = { "merged pages", KIND_PAGES },
	[DIRECT] = { "pages of direct reads", 64 },
	[SPLICED] = { "pages of a pipe", 64 },
	[UFFD] = { "userfaultfd", KIND_PAGES },
	[MOVED] = { "moved by userfaultfd", 64 },
	[HUGETLB] = { "hugetlb", 512 },
};

static struct {
	int uffd, disk, direct;
	unsigned int ended;		/* owners that have checked all their pages */
	char *hole;			/* where UFFDIO_MOVE puts pages */
	unsigned long direct_reads, splices, faults, uffd_moves, forks, pageouts, collapses;
	unsigned long retries;
	unsigned long due_tables, tables, scans;
} all;

static uint64_t tag_of(int kind, unsigned long page, uint32_t version)
{
	/* What is merged has to be alike. */
	if (kind == KSM && !version)
		page %= 8;
	return (uint64_t)(kind + 1) << 56 | (uint64_t)page << 32 | version;
}

static void put_tag(uint64_t *word, uint64_t tag, unsigned long page)
{
	/* Not at one place in all pages, or the wrong page of a folio would do. */
	word[0] = tag;
	word[511] = ~tag;
	word[page % 8 + 1] = tag + 1;
}

static bool has_tag(const uint64_t *word, uint64_t tag, unsigned long page)
{
	return *(volatile uint64_t *)word == tag && word[511] == ~tag &&
	       word[page % 8 + 1] == tag + 1;
}

static uint64_t *word_of(int kind, unsigned long page)
{
	return (uint64_t *)(kinds[kind].p + page * PAGE);
}

static void check_kind(int kind, unsigned long page, uint32_t version, const char *who)
{
	uint64_t *word = word_of(kind, page), tag = tag_of(kind, page, version);

	if (!has_tag(word, tag, page))
		fail("%s, %s: page %lu version %u reads %lx %lx %lx, not %lx", kinds[kind].name,
		     who,
		     page, version, (long)word[0], (long)~word[511], (long)word[page % 8 + 1] - 1,
		     (long)tag);
	__atomic_add_fetch(&kinds[kind].checks, 1, __ATOMIC_RELAXED);
}

/* --- making them ---------------------------------------------------------- */

static char *map_file(int fd, off_t offset, unsigned long bytes, int flags)
{
	/* Huge pages of shared memory are mapped as such where both ends fit. */
	char *raw = mmap(NULL, bytes + HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *p;

	p = (char *)(((uintptr_t)raw + HUGE - 1) & ~(HUGE - 1));
	if (raw == MAP_FAILED ||
	    mmap(p, bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, offset) != p)
		return NULL;
	return p;
}

static char *memfd(const char *name, unsigned long bytes, int flags)
{
	int fd = memfd_create(name, 0);
	char *p = NULL;

	if (fd >= 0 && !ftruncate(fd, bytes))
		p = map_file(fd, 0, bytes, flags);
	close(fd);
	return p;
}

/* The disk says of each page which it is: as if each kind that reads it had written it. */
static bool fill_disk(void)
{
	static uint64_t page[512];
	int fd = open(DISK, O_RDWR);
	bool done = fd >= 0;

	for (unsigned long i = 0; done && i < DISK_PAGES; i++) {
		int kind = i < KIND_PAGES ? FILE_SHARED : FILE_PRIVATE;

		memset(page, 0, sizeof(page));
		put_tag(page, tag_of(kind, i % KIND_PAGES, 0), i % KIND_PAGES);
		done = pwrite(fd, page, PAGE, i * PAGE) == (ssize_t)PAGE;
	}
	if (fd >= 0)
		close(fd);
	return done;
}

static bool uffd_register(char *p, unsigned long bytes)
{
	struct uffdio_register area = {
		.range = { (uintptr_t)p, bytes }, .mode = UFFDIO_REGISTER_MODE_MISSING,
	};

	return !ioctl(all.uffd, UFFDIO_REGISTER, &area);
}

static bool open_uffd(void)
{
	struct uffdio_api api = { .api = UFFD_API };

	all.uffd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	return all.uffd >= 0 && !ioctl(all.uffd, UFFDIO_API, &api);
}

/* What this kernel or machine cannot make is left out, and reported. */
static void make_kinds(void)
{
	static const char *thp = "/sys/kernel/mm/transparent_hugepage";
	char path[128];

	snprintf(path, sizeof(path), "%s/shmem_enabled", thp);
	put(path, "advise");
	snprintf(path, sizeof(path), "%s/hugepages-64kB/enabled", thp);
	put(path, "madvise");
	put("/sys/kernel/mm/ksm/pages_to_scan", "100");
	put("/sys/kernel/mm/ksm/sleep_millisecs", "200");
	put("/sys/kernel/mm/ksm/run", "1");
	put("/proc/sys/vm/nr_hugepages", "2");

	for (int i = 0; i < NR_KINDS; i++) {
		struct kind *kind = kinds + i;
		unsigned long bytes = kind->pages * PAGE;

		switch (i) {
		case THP:
			kind->p = map(bytes, true);
			break;
		case MTHP:
			/* Too little of each 2 MB for a huge page. */
			kind->p = map(HUGE, true) + HUGE - (512 - 16) * PAGE;
			kind->pages = 512 - 16;
			break;
		case SHMEM:
			kind->p = memfd("kinds", bytes, MAP_SHARED);
			break;
		case SHMEM_HUGE:
			kind->p = memfd("kinds-huge", bytes, MAP_SHARED);
			if (kind->p)
				madvise(kind->p, bytes, MADV_HUGEPAGE);
			break;
		case MEMFD_PRIVATE:
			kind->p = memfd("kinds-private", bytes, MAP_PRIVATE);
			break;
		case FILE_SHARED:
		case FILE_PRIVATE:
			if (!fill_disk())
				break;
			if (all.disk <= 0)
				all.disk = open(DISK, O_RDWR);
			kind->p = map_file(all.disk, i == FILE_SHARED ? 0 : KIND_PAGES * PAGE,
					   bytes,
					   i == FILE_SHARED ? MAP_SHARED : MAP_PRIVATE);
			break;
		case DIRECT:
			all.direct = open(DISK, O_RDONLY | O_DIRECT);
			kind->p = all.direct < 0 ? NULL : map(bytes, false);
			break;
		case UFFD:
			if (!open_uffd())
				break;
			kind->p = map(HUGE, false);
			if (!uffd_register(kind->p, HUGE))
				kind->p = NULL;
			break;
		case MOVED:
			all.hole = map(HUGE, false);
			if (kinds[UFFD].p && uffd_register(all.hole, HUGE))
				kind->p = map(HUGE, false);
			break;
		case HUGETLB:
			kind->p = mmap(NULL, HUGE, PROT_READ | PROT_WRITE,
				       MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
			if (kind->p == MAP_FAILED)
				kind->p = NULL;
			break;
		default:
			kind->p = map(bytes, false);
		}
		if (i == MOVED && kind->p) {
			/* A child that shares them keeps them from being moved. */
			madvise(kind->p, HUGE, MADV_DONTFORK);
			madvise(all.hole, HUGE, MADV_DONTFORK);
		}
		/* A write after a fork splits a huge page: most stay whole. */
		if (i == THP)
			madvise(kind->p + SPLIT_PAGES * PAGE, bytes - SPLIT_PAGES * PAGE,
				MADV_DONTFORK);
		if (!kind->p) {
			printf("# no %s here: %s\n", kind->name, strerror(errno));
			kind->pages = 0;
			continue;
		}
		kind->versions = calloc(kind->pages, sizeof(*kind->versions));
		if (i == MLOCKED)
			CHECK(!mlock(kind->p, bytes), "mlock: %s", strerror(errno));
		if (i == KSM)
			CHECK(!madvise(kind->p, bytes, MADV_MERGEABLE), "MADV_MERGEABLE: %s",
			      strerror(errno));
	}
}

/* --- the owners ----------------------------------------------------------- */

/* Those that others fill and empty are checked by them. */
static bool has_owner(int kind)
{
	return kinds[kind].pages && kind != DIRECT && kind != SPLICED && kind != MOVED;
}

static void *kind_owner(void *arg)
{
	uintptr_t number = (uintptr_t)arg;
	uint64_t seed = 100 + number;
	unsigned long turns = 0;

	for (int i = number; i < NR_KINDS; i += OWNERS)
		for (unsigned long page = 0; has_owner(i) && page < kinds[i].pages; page++)
			/* These come from a file, and from the handler of faults. */
			if (i == FILE_SHARED || i == FILE_PRIVATE || i == UFFD)
				check_kind(i, page, 0, "first");
			else
				put_tag(word_of(i, page), tag_of(i, page, 0), page);
	__atomic_add_fetch(&st.written, 1, __ATOMIC_RELEASE);
	while (!st.stop && failures < 20) {
		int i = next(&seed) % (NR_KINDS / OWNERS + 1) * OWNERS + number;
		unsigned long page;

		if (i >= NR_KINDS || !has_owner(i))
			continue;
		page = next(&seed) % kinds[i].pages;
		check_kind(i, page, kinds[i].versions[page], "owner");
		if (i == UFFD && next(&seed) % 4 == 0) {
			madvise(word_of(i, page), PAGE, MADV_DONTNEED);
			kinds[i].versions[page] = 0;
		} else if (i == KSM) {
			/* Apart, and alike again: ksmd finds it once more. */
			put_tag(word_of(i, page), tag_of(i, page, 1), page);
			check_kind(i, page, 1, "owner");
			memset(word_of(i, page), 0, PAGE);
			put_tag(word_of(i, page), tag_of(i, page, 0), page % 8);
			kinds[i].versions[page] = 0;
		} else if (i != FILE_PRIVATE || page % 2) {
			/* Half of the private pages stay the file's. */
			put_tag(word_of(i, page), tag_of(i, page, ++kinds[i].versions[page]), page);
		}
		if (++turns % 32 == 0)
			usleep(5000);
	}
	for (int i = number; i < NR_KINDS; i += OWNERS)
		for (unsigned long page = 0; has_owner(i) && page < kinds[i].pages; page++)
			check_kind(i, page, kinds[i].versions[page], "at the end");
	__atomic_add_fetch(&all.ended, 1, __ATOMIC_RELEASE);
	return NULL;
}

/* --- those who pin, fill, push out ---------------------------------------- */

/* Reads past the page cache go into pages that are pinned meanwhile. */
static void *reader(void *arg)
{
	uint64_t seed = 110;
	(void)arg;

	while (!st.stop && failures < 20) {
		unsigned long page = next(&seed) % (kinds[DIRECT].pages - 4);
		/* The private half of the disk, which nobody writes to. */
		unsigned long block = next(&seed) % (KIND_PAGES - 4);

		memset(word_of(DIRECT, page), 0x5a, 4 * PAGE);
		if (pread(all.direct, word_of(DIRECT, page), 4 * PAGE,
			  (KIND_PAGES + block) * PAGE) != (ssize_t)(4 * PAGE))
			fail("direct read: %s", strerror(errno));
		for (int i = 0; i < 4; i++)
			if (!has_tag(word_of(DIRECT, page + i), tag_of(FILE_PRIVATE, block + i, 0),
				     block + i))
				fail("direct read of block %lu into page %lu gives %lx", block + i,
				     page + i,
				     (long)word_of(DIRECT, page + i)[0]);
		kinds[DIRECT].checks += 4;
		__atomic_add_fetch(&all.direct_reads, 1, __ATOMIC_RELAXED);
		usleep(2000);
	}
	return NULL;
}

/* A pipe holds pages of this process, not copies of them. */
static void *splicer(void *arg)
{
	uint64_t seed = 111, version = 0;
	static uint64_t back[512];
	int ends[2];
	(void)arg;

	if (pipe(ends)) {
		fail("pipe: %s", strerror(errno));
		return NULL;
	}
	while (!st.stop && failures < 20) {
		unsigned long first = next(&seed) % (kinds[SPLICED].pages - 8);
		struct iovec vec = { word_of(SPLICED, first), 8 * PAGE };

		version++;
		for (unsigned long page = first; page < first + 8; page++)
			put_tag(word_of(SPLICED, page), tag_of(SPLICED, page, version), page);
		if (vmsplice(ends[1], &vec, 1, 0) != (ssize_t)(8 * PAGE))
			fail("vmsplice: %s", strerror(errno));
		/* The pages are the pipe's, too, for a while. */
		usleep(3000);
		for (unsigned long page = first; page < first + 8 && failures < 20; page++) {
			size_t at = 0;

			while (at < PAGE) {
				ssize_t n = read(ends[0], (char *)back + at, PAGE - at);

				if (n <= 0)
					break;
				at += n;
			}
			if (at != PAGE || !has_tag(back, tag_of(SPLICED, page, version), page))
				fail("the pipe's page %lu version %lu reads %lx", page,
				     (long)version,
				     (long)back[0]);
			if (!has_tag(word_of(SPLICED, page), tag_of(SPLICED, page, version), page))
				fail("the spliced page %lu version %lu reads %lx", page,
				     (long)version,
				     (long)word_of(SPLICED, page)[0]);
		}
		kinds[SPLICED].checks += 8;
		__atomic_add_fetch(&all.splices, 1, __ATOMIC_RELAXED);
	}
	close(ends[0]);
	close(ends[1]);
	return NULL;
}

/* Fills the pages that are missing. */
static void *handler(void *arg)
{
	static uint64_t page[512];
	(void)arg;

	/* At the end the owners still read what is missing. */
	while (!st.stop || __atomic_load_n(&all.ended, __ATOMIC_ACQUIRE) < OWNERS) {
		struct pollfd poll_fd = { all.uffd, POLLIN, 0 };
		struct uffd_msg message;
		struct uffdio_copy copy = { .src = (uintptr_t)page, .len = PAGE };
		unsigned long number;

		if (poll(&poll_fd, 1, 10) <= 0 ||
		    read(all.uffd, &message, sizeof(message)) != sizeof(message) ||
		    message.event != UFFD_EVENT_PAGEFAULT)
			continue;
		copy.dst = message.arg.pagefault.address & ~(PAGE - 1);
		number = (copy.dst - (uintptr_t)kinds[UFFD].p) / PAGE;
		if (copy.dst < (uintptr_t)kinds[UFFD].p || number >= 512) {
			fail("a fault at %lx, where no page is missed", (long)copy.dst);
			continue;
		}
		memset(page, 0, sizeof(page));
		put_tag(page, tag_of(UFFD, number, 0), number);
		while (ioctl(all.uffd, UFFDIO_COPY, &copy) && errno == EAGAIN)
			__atomic_add_fetch(&all.retries, 1, __ATOMIC_RELAXED);
		__atomic_add_fetch(&all.faults, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

/* Moves pages from tables that are moved themselves to ones that are not. */
static void *uffd_mover(void *arg)
{
	uint64_t version = 0;
	(void)arg;

	while (!st.stop && failures < 20) {
		version++;
		all.retries += uffd_move_round(all.uffd, kinds[MOVED].p, all.hole,
					       kinds[MOVED].pages, version);
		kinds[MOVED].checks += kinds[MOVED].pages;
		__atomic_add_fetch(&all.uffd_moves, kinds[MOVED].pages, __ATOMIC_RELAXED);
		usleep(5000);
	}
	return NULL;
}

static void collapse(int kind, unsigned long which)
{
	unsigned long pages = kind == THP ? SPLIT_PAGES : kinds[kind].pages;

	if (kinds[kind].pages &&
	    !madvise(kinds[kind].p + which % (pages / 512) * HUGE, HUGE, MADV_COLLAPSE))
		__atomic_add_fetch(&all.collapses, 1, __ATOMIC_RELAXED);
}

/* Any kind that is there. */
static int some_kind(uint64_t *seed)
{
	int i;

	do
		i = next(seed) % NR_KINDS;
	while (!kinds[i].pages);
	return i;
}

static void *pressure(void *arg)
{
	uint64_t seed = 112;
	unsigned long turn = 0;
	(void)arg;

	while (!st.stop) {
		int i = some_kind(&seed);
		unsigned long page = next(&seed) % kinds[i].pages;
		unsigned long n = kinds[i].pages - page < 32 ? kinds[i].pages - page : 32;

		/* Huge pages are split by it: seldom, or none is left to move as a whole. */
		if ((i == THP || i == SHMEM_HUGE) && turn % 16)
			i = BASE;
		page %= i == THP ? SPLIT_PAGES : kinds[i].pages;
		n = kinds[i].pages - page < n ? kinds[i].pages - page : n;
		if (i != HUGETLB && !madvise(word_of(i, page), n * PAGE, MADV_PAGEOUT))
			__atomic_add_fetch(&all.pageouts, n, __ATOMIC_RELAXED);
		if (++turn % 8 == 0)
			/* Together again what the above, or a child's write, has split. */
			collapse(turn % 16 ? THP : SHMEM_HUGE, next(&seed));
		if (turn % 64 == 0)
			put("/proc/sys/vm/compact_memory", "1");
		usleep(5000);
	}
	return NULL;
}

/* Children share all of it, read, write and exit. */
static void *parent(void *arg)
{
	uint64_t seed = 113;
	(void)arg;

	while (!st.stop) {
		int status;
		pid_t pid = fork();

		if (!pid) {
			for (int turn = 0; turn < 50; turn++) {
				int i = some_kind(&seed);
				unsigned long page = next(&seed) % kinds[i].pages;
				uint64_t word;

				/* Not inherited, or not the child's to write to. */
				if (i == UFFD || i == MOVED || i == DIRECT || i == HUGETLB)
					continue;
				if (i == THP)
					page %= SPLIT_PAGES;
				word = *(volatile uint64_t *)word_of(i, page);
				if (word >> 56 && word >> 56 != (uint64_t)i + 1)
					_exit(1);
				if (i == BASE || i == THP || i == MTHP || i == MLOCKED)
					word_of(i, page)[2] = word;
			}
			_exit(0);
		}
		next(&seed);
		waitpid(pid, &status, 0);
		CHECK(!status, "a child saw another page's data: status %x", status);
		__atomic_add_fetch(&all.forks, 1, __ATOMIC_RELAXED);
		usleep(300000);
	}
	return NULL;
}

/* --- the mechanisms -------------------------------------------------------- */

static void note(int kind, int status, unsigned long *done, unsigned long n)
{
	if (!status) {
		*done += n;
	} else if (status != -ENOENT) {
		kinds[kind].refused++;
		kinds[kind].last_error = status;
	}
}

/* The nodes of these pages; -ENOENT where there is none. */
static void nodes_of(uint64_t *addrs, unsigned int n, int *nodes)
{
	if (syscall(SYS_move_pages, 0, (unsigned long)n, addrs, NULL, nodes, 0))
		fail("move_pages: %s", strerror(errno));
}

/*
 * An address of any kind, mostly of pages that the mechanisms take: of those, none
 * twice in as many as there are, for the second would only be busy.
 */
static uint64_t some_page(uint64_t *seed, unsigned int turn, int *kind)
{
	unsigned long page;

	*kind = turn % 4 ? BASE : some_kind(seed);
	page = *kind == BASE ? turn * 1021 : next(seed);
	return (uintptr_t)word_of(*kind, page % kinds[*kind].pages);
}

static unsigned long migrate_some(uint64_t *seed)
{
	uint64_t addrs[BATCH];
	int32_t status[BATCH];
	int of[BATCH], nodes[BATCH], node = next(seed) & 1;
	unsigned int first = next(seed) % BASE_PAGES, n = 0;
	/* Merged pages, and those that a child still shares, only so. */
	struct tm_migrate arg = {
		.size = sizeof(arg), .pidfd = TM_SELF, .node = node,
		.addrs = (uintptr_t)addrs, .status = (uintptr_t)status,
		.flags = next(seed) % 2 ? TM_MIGRATE_SHARED : 0,
	};
	unsigned long done = 0;

	for (int i = 0; i < BATCH; i++) {
		addrs[i] = some_page(seed, first + i, &of[i]);
		/* Of huge ones few: they take long. */
		if ((of[i] == THP || of[i] == SHMEM_HUGE || of[i] == HUGETLB) && i % 16)
			addrs[i] = some_page(seed, i | 1, &of[i]);
	}
	nodes_of(addrs, BATCH, nodes);
	/* Of those that are there already a few. */
	for (int i = 0; i < BATCH; i++) {
		if (nodes[i] == node && i % 16)
			continue;
		addrs[n] = addrs[i];
		nodes[n] = nodes[i];
		of[n++] = of[i];
	}
	arg.count = n;
	if (ioctl(device, TM_MIGRATE, &arg)) {
		fail("TM_MIGRATE: %s", strerror(errno));
		return 0;
	}
	for (unsigned int i = 0; i < n; i++) {
		unsigned long before = kinds[of[i]].migrated;

		/* Those that were there already are not counted. */
		if (nodes[i] == !node || status[i])
			note(of[i], status[i], &kinds[of[i]].migrated, 1);
		done += kinds[of[i]].migrated - before;
	}
	return done;
}

static unsigned long exchange_some(uint64_t *seed, bool huge)
{
	enum { PAIRS = 256, CANDIDATES = 3 * PAIRS };
	uint64_t a[PAIRS], b[PAIRS], candidates[CANDIDATES];
	int of[CANDIDATES], of_a[PAIRS], nodes[CANDIDATES], next_of[2] = { 0, 0 };
	long before;
	const unsigned int most = huge ? kinds[THP].pages / 512 : CANDIDATES;
	unsigned int n = 0, first = next(seed) % BASE_PAGES;
	int32_t status[PAIRS];
	/* Also those that a child still shares. */
	struct tm_exchange arg = {
		.size = sizeof(arg), .pidfd = TM_SELF, .a = (uintptr_t)a, .b = (uintptr_t)b,
		.status = (uintptr_t)status, .flags = TM_EXCHANGE_SHARED,
	};
	unsigned long done = 0;

	for (unsigned int i = 0; i < most; i++) {
		of[i] = THP;
		candidates[i] = huge ? (uintptr_t)word_of(THP, i * 512) :
				       some_page(seed, first + i, &of[i]);
	}
	nodes_of(candidates, most, nodes);
	/* The next one on either node. */
	while (n < PAIRS) {
		for (int side = 0; side < 2; side++)
			while (next_of[side] < (int)most && nodes[next_of[side]] != side)
				next_of[side]++;
		if (next_of[0] >= (int)most || next_of[1] >= (int)most)
			break;
		of_a[n] = of[next_of[0]];
		a[n] = candidates[next_of[0]++];
		b[n++] = candidates[next_of[1]++];
	}
	if (!n) {
		/* All huge ones are on one node: half of them goes to the other. */
		if (huge)
			move_range(kinds[THP].p, kinds[THP].pages / 2 * PAGE, HUGE, nodes[0] == 0);
		return 0;
	}
	arg.count = n;
	before = vmstat("pgexchange_success");
	if (ioctl(device, TM_EXCHANGE, &arg)) {
		fail("TM_EXCHANGE: %s", strerror(errno));
		return 0;
	}
	for (unsigned int i = 0; i < n; i++) {
		note(of_a[i], status[i], &kinds[of_a[i]].exchanged, 1);
		done += !status[i];
	}
	/* Some may have been split. */
	if (huge)
		done = pairs_of_huge(done, vmstat("pgexchange_success") - before);
	return done;
}

static void scan_all(uint64_t *seed)
{
	for (int i = 0; i < NR_KINDS; i++) {
		char *window = (char *)((uintptr_t)kinds[i].p & ~(HUGE - 1));
		struct tm_scan_entry entry;

		if (kinds[i].pages)
			scan(window, HUGE, TM_SCAN_CLEAR | (next(seed) % 2 ? TM_SCAN_WATCH : 0),
			     &entry, 1);
	}
}

/* Tables go beside exchange and migration, and bits are read, for as long as those go on. */
static void *tables_and_bits(void *arg)
{
	uint64_t seed = 121;
	(void)arg;

	for (unsigned long turn = 0; !st.stop && failures < 20; turn++) {
		struct tm_pt_migrate out;
		unsigned long due;
		int err = tables_to(NULL, 0, turn & 1, 0, &out);

		CHECK(!err, "TM_PT_MIGRATE: %s", strerror(-err));
		__atomic_add_fetch(&all.tables, out.moved, __ATOMIC_RELAXED);
		if (turn % 4 == 0) {
			scan_all(&seed);
			all.scans++;
		}
		due = __atomic_load_n(&all.due_tables, __ATOMIC_RELAXED);
		usleep(all.tables < due ? 20000 : 200000);
	}
	return NULL;
}

static void spent(double *took, double *since)
{
	double at = now();

	*took += at - *since;
	*since = at;
}

/* The least of three shares of what is wanted. */
static double least(unsigned long a, unsigned long of_a, unsigned long b, unsigned long of_b,
		    unsigned long c, unsigned long of_c)
{
	double share = (double)a / of_a;

	if ((double)b / of_b < share)
		share = (double)b / of_b;
	return (double)c / of_c < share ? (double)c / of_c : share;
}

/*
 * Whether pages of this kind have to migrate: the pool's do not, and UFFDIO_MOVE
 * leaves its own at an address for a moment only.
 */
static bool has_to_migrate(int i)
{
	return kinds[i].pages && i != HUGETLB && i != MOVED;
}

static bool all_have_migrated(void)
{
	for (int i = 0; i < NR_KINDS; i++)
		if (has_to_migrate(i) && !kinds[i].migrated)
			return false;
	return true;
}

void test_kinds(void)
{
	const unsigned long tables_n = count ? count : 100;
	const unsigned long pairs_n = 2 * tables_n, huge_n = tables_n / 5, pages_n = 5 * tables_n;
	unsigned long pairs = 0, huge = 0, pages = 0, rounds = 0, tables = 0, due;
	double begun = now(), printed = begun, at, took[3] = { 0 };
	uint64_t seed = 120;
	long followed = vmstat("pt_migrate_success");

	memset(&st, 0, sizeof(st));
	CHECK(!policy(TM_PT_MODE_DEFAULT, 0, 0, TM_PT_POLICY_FOLLOW), "set follow");
	/* Many take part: each leaves the others time. */
	st.pause_us = 50000;
	all.due_tables = tables_n / 20;
	make_kinds();
	/* What is tested goes first, and the kernel's own threads that it waits for. */
	setpriority(PRIO_PROCESS, 0, 10);
	if (kinds[UFFD].pages)
		start(handler, NULL);
	for (uintptr_t i = 0; i < OWNERS; i++)
		start(kind_owner, (void *)i);
	while (__atomic_load_n(&st.written, __ATOMIC_ACQUIRE) < OWNERS)
		usleep(1000);
	start(lazy, NULL);
	if (kinds[DIRECT].pages)
		start(reader, NULL);
	start(splicer, NULL);
	if (kinds[MOVED].pages)
		start(uffd_mover, NULL);
	start(pressure, NULL);
	start(parent, NULL);
	setpriority(PRIO_PROCESS, 0, -5);
	start(tables_and_bits, NULL);

	/* Which kinds a round comes to is chance, and on a slow kernel there are few. */
	while ((tables < tables_n || pairs < pairs_n || huge < huge_n || pages < pages_n ||
		!all_have_migrated()) &&
	       failures < 20 && now() - begun < seconds) {
		/* What is behind its share goes on; the others every fourth time. */
		bool turn = ++rounds % 4 == 0;

		at = now();
		if (pairs < pairs_n || turn)
			pairs += exchange_some(&seed, false);
		spent(&took[0], &at);
		/* A few in each call, and as many calls as there are for base pages. */
		for (int call = 0; call < (huge < huge_n ? HUGE_CALLS : turn); call++)
			huge += exchange_some(&seed, true);
		spent(&took[1], &at);
		if (pages < pages_n || !all_have_migrated() || turn)
			pages += migrate_some(&seed);
		spent(&took[2], &at);
		if (turn)
			check_log();
		tables = __atomic_load_n(&all.tables, __ATOMIC_RELAXED);
		/* No faster than the slowest of the others. */
		due = tables_n * least(pairs, pairs_n, huge, huge_n, pages, pages_n);
		__atomic_store_n(&all.due_tables, tables_n / 20 + due, __ATOMIC_RELAXED);
		if (now() - printed > 60) {
			printed = now();
			printf("# after %.0f s: %lu tables, %lu pairs, %lu huge, %lu pages\n",
			       printed - begun, tables, pairs, huge, pages);
		}
		usleep(1000);
	}
	setpriority(PRIO_PROCESS, 0, 0);
	finish();
	tables = all.tables;
	put("/sys/kernel/mm/ksm/run", "2");
	policy(TM_PT_MODE_DEFAULT, 0, 0, 0);

	for (const struct kind *kind = kinds; kind < kinds + NR_KINDS; kind++)
		if (kind->pages)
			printf("#   %-22s %7lu checks %6lu migrated %6lu exchanged %6lu refused%s%s\n",
			       kind->name, kind->checks, kind->migrated, kind->exchanged,
			       kind->refused, kind->refused ? ", last " : "",
			       kind->refused ? strerror(-kind->last_error) : "");
	printf("# %lu table moves, %lu pairs exchanged, %lu huge pairs, %lu pages migrated, in %.0f s\n",
	       tables, pairs, huge, pages, now() - begun);
	printf("# %lu rounds: %.0f s for pairs, %.0f for huge ones, %.0f for pages, beside %lu scans of all\n",
	       rounds, took[0], took[1], took[2], all.scans);
	printf("# beside %lu direct reads, %lu splices, %lu userfaults, %lu userfaultfd moves\n",
	       all.direct_reads, all.splices, all.faults, all.uffd_moves);
	printf("# and %lu forks, %lu page-outs, %lu collapses, %ld tables that followed\n",
	       all.forks,
	       all.pageouts, all.collapses, vmstat("pt_migrate_success") - followed - (long)tables);
	CHECK(tables >= tables_n && pairs >= pairs_n && huge >= huge_n && pages >= pages_n,
	      "only %lu, %lu, %lu, %lu of %lu, %lu, %lu, %lu in time", tables, pairs, huge, pages,
	      tables_n, pairs_n, huge_n, pages_n);
	for (int i = 0; i < NR_KINDS; i++)
		if (has_to_migrate(i))
			CHECK(kinds[i].migrated || failures, "no page of %s was migrated",
			      kinds[i].name);
}
