// SPDX-License-Identifier: GPL-2.0
/*
 * Tests of /dev/tiermem, for a machine with two memory nodes, as root.
 *
 * usage: tiermem_test [-c] [-n COUNT] [-s SECONDS] [TEST...]
 *
 * Without a test's name, all that leave the machine whole.  The tests that are
 * named "fault-..." switch on a deliberate fault (CONFIG_TIERMEM_DEBUG) and pass
 * if the stress notices it; the kernel may not survive some of them.  With -c the
 * fault is left off, as a control: then nothing may be noticed.
 *
 * What a stress checks: every page has words that say which page it is and which
 * version of it; the thread that owns the page knows the version.  A page that is
 * lost, doubled, mixed up or stale shows at once.
 */
#include "tiermem_test.h"

int device = -1;
unsigned long count;
unsigned int seconds = 240;
unsigned int failures;
const char *self;

void fail(const char *format, ...)
{
	va_list args;

	/* The first few say enough. */
	if (__atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED) > 8)
		return;
	printf("# ");
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
	fflush(stdout);
}

/* Shared with the process that a test runs in. */
static char *skipped;

void skip(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(skipped, PAGE, format, args);
	va_end(args);
}

double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

uint64_t next(uint64_t *state)
{
	/* xorshift64*: the same seed gives the same run, as far as threads do. */
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545f4914f6cdd1dULL >> 16;
}

long vmstat(const char *name)
{
	char key[64];
	long value = -1, v;
	FILE *f = fopen("/proc/vmstat", "r");

	while (f && fscanf(f, "%63s %ld", key, &v) == 2)
		if (!strcmp(key, name))
			value = v;
	if (f)
		fclose(f);
	return value;
}

long status_kb(const char *name)
{
	char line[256];
	long value = -1;
	FILE *f = fopen("/proc/self/status", "r");

	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, name, strlen(name)))
			value = atol(line + strlen(name) + 1);
	if (f)
		fclose(f);
	return value;
}

bool put(const char *path, const char *value)
{
	int fd = open(path, O_WRONLY);
	bool done = fd >= 0 && write(fd, value, strlen(value)) == (ssize_t)strlen(value);

	if (fd >= 0)
		close(fd);
	return done;
}

bool debug(const char *name, const char *value)
{
	char path[128];

	snprintf(path, sizeof(path), "/sys/kernel/debug/tiermem/%s", name);
	return put(path, value);
}

char *map(unsigned long bytes, bool huge)
{
	char *raw = mmap(NULL, bytes + HUGE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *p;

	if (raw == MAP_FAILED) {
		perror("# mmap");
		exit(1);
	}
	p = (char *)(((uintptr_t)raw + HUGE - 1) & ~(HUGE - 1));
	madvise(p, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	return p;
}

int node_of(void *p)
{
	int status = -1;

	if (syscall(SYS_move_pages, 0, 1UL, &p, NULL, &status, 0))
		return -errno;
	return status;
}

int move_to(void **pages, unsigned long n, int node)
{
	int nodes[512], status[512];
	unsigned long i;

	for (i = 0; i < n; i++)
		nodes[i] = node;
	return syscall(SYS_move_pages, 0, n, pages, nodes, status, MOVE);
}

void move_range(char *p, unsigned long bytes, unsigned long step, int node)
{
	void *pages[256];
	unsigned long at, n = 0;

	for (at = 0; at < bytes; at += step) {
		pages[n++] = p + at;
		if (n == 256 || at + step >= bytes) {
			move_to(pages, n, node);
			n = 0;
		}
	}
}

int tables_to(void *start, unsigned long len, int node, unsigned int flags,
	      struct tm_pt_migrate *out)
{
	struct tm_pt_migrate arg = {
		.size = sizeof(arg), .pidfd = TM_SELF, .start = (uintptr_t)start,
		.len = len, .node = node, .flags = flags,
	};
	int err = ioctl(device, TM_PT_MIGRATE, &arg);

	if (out)
		*out = arg;
	return err ? -errno : 0;
}

void tables(void *start, unsigned long len, uint64_t counts[TM_PT_NR_LEVELS][NR_NODES])
{
	struct tm_pt_stat arg = {
		.size = sizeof(arg), .pidfd = TM_SELF, .start = (uintptr_t)start,
		.len = len, .counts = (uintptr_t)counts, .nr_nodes = NR_NODES,
	};

	CHECK(!ioctl(device, TM_PT_STAT, &arg), "TM_PT_STAT: %s", strerror(errno));
}

int exchange(uint64_t *a, uint64_t *b, unsigned int n, int32_t *status)
{
	struct tm_exchange arg = {
		.size = sizeof(arg), .pidfd = TM_SELF, .count = n, .a = (uintptr_t)a,
		.b = (uintptr_t)b, .status = (uintptr_t)status,
	};
	int err = ioctl(device, TM_EXCHANGE, &arg);

	return err ? -errno : (int)arg.exchanged;
}

int policy(unsigned int mode, unsigned int levels, int node, unsigned int flags)
{
	struct tm_pt_policy arg = {
		.size = sizeof(arg), .pidfd = TM_SELF, .flags = TM_PT_POLICY_SET | flags,
		.mode = mode, .levels = levels, .node = node,
	};

	return ioctl(device, TM_PT_POLICY, &arg) ? -errno : 0;
}

/* --- the interface ------------------------------------------------------- */

/* Each command takes an argument of its first version, and none that is shorter. */
static void check_sizes(void)
{
	static const struct {
		unsigned int command, least, size;
	} known[] = {
#define ARGUMENT(name, type) { name, name ## _SIZE_VER0, sizeof(struct type) }
		ARGUMENT(TM_INFO, tm_info),
		ARGUMENT(TM_PT_POLICY, tm_pt_policy),
		ARGUMENT(TM_PT_STAT, tm_pt_stat),
		ARGUMENT(TM_PT_MIGRATE, tm_pt_migrate),
		ARGUMENT(TM_MIGRATE, tm_migrate),
		ARGUMENT(TM_EXCHANGE, tm_exchange),
		ARGUMENT(TM_SCAN, tm_scan),
	};
	union {
		uint32_t size;
		uint8_t bytes[256];
	} arg;
	unsigned int wrong;

	for (unsigned int i = 0; i < ARRAY_SIZE(known); i++) {
		CHECK(known[i].size >= known[i].least, "command %u has lost fields", i);
		memset(&arg, 0xee, sizeof(arg));
		arg.size = known[i].least - 4;
		CHECK(ioctl(device, known[i].command, &arg) && errno == EINVAL,
		      "command %u: a size of %u is accepted", i, known[i].least - 4);
		/* Nothing that is asked makes sense, but it is read, and no more is written. */
		memset(&arg, 0, known[i].least);
		memset(arg.bytes + known[i].least, 0xee, sizeof(arg) - known[i].least);
		arg.size = known[i].least;
		((int32_t *)&arg)[1] = 1000;	/* pidfd */
		CHECK(!ioctl(device, known[i].command, &arg) || errno != E2BIG,
		      "command %u: the first version is too large", i);
		wrong = 0;
		for (unsigned int at = known[i].least; at < sizeof(arg); at++)
			wrong += arg.bytes[at] != 0xee;
		CHECK(!wrong, "command %u: %u bytes are written behind the argument", i, wrong);
	}
	/* A call of the first version does what it is asked to. */
	memset(&arg, 0xee, sizeof(arg));
	arg.size = TM_INFO_SIZE_VER0;
	CHECK(!ioctl(device, TM_INFO, &arg), "TM_INFO of the first version");
}

void test_abi(void)
{
	struct { struct tm_info info; uint64_t more; } arg = { .info.size = sizeof(arg.info) };
	struct tm_pt_policy get = { .size = sizeof(get), .pidfd = TM_SELF };
	struct tm_pt_migrate mig = { .size = sizeof(mig), .pidfd = TM_SELF };
	int status;
	pid_t pid;

	CHECK(!ioctl(device, TM_INFO, &arg), "TM_INFO: %s", strerror(errno));
	CHECK(arg.info.abi == TM_ABI_VERSION, "abi %u", arg.info.abi);
	CHECK(arg.info.nr_nodes >= NR_NODES, "%u nodes", arg.info.nr_nodes);
	arg.info.size = sizeof(arg);
	CHECK(!ioctl(device, TM_INFO, &arg), "a longer argument of zeros is refused");
	arg.more = 1;
	CHECK(ioctl(device, TM_INFO, &arg) && errno == E2BIG, "unknown fields are accepted");
	check_sizes();
	CHECK(ioctl(device, _IO(TM_TYPE, 0x7f), &arg) && errno == ENOTTY, "command 0x7f");
	CHECK(ioctl(device, TM_INFO, NULL) && errno == EFAULT, "no argument");

	get.pidfd = 1000;
	CHECK(ioctl(device, TM_PT_POLICY, &get) && errno == EBADF, "pidfd 1000");
	get = (struct tm_pt_policy){ .size = sizeof(get), .pidfd = TM_SELF, .flags = 1U << 31 };
	CHECK(ioctl(device, TM_PT_POLICY, &get) && errno == EINVAL, "unknown flag");
	CHECK(policy(9, TM_PT_LEVEL_ALL, 0, 0) == -EINVAL, "mode 9");
	CHECK(policy(TM_PT_MODE_FAST, 1U << 7, 0, 0) == -EINVAL, "level 7");
	CHECK(policy(TM_PT_MODE_NODE, TM_PT_LEVEL_ALL, 77, 0) == -ENODEV, "node 77");
	mig.node = 77;
	CHECK(ioctl(device, TM_PT_MIGRATE, &mig) && errno == ENODEV, "tables to node 77");
	mig.node = 0;
	mig.start = ~0UL;
	mig.len = 8192;
	CHECK(ioctl(device, TM_PT_MIGRATE, &mig) && errno == EINVAL, "a range that wraps");

	/* The device is open, but the target is somebody else's. */
	pid = fork();
	if (!pid) {
		int pidfd = syscall(SYS_pidfd_open, 1, 0);

		if (setgid(65534) || setuid(65534))
			_exit(2);
		get = (struct tm_pt_policy){ .size = sizeof(get), .pidfd = pidfd };
		_exit(ioctl(device, TM_PT_POLICY, &get) && (errno == EACCES ||
							    errno == EPERM) ? 0 : 1);
	}
	waitpid(pid, &status, 0);
	CHECK(status == 0, "without rights, another process's policy can be read");

	/* With them, another process can be a target. */
	pid = fork();
	if (!pid) {
		pause();
		_exit(0);
	}
	get = (struct tm_pt_policy){
		.size = sizeof(get), .pidfd = syscall(SYS_pidfd_open, pid, 0),
		.flags = TM_PT_POLICY_SET, .mode = TM_PT_MODE_FAST, .levels = TM_PT_LEVEL_PMD,
	};
	CHECK(!ioctl(device, TM_PT_POLICY, &get), "set by pidfd: %s", strerror(errno));
	get.flags = 0;
	get.levels = 0;
	CHECK(!ioctl(device, TM_PT_POLICY, &get) && get.levels == TM_PT_LEVEL_PMD, "read by pidfd");
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	CHECK(ioctl(device, TM_PT_POLICY, &get) && errno == ESRCH, "a process that is gone");
	close(get.pidfd);
}

/* --- */

#define POLICY		TM_FEATURE_PT_POLICY
#define TABLES		TM_FEATURE_PT_MIGRATE
#define MIGRATE		TM_FEATURE_MIGRATE
#define EXCHANGE	TM_FEATURE_EXCHANGE
#define SCAN		TM_FEATURE_SCAN
#define DEBUG		TM_FEATURE_DEBUG

static const struct {
	const char *name;
	void (*run)(void);
	uint64_t feature;
	bool by_name_only;
} tests[] = {
	{ "kunit", test_kunit, 0, false },
	{ "abi", test_abi, POLICY | TABLES, false },
	{ "access", test_access, POLICY | TABLES | MIGRATE | EXCHANGE | SCAN, false },
	{ "policy", test_policy, POLICY, false },
	{ "pt-move", test_pt_move, TABLES, false },
	{ "pt-follow", test_pt_follow, TABLES, false },
	{ "pt-tenants", test_pt_tenants, TABLES, false },
	{ "pt-notes", test_pt_notes, TABLES, false },
	{ "pt-many", test_pt_many, TABLES, false },
	{ "pt-try", test_pt_try, TABLES, false },
	{ "pt-patient", test_pt_patient, TABLES | DEBUG, false },
	{ "pt-sparse", test_pt_sparse, TABLES, false },
	{ "pt-trace", test_pt_trace, TABLES, false },
	{ "pt-stat", test_pt_stat, POLICY, false },
	{ "pt-collapse", test_pt_collapse, TABLES, false },
	{ "pt-dax", test_pt_dax, TABLES, false },
	{ "hard-movable", test_hard_movable, TABLES, false },
	{ "hard-cpuset", test_hard_cpuset, POLICY, false },
	{ "five-levels", test_five_levels, POLICY | TABLES, false },
	{ "exchange", test_exchange, EXCHANGE, false },
	{ "exchange-huge", test_exchange_huge, EXCHANGE, false },
	{ "exchange-refusals", test_exchange_refusals, EXCHANGE, false },
	{ "exchange-bounded", test_exchange_bounded, EXCHANGE | DEBUG, false },
	{ "exchange-broken", test_exchange_broken, EXCHANGE | DEBUG, false },
	{ "exchange-groups", test_exchange_groups, EXCHANGE, false },
	{ "migrate", test_migrate, MIGRATE, false },
	{ "migrate-whole", test_migrate_whole, MIGRATE, false },
	{ "migrate-hugetlb", test_migrate_hugetlb, MIGRATE, false },
	{ "batch-flush", test_batch_flush, MIGRATE | EXCHANGE, false },
	{ "range-flush", test_range_flush, MIGRATE, false },
	{ "batch-protect", test_batch_protect, MIGRATE, false },
	{ "threads", test_threads, MIGRATE | EXCHANGE, false },
	{ "lists-stuck", test_lists_stuck, MIGRATE | EXCHANGE, false },
	{ "scan", test_scan, SCAN, false },
	{ "scan-secondary", test_scan_secondary, SCAN | DEBUG, false },
	{ "scan-flush", test_scan_flush, SCAN, false },
	{ "scan-watch", test_scan_watch, SCAN, false },
	{ "scan-stuck", test_scan_stuck, SCAN, false },
	{ "scan-stress", test_scan_stress, SCAN | MIGRATE | EXCHANGE, false },
	{ "memcg", test_memcg, MIGRATE | EXCHANGE | TABLES, false },
	{ "no-memory", test_no_memory, MIGRATE | EXCHANGE | SCAN, false },
	{ "offline", test_offline, MIGRATE | EXCHANGE | SCAN, false },
	{ "control", test_control, 0, false },
	{ "migrate-stress", test_migrate_stress, MIGRATE, false },
	{ "pt-flush", test_pt_flush, TABLES | SCAN, false },
	{ "pt-late", test_pt_late, TABLES | DEBUG, false },
	{ "pt-stale", test_pt_stale, TABLES | DEBUG, false },
	{ "pt-stress", test_pt_stress, TABLES, false },
	{ "exchange-stress", test_exchange_stress, EXCHANGE, false },
	{ "exchange-huge-stress", test_exchange_huge_stress, EXCHANGE, false },
	{ "uffd-stress", test_uffd_stress, TABLES | DEBUG, false },
	{ "kinds", test_kinds, TABLES | MIGRATE | EXCHANGE | SCAN, false },
	{ "fault-policy", test_fault_policy, POLICY | DEBUG, true },
	{ "fault-order", test_fault_order, TABLES | DEBUG, true },
	{ "fault-merge", test_fault_merge, TABLES | DEBUG, true },
	{ "fault-flush", test_fault_flush, TABLES | SCAN | DEBUG, true },
	{ "fault-free", test_fault_free, TABLES | DEBUG, true },
	{ "fault-follow", test_fault_follow, TABLES | DEBUG, true },
	{ "fault-stale", test_fault_stale, TABLES | DEBUG, true },
	{ "fault-recheck", test_fault_recheck, TABLES | DEBUG, true },
	{ "fault-poison", test_fault_poison, TABLES | DEBUG, true },
	{ "fault-collapse", test_fault_collapse, TABLES | DEBUG, true },
	{ "fault-uffd", test_fault_uffd, TABLES | DEBUG, true },
	{ "fault-copy", test_fault_copy, MIGRATE | DEBUG, true },
	{ "fault-exchange", test_fault_exchange, EXCHANGE | DEBUG, true },
	{ "fault-charge", test_fault_charge, EXCHANGE | DEBUG, true },
	{ "fault-scan", test_fault_scan, SCAN | MIGRATE | EXCHANGE, true },
};

#define NR_TESTS ARRAY_SIZE(tests)

/* Pages that are pushed out need somewhere to go. */
static void add_swap(void)
{
	static char page[PAGE];
	struct stat s;
	uint32_t *header = (uint32_t *)(page + 1024);
	int fd = open("/dev/ram0", O_RDWR);
	off_t bytes;

	if (fd < 0 || fstat(fd, &s))
		return;
	bytes = lseek(fd, 0, SEEK_END);
	header[0] = 1;				/* version */
	header[1] = bytes / PAGE - 1;		/* last page */
	memcpy(page + PAGE - 10, "SWAPSPACE2", 10);
	if (pwrite(fd, page, PAGE, 0) == (ssize_t)PAGE && !fsync(fd))
		swapon("/dev/ram0", 0);
	close(fd);
}

void check_log(void)
{
	static const char * const words[] = {
		"BUG:", "WARNING:", "Bad page", "Bad rss-counter", "KASAN", "KCSAN: ", "kernel BUG",
		"possible recursive locking", "circular locking", "soft lockup",
		"INFO: trying to register", "blocked for more than", "page_table_check",
	};
	/* Of where it was, as far as that comes behind it. */
	enum { TRACE_LINES = 40 };
	static unsigned int trace;
	static int fd = -1;
	char record[8192];
	ssize_t n;

	if (fd < 0)
		fd = open("/dev/kmsg", O_RDONLY | O_NONBLOCK);
	while (fd >= 0 && ((n = read(fd, record, sizeof(record) - 1)) > 0 || errno == EPIPE)) {
		if (n <= 0)
			continue;
		record[n] = 0;
		record[strcspn(record, "\n")] = 0;
		for (unsigned int i = 0; i < ARRAY_SIZE(words); i++)
			if (strstr(record, words[i])) {
				fail("the kernel says %s", record);
				if (!trace && failures <= 8)
					trace = TRACE_LINES + 1;
				break;
			}
		if (trace && trace-- <= TRACE_LINES && strchr(record, ';'))
			printf("#   %s\n", strchr(record, ';') + 1);
	}
}

/*
 * In a process of its own: what the kernel finds wrong when that exits counts, too, and
 * nothing of it is left for the next test.
 */
void run_apart(void (*run)(void))
{
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (!pid) {
		failures = 0;
		run();
		fflush(stdout);
		_exit(failures != 0);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		fail("fork: %s", strerror(errno));
	else if (WIFSIGNALED(status))
		fail("killed by signal %d", WTERMSIG(status));
	else if (status)
		failures++;
}

int main(int argc, char **argv)
{
	struct tm_info info = { .size = sizeof(info) };
	unsigned int passed = 0, failed = 0, nr_skipped = 0, number = 0;
	int option;

	self = "/proc/self/exe";
	setvbuf(stdout, NULL, _IOLBF, 0);
	skipped = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (skipped == MAP_FAILED) {
		perror("mmap");
		return 2;
	}
	if (argc == 4 && !strcmp(argv[1], "--entry-tables")) {
		device = atoi(argv[3]);
		return entry_tables(atoi(argv[2]));
	}
	if (argc == 4 && !strcmp(argv[1], "--five-levels")) {
		device = atoi(argv[3]);
		return levels_after_exec();
	}
	while ((option = getopt(argc, argv, "cn:s:")) != -1) {
		switch (option) {
		case 'c':
			control = true;
			break;
		case 'n':
			count = strtoul(optarg, NULL, 0);
			break;
		case 's':
			seconds = atoi(optarg);
			break;
		default:
			fprintf(stderr, "usage: %s [-c] [-n COUNT] [-s SECONDS] [TEST...]\n",
				argv[0]);
			return 2;
		}
	}
	device = open("/dev/tiermem", O_RDWR);
	if (device < 0 || ioctl(device, TM_INFO, &info)) {
		printf("1..0 # SKIP /dev/tiermem: %s\n", strerror(errno));
		return 4;
	}
	/* Nothing that is mapped later is there before it is asked for. */
	add_swap();
	put("/sys/kernel/mm/transparent_hugepage/enabled", "madvise");

	for (unsigned int i = 0; i < NR_TESTS; i++) {
		bool named = optind == argc && !tests[i].by_name_only;

		for (int j = optind; j < argc; j++)
			named |= !strcmp(argv[j], tests[i].name);
		if (!named)
			continue;
		number++;
		if (tests[i].feature & ~info.features) {
			printf("ok %u %s # SKIP this kernel has no such mechanism\n", number,
			       tests[i].name);
			nr_skipped++;
			continue;
		}
		failures = 0;
		skipped[0] = 0;
		run_apart(tests[i].run);
		if (!tests[i].by_name_only)
			check_log();
		if (skipped[0] && !failures) {
			printf("ok %u %s # SKIP %s\n", number, tests[i].name, skipped);
			nr_skipped++;
			continue;
		}
		printf("%s %u %s\n", failures ? "not ok" : "ok", number, tests[i].name);
		if (failures)
			failed++;
		else
			passed++;
	}
	if (!number) {
		fprintf(stderr, "no such test\n");
		return 2;
	}
	printf("1..%u\n# %u passed, %u failed, %u skipped\n", number, passed, failed, nr_skipped);
	return failed != 0;
}

