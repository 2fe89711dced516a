#!/bin/sh
# Runs in the virtual machine: kills the engine at random moments while it looks after a program,
# and checks each time that every kernel setting is as it was, and at the end that the program's
# data is whole. usage: kill.sh KILLS SEED
kills=$1
seed=$2

snapshot() {
    for file in /proc/sys/kernel/numa_balancing /sys/kernel/mm/lru_gen/enabled \
        /sys/kernel/mm/numa/demotion_enabled /sys/kernel/mm/transparent_hugepage/enabled \
        /sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds /sys/fs/cgroup/cgroup.subtree_control; do
        echo "$file: $(cat $file)"
    done
    ls /sys/kernel/tracing/instances /sys/kernel/mm/damon/admin/kdamonds
    find /sys/fs/cgroup -type d | sort
    cut -d ' ' -f 2,3 /proc/mounts | sort
    cat /sys/kernel/tracing/events/damon/damon_aggregated/enable
}

mkfifo /tmp/control
terrace-workload hotcold --pages 48 --hot 16 --shift-every-ms 700 --pause-ms 100 \
    --duration-ms 3600000 </tmp/control >/tmp/program.jsonl &
program=$!
exec 3>/tmp/control
tries=0
until grep -q '"ready"' /tmp/program.jsonl; do
    tries=$((tries + 1))
    [ $tries -lt 600 ] || { echo "the program did not become ready"; exit 1; }
    sleep 0.1
done

cat >/srv/attach.toml <<EOF
name = "attach"
period_ms = 250
periods = 1000
[[groups]]
name = "program"
policy = "lru"
fast_ratio = 0.25
[groups.workload]
kind = "attach"
pids = [$program]
EOF

snapshot >/tmp/before
reached=0
kill_number=0
awk -v n="$kills" -v seed="$seed" 'BEGIN { srand(seed); for (i = 0; i < n; i++) print 3 * rand() }' \
    >/tmp/moments
while read -r moment; do
    kill_number=$((kill_number + 1))
    terrace run /srv/attach.toml --machine host --fix-conflicts --out /tmp/out$kill_number \
        >/tmp/engine.log 2>&1 3>&- &
    engine=$!
    sleep "$moment"
    # Was it in the middle of it, or still on its way?
    [ "$(cat /sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds)" = 0 ] || reached=$((reached + 1))
    kill -9 $engine || { echo "the engine ended by itself:"; cat /tmp/engine.log; exit 1; }
    wait $engine 2>/dev/null
    tries=0
    # Its guard needs a moment; nothing else may still be there.
    until snapshot | cmp -s - /tmp/before && ! pidof terrace >/dev/null; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || {
            echo "kill $kill_number, ${moment} s after the start: not as before:"
            snapshot | diff /tmp/before -
            ps | grep "[t]errace"
            cat /tmp/engine.log
            exit 1
        }
        sleep 0.05
    done
    rm -rf /tmp/out$kill_number
done </tmp/moments

echo stop >&3
exec 3>&-
wait $program
status=$?
moved=$(awk '/^pgmigrate_success/ { print $2 }' /proc/vmstat)
echo "kills $kill_number, in the middle of a run $reached, pages migrated $moved"
grep '"result"' /tmp/program.jsonl
exit $status
