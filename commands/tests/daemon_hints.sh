#!/bin/sh
# Runs in the virtual machine: terraced with hint faults is killed, in phases of them and between two.
# Says "all held" at the end.
. /srv/daemon_common.sh

promote_limit() { cat /proc/sys/kernel/numa_balancing_promote_rate_limit_MBps; }

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
phases=0
for turn in 1 2 3 4 5 6 7 8; do
    terraced run /srv/terraced.toml >>/tmp/daemon.log 2>&1 &
    daemon=$!
    in_phase() { [ "$(cat /proc/sys/kernel/numa_balancing)" = 3 ]; }
    until_true 60 in_phase || fail "no phase begins" /tmp/daemon.log
    phases=$((phases + 1))
    # In a phase, and later and later, until between two of them.
    sleep "0.$((turn * 7 % 10))"
    [ $turn -lt 6 ] || { ended() { ! in_phase; }; until_true 60 ended || fail "the phase does not end"; }
    kill -9 $daemon
    wait $daemon
    until_true 60 as_before || { snapshot | diff /tmp/before -; fail "not as before" /tmp/daemon.log; }
    [ "$(promote_limit)" = "$bound" ] || fail "the bound on promotions is $(promote_limit)"
done
echo "phases seen: $phases"
echo "killed 8 times: every setting as before"
echo stop >&3

echo "all held"
