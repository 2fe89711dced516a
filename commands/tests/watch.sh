# Runs 'terrace watch' in the virtual machine: on a command, on a process that runs already, killed;
# and asked in ways that cannot be done. The programs know how much of their memory is hot.
# shellcheck shell=sh
set -eu

fail() {
    echo "FAILED: $1"
    exit 1
}
snapshot() {
    cat /sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds /sys/kernel/mm/lru_gen/enabled
    ls /sys/kernel/tracing/instances
    ls -d /sys/fs/cgroup/terrace* 2>/dev/null || true
}
# 200 MB, a quarter of them hot.
hot="terrace-workload hotcold --pages 100 --hot 25 --duration-ms 600000 --pause-ms 5"

mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null || true
snapshot >/tmp/before

# shellcheck disable=SC2086
terrace watch --once --for 25 --out /tmp/heat.svg -- sh -c "exec $hot >/dev/null" >/tmp/command
cat /tmp/command
grep -q '<svg' /tmp/heat.svg || fail "no picture"
snapshot | diff /tmp/before - || fail "not as before after a command"

$hot >/dev/null &
program=$!
terrace watch --once --for 20 $program >/tmp/process
cat /tmp/process
kill -0 $program || fail "the program has ended"
snapshot | diff /tmp/before - || fail "not as before after a process"

terrace watch --once --for 600 $program >/dev/null 2>&1 &
watch=$!
for _ in $(seq 60); do
    [ "$(cat /sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds)" = 0 ] || break
    sleep 1
done
sleep 3
kill -9 $watch
for _ in $(seq 60); do
    snapshot | diff /tmp/before - >/dev/null && break
    sleep 1
done
snapshot | diff /tmp/before - || fail "not as before after a kill"
kill -0 $program || fail "the program has ended with its observer"

for bad in "" 99999999 /no/such "--for 0 $program" "--out x.txt $program" "-- /no/such"; do
    status=0
    # shellcheck disable=SC2086
    terrace watch $bad >/tmp/out 2>&1 || status=$?
    [ "$status" = 2 ] || fail "'$bad' ends with $status: $(cat /tmp/out)"
done
kill $program
echo "all held"
