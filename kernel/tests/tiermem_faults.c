// SPDX-License-Identifier: GPL-2.0
/*
 * Deliberate faults: each takes one ingredient of a mechanism away, and a stress has to
 * notice.  What it notices is its own sign, which kernel/test or a reader compares with the
 * one that is expected; with -c the fault is left off, and nothing may be noticed.
 */
#include "tiermem_test.h"

bool control;

/*
 * The stress runs in a process of its own, so that what the kernel says when that exits counts.
 * @us: how long the races are widened that @delay names, if any.
 */
static void faulty(const char *fault, const char *delay, const char *us, void (*stress)(void))
{
	double begun = now();

	if (fault && !control && !debug(fault, "1")) {
		fail("no /sys/kernel/debug/tiermem/%s: is CONFIG_TIERMEM_DEBUG on?", fault);
		return;
	}
	if (delay && !debug(delay, us))
		fail("no /sys/kernel/debug/tiermem/%s", delay);
	run_apart(stress);
	if (delay)
		debug(delay, "0");
	if (fault)
		debug(fault, "0");
	check_log();
	printf("# %s: the stress noticed %s, in %.0f s\n",
	       control ? "control" : fault ? fault : "fault",
	       failures ? "it" : "nothing", now() - begun);
	if (control)
		return;
	if (failures)
		failures = 0;
	else
		fail("the stress did not notice %s", fault ? fault : "it");
}

/* Until it is noticed or time is up; a control is not so patient. */
static unsigned long patience(unsigned long of_control)
{
	return count ? count : control ? of_control : 1000000;
}

/* --- tables --------------------------------------------------------------- */

void test_fault_policy(void)
{
	faulty("fault_pt_policy", NULL, NULL, test_policy);
}

static void lazy_stress(void)
{
	unsigned long moved;

	begin_lazy();
	moved = move_lazy_table(patience(100));
	end_stress();
	printf("# %lu table moves\n", moved);
}

void test_fault_order(void)
{
	faulty("fault_pt_order", "delay_pt_switch_us", "3000", lazy_stress);
}

void test_fault_merge(void)
{
	faulty("fault_pt_merge", "delay_pt_switch_us", "3000", lazy_stress);
}

static void stale_stress(void)
{
	unsigned long moved = move_stale_table(patience(200), seconds);

	printf("# %lu table moves, %lu data moves\n", moved, st.moves);
}

/* A walk reads a table that has been freed: this one the kernel notices. */
void test_fault_free(void)
{
	faulty("fault_pt_free", "delay_pt_lookup_us", "2000", stale_stress);
}

void test_fault_follow(void)
{
	faulty("fault_pt_follow", NULL, NULL, test_pt_follow);
}

/* --- rechecks ------------------------------------------------------------- */

/*
 * With neither net, the walk edits the table that has gone and believes the page unmapped.
 */
static void both_nets(void)
{
	debug("fault_pt_poison", control ? "0" : "1");
	stale_stress();
	debug("fault_pt_poison", "0");
}

void test_fault_stale(void)
{
	faulty("fault_map_pte", "delay_map_pte_us", "2000", both_nets);
}

static void move_stress(void)
{
	uffd_stress(patience(200));
}

void test_fault_uffd(void)
{
	faulty("fault_uffd_move", "delay_uffd_move_us", "2000", move_stress);
}

/* --- pages ---------------------------------------------------------------- */

static void exchange_stress(void)
{
	unsigned long done;

	begin_stress(4096, false);
	done = exchange_randomly(patience(500));
	end_stress();
	printf("# %lu pairs\n", done);
}

void test_fault_exchange(void)
{
	faulty("fault_exchange_copy", NULL, NULL, exchange_stress);
}

/* Without the watch, bits that reclaim clears are lost. */
static void scan_stress(void)
{
	unsigned long reads, lost;

	begin_stress(512, false);
	lost = read_and_scan(count ? count : 2000, control ? TM_SCAN_WATCH : 0, &reads);
	end_stress();
	CHECK(!lost, "%lu of %lu reads were reported by no scan", lost, reads);
}

void test_fault_scan(void)
{
	faulty(NULL, NULL, NULL, scan_stress);
}
