#!/bin/sh
# Runs in the virtual machine: Redis under a Zipfian load on a fast node that others have filled, while
# one system places its pages: nothing, linux (NUMA balancing between tiers, with demotion), linux-20x
# (the same, scanning twenty times as fast), or terraced, which has a control group, a limit of fast
# memory and no other setting. Redis has its mappings apart from all others, so that accesses to them
# can be counted. Says "NAME VALUE" on lines of their own, and "all held" at the end.
# usage: redis_tiers.sh SYSTEM PAGES [WINDOWS [WINDOW_S [MIB [FAST_MIB [OPERATIONS_PER_S]]]]]
# PAGES: base (as Redis is packaged) or huge. In the first third of the windows nothing is at work yet.
. /srv/daemon_common.sh

system=$1
pages=$2
windows=${3:-12}
window_s=${4:-4}
mib=${5:-192}
fast_mib=${6:-64}
rate=${7:-800}
before=$((windows / 3))
node0=/sys/devices/system/node/node0
pool=$node0/hugepages/hugepages-2048kB/nr_hugepages
redis=$(command -v redis-server) || fail "no redis-server"
socket=/tmp/redis.sock
store="--server=unix:$socket --footprint-mib=$mib --value-bytes=8176"
node_mb() { awk -v key="$1:" '$3 == key { print int($4 / 1024) }' $node0/meminfo; }
vmstat() { awk -v key="$1" '$1 == key { sum += $2 } END { print sum + 0 }' /proc/vmstat; }
demoted() { awk '/^pgdemote_/ { sum += $2 } END { print sum + 0 }' /proc/vmstat; }
# MiB of the fast node that are free above the low watermarks, and MiB of free pages in the processors'
# lists, which the watermarks do not count.
free_and_lists() {
    awk 'function zone() { if (free > low + held_back) above += free - low - held_back; free = low = held_back = 0 }
         /^Node/ { zone(); ours = $2 == "0," }
         !ours { next }
         $1 == "pages" && $2 == "free" { free = $3 }
         $1 == "low" { low = $2 }
         $1 == "protection:" { sub(/\)/, ""); held_back = $NF }
         $1 == "count:" { lists += $2 }
         END { zone(); printf "%d %d\n", above / 256, lists / 256 }' /proc/zoneinfo
}
# Whether the kernel has its headroom, unless nothing is in the lists that could be given back.
has_headroom() { free_and_lists | { read -r above lists && { [ "$above" -ge 4 ] || [ "$lists" -lt 2 ]; }; }; }
# Of Redis in each node, in MiB.
placed() {
    awk '{ size = 4; for (i = 1; i <= NF; i++) if ($i ~ /^kernelpagesize_kB=/) size = substr($i, 19)
           for (i = 1; i <= NF; i++) if ($i ~ /^N[01]=/) sum[substr($i, 2, 1)] += size * substr($i, 4) }
         END { printf "%d %d\n", sum[0] / 1024, sum[1] / 1024 }' /proc/$server/numa_maps
}
# Clock ticks of what works beside Redis, by name.
ticks() {
    for stat in /proc/[0-9]*/stat; do
        sed 's/([^)]*) /&/; s/.*(\([^)]*\)) [A-Z] /\1 /; s/^\([^ ]*\) [^ ]* [^ ]* [^ ]* [^ ]* [^ ]* [^ ]* [^ ]* [^ ]* [^ ]* [^ ]* /\1 /' \
            $stat 2>/dev/null
    done | awk '{ split($1, name, /[.\/0-9]/); sum[name[1]] += $2 + $3 } END { for (n in sum) if (sum[n] > 0) printf "%s=%d ", n, sum[n] }'
}

[ "$pages" = huge ] && export MALLOC_CONF=thp:always,dirty_decay_ms:-1,muzzy_decay_ms:-1 && more="--disable-thp no"
echo 0 >/proc/sys/kernel/numa_balancing
mkdir -p /sys/fs/cgroup/live
sh -c "echo \$\$ >/sys/fs/cgroup/live/cgroup.procs; exec setarch -L $redis --port 0 --unixsocket $socket \
    --dir /tmp --save '' --appendonly no --daemonize no --logfile '' $more" >/tmp/redis.log 2>&1 &
server=$!
unset MALLOC_CONF
until_true 60 test -S $socket || fail "Redis does not answer" /tmp/redis.log
# Others have all of the fast node but what is to be Redis's, down to what the kernel keeps free.
low_mb=$(awk '/^Node/ { ours = $2 == "0," } ours && $1 == "low" { sum += $2 } END { print int(sum / 256) }' /proc/zoneinfo)
take=$((($(node_mb MemFree) - low_mb - fast_mib) / 2))
echo $take >$pool
[ "$(cat $pool)" = $take ] || fail "only $(cat $pool) of $take huge pages could be taken"
terrace-workload redis-zipf load $store --keys-first >/tmp/load.log 2>&1 || fail "loading" /tmp/load.log
echo "loaded_s $(cut -d . -f 1 /proc/uptime)"
echo "free_mb $(node_mb MemFree) low $low_mb"
echo "placed_before $(placed)"

terrace-workload redis-zipf run $store --duration-ms=$(((windows + 2) * window_s * 1000)) \
    --operations-per-s=$rate --theta=0.99 --hot-start=0.5 --write-share=0.1 --write-with=setrange \
    --versions=/tmp/versions >/tmp/run.log 2>&1 &
load=$!
count-period
n=0
while [ $n -lt $before ]; do
    sleep $window_s
    count-period
    n=$((n + 1))
    echo "window $n: $(placed)"
done
case $system in
nothing) ;;
linux | linux-20x)
    echo 1 >/sys/kernel/mm/numa/demotion_enabled
    if [ $system = linux-20x ]; then
        mount -t debugfs none /sys/kernel/debug 2>/dev/null
        echo 50 >/sys/kernel/debug/sched/numa_balancing/scan_delay_ms || fail "no debugfs"
        echo 50 >/sys/kernel/debug/sched/numa_balancing/scan_period_min_ms
        echo 3000 >/sys/kernel/debug/sched/numa_balancing/scan_period_max_ms
    fi
    echo 2 >/proc/sys/kernel/numa_balancing
    ;;
terraced)
    echo "free_and_lists_before $(free_and_lists)"
    snapshot >/tmp/before
    printf '[[groups]]\nname = "live"\ncgroup = "/live"\nfast = "%sM"\n%s\n' ${limit_mib:-$fast_mib} \
        "${more_keys:-}" >/srv/terraced.toml
    terraced run /srv/terraced.toml >/tmp/daemon.log 2>&1 &
    # shellcheck disable=SC2034 # daemon_common.sh uses it
    daemon=$!
    until_true 60 at_least live scans 1 || fail "it does not track" /tmp/daemon.log
    ;;
*) fail "system $system: expected nothing, linux, linux-20x or terraced" ;;
esac
migrated=$(vmstat pgmigrate_success)
promoted=$(vmstat pgpromote_success)
demoted=$(demoted)
collapsed=$(vmstat thp_collapse_alloc)
ticks=$(ticks)
begun=$(cut -d ' ' -f 1 /proc/uptime)
while [ $n -lt $windows ]; do
    sleep $window_s
    count-period
    n=$((n + 1))
    if [ $system = terraced ]; then
        terrace status --format json >/tmp/status.json
        echo "window $n: $(placed), $(awk '/"(promoted_pages|demoted_pages|scans|accessed_pages|hit_pages|pages|fast_pages|untracked_bytes|samples|message)":/ { gsub(/[,"]/, ""); printf "%s%s ", $1, $2 }' /tmp/status.json)"
    else
        echo "window $n: $(placed)"
    fi
done
echo "seconds $(echo "$begun $(cut -d ' ' -f 1 /proc/uptime)" | awk '{ print $2 - $1 }')"
echo "ticks_before $ticks"
echo "ticks_after $(ticks)"
echo "migrated_pages $(($(vmstat pgmigrate_success) - migrated))"
echo "promoted_by_kernel $(($(vmstat pgpromote_success) - promoted))"
echo "demoted_by_kernel $(($(demoted) - demoted))"
echo "collapsed $(($(vmstat thp_collapse_alloc) - collapsed))"
echo "placed_after $(placed)"
if [ $system = terraced ]; then
    until_true 30 has_headroom || fail "free_and_lists $(free_and_lists)" /tmp/daemon.log
    echo "free_and_lists_after $(free_and_lists)"
    terrace status
    terrace status --format json | tail -n 120
    end_daemon
fi
wait $load || fail "the load" /tmp/run.log
tail -n 1 /tmp/run.log | sed 's/^/result /'
terrace-workload redis-zipf verify $store --versions=/tmp/versions >/tmp/verify.log 2>&1 || fail "values are wrong" /tmp/verify.log
kill $server
echo "all held"
