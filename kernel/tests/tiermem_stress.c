// SPDX-License-Identifier: GPL-2.0
/*
 * The stress: threads that own pages and know what is in them, and threads that move them,
 * push them out, fork, map and unmap meanwhile.
 */
#include "tiermem_test.h"

struct stress st;
static pthread_t threads[16];
static int nr_threads;

void start(void *(*function)(void *), void *arg)
{
	pthread_create(&threads[nr_threads++], NULL, function, arg);
}

void finish(void)
{
	st.stop = true;
	while (nr_threads)
		pthread_join(threads[--nr_threads], NULL);
	st.stop = false;
}

uint64_t *words(unsigned long page)
{
	return (uint64_t *)(st.p + page * PAGE);
}

void write_page(unsigned long page, uint32_t version)
{
	uint64_t tag = (uint64_t)page << 32 | version;

	words(page)[0] = tag;
	words(page)[511] = ~tag;
	words(page)[page % 509 + 1] = tag + 1;
}

void check_page(unsigned long page, uint32_t version, const char *who)
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

void *table_mover(void *arg)
{
	struct tm_pt_migrate out;
	int node = 1;

	while (!st.stop) {
		tables_to(arg, HUGE, node, 0, &out);
		__atomic_add_fetch(&st.tables, out.moved, __ATOMIC_RELAXED);
		node = !node;
		if (st.pause_us)
			usleep(st.pause_us);
	}
	return NULL;
}

/*
 * A page freed lazily and then written is dirty, and only a Dirty bit says so.  If
 * it is lost, reclaim drops the page.
 */
void *lazy(void *arg)
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
		usleep(st.pause_us ? st.pause_us : 1000);
	}
	return NULL;
}

void begin_stress(unsigned long pages, bool all)
{
	begin_stress_in(map(pages * PAGE, false), pages, all);
}

void begin_stress_in(char *p, unsigned long pages, bool all)
{
	memset(&st, 0, sizeof(st));
	st.pages = pages;
	st.p = p;
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

void end_stress(void)
{
	finish();
	munmap(st.p, st.pages * PAGE);
}

/* The stress alone, as a control: what it finds here is its own fault. */
void test_control(void)
{
	begin_stress(4096, true);
	sleep(10);
	end_stress();
	printf("# %lu checks, %lu data moves, %lu forks, %lu page-outs\n", st.checks, st.moves,
	       st.forks, st.pageouts);
}
