#!/bin/sh
# Runs in a virtual machine with Debian's systemd and podman (tools/pod-guest): the manifests of
# packaging/kubernetes by 'podman kube play', with exactly the rights that they give. The pod tracks
# a service of another user and ends in good order; it is killed whole and does not return, or
# returns; it waits where the host cannot be managed. Settings are back each time. Says "all held"
# at the end. usage: pod.sh, with image.tar, terrace.yaml, waiting.yaml and restore.yaml beside it
. /srv/daemon_common.sh
export HOME=/root SYSTEMD_PAGER="" SYSTEMD_COLORS=0
export CONTAINERS_STORAGE_CONF=/tmp/storage.conf
printf '[storage]\ndriver = "vfs"\nrunroot = "/run/containers"\ngraphroot = "/var/lib/containers"\n' >/tmp/storage.conf

step() { echo "[$(cut -d . -f 1 /proc/uptime) s] $*"; }
settings() {
    for file in /proc/sys/kernel/numa_balancing /sys/kernel/mm/lru_gen/enabled \
        /sys/kernel/mm/numa/demotion_enabled /sys/kernel/mm/transparent_hugepage/enabled \
        /sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds \
        /sys/module/damon_stat/parameters/enabled; do
        # The last is absent before Linux 6.17.
        [ ! -e $file ] || echo "$file: $(cat $file)"
    done
    ls /sys/kernel/tracing/instances
}
as_it_was() { settings | cmp -s - /tmp/settings; }
changed() { ! as_it_was; }
logs() { podman logs "$1" 2>&1; }
failed() {
    podman ps --all --pod >/tmp/ps.log 2>&1
    logs "$2" >/tmp/pod.log
    fail "$1" /tmp/ps.log /tmp/pod.log /tmp/play.log /tmp/status.json
}
play() { podman kube play --network none "/srv/$1.yaml" >/tmp/play.log 2>&1 || failed "podman kube play $1" "$2"; }
down() { podman kube down "/srv/$1.yaml" >/tmp/play.log 2>&1; }

podman load --input /srv/image.tar >/tmp/play.log 2>&1 || fail "podman load" /tmp/play.log
rm /srv/image.tar
step "the image: $(podman run --rm --network none terrace:0.2.0 terrace --version)"
chmod 755 /srv/terrace
cp /srv/terrace /usr/local/bin/

# Redis, of the user redis, with its memory in the slow tier: pages that are read must come up.
mkdir -p /etc/systemd/system/redis-server.service.d
printf '[Service]\nNUMAPolicy=preferred\nNUMAMask=1\n' >/etc/systemd/system/redis-server.service.d/slow.conf
systemctl daemon-reload && systemctl restart redis-server || fail "no redis-server"
redis-cli eval "for i = 0, 19999 do redis.call('set', string.format('key:%012d', i), string.rep('x', 500)) end" 0 >/dev/null
[ "$(redis-cli dbsize)" = 20000 ] || fail "redis has no data"
reads() { while :; do redis-benchmark -q -t get -r 20000 -n 2000 -P 16 >/dev/null 2>&1; sleep 0.5; done; }
settings >/tmp/settings
step "$(podman --version), $(uname -r)"

# A host that cannot be managed as the configuration says: it waits, and nothing is changed.
play waiting terrace-pod-terraced
waits() { logs terrace-pod-terraced | grep -q 'waiting until it can'; }
until_true 180 waits || failed "it does not wait" terrace-pod-terraced
as_it_was || failed "a pod that waits has changed settings" terrace-pod-terraced
[ "$(podman inspect --format '{{.State.Status}} {{.RestartCount}}' terrace-pod-terraced)" = "running 0" ] ||
    failed "a pod that waits was started again" terrace-pod-terraced
down waiting
step "a host that cannot be managed: the pod waits, and changed nothing"

reads &
reading=$!
play terrace terrace-pod-terraced
until_true 180 changed || failed "nothing was changed" terrace-pod-terraced
until_true 400 at_least redis scans 2 || failed "redis is not tracked" terrace-pod-terraced
until_true 400 at_least redis promoted_pages 20 || failed "no page of redis was promoted" terrace-pod-terraced
daemon=$(podman inspect --format '{{.State.Pid}}' terrace-pod-terraced)
# CHOWN 0, DAC_READ_SEARCH 2, SYS_PTRACE 19, SYS_ADMIN 21, SYS_NICE 23.
rights=$(awk '$1 == "CapEff:" { print $2 }' "/proc/$daemon/status")
[ "$rights" = 0000000000a80005 ] || failed "rights: $rights" terrace-pod-terraced
step "kube play: redis tracked, $(value redis promoted_pages) pages promoted, by five capabilities"
down terrace
until_true 60 as_it_was || { settings | diff /tmp/settings -; failed "settings after its end" terrace-pod-terraced; }
step "kube down: every setting is as it was"

# killed: the pod goes whole, with the guard, as when a runtime kills it, and does not return.
killed() {
    play terrace terrace-pod-terraced
    until_true 180 changed || failed "nothing was changed" terrace-pod-terraced
    until_true 400 at_least redis scans 1 || failed "redis is not tracked" terrace-pod-terraced
    # No restart: a pod that was evicted.
    podman update --restart no terrace-pod-terraced >/dev/null 2>&1
    group=/sys/fs/cgroup$(cut -d : -f 3 "/proc/$(podman inspect --format '{{.State.Pid}}' terrace-pod-terraced)/cgroup")
    echo 1 >"$group/cgroup.kill"
    gone() { ! pidof terraced; }
    until_true 60 gone || failed "it still runs" terrace-pod-terraced
    podman pod rm --force --time 0 terrace-pod >/dev/null 2>&1
    changed || failed "killed whole, and yet settings are as they were: the next step shows nothing" terrace-pod-terraced
}
killed
play restore terrace-restore-pod-restore
until_true 120 as_it_was || { settings | diff /tmp/settings -; failed "settings after restore.yaml" terrace-restore-pod-restore; }
pidof terraced && failed "restore.yaml started a daemon" terrace-restore-pod-restored
down restore
step "killed with its guard, restore.yaml: every setting is as it was, and no daemon runs"

killed
rm -f /run/terrace/restored.log
play terrace terrace-pod-terraced
grep -q 'undone' /run/terrace/restored.log || failed "the init container undid nothing" terrace-pod-terraced
until_true 180 changed || failed "nothing was changed" terrace-pod-terraced
until_true 400 at_least redis scans 2 || failed "redis is not tracked again" terrace-pod-terraced
step "killed with its guard, started again: $(tail -n 1 /run/terrace/restored.log) first, redis tracked again"
down terrace
until_true 60 as_it_was || { settings | diff /tmp/settings -; failed "settings at the end" terrace-pod-terraced; }
kill $reading
[ "$(redis-cli dbsize)" = 20000 ] || fail "redis lost data"
step "kube down: every setting is as it was, redis has its data"
echo "all held"
