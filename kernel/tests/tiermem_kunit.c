// SPDX-License-Identifier: GPL-2.0
/* What the kernel's own unit tests (CONFIG_TIERMEM_KUNIT_TEST, kunit.enable=1) printed at boot. */
#include "tiermem_test.h"

#include <dirent.h>

#define SUITES	"/sys/kernel/debug/kunit"

/* Reads what a suite says: its cases and those of them that failed, or were left out. */
static void read_suite(const char *suite, unsigned long *cases, unsigned long *failed)
{
	char path[320], line[512];
	bool ended = false;
	FILE *f;

	snprintf(path, sizeof(path), SUITES "/%s/results", suite);
	f = fopen(path, "r");
	while (f && fgets(line, sizeof(line), f)) {
		char *word = line + strspn(line, " ");

		line[strcspn(line, "\n")] = 0;
		if (!strncmp(word, "ok ", 3)) {
			++*cases;
			/* The last line, which is not indented, is of the suite itself. */
			if (word == line)
				ended = true;
			if (strstr(word, "# SKIP"))
				fail("%s: %s", suite, word);
		} else if (!strncmp(word, "not ok ", 7)) {
			++*failed;
			fail("%s: %s", suite, word);
		} else if (strstr(word, "EXPECTATION FAILED") || strstr(word, "ASSERTION FAILED")) {
			printf("# %s: %s\n", suite, word);
		}
	}
	CHECK(f && ended, "%s did not end well", suite);
	if (f)
		fclose(f);
}

void test_kunit(void)
{
	unsigned long suites = 0, cases = 0, failed = 0;
	struct dirent *entry;
	DIR *dir = opendir(SUITES);

	while (dir && (entry = readdir(dir))) {
		if (strncmp(entry->d_name, "tiermem_", 8))
			continue;
		suites++;
		read_suite(entry->d_name, &cases, &failed);
	}
	if (dir)
		closedir(dir);
	if (!suites) {
		skip("the kernel has no unit tests, or was booted without kunit.enable=1");
		return;
	}
	printf("# %lu suites, %lu cases and parts of them pass, %lu fail\n", suites, cases, failed);
}
