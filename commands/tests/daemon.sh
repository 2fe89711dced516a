#!/bin/sh
# Runs in the virtual machine: terraced over two programs in control groups of their own, with
# opposite preferences, and one in base pages: reload, status, explanations, kill -9 and restore,
# groups that come and go. Says "all held" at the end.
. /srv/daemon_common.sh

program few 8
few=$!
exec 3>/tmp/few.control
program many 32
many=$!
exec 4>/tmp/many.control
program small 256 1024 base
small=$!
exec 6>/tmp/small.control
for name in few many small; do
    until_true 120 grep -q '"ready"' /tmp/$name.jsonl || fail "$name is not ready" /tmp/$name.jsonl
done

config() {
    cat >/srv/terraced.toml <<EOF
[daemon]
period_ms = 1000
discover_ms = 300
max_groups = 4
metrics = "127.0.0.1:9464"
[sharing]
fast = "98M"
every_ms = 2000
max_loss = 1.0
[[groups]]
name = "few"
cgroup = "/few"
policy = "$1"
share = { min = "8M" }
[[groups]]
name = "many"
cgroup = "/many"
policy = "lfu"
share = { min = "8M" }
[[groups]]
name = "small"
cgroup = "/small"
policy = "granularity"
page_size = "4K"
fast = "2M"
[[groups]]
name = "short"
cgroup = "/short-*"
policy = "lru"
fast_ratio = 0.5
EOF
}

snapshot >/tmp/before
config lru
terraced check /srv/terraced.toml --host || fail "the configuration"
terraced run /srv/terraced.toml >/tmp/daemon.log 2>&1 3>&- 4>&- 5>&- 6>&- &
daemon=$!

# Fast memory by benefit: 96 MB of it are 48 pages, 8 and 32 of them wanted.
settled() { at_least few scans 6 && at_least many scans 6 && at_least few hit_ratio 1 && at_least many hit_ratio 1; }
until_true 150 settled || fail "the hot pages are not in fast memory" /tmp/daemon.log /tmp/status.json
terrace status
echo "hot pages of both are fast: few $(value few granted_bytes), many $(value many granted_bytes) bytes granted"
[ "$(value many granted_bytes)" -ge $((32 * 2097152)) ] || fail "too small a share" /tmp/status.json
# In base pages, at the granularity that each address space does best with: half of them must go.
# A machine without time for a period's moves takes some more of them.
within_limit() { fast=$(value small fast_bytes) && [ "$fast" -gt 0 ] && [ "$fast" -le 2097152 ]; }
small_settled() { at_least small scans 6 && at_least small hit_ratio 1 && at_least small demoted_pages 512 && within_limit; }
until_true 150 small_settled || fail "base pages: the hot ones are not in fast memory, or more than the limit is" /tmp/daemon.log /tmp/status.json
echo "base pages: $(value small demoted_pages) went in $(value small operations) operations"
terrace explain many | head -n 12 || fail "no explanation"
terrace top --once >/dev/null || fail "no top"
terrace heatmap many --out /tmp/many.svg && grep -q '<image' /tmp/many.svg || fail "no picture"
wget -q -O - http://127.0.0.1:9464/metrics >/tmp/metrics || fail "no metrics"
grep -q 'terrace_group_hit_ratio{group="many",policy="lfu"} 1$' /tmp/metrics || fail "metrics" /tmp/metrics

# Twenty reloads, each to the other policy: nothing is forgotten.
scans=$(value few scans)
for n in 1 2 3 4 5 6 7 8 9 10; do
    config lfu && terrace reload >/dev/null || fail "reload" /tmp/daemon.log
    config lru && terrace reload >/dev/null || fail "reload" /tmp/daemon.log
done
echo 'surprise = 1' >>/srv/terraced.toml
terrace reload >/tmp/refused 2>&1 && fail "a configuration with a fault was taken"
grep -q 'terraced.toml:' /tmp/refused || fail "no line" /tmp/refused
config lru
[ "$(value few scans)" -ge "$scans" ] || fail "scans were forgotten" /tmp/status.json
echo "reloads $(awk '/"reloads"/ { gsub(/[^0-9]/, "", $2); print $2 }' /tmp/status.json)"

# Groups that come and go, and a fork storm in one of them.
for n in 1 2 3; do
    program short-$n 4
    short=$!
    exec 5>/tmp/short-$n.control
    until_true 60 at_least "short:/short-$n" scans 1 || fail "short-$n was not seen" /tmp/daemon.log
    kill $short
    wait $short 2>/dev/null
    exec 5>&-
    gone() { terrace status --format json | grep -q short:/short-$n && return 1 || return 0; }
    until_true 60 gone || fail "short-$n stayed" /tmp/daemon.log
    rmdir /sys/fs/cgroup/short-$n
done
sh -c 'echo $$ >/sys/fs/cgroup/few/cgroup.procs; for i in $(seq 300); do true & done; wait' &
wait $!
scans=$(value few scans)
until_true 60 at_least few scans $((scans + 2)) || fail "a fork storm stopped it" /tmp/daemon.log
echo "groups came and went, forks did no harm"

# Killed, the guard puts everything back; restore finds nothing left.
kill -9 $daemon
wait $daemon 2>/dev/null
until_true 60 as_before || { snapshot | diff /tmp/before -; fail "not as before" /tmp/daemon.log; }
terraced restore || fail "restore"
echo "killed: every setting is as it was"

# Started again and ended in good order: state is kept.
terraced run /srv/terraced.toml >/tmp/daemon.log 2>&1 3>&- 4>&- 5>&- 6>&- &
daemon=$!
until_true 90 at_least few scans 3 || fail "it does not begin again" /tmp/daemon.log
end_daemon
ls /var/lib/terrace/*.trec >/dev/null || fail "no state was kept"
terraced run /srv/terraced.toml >/tmp/daemon.log 2>&1 3>&- 4>&- 5>&- 6>&- &
daemon=$!
until_true 90 at_least few restored_scans 3 || fail "no history came back" /tmp/daemon.log /tmp/status.json
echo "rss_bytes $(awk '/"rss_bytes"/ { gsub(/[^0-9]/, "", $2); print $2 }' /tmp/status.json)"
kill $daemon
wait $daemon

# The programs' data is whole.
echo stop >&3
echo stop >&4
echo stop >&6
exec 3>&- 4>&- 6>&-
whole small $small
whole few $few
whole many $many
echo "all held"
