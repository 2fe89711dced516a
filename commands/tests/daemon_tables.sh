#!/bin/sh
# Runs in the virtual machine on the Terrace kernel: where terraced's key 'tables' puts the page tables
# of what a group executes, though whoever started it has them bound to slow memory; tables that are
# there already and follow data that is promoted (Radiant's Mig, live); and base pages under the
# kernel's own scan and moves. Says "all held" at the end.
. /srv/daemon_common.sh

# waiting NAME OPTION...: a shell that waits in its group until it gets the message to become the program.
waiting() {
    name=$1
    shift
    mkdir -p "/sys/fs/cgroup/$name"
    mkfifo "/tmp/$name.go" "/tmp/$name.control"
    terrace numactl --page-tables 1 --levels all -- sh -c "echo \$\$ >/sys/fs/cgroup/$name/cgroup.procs
        read go </tmp/$name.go; exec terrace-workload hotcold --pages 1024 --hot 256 --page-size base \
        --pause-ms 100 --duration-ms 3600000 $* </tmp/$name.control" >"/tmp/$name.jsonl" 2>&1 3>&- 4>&- 5>&- &
}

cat >/srv/terraced.toml <<EOF
[daemon]
period_ms = 1000
discover_ms = 300
[[groups]]
name = "bound"
cgroup = "/bound"
policy = "granularity"
page_size = "4K"
fast = "2M"
tables = "fast"
[[groups]]
name = "free"
cgroup = "/free"
policy = "lfu"
page_size = "4K"
fast = "2M"
[[groups]]
name = "followed"
cgroup = "/followed"
policy = "lru"
page_size = "4K"
fast = "2M"
tables = "follow"
EOF
waiting bound
bound=$!
waiting free
free=$!
# What is hot changes, so that pages are promoted; its tables are there before the daemon is.
waiting followed --shift-every-ms 10000
followed=$!
echo go >/tmp/followed.go
exec 5>/tmp/followed.control
until_true 120 grep -q '"ready"' /tmp/followed.jsonl || fail "followed is not ready" /tmp/followed.jsonl
snapshot >/tmp/before
terraced run /srv/terraced.toml >/tmp/daemon.log 2>&1 3>&- 4>&- 5>&- &
# shellcheck disable=SC2034 # daemon_common.sh uses it
daemon=$!
for name in bound free followed; do
    until_true 90 at_least $name process_count 1 || fail "$name was not found" /tmp/daemon.log /tmp/status.json
done
for name in bound free; do
    echo go >/tmp/$name.go
done
exec 3>/tmp/bound.control
exec 4>/tmp/free.control
for name in bound free; do
    until_true 120 grep -q '"ready"' /tmp/$name.jsonl || fail "$name is not ready" /tmp/$name.jsonl
done

settled() { at_least $1 hit_ratio 1 && at_least $1 demoted_pages 512; }
# tables GROUP NODE: its page tables there, in bytes.
tables() {
    awk -v group="\"name\": \"$1\"" -v node="$2" '
        index($0, group) { ours = 1 }
        inside && inside++ == node + 1 { gsub(/[^0-9]/, ""); print; exit }
        ours && /"pagetable_bytes"/ { inside = 1 }' /tmp/status.json
}
for name in bound free; do
    until_true 150 settled $name || fail "$name: the hot base pages are not in fast memory" /tmp/daemon.log /tmp/status.json
done
# 4 MB in base pages take two tables of the last level at least.
came_up() { at_least followed promoted_pages 1 && [ "$(tables followed 0)" -ge 8192 ]; }
until_true 150 came_up || fail "tables did not follow" /tmp/daemon.log /tmp/status.json
terrace status
for name in bound free followed; do
    echo "$name: $(tables $name 0) bytes of page tables in fast memory, $(tables $name 1) in slow"
done
# And one of each level above, which stay where they were made.
[ "$(tables bound 0)" -ge 20480 ] && [ "$(tables bound 1)" -eq 0 ] || fail "bound" /tmp/status.json
[ "$(tables free 1)" -ge 20480 ] && [ "$(tables free 0)" -eq 0 ] || fail "free" /tmp/status.json
[ "$(tables followed 1)" -ge 12288 ] || fail "followed" /tmp/status.json

end_daemon
echo stop >&3
echo stop >&4
echo stop >&5
exec 3>&- 4>&- 5>&-
whole followed $followed
whole bound $bound
whole free $free
echo "all held"
