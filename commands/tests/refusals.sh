#!/bin/sh
# Runs in the virtual machine: experiments that this machine cannot run must end with exit code
# 2, one line that says why, and every setting as it was.
settings() {
    cat /proc/sys/kernel/numa_balancing /sys/kernel/mm/lru_gen/enabled \
        /sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds
    ls /sys/kernel/tracing/instances
    find /sys/fs/cgroup -type d | sort
}

# refused WORDS WORKLOAD [ARGUMENT]
refused() {
    cat >/srv/x.toml <<EOF
name = "x"
period_ms = 1000
periods = 2
[[groups]]
name = "g"
fast_ratio = 0.5
[groups.workload]
kind = "attach"
$2
EOF
    settings >/tmp/before
    terrace run /srv/x.toml --machine host --out /tmp/out $3 >/tmp/message 2>&1
    code=$?
    settings >/tmp/after
    if [ $code != 2 ] || ! grep -q "$1" /tmp/message || [ "$(wc -l </tmp/message)" != 1 ] ||
        [ -e /tmp/out ] || ! cmp -s /tmp/before /tmp/after; then
        echo "expected a refusal with '$1', got exit code $code and:"
        cat /tmp/message
        diff /tmp/before /tmp/after
        exit 1
    fi
}

refused "/no/such.slice does not exist" 'cgroup = "/no/such.slice"' --fix-conflicts
refused "no process 4194305" 'pids = [4194305]' --fix-conflicts
refused "let --fix-conflicts do it" 'pids = [1]'
echo 1 >/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds
refused "DAMON" 'pids = [1]' --fix-conflicts
echo 0 >/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds
echo "all refused, nothing changed"
