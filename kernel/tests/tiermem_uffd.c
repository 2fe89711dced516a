// SPDX-License-Identifier: GPL-2.0
/* UFFDIO_MOVE out of tables that are moved meanwhile. */
#include "tiermem_test.h"

#include <linux/userfaultfd.h>

/* Newer than the headers of some distributions. */
#ifndef UFFDIO_MOVE
#define UFFDIO_MOVE	_IOWR(UFFDIO, 0x05, struct uffdio_move)

struct uffdio_move {
	__u64 dst;
	__u64 src;
	__u64 len;
	__u64 mode;
	__s64 move;
};
#endif

/*
 * Fills the pages of @from, moves each to @hole, which is registered with @uffd, finds it
 * there, and empties the hole again.  Returns how often the kernel asked to try again.
 */
unsigned long uffd_move_round(int uffd, char *from, char *hole, unsigned long pages,
			      uint64_t version)
{
	unsigned long retries = 0;

	for (unsigned long page = 0; page < pages && failures < 20; page++) {
		struct uffdio_move move = {
			.dst = (uintptr_t)hole + page * PAGE, .src = (uintptr_t)from + page * PAGE,
			.len = PAGE,
		};
		uint64_t tag = page << 32 | version, *word = (uint64_t *)(hole + page * PAGE);
		double begun = now();

		*(volatile uint64_t *)(from + page * PAGE) = tag;
		while (ioctl(uffd, UFFDIO_MOVE, &move)) {
			/* Busy: pinned, or not this process' alone for a moment. */
			if ((errno != EAGAIN && errno != EBUSY) || now() - begun > 60) {
				fail("UFFDIO_MOVE of page %lu, which is there: %s", page,
				     strerror(errno));
				return retries;
			}
			retries++;
			/* What was shared with a child is this process' again when written to. */
			*(volatile uint64_t *)(from + page * PAGE) = tag;
		}
		if (!is_mapped(word))
			fail("UFFDIO_MOVE lost page %lu", page);
		else if (*(volatile uint64_t *)word != tag)
			fail("UFFDIO_MOVE of page %lu: it reads %lx, not %lx", page, (long)*word,
			     (long)tag);
		madvise(word, PAGE, MADV_DONTNEED);
	}
	return retries;
}

/* Reading a page that is missing would wait for ever: nobody handles the faults. */
bool is_mapped(void *p)
{
	uint64_t entry = 0;
	int fd = open("/proc/self/pagemap", O_RDONLY);

	if (fd < 0 || pread(fd, &entry, 8, (uintptr_t)p / PAGE * 8) != 8)
		fail("pagemap: %s", strerror(errno));
	close(fd);
	/* Present, or in swap. */
	return entry >> 62;
}

static struct {
	int uffd;
	char *from, *hole;
	unsigned long rounds, retries;
} moving;

#define UFFD_PAGES	32

static void *mover(void *arg)
{
	(void)arg;
	while (!st.stop && failures < 20)
		moving.retries += uffd_move_round(moving.uffd, moving.from, moving.hole, UFFD_PAGES,
						  ++moving.rounds);
	return NULL;
}

bool uffd_stress(unsigned long wanted)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register area = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	unsigned long moved = 0, turn = 0;
	struct tm_pt_migrate out;
	double begun = now();

	memset(&st, 0, sizeof(st));
	memset(&moving, 0, sizeof(moving));
	moving.uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
	moving.from = map(HUGE, false);
	/* A table apart, which userfaultfd keeps where it is. */
	moving.hole = map(HUGE, false);
	area.range = (struct uffdio_range){ (uintptr_t)moving.hole, HUGE };
	if (moving.uffd < 0 || ioctl(moving.uffd, UFFDIO_API, &api) ||
	    ioctl(moving.uffd, UFFDIO_REGISTER, &area)) {
		fail("userfaultfd: %s", strerror(errno));
		return false;
	}
	start(mover, NULL);
	while (moved < wanted && !failures && now() - begun < seconds) {
		tables_to(moving.from, HUGE, ++turn & 1, 0, &out);
		moved += out.moved;
		usleep(300);
	}
	finish();
	close(moving.uffd);
	munmap(moving.from, HUGE);
	munmap(moving.hole, HUGE);
	printf("# %lu table moves beside %lu rounds of UFFDIO_MOVE, tried again %lu times, in %.0f s\n",
	       moved, moving.rounds, moving.retries, now() - begun);
	return moved >= wanted;
}

void test_uffd_stress(void)
{
	debug("delay_uffd_move_us", "1000");
	CHECK(uffd_stress(count ? count : 200) || failures, "not so many table moves in time");
	debug("delay_uffd_move_us", "0");
}
