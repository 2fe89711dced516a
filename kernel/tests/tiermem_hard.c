// SPDX-License-Identifier: GPL-2.0
/* Placement where it cannot be had: movable memory, and cpusets that have been moved away. */
#include "tiermem_test.h"

#include <sys/mount.h>

/* Waits for a child; false, and it is killed, if it has not ended by then. */
static bool ends(pid_t pid, unsigned int most_s, int *status)
{
	double begun = now();

	while (now() - begun < most_s) {
		if (waitpid(pid, status, WNOHANG) == pid)
			return true;
		usleep(20000);
	}
	kill(pid, SIGKILL);
	waitpid(pid, status, 0);
	return false;
}

static bool has_normal_memory(int node)
{
	unsigned int first, last;
	bool found = false;
	FILE *f = fopen("/sys/devices/system/node/has_normal_memory", "r");

	while (f && fscanf(f, "%u", &first) == 1) {
		last = first;
		if (fscanf(f, "-%u", &last) != 1)
			last = first;
		found |= (unsigned int)node >= first && (unsigned int)node <= last;
		if (fgetc(f) != ',')
			break;
	}
	if (f)
		fclose(f);
	return found;
}

/* Needs a slow node all of whose memory is movable: kernelcore=4K does that above 4 GB. */
void test_hard_movable(void)
{
	const unsigned long n = 16;
	uint64_t counts[TM_PT_NR_LEVELS][NR_NODES] = {};
	static const unsigned int flags[] = { 0, TM_PT_POLICY_HARD };
	struct tm_pt_migrate out;
	int status, err;
	char *p;

	if (has_normal_memory(1)) {
		skip("node 1 has memory that is not movable");
		return;
	}
	for (int i = 0; i < 2; i++) {
		pid_t pid = fork();

		if (!pid) {
			failures = 0;
			err = policy(TM_PT_MODE_NODE, TM_PT_LEVEL_ALL, 1, flags[i]);
			if (err != -EOPNOTSUPP) {
				fail("tables on movable memory, flags %x: %d, expected EOPNOTSUPP",
				     flags[i], err);
				/* What that does. */
				*(volatile char *)map(HUGE, false) = 1;
			}
			_exit(failures != 0);
		}
		if (!ends(pid, 20, &status))
			fail("a fault under a policy that cannot be met does not end, flags %x",
			     flags[i]);
		else
			CHECK(!status, "status %x, flags %x", status, flags[i]);
	}

	/* Fast memory can be had, and data goes where tables do not. */
	CHECK(!policy(TM_PT_MODE_FAST, TM_PT_LEVEL_ALL, 0, TM_PT_POLICY_HARD), "fast, hard");
	p = map(n * HUGE, false);
	for (unsigned long at = 0; at < n * HUGE; at += HUGE)
		p[at] = 1;
	tables(p, n * HUGE, counts);
	CHECK(counts[0][0] == n, "%lu of %lu tables on node 0", (long)counts[0][0], n);
	policy(TM_PT_MODE_DEFAULT, 0, 0, TM_PT_POLICY_FOLLOW);
	err = tables_to(p, n * HUGE, 1, 0, &out);
	CHECK(err == -EOPNOTSUPP && !out.moved && !out.no_memory,
	      "TM_PT_MIGRATE: %d, %u moved, %u without memory, expected EOPNOTSUPP", err, out.moved,
	      out.no_memory);
	move_range(p, n * HUGE, HUGE, 1);
	for (unsigned long at = 0; at < n * HUGE; at += HUGE)
		CHECK(node_of(p + at) == 1, "data of table %lu is on node %d", at / HUGE,
		      node_of(p + at));
	memset(counts, 0, sizeof(counts));
	tables(p, n * HUGE, counts);
	CHECK(counts[0][0] == n, "%lu of %lu tables still on node 0", (long)counts[0][0], n);
	policy(TM_PT_MODE_DEFAULT, 0, 0, 0);
	munmap(p, n * HUGE);
}

/* --- cpusets -------------------------------------------------------------- */

static char group[64];
static bool walled;

static bool group_put(const char *name, const char *value)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", group, name);
	return put(path, value);
}

/*
 * A group of the first version, walled off: what it has not, its tasks cannot get, be it
 * for the kernel.  Or of the second, which has no such walls.
 */
static bool make_group(void)
{
	mkdir("/tmp/cpuset", 0755);
	if (!mount("cpuset", "/tmp/cpuset", "cgroup", 0, "cpuset")) {
		walled = true;
		snprintf(group, sizeof(group), "/tmp/cpuset/tiermem");
		return !mkdir(group, 0755) && group_put("cpuset.cpus", "0") &&
		       group_put("cpuset.mems", "0-1") && group_put("cpuset.mem_hardwall", "1");
	}
	walled = false;
	snprintf(group, sizeof(group), "/sys/fs/cgroup/tiermem-cpuset");
	return put("/sys/fs/cgroup/cgroup.subtree_control", "+cpuset") && !mkdir(group, 0755) &&
	       group_put("cpuset.mems", "0-1");
}

/* A hard policy, whose node the cpuset no longer has. */
void test_hard_cpuset(void)
{
	const unsigned long n = 32;
	long killed, fallback;
	int ready[2], go[2], status;
	pid_t pid, bystander;
	char c;

	if (!make_group()) {
		skip("cannot make a cpuset: %s", strerror(errno));
		return;
	}
	if (pipe(ready) || pipe(go)) {
		fail("pipe: %s", strerror(errno));
		return;
	}
	/* The largest process there is: whom the OOM killer would take. */
	bystander = fork();
	if (!bystander) {
		memset(map(64 * HUGE, false), 1, 64 * HUGE);
		c = write(ready[1], "x", 1) != 1;
		pause();
		_exit(c);
	}
	CHECK(read(ready[0], &c, 1) == 1, "the bystander");
	pid = fork();
	if (!pid) {
		uint64_t counts[TM_PT_NR_LEVELS][NR_NODES] = {};
		char *p;

		failures = 0;
		CHECK(group_put(walled ? "tasks" : "cgroup.procs", "0"), "enter the group: %s",
		      strerror(errno));
		CHECK(!policy(TM_PT_MODE_NODE, TM_PT_LEVEL_ALL, 1, TM_PT_POLICY_HARD), "hard policy");
		p = map(n * HUGE, false);
		CHECK(write(ready[1], "x", 1) == 1 && read(go[0], &c, 1) == 1, "the parent");
		for (unsigned long at = 0; at < n * HUGE; at += HUGE)
			p[at] = 1;
		tables(p, n * HUGE, counts);
		CHECK(counts[0][0] == n, "%lu of %lu tables where the cpuset is, %lu elsewhere",
		      (long)counts[0][0], n, (long)counts[0][1]);
		_exit(failures != 0);
	}
	CHECK(read(ready[0], &c, 1) == 1, "the child");
	killed = vmstat("oom_kill");
	fallback = vmstat("pt_policy_fallback");
	CHECK(group_put("cpuset.mems", "0"), "move the cpuset away: %s", strerror(errno));
	CHECK(write(go[1], "x", 1) == 1, "the child");
	CHECK(ends(pid, 60, &status), "a fault under a policy that the cpuset excludes does not end");
	CHECK(!status, "the child: status %x", status);
	CHECK(vmstat("oom_kill") == killed, "%ld processes are killed while memory is free",
	      vmstat("oom_kill") - killed);
	CHECK(!waitpid(bystander, &status, WNOHANG), "an unrelated process is killed");
	CHECK(vmstat("pt_policy_fallback") >= fallback + (long)n, "%ld fallbacks are counted",
	      vmstat("pt_policy_fallback") - fallback);
	printf("# in a group %s walls\n", walled ? "with" : "without");
	kill(bystander, SIGKILL);
	waitpid(bystander, NULL, 0);
	for (int i = 0; i < 50 && rmdir(group); i++)
		usleep(100000);
	if (walled)
		umount("/tmp/cpuset");
	close(ready[0]);
	close(ready[1]);
	close(go[0]);
	close(go[1]);
}
