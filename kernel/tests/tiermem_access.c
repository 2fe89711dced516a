// SPDX-License-Identifier: GPL-2.0
/* Who may ask for what: every call of the device, in every situation. */
#include "tiermem_test.h"

#include <linux/capability.h>
#include <sys/prctl.h>

#define NOBODY	65534
#define GROUP	"/sys/fs/cgroup/tiermem-nodes"

/* What the calls are about, in the caller and, at the same addresses, in the target. */
static struct {
	char *p;			/* a page on either node */
	uint64_t a, b;
	int32_t status;
	uint64_t counts[TM_PT_NR_LEVELS][NR_NODES];
	struct tm_scan_entry entry;
} about;

/* One argument for each call; those that have room for it get a node. */
union argument {
	struct { uint32_t size; int32_t pidfd; } head;
	struct tm_pt_policy policy;
	struct tm_pt_stat stat;
	struct tm_pt_migrate tables;
	struct tm_migrate migrate;
	struct tm_exchange exchange;
	struct tm_scan scan;
	char room[256];
};

static void fill_get(union argument *arg, int node)
{
	(void)node;
	arg->head.size = sizeof(arg->policy);
}

static void fill_set(union argument *arg, int node)
{
	arg->policy = (struct tm_pt_policy){
		.size = sizeof(arg->policy), .flags = TM_PT_POLICY_SET, .mode = TM_PT_MODE_NODE,
		.levels = TM_PT_LEVEL_PMD, .node = node,
	};
}

static void fill_stat(union argument *arg, int node)
{
	(void)node;
	arg->stat = (struct tm_pt_stat){
		.size = sizeof(arg->stat), .start = (uintptr_t)about.p, .len = PAGE,
		.counts = (uintptr_t)about.counts, .nr_nodes = NR_NODES,
	};
}

static void fill_tables(union argument *arg, int node)
{
	arg->tables = (struct tm_pt_migrate){
		.size = sizeof(arg->tables), .start = (uintptr_t)about.p, .len = PAGE, .node = node,
	};
}

static void fill_migrate(union argument *arg, int node)
{
	arg->migrate = (struct tm_migrate){
		.size = sizeof(arg->migrate), .count = 1, .node = node,
		.addrs = (uintptr_t)&about.a, .status = (uintptr_t)&about.status,
	};
}

static void fill_exchange(union argument *arg, int node)
{
	(void)node;
	arg->exchange = (struct tm_exchange){
		.size = sizeof(arg->exchange), .count = 1, .a = (uintptr_t)&about.a,
		.b = (uintptr_t)&about.b, .status = (uintptr_t)&about.status,
	};
}

static void fill_scan(union argument *arg, int node)
{
	(void)node;
	arg->scan = (struct tm_scan){
		.size = sizeof(arg->scan), .start = (uintptr_t)about.p, .len = HUGE,
		.entries = (uintptr_t)&about.entry, .nr_entries = 1,
		.entry_size = sizeof(about.entry),
	};
}

static const struct call {
	const char *name;
	unsigned int command;
	void (*fill)(union argument *arg, int node);
	bool has_node;
	size_t flags, pointer;		/* where they are; 0: has none */
	uint32_t shared;		/* a flag that only some may use */
} calls[] = {
	{ "TM_PT_POLICY, get", TM_PT_POLICY, fill_get, false,
	  offsetof(struct tm_pt_policy, flags), 0, 0 },
	{ "TM_PT_POLICY, set", TM_PT_POLICY, fill_set, true,
	  offsetof(struct tm_pt_policy, flags), 0, 0 },
	{ "TM_PT_STAT", TM_PT_STAT, fill_stat, false, 0, offsetof(struct tm_pt_stat, counts), 0 },
	{ "TM_PT_MIGRATE", TM_PT_MIGRATE, fill_tables, true,
	  offsetof(struct tm_pt_migrate, flags), 0, 0 },
	{ "TM_MIGRATE", TM_MIGRATE, fill_migrate, true, offsetof(struct tm_migrate, flags),
	  offsetof(struct tm_migrate, addrs), TM_MIGRATE_SHARED },
	{ "TM_EXCHANGE", TM_EXCHANGE, fill_exchange, false, offsetof(struct tm_exchange, flags),
	  offsetof(struct tm_exchange, a), TM_EXCHANGE_SHARED },
	{ "TM_SCAN", TM_SCAN, fill_scan, false, offsetof(struct tm_scan, flags),
	  offsetof(struct tm_scan, entries), 0 },
};

static int call(const struct call *c, union argument *arg)
{
	return ioctl(device, c->command, arg) < 0 ? -errno : 0;
}

/* All calls on this target; each has to end with @error, or with the other one. */
static void all_calls(const char *who, int pidfd, int node, int error, int or)
{
	for (const struct call *c = calls; c < calls + ARRAY_SIZE(calls); c++) {
		union argument arg = {};
		int is;

		c->fill(&arg, node);
		arg.head.pidfd = pidfd;
		is = call(c, &arg);
		CHECK(is == error || is == or, "%s: %s: %s, expected %s", who, c->name,
		      is ? strerror(-is) : "done", error ? strerror(-error) : "done");
	}
}

/* --- arguments ------------------------------------------------------------- */

static void set32(union argument *arg, size_t at, uint32_t value)
{
	memcpy(arg->room + at, &value, sizeof(value));
}

static void arguments(void)
{
	for (const struct call *c = calls; c < calls + ARRAY_SIZE(calls); c++) {
		const uint64_t nowhere = 1ULL << 40;
		union argument arg = {};
		uint32_t size;
		void *page;

		c->fill(&arg, 0);
		arg.head.pidfd = TM_SELF;
		size = arg.head.size;
		CHECK(!call(c, &arg), "%s of oneself: %s", c->name, strerror(errno));

		/* Longer ones, of a later version, as long as what is unknown is zero. */
		memset(&arg, 0, sizeof(arg));
		c->fill(&arg, 0);
		arg.head = (typeof(arg.head)){ size + 64, TM_SELF };
		CHECK(!call(c, &arg), "%s, longer: %s", c->name, strerror(errno));
		c->fill(&arg, 0);
		arg.head = (typeof(arg.head)){ size + 64, TM_SELF };
		arg.room[size + 63] = 1;
		CHECK(call(c, &arg) == -E2BIG, "%s, longer and not zero: %s", c->name,
		      strerror(errno));
		/* Up to a page; more is nonsense. */
		page = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			    0);
		memset(&arg, 0, sizeof(arg));
		c->fill(&arg, 0);
		arg.head = (typeof(arg.head)){ 2 * PAGE, TM_SELF };
		memcpy(page, &arg, size);
		CHECK(ioctl(device, c->command, page) && errno == E2BIG, "%s of two pages: %s",
		      c->name,
		      strerror(errno));
		munmap(page, 3 * PAGE);
		for (uint32_t small = 0; small < 16; small += 4) {
			arg.head.size = small;
			CHECK(call(c, &arg) == -EINVAL, "%s of %u bytes: %s", c->name, small,
			      strerror(errno));
		}
		CHECK(ioctl(device, c->command, NULL) && errno == EFAULT, "%s of nothing: %s",
		      c->name,
		      strerror(errno));
		CHECK(ioctl(device, c->command, nowhere) && errno == EFAULT, "%s of nowhere: %s",
		      c->name,
		      strerror(errno));

		if (c->flags) {
			c->fill(&arg, 0);
			arg.head.pidfd = TM_SELF;
			set32(&arg, c->flags, 1U << 31);
			CHECK(call(c, &arg) == -EINVAL, "%s with flag 31: %s", c->name,
			      strerror(errno));
		}
		if (c->pointer) {
			c->fill(&arg, 0);
			arg.head.pidfd = TM_SELF;
			memcpy(arg.room + c->pointer, &nowhere, sizeof(nowhere));
			CHECK(call(c, &arg) == -EFAULT, "%s with a list that is nowhere: %s",
			      c->name,
			      strerror(errno));
		}
		for (int node = -1; c->has_node &&
		     node < 1 << 20; node = node < 0 ? 77 : node * 16) {
			c->fill(&arg, node);
			arg.head.pidfd = TM_SELF;
			CHECK(call(c, &arg) == -ENODEV, "%s to node %d: %s", c->name, node,
			      strerror(errno));
		}
	}
	CHECK(!policy(TM_PT_MODE_DEFAULT, 0, 0, 0), "no policy again");
}

/* --- rights ---------------------------------------------------------------- */

/* A process that waits, of this user; its pidfd. */
static int target_of(uid_t uid, bool dumpable, pid_t *pid)
{
	int ready[2], fd;
	char c = 0;

	if (pipe(ready))
		return -1;
	*pid = fork();
	if (!*pid) {
		if (uid && (setgid(uid) || setuid(uid)))
			_exit(2);
		prctl(PR_SET_DUMPABLE, dumpable);
		c = write(ready[1], "x", 1);
		pause();
		_exit(c);
	}
	CHECK(read(ready[0], &c, 1) == 1, "the target has not begun");
	close(ready[0]);
	close(ready[1]);
	fd = syscall(SYS_pidfd_open, *pid, 0);
	CHECK(fd >= 0, "pidfd_open: %s", strerror(errno));
	return fd;
}

/* Nobody, with CAP_SYS_NICE or without any capability. */
static bool become_nobody(bool nice)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct data[2] = {};

	if (prctl(PR_SET_KEEPCAPS, 1) || setgid(NOBODY) || setuid(NOBODY))
		return false;
	if (nice)
		data[0].permitted = 1U << CAP_SYS_NICE;
	data[0].effective = data[0].permitted;
	return !syscall(SYS_capset, &header, data);
}

static int root_fd, nobody_fd, hidden_fd;

static void without_capabilities(void)
{
	if (!become_nobody(false)) {
		fail("cannot become nobody: %s", strerror(errno));
		return;
	}
	CHECK(open("/dev/tiermem", O_RDWR) < 0 && errno == EACCES, "nobody opens the device");
	CHECK(open("/dev/tiermem", O_RDONLY) < 0 && errno == EACCES, "nobody opens it to read");
	all_calls("nobody, of root's process", root_fd, 0, -EACCES, -EPERM);
	all_calls("nobody, of a process of nobody's", nobody_fd, 0, -EPERM, -EPERM);
	all_calls("nobody, of a process that is hidden", hidden_fd, 0, -EACCES, -EPERM);
	all_calls("nobody, of itself", TM_SELF, 0, 0, 0);
	for (const struct call *c = calls; c < calls + ARRAY_SIZE(calls); c++) {
		union argument arg = {};

		if (!c->shared)
			continue;
		c->fill(&arg, 0);
		arg.head.pidfd = TM_SELF;
		set32(&arg, c->flags, c->shared);
		CHECK(call(c, &arg) == -EPERM, "nobody, %s of what is shared: %s", c->name,
		      strerror(errno));
	}
}

static void with_nice(void)
{
	if (!become_nobody(true)) {
		fail("cannot become nobody with CAP_SYS_NICE: %s", strerror(errno));
		return;
	}
	all_calls("CAP_SYS_NICE, of root's process", root_fd, 0, -EACCES, -EPERM);
	all_calls("CAP_SYS_NICE, of a process of the same user", nobody_fd, 0, 0, 0);
	all_calls("CAP_SYS_NICE, of a process that is hidden", hidden_fd, 0, -EACCES, -EPERM);
}

/* The slow node is not this process': nothing goes there, or comes from there. */
static void within_cpuset(void)
{
	put("/sys/fs/cgroup/cgroup.subtree_control", "+cpuset");
	rmdir(GROUP);
	if (mkdir(GROUP, 0755) || !put(GROUP "/cpuset.mems", "0") || !put(GROUP "/cgroup.procs",
									  "0")) {
		printf("# no cpusets in this kernel: %s\n", strerror(errno));
		return;
	}
	for (const struct call *c = calls; c < calls + ARRAY_SIZE(calls); c++) {
		union argument arg = {};
		int is;

		if (!c->has_node)
			continue;
		c->fill(&arg, 1);
		arg.head.pidfd = TM_SELF;
		is = call(c, &arg);
		CHECK(is == -EACCES, "%s to a node outside of the cpuset: %s", c->name,
		      is ? strerror(-is) : "done");
		c->fill(&arg, 0);
		arg.head.pidfd = TM_SELF;
		is = call(c, &arg);
		CHECK(!is, "%s to a node of the cpuset: %s", c->name, strerror(-is));
	}
	policy(TM_PT_MODE_DEFAULT, 0, 0, 0);
	put("/sys/fs/cgroup/cgroup.procs", "0");
	CHECK(!rmdir(GROUP), "rmdir " GROUP ": %s", strerror(errno));
}

void test_access(void)
{
	pid_t root, nobody, hidden, gone;
	int fd;

	about.p = map(HUGE, false);
	about.a = (uintptr_t)about.p;
	about.b = (uintptr_t)about.p + PAGE;
	memset(about.p, 1, 2 * PAGE);
	arguments();

	all_calls("a number that is no pidfd", 1000, 0, -EBADF, -EBADF);
	all_calls("a file that is no pidfd", device, 0, -EBADF, -EBADF);
	fd = target_of(0, true, &gone);
	kill(gone, SIGKILL);
	waitpid(gone, NULL, 0);
	all_calls("a process that is gone", fd, 0, -ESRCH, -ESRCH);
	close(fd);

	root_fd = target_of(0, true, &root);
	nobody_fd = target_of(NOBODY, true, &nobody);
	hidden_fd = target_of(NOBODY, false, &hidden);
	all_calls("root, of root's process", root_fd, 0, 0, 0);
	all_calls("root, of a process that is hidden", hidden_fd, 0, 0, 0);
	run_apart(without_capabilities);
	run_apart(with_nice);
	run_apart(within_cpuset);
	kill(root, SIGKILL);
	kill(nobody, SIGKILL);
	kill(hidden, SIGKILL);
	waitpid(root, NULL, 0);
	waitpid(nobody, NULL, 0);
	waitpid(hidden, NULL, 0);
	close(root_fd);
	close(nobody_fd);
	close(hidden_fd);
	munmap(about.p, HUGE);
}
