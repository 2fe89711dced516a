#!/bin/sh
# Runs in the virtual machine: terraced with hint faults is killed, in phases of them and between two.
# Says "all held" at the end. Arguments: how often, and the seed of the moments.
. /srv/daemon_common.sh

promote_limit() { cat /proc/sys/kernel/numa_balancing_promote_rate_limit_MBps; }
periods=/sys/kernel/debug/sched/numa_balancing
scan_period() { cat $periods/scan_period_max_ms; }

cat >/srv/terraced.toml <<TOML
[daemon]
period_ms = 500
discover_ms = 300
hint_faults = true
[[groups]]
name = "group"
cgroup = "/hinted"
policy = "lru"
fast_ratio = 0.5
TOML
program hinted 8
exec 3>/tmp/hinted.control
until_true 120 grep -q '"ready"' /tmp/hinted.jsonl || fail "the program is not ready" /tmp/hinted.jsonl
snapshot >/tmp/before
bound=$(promote_limit)
longest=$(scan_period) || fail "no debugfs"
phases=0
kills=$1
# By turn, how long a phase or the pause behind it has been at work when the daemon is killed.
awk -v kills="$kills" -v seed="$2" 'BEGIN {
    srand(seed)
    for (turn = 0; turn < kills; turn++) printf "%.3f\n", 3 * rand()
}' </dev/null >/tmp/moments
turn=0
while read -r moment; do
    turn=$((turn + 1))
    terraced run /srv/terraced.toml >>/tmp/daemon.log 2>&1 &
    daemon=$!
    in_phase() { [ "$(cat /proc/sys/kernel/numa_balancing)" = 3 ]; }
    until_true 60 in_phase || fail "no phase begins" /tmp/daemon.log
    phases=$((phases + 1))
    # The kernel scans as often as it begins with.
    [ "$(scan_period)" = "$(cat $periods/scan_period_min_ms)" ] || ! in_phase ||
        fail "in a phase scans have periods of up to $(scan_period) ms"
    # In a phase of some seconds, or as one ends, or, each fourth time, in the pause behind one.
    [ $((turn % 4)) != 0 ] || { ended() { ! in_phase; }; until_true 60 ended || fail "the phase does not end"; }
    sleep "$moment"
    kill -9 $daemon
    wait $daemon
    until_true 60 as_before || { snapshot | diff /tmp/before -; fail "not as before" /tmp/daemon.log; }
    [ "$(promote_limit)" = "$bound" ] || fail "the bound on promotions is $(promote_limit)"
    [ "$(scan_period)" = "$longest" ] || fail "the longest period of scans is $(scan_period)"
done </tmp/moments
echo "phases seen: $phases"
echo "killed $kills times: every setting as before"
echo stop >&3

echo "all held"
