// SPDX-License-Identifier: GPL-2.0
/*
 * Collapse of a file's mapping into a huge page, beside moves of its table: between emptying
 * the table and removing it the collapse holds no lock, and the table can be replaced by
 * another one, and the old one freed.
 */
#include "tiermem_test.h"

#define SHMEM	"/sys/kernel/mm/transparent_hugepage/shmem_enabled"
#define MOST_PAUSE_US	20000

/*
 * What is freed is given to others, who write it: to another process, for whoever waits to
 * change this one's mappings keeps the table where it is.
 */
static pid_t start_reuser(void)
{
	pid_t pid = fork();

	while (!pid) {
		char *p = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (p == MAP_FAILED)
			_exit(1);
		memset(p, 0xff, 64 * PAGE);
		munmap(p, 64 * PAGE);
		usleep(1000);
	}
	return pid;
}

/* Returns how many of the rounds ended with a huge page. */
unsigned long collapse_beside_moves(unsigned long wanted)
{
	unsigned long rounds = 0, collapsed = 0, before = 0, wrong;
	double begun = now();
	pid_t reuser;
	char *p;
	int fd;

	if (!put(SHMEM, "advise")) {
		skip("no huge pages of shared memory");
		return 0;
	}
	memset(&st, 0, sizeof(st));
	fd = memfd_create("collapse", 0);
	p = map(HUGE, true);
	if (fd < 0 || ftruncate(fd, HUGE) ||
	    mmap(p, HUGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != p) {
		fail("memory of a file: %s", strerror(errno));
		return 0;
	}
	madvise(p, HUGE, MADV_HUGEPAGE);
	for (unsigned long i = 0; i < HUGE / PAGE; i++)
		*(uint64_t *)(p + i * PAGE) = i * 3 + 1;

	debug("delay_collapse_us", "5000");
	reuser = start_reuser();
	start(table_mover, p);
	while (rounds < wanted && !failures && now() - begun < seconds) {
		/* The same huge page, mapped by base pages. */
		madvise(p, HUGE, MADV_DONTNEED);
		madvise(p, HUGE, MADV_NOHUGEPAGE);
		wrong = 0;
		for (unsigned long i = 0; i < HUGE / PAGE; i++)
			wrong += *(volatile uint64_t *)(p + i * PAGE) != i * 3 + 1;
		CHECK(!wrong, "round %lu: %lu pages are wrong before the collapse", rounds, wrong);
		madvise(p, HUGE, MADV_HUGEPAGE);
		before = __atomic_load_n(&st.tables, __ATOMIC_RELAXED);
		/*
		 * A collapse that meets a move gives up.  How many meet one is up to the host:
		 * the mover waits for longer until some do not.
		 */
		if (!madvise(p, HUGE, MADV_COLLAPSE)) {
			collapsed++;
			st.pause_us /= 2;
		} else if (st.pause_us < MOST_PAUSE_US) {
			st.pause_us = 2 * st.pause_us + 100;
		}
		st.moves += __atomic_load_n(&st.tables, __ATOMIC_RELAXED) - before;
		wrong = 0;
		for (unsigned long i = 0; i < HUGE / PAGE; i++) {
			wrong += *(uint64_t *)(p + i * PAGE) != i * 3 + 1;
			*(uint64_t *)(p + i * PAGE) = i * 3 + 1;
		}
		CHECK(!wrong, "round %lu: %lu pages are wrong after the collapse", rounds, wrong);
		rounds++;
	}
	finish();
	debug("delay_collapse_us", "0");
	kill(reuser, SIGKILL);
	waitpid(reuser, NULL, 0);
	printf("# %lu rounds, %lu collapsed, %lu table moves, %lu of them during a collapse\n",
	       rounds, collapsed, st.tables, st.moves);
	CHECK(rounds >= wanted || control, "only %lu rounds in time", rounds);
	munmap(p, HUGE);
	close(fd);
	return collapsed;
}

void test_pt_collapse(void)
{
	unsigned long collapsed = collapse_beside_moves(count ? count : 300);

	CHECK(collapsed, "nothing was collapsed: the race was not met");
	CHECK(st.moves, "no table was moved during a collapse: the race was not met");
}
