/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the files of tiermem_test have in common: helpers (tiermem_test.c), the stress
 * (tiermem_stress.c), and a function for each command of the device.
 */
#ifndef TIERMEM_TEST_H
#define TIERMEM_TEST_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <linux/tiermem.h>

#ifndef ARRAY_SIZE
#define ARRAY_SIZE(a)	(sizeof(a) / sizeof((a)[0]))
#endif
#define PAGE		4096UL
#define HUGE		(2UL << 20)
#define NR_NODES	2
#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT	21
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE	25
#endif
#define MOVE		2	/* MPOL_MF_MOVE */

extern int device;
extern unsigned long count;		/* operations of a stress; 0: its own */
extern unsigned int seconds;		/* the most that a stress may take */
extern unsigned int failures;
extern bool control;			/* faults are left off */
extern const char *self;

#define CHECK(condition, ...)				\
	do {						\
		if (!(condition))			\
			fail(__VA_ARGS__);		\
	} while (0)

void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The test cannot be made here, and why. */
void skip(const char *format, ...) __attribute__((format(printf, 1, 2)));
double now(void);
uint64_t next(uint64_t *state);
long vmstat(const char *name);
long status_kb(const char *name);
bool put(const char *path, const char *value);
bool debug(const char *name, const char *value);
char *map(unsigned long bytes, bool huge);
int node_of(void *p);
int move_to(void **pages, unsigned long n, int node);
void move_range(char *p, unsigned long bytes, unsigned long step, int node);
int tables_to(void *start, unsigned long len, int node, unsigned int flags,
	      struct tm_pt_migrate *out);
void tables(void *start, unsigned long len, uint64_t counts[TM_PT_NR_LEVELS][NR_NODES]);
int exchange(uint64_t *a, uint64_t *b, unsigned int n, int32_t *status);
int policy(unsigned int mode, unsigned int levels, int node, unsigned int flags);
/* Lets multi-gen LRU look at, and clear, all accessed bits; false where there is none. */
bool age(void);
/* Lets all translations of a range be forgotten: bits are set by those who miss in the TLB. */
void forget(char *p, unsigned long len);
/* Lets all folios that wait for it join their lists. */
void drain(char *p);
bool is_set(const __u64 *bits, unsigned long i);
/* What the kernel complained of since the last time that this was called: a failure, too. */
void check_log(void);
/* In a process of its own, of which nothing is left; whether it failed is counted. */
void run_apart(void (*run)(void));
pid_t fill_node(int node);
/* The settings of copying, for calls that do not ask for threads. */
void copying(const char *threads, const char *min_kb, const char *batch);
int migrate(uint64_t *addrs, unsigned int n, int node, int32_t *status);
int scan(void *start, unsigned long len, unsigned int flags,
	 struct tm_scan_entry *entries, unsigned int n);

/* --- the stress ---------------------------------------------------------- */

#define OWNERS	2

struct stress {
	char *p;
	unsigned long pages;
	bool stop;
	unsigned int written;		/* owners that have written all their pages */
	char *lazy;
	unsigned int pause_us;		/* of lazy() and table_mover(); 0: their own */
	unsigned long checks, forks, moves, pageouts, tables;
};

extern struct stress st;

void *lazy(void *arg);
/* Moves the table of the 2 MB from @arg to and fro. */
void *table_mover(void *arg);
void start(void *(*function)(void *), void *arg);
void finish(void);
uint64_t *words(unsigned long page);
void write_page(unsigned long page, uint32_t version);
void check_page(unsigned long page, uint32_t version, const char *who);
void begin_stress(unsigned long pages, bool all);
void begin_stress_in(char *p, unsigned long pages, bool all);
void end_stress(void);

/* --- parts of stresses, which the faults use too ------------------------- */

/* Only pages freed lazily, in one table: for what a Dirty bit that is lost does. */
void begin_lazy(void);
unsigned long move_lazy_table(unsigned long wanted);
/* Moves one table beside a thread that moves its pages. */
unsigned long move_stale_table(unsigned long wanted, unsigned int most);
/* Collapses memory of a file whose table is moved meanwhile: how often that came to an end. */
unsigned long collapse_beside_moves(unsigned long wanted);
/* Reads, behind moves of its table, that used a translation from before. */
unsigned long stale_translations(unsigned long rounds);
unsigned long migrate_randomly(unsigned long wanted);
unsigned long pairs_of_huge(unsigned long pairs, unsigned long pages);
unsigned long exchange_randomly(unsigned long wanted);
/* Frees exchanged pages of control groups while those are removed. */
void removed_groups(void);
/* How many of the reads no scan reported. */
unsigned long read_and_scan(unsigned long wanted, unsigned int watch, unsigned long *reads);

/* --- UFFDIO_MOVE ---------------------------------------------------------- */

bool is_mapped(void *p);
unsigned long uffd_move_round(int uffd, char *from, char *hole, unsigned long pages,
			      uint64_t version);
/* Whether so many table moves were made beside it. */
bool uffd_stress(unsigned long wanted);

/* --- the tests ----------------------------------------------------------- */

void test_kunit(void);
void test_abi(void);
void test_access(void);
void test_policy(void);
void test_pt_move(void);
void test_pt_follow(void);
void test_pt_tenants(void);
void test_pt_notes(void);
void test_pt_many(void);
void test_pt_try(void);
void test_pt_patient(void);
void test_pt_sparse(void);
void test_pt_trace(void);
void test_pt_stat(void);
void test_pt_collapse(void);
void test_pt_dax(void);
void test_hard_movable(void);
void test_hard_cpuset(void);
void test_five_levels(void);
void test_exchange(void);
void test_exchange_huge(void);
void test_exchange_refusals(void);
void test_exchange_bounded(void);
void test_exchange_broken(void);
void test_exchange_groups(void);
void test_migrate(void);
void test_migrate_whole(void);
void test_migrate_hugetlb(void);
void test_batch_flush(void);
void test_range_flush(void);
void test_batch_protect(void);
void test_threads(void);
void test_lists_stuck(void);
void test_scan(void);
void test_scan_secondary(void);
void test_scan_flush(void);
void test_scan_watch(void);
void test_scan_stuck(void);
void test_scan_stress(void);
void test_control(void);
void test_migrate_stress(void);
void test_pt_flush(void);
void test_pt_late(void);
void test_pt_stale(void);
void test_pt_stress(void);
void test_exchange_stress(void);
void test_exchange_huge_stress(void);
void test_no_memory(void);
void test_offline(void);
void test_memcg(void);
void test_kinds(void);
void test_fault_policy(void);
void test_fault_order(void);
void test_fault_merge(void);
void test_fault_flush(void);
void test_fault_free(void);
void test_fault_follow(void);
void test_fault_stale(void);
void test_fault_recheck(void);
void test_fault_poison(void);
void test_fault_collapse(void);
void test_fault_uffd(void);
void test_fault_copy(void);
void test_fault_exchange(void);
void test_fault_charge(void);
void test_fault_scan(void);
void test_uffd_stress(void);
/* What the program does when it is executed by the test of placement. */
int entry_tables(int node);
int levels_after_exec(void);

#endif
