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
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <linux/tiermem.h>

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
extern const char *self;

#define CHECK(condition, ...)				\
	do {						\
		if (!(condition))			\
			fail(__VA_ARGS__);		\
	} while (0)

void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
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
/* What the kernel complained of since the last time that this was called: a failure, too. */
void check_log(void);
pid_t fill_node(int node);
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
	unsigned long checks, forks, moves, pageouts;
};

extern struct stress st;

void *lazy(void *arg);
void start(void *(*function)(void *), void *arg);
void finish(void);
uint64_t *words(unsigned long page);
void write_page(unsigned long page, uint32_t version);
void check_page(unsigned long page, uint32_t version, const char *who);
void begin_stress(unsigned long pages, bool all);
void end_stress(void);

/* --- the tests ----------------------------------------------------------- */

void test_abi(void);
void test_policy(void);
void test_pt_move(void);
void test_pt_follow(void);
void test_pt_tenants(void);
void test_exchange(void);
void test_exchange_huge(void);
void test_exchange_refusals(void);
void test_migrate(void);
void test_scan(void);
void test_scan_stress(void);
void test_control(void);
void test_migrate_stress(void);
void test_pt_late(void);
void test_pt_stale(void);
void test_pt_stress(void);
void test_exchange_stress(void);
void test_fault_order(void);
void test_fault_merge(void);
void test_fault_poison(void);
void test_fault_free(void);
void test_fault_exchange(void);
void test_fault_scan(void);
void test_no_memory(void);
void test_offline(void);
void test_memcg(void);
/* What the program does when it is executed by the test of placement. */
int entry_tables(int node);

#endif
