#!/bin/sh
# Runs in the virtual machine: terraced as it is configured by somebody who names a control group and
# a limit of fast memory and nothing else. The argument says what is run. full_node: a program whose hot
# pages are in slow memory while others have taken the rest of the fast node. beside_a_reader: a program
# whose hot pages change, while a device that is larger than the fast node's free memory is read again
# and again. Says "all held" at the end.
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

"$1"
echo "all held"
