// SPDX-License-Identifier: GPL-2.0
/*
 * Scans of accessed bits: those of secondary MMUs, the flush, and what a watch and a stuck caller
 * leave behind.
 */
#include "tiermem_test.h"

#include <linux/userfaultfd.h>
#include <poll.h>

static int scan_of(int pidfd, void *start, unsigned long len, unsigned int flags,
		   struct tm_scan_entry *entries, unsigned int n)
{
	struct tm_scan arg = {
		.size = sizeof(arg), .pidfd = pidfd, .start = (uintptr_t)start, .len = len,
		.entries = (uintptr_t)entries, .nr_entries = n, .flags = flags,
		.entry_size = sizeof(*entries),
	};

	return ioctl(device, TM_SCAN, &arg) ? -errno : (int)arg.filled;
}

static unsigned long wrong_bits(const struct tm_scan_entry *e, unsigned long pages, int every)
{
	unsigned long wrong = 0;

	for (unsigned long i = 0; i < pages; i++)
		wrong += is_set(e[i / 512].bits, i % 512) != (every && i % every == 0);
	return wrong;
}

/* --- secondary MMUs ------------------------------------------------------- */

/* What a guest uses is in its hypervisor's tables only: a scan has to ask there, too. */
void test_scan_secondary(void)
{
	const unsigned long pages = 1024;
	char *p = map(2 * HUGE, false), *huge = map(HUGE, true);
	int fd = open("/sys/kernel/debug/tiermem/secondary", O_WRONLY);
	struct tm_scan_entry e[2];
	uint64_t at;

	if (fd < 0) {
		fail("no secondary MMU for tests: %s", strerror(errno));
		return;
	}
	memset(p, 1, 2 * HUGE);
	memset(huge, 1, HUGE);
	drain(p);
	for (int round = 0; round < 3; round++) {
		/* The last time reclaim comes first, and takes what it finds there, too. */
		bool reclaimed = round == 2;
		unsigned int watch = reclaimed ? TM_SCAN_WATCH : 0;

		scan(p, 2 * HUGE, TM_SCAN_CLEAR | watch, e, 2);
		scan(huge, HUGE, TM_SCAN_CLEAR, e, 1);
		scan(p, 2 * HUGE, 0, e, 2);
		CHECK(!e[0].accessed && !e[1].accessed, "not cleared");
		for (unsigned long i = 0; i < pages; i += 5) {
			at = (uintptr_t)p + i * PAGE;
			CHECK(write(fd, &at, sizeof(at)) == sizeof(at), "secondary");
		}
		at = (uintptr_t)huge + 77 * PAGE;
		CHECK(write(fd, &at, sizeof(at)) == sizeof(at), "secondary");
		if (reclaimed && !age()) {
			printf("# no multi-gen LRU to compete with\n");
			break;
		}
		/* Without clearing it can be asked again. */
		for (int again = 0; again < 2; again++) {
			CHECK(scan(p, 2 * HUGE, again ? TM_SCAN_CLEAR : 0, e, 2) == 2, "entries");
			CHECK(!wrong_bits(e, pages, 5), "round %d: %lu bits are wrong", round,
			      wrong_bits(e, pages, 5));
		}
		CHECK(scan(p, 2 * HUGE, 0, e, 2) == 2 && !e[0].accessed && !e[1].accessed,
		      "not cleared there");
		if (reclaimed)
			continue;
		CHECK(scan(huge, HUGE, 0, e, 1) == 1 && e[0].accessed == 512, "huge: %u accessed",
		      e[0].accessed);
		CHECK(scan(huge, HUGE, TM_SCAN_CLEAR, e, 1) == 1 && e[0].accessed == 512,
		      "huge: %u accessed", e[0].accessed);
		CHECK(scan(huge, HUGE, 0, e, 1) == 1 && !e[0].accessed, "huge: not cleared there");
	}
	scan(p, 2 * HUGE, TM_SCAN_UNWATCH, NULL, 0);
	close(fd);
	munmap(p, 2 * HUGE);
	munmap(huge, HUGE);
}

/* --- the flush ------------------------------------------------------------ */

/* A page that never leaves the TLB is seen in use all the same, after each scan with a flush. */
void test_scan_flush(void)
{
	char *p = map(2 * HUGE, false);
	volatile char *hot = p + 7 * PAGE;
	struct tm_scan_entry e[1];
	unsigned long missed = 0, without = 0;

	*hot = 1;
	for (int round = 0; round < 200; round++) {
		int err;

		(void)*hot;
		err = scan(p, HUGE, TM_SCAN_CLEAR, e, 1);
		CHECK(err == 1, "scan: %d", err);
		without += !is_set(e[0].bits, 7);
	}
	for (int round = 0; round < 200 && failures < 8; round++) {
		/* With the scan, or by a call that does only that. */
		int err = scan(p, HUGE, TM_SCAN_CLEAR | (round & 1 ? TM_SCAN_FLUSH : 0), e, 1);

		CHECK(err == 1, "scan: %s", strerror(-err));
		if (!(round & 1)) {
			err = scan(p, HUGE, TM_SCAN_FLUSH, NULL, 0);
			CHECK(!err, "flush: %s", strerror(-err));
		}
		(void)*hot;
		scan(p, HUGE, 0, e, 1);
		missed += !is_set(e[0].bits, 7);
	}
	printf("# of 200 uses of a page %lu were missed without a flush, %lu with it\n", without,
	       missed);
	CHECK(!missed, "%lu of 200 uses were missed", missed);
	munmap(p, 2 * HUGE);
}

/* --- watches -------------------------------------------------------------- */

/* How many bits reclaim leaves for a scan of this process. */
static long kept_bits(char *p, unsigned int flags)
{
	struct tm_scan_entry e[2];
	long saved;

	scan(p, 2 * HUGE, TM_SCAN_CLEAR | flags, e, 2);
	forget(p, 2 * HUGE);
	for (unsigned long i = 0; i < 1024; i += 5)
		((volatile char *)p)[i * PAGE]++;
	saved = vmstat("tiermem_scan_saved");
	if (!age())
		return -1;
	scan(p, 2 * HUGE, TM_SCAN_CLEAR, e, 2);
	return vmstat("tiermem_scan_saved") - saved;
}

/* Watches this process from another one, with a device file of its own, until it has to go. */
static pid_t watcher(char *p, int *say)
{
	int own = getpid(), ready[2], go[2];
	char c;
	pid_t pid;

	if (pipe(ready) || pipe(go))
		return -1;
	pid = fork();
	if (!pid) {
		struct tm_scan_entry e[2];

		close(device);
		close(go[1]);
		device = open("/dev/tiermem", O_RDWR);
		c = scan_of(syscall(SYS_pidfd_open, own, 0), p, 2 * HUGE,
			    TM_SCAN_CLEAR | TM_SCAN_WATCH, e, 2) == 2 ? 'y' : 'n';
		if (write(ready[1], &c, 1) != 1 || read(go[0], &c, 1) < 0)
			_exit(1);
		_exit(0);
	}
	close(ready[1]);
	close(go[0]);
	*say = go[1];
	if (read(ready[0], &c, 1) != 1 || c != 'y')
		fail("the watcher cannot watch");
	close(ready[0]);
	return pid;
}

static void stop(pid_t pid, int say, bool kill_it)
{
	/* Children that were begun later have this end of the pipe, too: closing says nothing. */
	if (kill_it)
		kill(pid, SIGKILL);
	else if (write(say, "x", 1) != 1)
		fail("the watcher got no message to go");
	close(say);
	waitpid(pid, NULL, 0);
}

/* Nothing is left of those that end under watch, whenever they do. */
static void no_leak(void)
{
	const unsigned long windows = 10240, children = 60;
	long before = 0, after;

	for (unsigned long turn = 0; turn <= children; turn++) {
		int status;
		pid_t pid;

		/* The first warms up. */
		if (turn == 1)
			before = vmstat("nr_free_pages");
		pid = fork();
		if (!pid) {
			char *p = mmap(NULL, windows * HUGE, PROT_READ,
				       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
			struct tm_scan scan = {
				.size = sizeof(scan), .pidfd = TM_SELF,
				.start = (uintptr_t)p & ~(HUGE - 1),
				.len = windows * HUGE, .nr_entries = 64, .flags = TM_SCAN_WATCH,
				.entry_size = sizeof(struct tm_scan_entry),
				.entries = (uintptr_t)malloc(64 * sizeof(struct tm_scan_entry)),
			};

			if (p == MAP_FAILED)
				_exit(2);
			madvise(p, windows * HUGE, MADV_NOHUGEPAGE);
			/* The zero page, in each 128 MB. */
			for (unsigned long i = 1; i < windows; i += 64)
				(void)*(volatile char *)(p + i * HUGE);
			if (ioctl(device, TM_SCAN, &scan))
				_exit(3);
			_exit(0);
		}
		waitpid(pid, &status, 0);
		CHECK(!status, "child %lu: status %x", turn, status);
	}
	/* Freed by a worker, after a grace period. */
	for (double begun = now(); ; usleep(100000)) {
		after = vmstat("nr_free_pages");
		/* Each had 160 pages. */
		if (before - after < 3000 || now() - begun > 20)
			break;
	}
	printf("# %ld pages less are free after %lu processes ended under watch\n", before - after,
	       children);
	CHECK(before - after < 3000, "%ld pages are lost", before - after);
}

void test_scan_watch(void)
{
	char *p = map(2 * HUGE, false);
	int say, other_say;
	pid_t pid, other;

	memset(p, 1, 2 * HUGE);
	drain(p);
	if (kept_bits(p, TM_SCAN_WATCH) <= 0) {
		printf("# no multi-gen LRU to compete with\n");
		munmap(p, 2 * HUGE);
		return;
	}
	scan(p, 2 * HUGE, TM_SCAN_UNWATCH, NULL, 0);
	CHECK(!kept_bits(p, 0), "bits are kept although the watch has ended");

	/* Another process's watch goes with it, however it ends, and no other's with that. */
	for (int how = 0; how < 2; how++) {
		pid = watcher(p, &say);
		other = watcher(p, &other_say);
		CHECK(kept_bits(p, 0) > 0, "no bits are kept for two watchers");
		stop(pid, say, how);
		CHECK(kept_bits(p, 0) > 0, "no bits are kept for the watcher that is left");
		/* Ending what one does not have changes nothing. */
		scan(p, 2 * HUGE, TM_SCAN_UNWATCH, NULL, 0);
		CHECK(kept_bits(p, 0) > 0, "somebody else has ended a watch");
		stop(other, other_say, how);
		CHECK(!kept_bits(p, 0), "a watch has outlived its process (%s)",
		      how ? "killed" : "exited");
	}
	munmap(p, 2 * HUGE);
	no_leak();
}

/* --- a stuck caller ------------------------------------------------------- */

static struct {
	char *answer, *p;
	int status;
	bool done;
} stuck;

static void *scan_into(void *arg)
{
	(void)arg;
	stuck.status = scan_of(TM_SELF, stuck.p, HUGE, TM_SCAN_CLEAR | TM_SCAN_WATCH,
			       (struct tm_scan_entry *)stuck.answer, 1);
	__atomic_store_n(&stuck.done, true, __ATOMIC_RELEASE);
	return NULL;
}

/* A child that scans; whether it comes to an end. */
static bool scans_in_time(void *p, int pidfd)
{
	double begun = now();
	int status;
	pid_t pid = fork();

	if (!pid) {
		struct tm_scan_entry e[1];

		_exit(scan_of(pidfd, p, HUGE, TM_SCAN_CLEAR | TM_SCAN_WATCH, e, 1) < 0);
	}
	while (!waitpid(pid, &status, WNOHANG)) {
		if (now() - begun > 10) {
			kill(pid, SIGKILL);
			waitpid(pid, &status, 0);
			return false;
		}
		usleep(1000);
	}
	CHECK(!status, "the scan fails");
	return true;
}

/* A caller whose answer cannot be written for the time being stops nobody else. */
void test_scan_stuck(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	struct uffdio_zeropage zero = {};
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	int self_fd = syscall(SYS_pidfd_open, getpid(), 0);
	struct pollfd fault = { .fd = fd, .events = POLLIN };
	char *p = map(HUGE, false);
	pthread_t caller;

	memset(p, 1, HUGE);
	memset(&stuck, 0, sizeof(stuck));
	stuck.p = p;
	stuck.answer = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	reg.range.start = (uintptr_t)stuck.answer;
	reg.range.len = PAGE;
	if (fd < 0 || ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &reg)) {
		fail("userfaultfd: %s", strerror(errno));
		return;
	}
	pthread_create(&caller, NULL, scan_into, NULL);
	CHECK(poll(&fault, 1, 20000) == 1, "the answer is not written");
	CHECK(!__atomic_load_n(&stuck.done, __ATOMIC_ACQUIRE), "the caller is not stuck");
	CHECK(scans_in_time(p, TM_SELF), "a scan of another process waits for a stuck caller");
	CHECK(scans_in_time(p, self_fd), "a scan of the same process waits for a stuck caller");
	zero.range = reg.range;
	CHECK(!ioctl(fd, UFFDIO_ZEROPAGE, &zero), "zeropage: %s", strerror(errno));
	pthread_join(caller, NULL);
	CHECK(stuck.status == 1, "the scan that was stuck: %d", stuck.status);
	scan(p, HUGE, TM_SCAN_UNWATCH, NULL, 0);
	close(fd);
	close(self_fd);
	munmap(stuck.answer, PAGE);
	munmap(p, HUGE);
}
