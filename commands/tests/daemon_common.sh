# shellcheck shell=sh disable=SC2154 # $daemon is the scripts' own
# What the scripts that run terraced in the virtual machine share; sourced by them.
fail() {
    echo "FAILED: $1"
    shift
    for file in "$@"; do echo "--- $file"; tail -n 60 "$file"; done
    echo "--- kernel"
    dmesg | tail -n 30
    exit 1
}

# until SECONDS COMMAND...
until_true() {
    limit=$(($(cut -d . -f 1 /proc/uptime) + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$(cut -d . -f 1 /proc/uptime)" -lt $limit ] || return 1
        sleep 0.8
    done
}

snapshot() {
    for file in /proc/sys/kernel/numa_balancing /sys/kernel/mm/lru_gen/enabled \
        /sys/kernel/mm/numa/demotion_enabled /sys/kernel/mm/transparent_hugepage/enabled \
        /sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds \
        /sys/module/damon_stat/parameters/enabled /proc/sys/vm/percpu_pagelist_high_fraction; do
        # DAMON_STAT is absent before Linux 6.17.
        [ ! -e $file ] || echo "$file: $(cat $file)"
    done
    ls /sys/kernel/tracing/instances /sys/kernel/mm/damon/admin/kdamonds
    cut -d ' ' -f 2,3 /proc/mounts | sort
}

as_before() { snapshot | cmp -s - /tmp/before && ! pidof terraced; }

# program NAME HOT [PAGES [SIZE]]: so many pages (48, huge) of which so many are hot, in a group of its
# own. A pipe is its life line, kept open by the descriptor that the caller opens on it.
program() {
    mkdir -p "/sys/fs/cgroup/$1"
    mkfifo "/tmp/$1.control"
    sh -c "echo \$\$ >/sys/fs/cgroup/$1/cgroup.procs; exec terrace-workload hotcold --pages ${3:-48} \
        --page-size ${4:-huge} --hot $2 --pause-ms 100 --duration-ms 3600000" \
        <"/tmp/$1.control" >"/tmp/$1.jsonl" 2>&1 3>&- 4>&- 5>&- 6>&- &
}

# The daemon ends in good order, and every setting is as it was.
end_daemon() {
    kill $daemon
    wait $daemon || fail "it did not end well" /tmp/daemon.log
    until_true 60 as_before || { snapshot | diff /tmp/before -; fail "not as before" /tmp/daemon.log; }
}

# whole NAME PROCESS: a program that was stopped ended well, with its data as it was.
whole() {
    wait "$2" || fail "$1" "/tmp/$1.jsonl"
    grep -q '"checksum_ok":true' "/tmp/$1.jsonl" || fail "$1 was harmed" "/tmp/$1.jsonl"
}

# value GROUP KEY: a number of the status.
value() {
    terrace status --format json >/tmp/status.json || return 1
    awk -v group="\"name\": \"$1\"" -v key="\"$2\":" '
        index($0, group) { ours = 1 }
        ours && index($0, key) { gsub(/[^0-9.]/, "", $2); print $2; exit }' /tmp/status.json
}
at_least() { [ "$(value "$1" "$2" | cut -d . -f 1)" -ge "$3" ]; }
is() { [ "$(value "$1" "$2")" = "$3" ]; }

mkdir -p /run /var/lib
echo +memory >/sys/fs/cgroup/cgroup.subtree_control 2>/dev/null

# A number that the status has once, such as rss_bytes.
number() { awk -v key="\"$1\":" '$1 == key { gsub(/[^0-9.]/, "", $2); print $2; exit }' /tmp/status.json; }
