#!/bin/sh
# Runs in the virtual machine: terraced as it is configured by somebody who names a control group and
# a limit of fast memory and nothing else. The argument says what is run. full_node: a program whose hot
# pages are in slow memory while others have taken the rest of the fast node. beside_a_reader: a program
# whose hot pages change, while a device that is larger than the fast node's free memory is read again
# and again. khugepaged: a program whose hot base pages are in fast memory, and their neighbours in slow
# memory, when the kernel makes huge pages of them where most of each is. nothing_fast: an unmanaged
# program has the whole fast node. Says "all held" at the end.
. /srv/daemon_common.sh

config() { printf '[[groups]]\nname = "live"\ncgroup = "/live"\nfast = "%s"\n' "$1" >/srv/terraced.toml; }
start() {
    terraced run /srv/terraced.toml >/tmp/daemon.log 2>&1 3>&- 4>&- 5>&- 6>&- &
    # shellcheck disable=SC2034 # daemon_common.sh uses it
    daemon=$!
    until_true 60 at_least live scans 1 || fail "it does not track" /tmp/daemon.log
}
ready() { until_true 120 grep -q '"ready"' /tmp/$1.jsonl || fail "$1 is not ready" /tmp/$1.jsonl; }
free_mb() { awk '/MemFree/ { print int($4 / 1024) }' /sys/devices/system/node/node0/meminfo; }
uptime_s() { cut -d . -f 1 /proc/uptime; }
# Asked every other second: each question costs the emulated machine time.
scans_from() {
    limit=$(($(uptime_s) + $2))
    until at_least live scans "$1"; do
        [ "$(uptime_s)" -lt $limit ] || fail "no scan $1" /tmp/daemon.log /tmp/status.json
        sleep 2
    done
}
cumulated() { echo "$(value live accessed_pages) $(value live hit_pages)"; }
# hits FROM TO: of the accesses between two pairs of counters, those to fast memory in percent.
hits() { echo "$1 $2" | awk '{ printf "%d\n", 1000 * ($4 - $2) / ($3 - $1) }'; }

snapshot >/tmp/before

full_node() {
    # Others leave 128 MB of the fast node; the program gets what the kernel does not keep free. Of its 96
    # huge pages 24 are hot.
    program filler 1 $((($(free_mb) - 128) / 2))
    filler=$!
    exec 3>/tmp/filler.control
    ready filler
    program live 24 96
    live=$!
    exec 4>/tmp/live.control
    ready live
    # And what is left.
    echo "free in fast memory: $(free_mb) MB"
    config 160M
    start
    scans_from 12 60
    before=$(cumulated)
    scans_from 24 60
    full=$(hits "$before" "$(cumulated)")
    echo "full node: $(value live promoted_pages) promoted, $full per mille of accesses are fast"
    terrace status
    end_daemon
    echo stop >&3
    echo stop >&4
    exec 3>&- 4>&-
    whole filler $filler
    whole live $live
    rm -f /tmp/*.control
    [ "$full" -ge 950 ] || fail "hot pages stay in slow memory on a full node" /tmp/daemon.log
}

# 150 huge pages of which 60 are hot, others every 20 s; 80 may be in fast memory.
shifting() {
    mkdir -p /sys/fs/cgroup/live
    rm -f /tmp/live.control
    mkfifo /tmp/live.control
    sh -c "echo \$\$ >/sys/fs/cgroup/live/cgroup.procs; exec terrace-workload hotcold --pages 150 \
        --hot 60 --pause-ms 100 --shift-every-ms 20000 --duration-ms 3600000" \
        <"/tmp/live.control" >"/tmp/live.jsonl" 2>&1 3>&- 4>&- 5>&- 6>&- &
    live=$!
    exec 4>/tmp/live.control
    ready live
    config 160M
    start
    scans_from 22 90
    before=$(cumulated)
    # Two hot sets.
    scans_from 62 180
    hit=$(hits "$before" "$(cumulated)")
    echo "$1: $(value live promoted_pages) promoted, $hit per mille of accesses are fast"
    end_daemon
    echo stop >&4
    exec 4>&-
    whole live $live
}

beside_a_reader() {
    rm -rf /var/lib/terrace
    shifting "without a reader"
    alone=$hit
    rm -rf /var/lib/terrace
    # Its pages are not there until they are written: what is read of it is page cache alone.
    unxz -c /srv/brd.ko.xz >/tmp/brd.ko && insmod /tmp/brd.ko rd_nr=1 rd_size=261120 || fail "no block device"
    (while :; do for mb in $(seq 0 8 247); do
        dd if=/dev/ram0 of=/dev/null bs=1M count=8 skip=$mb 2>/dev/null
        sleep 0.5
    done; echo . >>/tmp/read; done) 3>&- 4>&- &
    reader=$!
    until_true 120 test -s /tmp/read || fail "nothing is read"
    echo "page cache: $(awk '/FilePages/ { print int($4 / 1024) }' /sys/devices/system/node/node0/meminfo) MB of the fast node, $(free_mb) MB free"
    shifting "beside a reader"
    kill $reader
    echo "difference: $((alone - hit)) per mille"
    [ $((alone - hit)) -le 30 ] || fail "a reader of files keeps hot pages in slow memory"
}

# 24 ranges of 2 MB of base pages, all in slow memory. In 6 of them each fifth page is hot.
scattered() {
    thp=/sys/kernel/mm/transparent_hugepage
    echo never >$thp/enabled
    # Nothing else brings pages up.
    echo 0 >/proc/sys/kernel/numa_balancing
    echo 100 >$thp/khugepaged/scan_sleep_millisecs
    echo 100 >$thp/khugepaged/alloc_sleep_millisecs
    echo 4096 >$thp/khugepaged/pages_to_scan
    echo +cpuset >/sys/fs/cgroup/cgroup.subtree_control
    mkdir -p /sys/fs/cgroup/live
    echo 1 >/sys/fs/cgroup/live/cpuset.mems
    rm -f /tmp/live.control /tmp/live.jsonl
    mkfifo /tmp/live.control
    sh -c "echo \$\$ >/sys/fs/cgroup/live/cgroup.procs; exec terrace-workload hotcold --page-size base --hold joined \
        --pages 12288 --hot-every 5 --hot-within 3072 --pause-ms 100 --duration-ms 3600000" \
        <"/tmp/live.control" >"/tmp/live.jsonl" 2>&1 3>&- 4>&- 5>&- 6>&- &
    live=$!
    exec 4>/tmp/live.control
    ready live
    echo 0-1 >/sys/fs/cgroup/live/cpuset.mems
    snapshot >/tmp/before
}
# collapses: huge pages that were made of the program's base pages.
collapses() { awk '$1 == "thp_collapse_alloc" { print $2 }' /sys/fs/cgroup/live/memory.stat; }
# hot_fast DAEMON_OPTIONS: of the accesses in four periods, those to fast memory per mille.
hot_fast() {
    scans=$(value live scans)
    scans_from $((${scans:-0} + 1)) 60
    from=$(cumulated)
    scans_from $((${scans:-0} + 5)) 60
    hits "$from" "$(cumulated)"
}
# pages SIZE KEY...: a configuration for pages of that size.
pages() {
    size=$1
    shift
    printf '[daemon]\nstate = ""\n[[groups]]\nname = "live"\ncgroup = "/live"\npage_size = "%s"\npolicy = "lfu"\n' "$size" >/srv/terraced.toml
    for key in "$@"; do echo "$key" >>/srv/terraced.toml; done
}
# The hot pages alone come up: their neighbours stay in slow memory.
place_hot_pages() {
    pages 4K 'fast = "4M"'
    start
    hot() { at_least live promoted_pages 500 && [ "$(hot_fast)" -ge 950 ]; }
    until_true 240 hot || fail "the hot pages are not in fast memory" /tmp/daemon.log /tmp/status.json
    placed=$(hot_fast)
    end_daemon
}
# From now on khugepaged knows of the program, and joins its pages.
join() {
    echo always >/sys/kernel/mm/transparent_hugepage/enabled
    echo hold >&4
}
all_collapsed() { [ "$(collapses)" -ge 20 ]; }

khugepaged() {
    # Without terraced.
    scattered
    place_hot_pages
    join
    until_true 240 all_collapsed || fail "khugepaged has made $(collapses) huge pages"
    snapshot >/tmp/before
    pages auto 'fast = "16M"' 'dry_run = true'
    start
    alone=$(hot_fast)
    end_daemon
    echo "without terraced: $placed per mille of accesses were fast, $alone after $(collapses) collapses"
    # It comes to a program that this has happened to.
    pages auto 'fast = "16M"'
    begin=$(uptime_s)
    start
    repaired() { [ "$(hot_fast)" -ge 950 ]; }
    until_true 120 repaired || fail "collapsed hot pages stay in slow memory" /tmp/daemon.log /tmp/status.json
    echo "terraced after them: $(value live promoted_pages) ranges promoted, 950 per mille within $(($(uptime_s) - begin)) s"
    end_daemon
    echo stop >&4
    exec 4>&-
    whole live $live

    # It is there as it happens.
    rmdir /sys/fs/cgroup/live
    scattered
    place_hot_pages
    join
    snapshot >/tmp/before
    pages auto 'fast = "16M"'
    start
    begin=$(uptime_s)
    until_true 240 all_collapsed || fail "khugepaged has made $(collapses) huge pages"
    # The last of them are seconds old, and it needs some scans to see where their pages are.
    until_true 60 repaired || fail "hot pages that were collapsed onto slow memory stay there" /tmp/daemon.log /tmp/status.json
    echo "terraced beside them: 950 per mille after $(value live collapses) collapses, $(($(uptime_s) - begin)) s"
    terrace status | grep 'khugepaged has made' || fail "the status does not tell of collapses" /tmp/status.json
    end_daemon
    echo stop >&4
    exec 4>&-
    whole live $live
    [ "$placed" -ge 950 ] && [ "$alone" -le 200 ] || fail "khugepaged does no harm here: the test shows nothing"
}

nothing_fast() {
    # More than there is: the kernel fills the fast node to its low watermark.
    program filler 1 $(($(free_mb) / 2 + 4))
    filler=$!
    exec 3>/tmp/filler.control
    ready filler
    echo +cpuset >/sys/fs/cgroup/cgroup.subtree_control
    mkdir -p /sys/fs/cgroup/live
    echo 1 >/sys/fs/cgroup/live/cpuset.mems
    program live 8 24
    live=$!
    exec 4>/tmp/live.control
    ready live
    echo 0-1 >/sys/fs/cgroup/live/cpuset.mems
    config 32M
    start
    reported() { terrace status | grep 'no room: ' | grep -q 'held by unmanaged programs'; }
    until_true 60 reported || { terrace status; fail "who holds fast memory is not reported" /tmp/daemon.log /tmp/status.json; }
    terrace status | grep 'no room: '
    [ "$(value live fast_bytes)" = 0 ] || fail "there was room: the test shows nothing" /tmp/status.json
    echo stop >&3
    exec 3>&-
    whole filler $filler
    served() { at_least live fast_bytes 16777216 && ! reported; }
    until_true 60 served || { terrace status; fail "room that came is not used" /tmp/daemon.log; }
    echo "served once they are gone: $(value live promoted_pages) promoted"
    end_daemon
    echo stop >&4
    exec 4>&-
    whole live $live
}

"$1"
echo "all held"
