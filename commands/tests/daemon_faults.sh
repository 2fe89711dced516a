#!/bin/sh
# Runs in the virtual machine: terraced over programs that check their memory, while one thing after
# the other goes wrong under it: no file descriptors, full disks, processors and memory that go off
# line, memory that cannot be moved, groups that vanish, DAMON in other hands. For each fault a line:
# by what it is seen, how long after its end the group is served again (its hot pages, which have
# changed meanwhile, are in fast memory), and how many settings are then not as the daemon set them.
# Says "all held" at the end. usage: daemon_faults.sh PART...
. /srv/daemon_common.sh

now_s() { cut -d ' ' -f 1 /proc/uptime; }
tell() { echo "$2" >"/tmp/$1.control"; }

# begin NAME ARGUMENTS...: a program in a control group of its own, commanded by a pipe that
# never ends.
begin() {
    name=$1
    shift
    mkdir -p "/sys/fs/cgroup/$name"
    rm -f "/tmp/$name.control" "/tmp/$name.jsonl"
    mkfifo "/tmp/$name.control"
    sh -c "echo \$\$ >/sys/fs/cgroup/$name/cgroup.procs; exec terrace-workload hotcold --pause-ms 100 \
        --duration-ms 3600000 $*" 0<>"/tmp/$name.control" >"/tmp/$name.jsonl" 2>&1 &
    eval "pid_$name=$!"
    until_true 120 grep -q '"ready"' "/tmp/$name.jsonl" || fail "$name is not ready" "/tmp/$name.jsonl"
    programs="$programs $name"
}
pid() { eval "echo \$pid_$1"; }

# end NAME: it ends well, and every word of its memory is what it wrote.
bytes_lost=0
end() {
    tell "$1" stop
    wait "$(pid "$1")"
    wrong=$(awk -F '"wrong_words_at_[a-z]*":' '/"result"/ { print $2 + $3 }' "/tmp/$1.jsonl")
    [ -n "$wrong" ] || fail "$1 did not end well" "/tmp/$1.jsonl"
    bytes_lost=$((bytes_lost + 8 * wrong))
    programs=$(echo "$programs" | sed "s/ $1\b//")
    until_true 60 rmdir "/sys/fs/cgroup/$1" || fail "the group of $1 stays"
}

# What the status says of a group: its counter of failed moves by a reason, its error, its state.
in_group() {
    terrace status --format json >/tmp/status.json || return 1
    awk -v group=":/$1\"" '
        index($0, "\"name\": ") { ours = index($0, group) }
        index($0, "\"unmanaged\": ") { ours = 0 }
        ours' /tmp/status.json
}
failed() { in_group "$1" | awk -v reason="\"reason\": \"$2\"" 'index($0, reason) { getline; gsub(/[^0-9]/, ""); print; found = 1; exit } END { if (!found) print 0 }'; }
more_failed() { [ "$(failed "$1" "$2")" -gt "$3" ]; }
error_says() { in_group "$1" | grep '"error":' | grep -q "$2"; }
unmanaged_says() { terrace status --format json | sed -n '/"unmanaged": \[/,$p' | grep -q "$1"; }
log_says() { grep -q "$1" /tmp/daemon.log; }
machine_number() { terrace status --format json >/tmp/status.json && number "$1"; }

# The hot pages of the group are in fast memory, in a period that began after the fault had ended.
served() {
    in_group "$1" >/tmp/group.json || return 1
    awk -v scans="$2" '
        /"state": "tracking"/ { tracking = 1 }
        /"accessed_ratio":/ { gsub(/[^0-9.e-]/, "", $2); used = $2 + 0 > 0 }
        /"scans":/ { gsub(/[^0-9]/, "", $2); enough = $2 + 0 >= scans }
        /"hit_ratio":/ { gsub(/[^0-9.]/, "", $2); fast = $2 + 0 >= 0.95 }
        END { exit !(tracking && used && enough && fast) }' /tmp/group.json
}

faults=0
recovered=0
settings_wrong=0
longest=0
# Others are hot than before; the fault that follows keeps them from coming up, or should not.
phase=0
shift_hot() { phase=$((phase + 1)); tell "${1:-long}" "phase $phase"; }

# ended NAME SEEN [GROUP]: the fault is over.
ended() {
    end_s=$(now_s)
    faults=$((faults + 1))
    group=${3:-long}
    scans=$(value "$group" scans 2>/dev/null)
    until_true 240 served "$group" $((${scans:-0} + 2)) ||
        fail "$1: $group is not served again" /tmp/daemon.log /tmp/status.json
    took=$(echo "$end_s $(now_s)" | awk '{ printf "%.1f", $2 - $1 }')
    recovered=$((recovered + 1))
    longest=$(echo "$longest $took" | awk '{ print ($2 > $1) ? $2 : $1 }')
    as_during() { snapshot | cmp -s - /tmp/during; }
    until_true 10 as_during
    snapshot | diff - /tmp/during >/tmp/wrong
    wrong=$(grep -c '^[<>]' /tmp/wrong)
    settings_wrong=$((settings_wrong + wrong))
    [ "$wrong" = 0 ] || cat /tmp/wrong
    echo "fault $1: seen by $2; $group served again after $took s; settings wrong $wrong"
}

max_processes=100
[ "$1" != processes ] || max_processes=1100
# Journal, control socket and histories on small file systems of their own.
mkdir -p /run/terrace /var/lib/terrace
mount -t tmpfs -o size=256k tmpfs /run/terrace || fail "no small disk"
mount -t tmpfs -o size=4m tmpfs /var/lib/terrace || fail "no small disk"
cat >/srv/terraced.toml <<EOF
[daemon]
period_ms = 500
discover_ms = 300
max_groups = 4
max_processes = $max_processes
[[groups]]
name = "group"
cgroup = "/{long,held,twin,pool,file,short,crowd}"
policy = "lru"
fast_ratio = 0.5
# So slow that it can be killed as it is moved.
[[groups]]
name = "slow"
cgroup = "/{dying,dead}"
policy = "lru"
fast_ratio = 0.5
bandwidth = "16M"
EOF
# Groups are named ENTRY:/NAME.
value() {
    terrace status --format json >/tmp/status.json || return 1
    awk -v group=":/$1\"" -v key="\"$2\":" '
        index($0, "\"name\": ") { ours = index($0, group) }
        ours && index($0, key) { gsub(/[^0-9.]/, "", $2); print $2; exit }' /tmp/status.json
}
snapshot >/tmp/before
begin long --pages 24 --hot 8
terraced run /srv/terraced.toml >/tmp/daemon.log 2>&1 &
daemon=$!
until_true 120 at_least long scans 3 || fail "it does not begin" /tmp/daemon.log
until_true 120 served long 3 || fail "long is not served" /tmp/daemon.log /tmp/status.json
snapshot >/tmp/during
cmp -s /tmp/before /tmp/during && fail "the daemon has changed nothing: no setting could be left wrong"

# --- what the host runs out of, and what goes away --------------------------------------------
host() {
    shift_hot
    prlimit --pid $daemon --nofile=3:4096
    until_true 60 log_says 'Too many open files' || fail "EMFILE was not reported" /tmp/daemon.log
    terrace status >/tmp/refused 2>&1 && fail "EMFILE: the control socket answered"
    prlimit --pid $daemon --nofile=4096:4096
    ended open_files "the log and a control socket that does not answer"

    shift_hot
    dd if=/dev/zero of=/run/terrace/full bs=4k 2>/dev/null
    begin short --pages 8 --hot 2
    until_true 60 unmanaged_says 'No space left' || fail "ENOSPC of the journal was not reported" /tmp/daemon.log
    rm /run/terrace/full
    ended journal_full "the reason for which a new group is unmanaged" short
    end short

    shift_hot
    dd if=/dev/zero of=/var/lib/terrace/full bs=4k 2>/dev/null
    until_true 120 log_says 'No space left.*an order was not carried out\|an order was not carried out.*No space left' ||
        fail "ENOSPC of the histories was not reported" /tmp/daemon.log
    rm /var/lib/terrace/full
    ended state_full "the error of the group"
    kept() { ls /var/lib/terrace/*.trec; }
    until_true 90 kept || fail "no history was kept after the disk had room" /tmp/daemon.log

    shift_hot
    echo 0 >/sys/devices/system/cpu/cpu1/online || fail "the processor stays"
    scans=$(value long scans)
    until_true 60 at_least long scans $((scans + 4)) || fail "a processor off line stopped it" /tmp/daemon.log
    shift_hot
    echo 1 >/sys/devices/system/cpu/cpu1/online || fail "the processor stays away"
    ended processor_offline "nothing: $(value long lost_periods) periods lost"

    for node in 0 1; do
        tier=fast
        [ $node = 0 ] || tier=slow
        there=$(machine_number ${tier}_bytes)
        : >/tmp/blocks
        shift_hot
        for block in $(ls -d /sys/devices/system/node/node$node/memory[0-9]* | sort -r -V); do
            [ "$(cat "$block/state")" = online ] || continue
            # Half of the node at most: what is there has to go somewhere.
            [ "$(wc -l </tmp/blocks)" -lt 2 ] || break
            echo offline >"$block/state" 2>/dev/null && echo "$block" >>/tmp/blocks
        done
        [ -s /tmp/blocks ] || fail "no block of node $node goes off line"
        less() { [ "$(machine_number ${tier}_bytes)" -lt "$there" ]; }
        until_true 60 less || fail "memory that went is not seen" /tmp/status.json
        while read -r block; do echo online >"$block/state" || fail "$block stays off line"; done </tmp/blocks
        ended ${tier}_memory_offline "${tier}_bytes of the machine; $(wc -l </tmp/blocks) blocks went"
    done

    guard
}

guard() {
    shift_hot
    guards=$(machine_number guard_deaths)
    guard=$(grep -l "^PPid:[[:space:]]*$daemon\$" /proc/[0-9]*/status | cut -d / -f 3)
    kill -9 "$guard" || fail "there is no guard"
    another() { [ "$(machine_number guard_deaths)" -gt "$guards" ] && grep -q '"is_guarded": true' /tmp/status.json; }
    until_true 120 another || fail "no other guard came" /tmp/daemon.log /tmp/status.json
    ended guard_killed "guard_deaths"
}

# --- memory that cannot be moved, or is put to other uses --------------------------------------
held() {
    pinned
    of_a_guest
    merged
    shared
    file
    pool
}

pinned() {
    for kind in piped registered; do
        begin held --pages 16 --hot 4 --hold $kind
        until_true 120 served held 3 || fail "held is not served" /tmp/daemon.log /tmp/status.json
        tell held hold
        until_true 60 grep -q '"held"' /tmp/held.jsonl || fail "it is not held" /tmp/held.jsonl
        busy=$(failed held busy)
        shift_hot held
        until_true 120 more_failed held busy "$busy" || fail "pinned pages are not reported" /tmp/status.json
        seen="failed by busy ($(failed held busy) pages)"
        tell held release
        ended pages_$kind "$seen" held
        end held
    done

    begin held --pages 16 --hot 4 --hold locked
    tell held hold
    until_true 60 grep -q '"held"' /tmp/held.jsonl || fail "it is not held" /tmp/held.jsonl
    grep -q 'VmLck:.* 32768 kB' "/proc/$(pid held)/status" || fail "it is not locked" "/proc/$(pid held)/status"
    shift_hot held
    # Still locked: locked memory is no fault, it moves.
    ended pages_locked "nothing: they move" held
    end held
}

of_a_guest() {
    # The memory of a virtual machine. Its own processor touches it: this process's tables show nothing.
    for module in irqbypass kvm kvm-amd; do
        unxz -c /srv/$module.ko.xz >/tmp/$module.ko || fail "no module $module"
        # The last is for the processor that software emulation has.
        insmod /tmp/$module.ko
        rm /tmp/$module.ko
    done
    if [ -e /dev/kvm ]; then
        begin held --pages 16 --hot 4 --hold guest
        tell held hold
        until_true 60 grep -q '"held"' /tmp/held.jsonl || fail "no virtual machine" /tmp/held.jsonl
        shift_hot held
        ended pages_of_a_guest "nothing: they are tracked and move" held
        kill -0 "$(pid held)" || fail "the virtual machine ended" /tmp/held.jsonl
        end held
    else
        echo "left out pages_of_a_guest: this processor has no virtual machines that kvm-amd knows"
    fi
}

merged() {
    # The pages of two groups that are alike become one. Base pages; they are of both groups.
    echo 2000 >/sys/kernel/mm/ksm/pages_to_scan
    echo 20 >/sys/kernel/mm/ksm/sleep_millisecs
    echo 1 >/sys/kernel/mm/ksm/run
    begin held --pages 8 --hot 2 --hold merged
    begin twin --pages 8 --hot 2 --hold merged
    tell held hold
    tell twin hold
    many_merged() { [ "$(cat /sys/kernel/mm/ksm/pages_sharing)" -ge 1000 ]; }
    until_true 240 many_merged || fail "nothing is merged: $(cat /sys/kernel/mm/ksm/pages_sharing) pages" /tmp/held.jsonl
    shared=$(cat /sys/kernel/mm/ksm/pages_sharing)
    shift_hot held
    scans=$(value held scans)
    until_true 120 at_least held scans $((${scans:-0} + 4)) || fail "merged pages stopped it" /tmp/daemon.log
    tell held release
    tell twin release
    echo 2 >/sys/kernel/mm/ksm/run
    ended pages_merged "$shared pages of two groups in one" held
    end held
    end twin
    echo 0 >/sys/kernel/mm/ksm/run
}

shared() {
    # A file of shared memory that two groups map: one fills it and uses a page of it, the other reads
    # pages that the first does not use.
    mkdir -p /tmp/shared
    mount -t tmpfs -o huge=always,size=64m tmpfs /tmp/shared || fail "no shared memory in huge pages"
    begin held --pages 16 --hot 1 --file /tmp/shared/file
    until_true 120 at_least held scans 3 || fail "held is not tracked" /tmp/daemon.log /tmp/status.json
    begin twin --pages 16 --hot 4 --seed 2 --file /tmp/shared/file --reader
    until_true 120 at_least twin scans 3 || fail "twin is not tracked" /tmp/daemon.log /tmp/status.json
    promoted() { echo $(($(value held promoted_pages) + $(value twin promoted_pages))); }
    # Which pages are in slow memory is not known here: others are used until some of them have been.
    before=$(promoted)
    come_up() { [ "$(promoted)" -gt "$before" ]; }
    for turn in 1 2 3 4 5 6 7 8; do
        shift_hot twin
        until_true 20 come_up && break
    done
    come_up || fail "what only the other group uses does not come up in $turn phases" /tmp/daemon.log /tmp/status.json
    until_true 120 served held 3 || fail "held is not served" /tmp/daemon.log /tmp/status.json
    # And there it ends: nothing goes up and down for as long as both run.
    moved() { echo $(($(value held promoted_pages) + $(value held demoted_pages) + $(value twin promoted_pages) + $(value twin demoted_pages))); }
    scans=$(value twin scans)
    until_true 60 at_least twin scans $((scans + 4)) || fail "twin is not tracked" /tmp/status.json
    before=$(moved)
    scans=$(value twin scans)
    until_true 60 at_least twin scans $((scans + 16)) || fail "twin is not tracked" /tmp/status.json
    fought=$(($(moved) - before))
    [ $fought -le 4 ] || fail "$fought pages were moved in 16 periods in which nothing changed" /tmp/status.json
    ended pages_shared "nothing: one group moves it, by the accesses of both; $fought moves in 16 periods without a change" held
    end twin
    end held
    umount /tmp/shared
}

file() {
    # Page cache that a program maps to read it, as an index or weights of a model: of a block device
    # that is in memory itself. All of it is read into slow memory; every second page of the first 4 of
    # 16 ranges are hot.
    unxz -c /srv/brd.ko.xz >/tmp/brd.ko && insmod /tmp/brd.ko rd_nr=1 rd_size=32768 || fail "no block device"
    rm /tmp/brd.ko
    echo +cpuset >/sys/fs/cgroup/cgroup.subtree_control || fail "no cpusets"
    mkdir /sys/fs/cgroup/file
    echo 1 >/sys/fs/cgroup/file/cpuset.mems
    begin file --page-size base --pages 8192 --hot-every 2 --hot-within 2048 --file /dev/ram0 --reader
    echo 0-1 >/sys/fs/cgroup/file/cpuset.mems
    until_true 120 at_least file scans 3 || fail "file is not tracked" /tmp/daemon.log /tmp/status.json
    ended pages_of_a_file "nothing: they are tracked and move" file
    up=$(value file promoted_pages)
    [ "$up" -ge 3 ] || fail "$up ranges of the file were promoted, 4 are hot" /tmp/status.json
    end file
    rmmod brd
}

pool() {
    # Pages of the kernel's pool, all of which is in slow memory: the kernel makes the page that one
    # moves to.
    reserve=hugepages/hugepages-2048kB/nr_hugepages
    echo 8 >/sys/devices/system/node/node1/$reserve
    [ "$(cat /sys/devices/system/node/node1/$reserve)" = 8 ] || fail "the pool is not as large as it should be"
    begin pool --pages 8 --hot 3 --page-size pool
    until_true 120 at_least pool scans 2 || fail "pool is not tracked" /tmp/daemon.log /tmp/status.json
    shift_hot pool
    ended pages_of_the_pool "nothing: they are tracked and move" pool
    [ "$(value pool promoted_pages)" -ge 3 ] || fail "pages of the pool were not promoted" /tmp/status.json
    end pool
    echo 0 >/proc/sys/vm/nr_hugepages
}

# --- groups and those beside --------------------------------------------------------------------
groups() {
    shift_hot
    begin dying --pages 96 --hot 48
    moving() { at_least dying demoted_pages 1; }
    until_true 120 moving || fail "dying is not moved" /tmp/daemon.log /tmp/status.json
    gone=$(value dying demoted_pages)
    kill -9 "$(pid dying)"
    wait "$(pid dying)"
    programs=$(echo "$programs" | sed 's/ dying\b//')
    until_true 60 rmdir /sys/fs/cgroup/dying || fail "the group stays"
    [ "$gone" -lt 48 ] || fail "it died after its moves: $gone"
    left() { in_group dying | grep -q . && return 1 || return 0; }
    until_true 60 left || fail "dying stays in the status" /tmp/status.json
    ended died_moving "a group less in the status, after $gone of 48 moves"

    # Removed and made anew, under the same name.
    shift_hot
    begin short --pages 8 --hot 2
    until_true 60 at_least short scans 2 || fail "short is not tracked" /tmp/daemon.log
    kill -9 "$(pid short)"
    wait "$(pid short)"
    until_true 60 rmdir /sys/fs/cgroup/short || fail "the group stays"
    programs=$(echo "$programs" | sed 's/ short\b//')
    begin short --pages 8 --hot 2
    ended group_removed "its place in the status" short
    end short

    echo +cpuset >/sys/fs/cgroup/cgroup.subtree_control || fail "no cpusets"
    refused=$(failed long not_allowed)
    echo 1 >/sys/fs/cgroup/long/cpuset.mems
    shift_hot
    until_true 60 more_failed long not_allowed "$refused" || fail "a cpuset without fast nodes is not reported" /tmp/status.json
    seen="failed by not_allowed ($(failed long not_allowed) pages)"
    echo 0-1 >/sys/fs/cgroup/long/cpuset.mems
    ended cpuset_changed "$seen"

    mkdir -p /sys/fs/cgroup/crowd
    # A few processes, which are managed; then they grow to more than may be.
    sh -c 'echo $$ >/sys/fs/cgroup/crowd/cgroup.procs; for i in $(seq 5); do sleep 1000 & done
        until [ -e /tmp/grow ]; do sleep 0.2; done
        for i in $(seq 150); do sleep 1000 & done; wait' &
    crowd=$!
    until_true 60 at_least crowd scans 1 || fail "a few processes are not managed" /tmp/daemon.log /tmp/status.json
    touch /tmp/grow
    until_true 60 unmanaged_says 'max_processes' || fail "a crowd is managed" /tmp/daemon.log /tmp/status.json
    shift_hot
    scans=$(value long scans)
    until_true 60 at_least long scans $((scans + 2)) || fail "a crowd stopped it" /tmp/daemon.log
    echo 1 >/sys/fs/cgroup/crowd/cgroup.kill
    wait $crowd
    until_true 60 rmdir /sys/fs/cgroup/crowd || fail "the crowd stays"
    ended crowd "the reason for which it is unmanaged"

    # A program of as many mappings as some databases and runtimes have.
    limit=$(cat /proc/sys/vm/max_map_count)
    echo 200000 >/proc/sys/vm/max_map_count
    begin held --pages 196 --hot 16 --hold cut
    until_true 120 served held 3 || fail "held is not served" /tmp/daemon.log /tmp/status.json
    tell held hold
    until_true 120 grep -q '"held"' /tmp/held.jsonl || fail "it is not cut" /tmp/held.jsonl
    mappings=$(wc -l <"/proc/$(pid held)/maps")
    [ "$mappings" -ge 100000 ] || fail "only $mappings mappings"
    shift_hot held
    shift_hot
    ended mappings "nothing: $mappings mappings are tracked and move" held
    until_true 60 served long 3 || fail "long is not served beside it" /tmp/daemon.log /tmp/status.json
    tell held release
    end held
    echo "$limit" >/proc/sys/vm/max_map_count

    # Somebody turns DAMON off, and then takes it.
    damon=/sys/kernel/mm/damon/admin/kdamonds
    on() { for n in 0 1 2 3; do [ "$(cat $damon/$n/state)" = off ] || echo $n; done; }
    lost=$(value long lost_periods)
    shift_hot
    for n in $(on); do echo off >$damon/$n/state; done
    more_lost() { at_least long lost_periods $((lost + 1)); }
    until_true 60 more_lost || fail "DAMON off is not reported" /tmp/status.json
    ended damon_off "lost_periods"

    shift_hot
    taken() {
        for n in $(on); do echo off >$damon/$n/state; done
        echo 0 >$damon/nr_kdamonds && echo 1 >$damon/nr_kdamonds
    }
    until_true 60 taken || fail "DAMON cannot be taken"
    reported() { unmanaged_says DAMON || unmanaged_says damon || error_says long damon; }
    until_true 60 reported || fail "DAMON in other hands is not reported" /tmp/daemon.log /tmp/status.json
    echo 0 >$damon/nr_kdamonds
    ended damon_taken "the reason for which the group is unmanaged"
}

# --- many processes: minutes, most of them to start and end so many ------------------------------
processes() {
    # As many processes as a group may have by default.
    begin held --pages 16 --hot 4
    mkdir /sys/fs/cgroup/held/many
    sh -c 'echo $$ >/sys/fs/cgroup/held/many/cgroup.procs; for i in $(seq 1023); do sleep 1000 & done; wait' &
    many=$!
    as_many() { [ "$(wc -l </sys/fs/cgroup/held/many/cgroup.procs)" -ge 1023 ]; }
    until_true 240 as_many || fail "only $(wc -l </sys/fs/cgroup/held/many/cgroup.procs) processes"
    scans=$(value held scans)
    until_true 120 at_least held scans $((${scans:-0} + 3)) || fail "held is not tracked" /tmp/daemon.log /tmp/status.json
    shift_hot held
    shift_hot
    ended processes "nothing: a group of $(wc -l </sys/fs/cgroup/held/many/cgroup.procs) more processes is tracked" held
    until_true 60 served long 3 || fail "long is not served beside it" /tmp/daemon.log /tmp/status.json
    echo 1 >/sys/fs/cgroup/held/many/cgroup.kill
    wait $many
    until_true 60 rmdir /sys/fs/cgroup/held/many || fail "the processes stay"
    end held
}

programs=
for part in "$@"; do "$part"; done
end long
[ -z "$programs" ] || fail "these run on:$programs"
kill $daemon
wait $daemon || fail "it did not end well" /tmp/daemon.log
until_true 60 as_before || { snapshot | diff /tmp/before -; fail "not as before" /tmp/daemon.log; }
grep -q 'panicked' /tmp/daemon.log && fail "a thread panicked" /tmp/daemon.log
echo "faults $faults, recovered $recovered, longest $longest s, settings wrong $settings_wrong, bytes lost $bytes_lost"
[ $settings_wrong = 0 ] && [ $bytes_lost = 0 ] || fail "settings or bytes"
echo "all held"
