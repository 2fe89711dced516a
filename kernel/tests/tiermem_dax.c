// SPDX-License-Identifier: GPL-2.0
/*
 * Memory of devices, mapped by 1 GB: it has no page tables, and what is in it is data, also
 * where that looks like an entry of one.
 *
 * Needs device-dax (kernel/build wide) and 2 GB that the command line sets aside where they
 * begin at a GB (memmap=2G!5G): one is lost to the alignment.
 */
#include "tiermem_test.h"

#define ND	"/sys/bus/nd/devices/"
#define GB	(1UL << 30)

/* Makes a device that is mapped by 1 GB of the first namespace; its descriptor, or -1. */
static int open_device(void)
{
	char seed[32] = "", path[128];
	FILE *f;
	int fd = -1;

	if (access("/dev/dax0.0", F_OK)) {
		f = fopen(ND "region0/dax_seed", "r");
		if (!f || fscanf(f, "%31s", seed) != 1) {
			skip("no persistent memory: boot with memmap=2G!5G");
			if (f)
				fclose(f);
			return -1;
		}
		fclose(f);
		put("/sys/bus/nd/drivers/nd_pmem/unbind", "namespace0.0");
		snprintf(path, sizeof(path), ND "%s/align", seed);
		if (!put(path, "1073741824"))
			fail("%s: %s", path, strerror(errno));
		snprintf(path, sizeof(path), ND "%s/mode", seed);
		if (!put(path, "ram"))
			fail("%s: %s", path, strerror(errno));
		snprintf(path, sizeof(path), ND "%s/uuid", seed);
		if (!put(path, "6e1d3f0a-7c57-4a0b-9d51-2f6b1f6c3a77"))
			fail("%s: %s", path, strerror(errno));
		snprintf(path, sizeof(path), ND "%s/namespace", seed);
		if (!put(path, "namespace0.0"))
			fail("%s: %s", path, strerror(errno));
		if (!put("/sys/bus/nd/drivers/dax_pmem/bind", seed))
			fail("dax_pmem of %s: %s", seed, strerror(errno));
	}
	for (int i = 0; i < 100 && fd < 0; i++) {
		fd = open("/dev/dax0.0", O_RDWR);
		if (fd < 0)
			usleep(50000);
	}
	if (fd < 0)
		fail("/dev/dax0.0: %s", strerror(errno));
	return fd;
}

/* The frame of a page of this process. */
static uint64_t frame_of(void *p)
{
	uint64_t entry = 0;
	int fd = open("/proc/self/pagemap", O_RDONLY);

	if (fd < 0 || pread(fd, &entry, 8, (uintptr_t)p / PAGE * 8) != 8)
		fail("pagemap: %s", strerror(errno));
	close(fd);
	return entry & ((1ULL << 55) - 1);
}

void test_pt_dax(void)
{
	const unsigned int at = 5;
	uint64_t counts[TM_PT_NR_LEVELS][NR_NODES] = {}, word;
	struct tm_pt_migrate out;
	unsigned long wrong = 0;
	uint64_t *victim;
	char *room, *p;
	long split;
	int fd = open_device();

	if (fd < 0)
		return;
	room = mmap(NULL, 2 * GB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	p = (char *)(((uintptr_t)room + GB - 1) & ~(GB - 1));
	if (mmap(p, GB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != p) {
		fail("mmap of the device: %s", strerror(errno));
		return;
	}
	/* A page of ours that stays where it is. */
	victim = (uint64_t *)map(HUGE, false);
	for (int i = 0; i < 512; i++)
		victim[i] = i * 0x0101010101010101ULL;
	move_range((char *)victim, PAGE, PAGE, 0);
	mlock(victim, PAGE);
	/* Data of the device's that looks like the entry of a PMD that leads to it. */
	memset(p, 0, PAGE);
	word = frame_of(victim) * PAGE | 0x067;
	((uint64_t *)p)[at] = word;
	*(uint64_t *)(p + GB - 8) = 0x77;

	split = vmstat("thp_split_pud");
	tables(p, GB, counts);
	CHECK(!counts[0][0] && !counts[0][1] && !counts[1][0] && !counts[1][1] &&
	      counts[2][0] + counts[2][1] == 1, "tables of 1 GB mapped as a whole: %lu, %lu, %lu",
	      (long)(counts[0][0] + counts[0][1]), (long)(counts[1][0] + counts[1][1]),
	      (long)(counts[2][0] + counts[2][1]));
	CHECK(vmstat("thp_split_pud") == split, "a count of tables splits 1 GB of device memory");

	CHECK(!tables_to(p + at * HUGE, HUGE, 1, 0, &out), "TM_PT_MIGRATE: %s", strerror(errno));
	CHECK(out.refused == 1 && !out.moved, "%u moved, %u refused, expected 1", out.moved,
	      out.refused);
	CHECK(((uint64_t *)p)[at] == word, "data of the device is %lx, expected %lx",
	      (long)((uint64_t *)p)[at], (long)word);
	for (int i = 0; i < 512; i++)
		wrong += victim[i] != i * 0x0101010101010101ULL;
	CHECK(!wrong, "%lu words of a page that the device's data names are wrong", wrong);
	/* The whole process, and back, with the device's memory in it. */
	for (int node = 1; node >= 0; node--) {
		CHECK(!tables_to(NULL, 0, node, 0, &out), "TM_PT_MIGRATE: %s", strerror(errno));
		CHECK(out.moved && out.refused >= GB / HUGE, "to node %d: %u moved, %u refused",
		      node, out.moved, out.refused);
	}
	CHECK(vmstat("thp_split_pud") == split, "a move of tables splits 1 GB of device memory");
	CHECK(((uint64_t *)p)[at] == word && *(uint64_t *)(p + GB - 8) == 0x77,
	      "data of the device has changed");
	munmap(room, 2 * GB);
	munmap(victim, HUGE);
	close(fd);
}
