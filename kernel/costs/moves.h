/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the programs that measure costs have in common (moves.c).
 */
#ifndef MOVES_H
#define MOVES_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <linux/tiermem.h>

#define PAGE		4096UL
#define HUGE		(2UL << 20)
#define MOST		4096	/* pages of a call */

/* Moves so many pages to a node, or ends the program. */
typedef void (*mover)(uint64_t *addrs, unsigned long n, int node);

extern int device;		/* of /dev/tiermem */
extern int status[MOST];	/* of the last call that moved pages */

void die(const char *what);
double median(double *values, unsigned int n);
bool put(const char *path, const char *value);
void must_put(const char *path, const char *value);
char *map(unsigned long bytes, bool huge);
char *pages(unsigned long n, unsigned long size);
void addresses(uint64_t *to, char *p, unsigned long n, unsigned long size);
unsigned long at_node(uint64_t *addrs, unsigned long n, int node);
void by_move_pages(uint64_t *addrs, unsigned long n, int node);
void by_device(uint64_t *addrs, unsigned long n, int node);
void by_device_with(uint64_t *addrs, unsigned long n, int node, unsigned int threads);
void split(char *p, unsigned long n);
void copying(const char *threads, const char *batch);

#endif
