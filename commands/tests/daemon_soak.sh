#!/bin/sh
# Runs in the virtual machine, for long: terraced over a program while it is killed at random
# moments, while groups come and go in hundreds, while the slow tier is full, while memory of the
# slow node goes off line, and over thousands of periods. After each, every setting is as it was,
# the program's data is whole and the daemon's memory is flat. Says "all held" at the end.
# usage: daemon_soak.sh KILLS GROUPS PERIODS SEED
kills=$1
groups=$2
periods=$3
seed=$4
. /srv/daemon_common.sh

program long 8 24
long=$!
exec 3>/tmp/long.control
until_true 120 grep -q '"ready"' /tmp/long.jsonl || fail "long is not ready" /tmp/long.jsonl

# config PERIOD_MS
config() {
    cat >/srv/terraced.toml <<EOF
[daemon]
period_ms = $1
discover_ms = 200
max_groups = 4
[[groups]]
name = "long"
cgroup = "/long"
policy = "lru"
fast_ratio = 0.5
[[groups]]
name = "short"
cgroup = "/short-*"
policy = "amp"
fast_ratio = 0.5
EOF
}
start() {
    terraced run /srv/terraced.toml >/tmp/daemon.log 2>&1 3>&- 4>&- 5>&- &
    daemon=$!
}
snapshot >/tmp/before

# Killed at random moments: before, while and after it changes the host.
config 250
reached=0
awk -v n="$kills" -v seed="$seed" 'BEGIN { srand(seed); for (i = 0; i < n; i++) print 3 * rand() }' \
    >/tmp/moments
while read -r moment; do
    start
    sleep "$moment"
    snapshot | cmp -s - /tmp/before || reached=$((reached + 1))
    kill -9 $daemon || fail "it ended by itself" /tmp/daemon.log
    wait $daemon 2>/dev/null
    until_true 60 as_before || { snapshot | diff /tmp/before -; fail "not as before" /tmp/daemon.log; }
done </tmp/moments
echo "kills $kills, of them $reached with the host changed"

# Groups that come and go, two of four places taken at a time; some end without a process ever.
start
until_true 90 at_least long scans 3 || fail "it does not begin" /tmp/daemon.log
grown=$(number rss_bytes)
n=0
while [ $n -lt "$groups" ]; do
    n=$((n + 1))
    group=/sys/fs/cgroup/short-$n
    mkdir $group
    case $((n % 10)) in
    0)
        program short-$n 2 4
        short=$!
        exec 5>/tmp/short-$n.control
        until_true 60 at_least "short:/short-$n" scans 1 || fail "short-$n was not seen" /tmp/daemon.log
        kill -9 $short
        exec 5>&-
        wait $short 2>/dev/null
        ;;
    [1-5])
        sh -c "echo \$\$ >$group/cgroup.procs; exec sleep 0.1" 3>&- 4>&- 5>&-
        ;;
    esac
    until_true 20 rmdir $group || fail "short-$n could not be removed"
done
none_left() { terrace status --format json >/tmp/status.json && ! grep -q short: /tmp/status.json; }
until_true 60 none_left || fail "groups stayed" /tmp/daemon.log /tmp/status.json
ls /sys/kernel/tracing/instances >/tmp/instances
[ "$(wc -l </tmp/instances)" -le 4 ] || fail "trace instances were left" /tmp/instances
echo "groups $groups came and went, rss_bytes $grown before and $(number rss_bytes) after"

# The slow tier is full: nothing can be demoted, and that is reported and does no harm.
# (Not to the last page: an allocation bound to a full node is an end for somebody.)
mkdir -p /tmp/slow
mount -t tmpfs -o mpol=bind:1 tmpfs /tmp/slow || fail "no memory of the slow node"
free=$(awk '/MemFree/ { print int($4 / 1024) }' /sys/devices/system/node/node1/meminfo)
dd if=/dev/zero of=/tmp/slow/full bs=1M count=$((free - 40)) 2>/dev/null
scans=$(value long scans)
more() { at_least long scans $((scans + 8)); }
until_true 90 more || fail "a full slow tier stopped it" /tmp/daemon.log
rm /tmp/slow/full
umount /tmp/slow
echo "the slow tier was full but for 40 of $free MiB, which the kernel keeps"

# What there is of the slow node goes off line, block by block, and comes back.
gone=0
for block in /sys/devices/system/node/node1/memory*; do
    [ -e "$block/state" ] || continue
    echo offline >"$block/state" 2>/dev/null && gone=$((gone + 1)) && echo "$block" >>/tmp/blocks
    [ $gone -lt 2 ] || break
done
scans=$(value long scans)
until_true 90 more || fail "memory off line stopped it" /tmp/daemon.log
[ $gone = 0 ] || while read -r block; do echo online_movable >"$block/state" || echo online >"$block/state"; done </tmp/blocks
echo "memory blocks off line $gone"
end_daemon

# Thousands of periods: its memory stays.
config 50
start
until_true 90 at_least long scans $((periods / 10)) || fail "too slow" /tmp/daemon.log /tmp/status.json
early=$(number rss_bytes)
until_true $((periods / 2 + 120)) at_least long scans "$periods" || fail "too slow" /tmp/daemon.log /tmp/status.json
late=$(number rss_bytes)
echo "periods $periods: rss_bytes $early after a tenth, $late at the end; cpu_ns $(number cpu_ns)"
[ "$late" -le $((early + 1048576)) ] || fail "its memory grew" /tmp/status.json
end_daemon

echo stop >&3
exec 3>&-
whole long $long
echo "all held"
