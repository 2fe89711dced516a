// SPDX-License-Identifier: GPL-2.0
/* Page tables of five levels: placed by level, inherited, and moved where the fifth one leads. */
#include "tiermem_test.h"

#define AREAS	3

/* Below each entry of the root, which spans 2^48 bytes, there is a table of the fourth level. */
static const uintptr_t areas[AREAS] = { 1UL << 50, 3UL << 50, 7UL << 52 };

static bool map_areas(void)
{
	for (unsigned int i = 0; i < AREAS; i++)
		if (mmap((void *)areas[i], HUGE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) !=
		    (void *)areas[i])
			return false;
	return true;
}

static void fill_areas(uint64_t version)
{
	for (unsigned int i = 0; i < AREAS; i++)
		for (unsigned long at = 0; at < HUGE; at += PAGE)
			*(volatile uint64_t *)(areas[i] + at) = areas[i] + at + version;
}

static unsigned long wrong_in_areas(uint64_t version)
{
	unsigned long wrong = 0;

	for (unsigned int i = 0; i < AREAS; i++)
		for (unsigned long at = 0; at < HUGE; at += PAGE)
			wrong += *(volatile uint64_t *)(areas[i] + at) != areas[i] + at + version;
	return wrong;
}

/* Data and its tables are slow by the task's own policy, the upper levels fast by theirs. */
static void check_levels(const char *who)
{
	uint64_t counts[TM_PT_NR_LEVELS][NR_NODES] = {};

	tables(NULL, 0, counts);
	for (int level = 1; level < TM_PT_NR_LEVELS; level++)
		CHECK(!counts[level][1], "%s: of level %d %lu tables are slow", who, level,
		      (long)counts[level][1]);
	CHECK(counts[4][0] == 1, "%s: %lu roots", who, (long)counts[4][0]);
	/* Of each area one, and of what the program has below 2^47. */
	CHECK(counts[3][0] == AREAS + 1, "%s: %lu tables of the fourth level, expected %u", who,
	      (long)counts[3][0], AREAS + 1);
	for (int level = 1; level < 3; level++)
		CHECK(counts[level][0] >= AREAS + 1, "%s: of level %d %lu tables are fast", who,
		      level, (long)counts[level][0]);
	memset(counts, 0, sizeof(counts));
	for (unsigned int i = 0; i < AREAS; i++) {
		tables((void *)areas[i], HUGE, counts);
		CHECK(counts[0][1] == 1 && !counts[0][0], "%s: tables of area %u: %lu, %lu", who, i,
		      (long)counts[0][0], (long)counts[0][1]);
	}
}

/* In a program of its own, with what it has inherited over fork and exec. */
int levels_after_exec(void)
{
	pid_t pid;
	int status;

	if (!map_areas()) {
		fail("addresses above 2^47: %s", strerror(errno));
		return 1;
	}
	fill_areas(1);
	check_levels("after exec");
	pid = fork();
	if (!pid) {
		fill_areas(2);
		check_levels("after fork");
		_exit(failures != 0);
	}
	waitpid(pid, &status, 0);
	CHECK(!status, "the child's tables are elsewhere");
	CHECK(!wrong_in_areas(1), "%lu pages are wrong", wrong_in_areas(1));

	/* Tables that the fifth level leads to go where they are sent, with what they map. */
	for (unsigned int i = 0; i < AREAS; i++) {
		struct tm_scan_entry entry;
		struct tm_pt_migrate out;
		void *p = (void *)areas[i];

		CHECK(!tables_to(p, HUGE, 0, 0, &out) && out.moved == 1, "area %u: %u moved", i,
		      out.moved);
		CHECK(scan(p, HUGE, TM_SCAN_CLEAR, &entry, 1) == 1 && entry.present == 512,
		      "area %u: a scan finds %u pages", i, entry.present);
	}
	CHECK(!wrong_in_areas(1), "%lu pages are wrong after the move", wrong_in_areas(1));
	return failures != 0;
}

void test_five_levels(void)
{
	const unsigned long slow = 1UL << 1;
	char fd[16];
	int status;
	pid_t pid;

	if (!map_areas()) {
		skip("no addresses above 2^47: four levels");
		return;
	}
	pid = fork();
	if (!pid) {
		CHECK(!policy(TM_PT_MODE_FAST, TM_PT_LEVEL_UPPER, 0, TM_PT_POLICY_HARD),
		      "cannot set the policy");
		if (syscall(SYS_set_mempolicy, 2 /* MPOL_BIND */, &slow, 64UL))
			fail("set_mempolicy: %s", strerror(errno));
		snprintf(fd, sizeof(fd), "%d", device);
		execl(self, self, "--five-levels", "0", fd, NULL);
		_exit(3);
	}
	waitpid(pid, &status, 0);
	CHECK(!status, "five levels: status %x", status);
}
