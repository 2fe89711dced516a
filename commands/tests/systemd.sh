#!/bin/sh
# Runs in a virtual machine with Debian's own systemd (tools/systemd-guest): the package installed
# by apt, a service of another user tracked and its pages promoted, reload, kill -9, a daemon that
# hangs, upgrade and purge. Says "all held" at the end. usage: systemd.sh FROM-VERSION TO-VERSION
. /srv/daemon_common.sh
export DEBIAN_FRONTEND=noninteractive SYSTEMD_PAGER="" SYSTEMD_COLORS=0

step() { echo "[$(cut -d . -f 1 /proc/uptime) s] $*"; }
log() { journalctl --no-pager --output cat --unit terraced --lines 60; }
failed() {
    log >/tmp/terraced.log
    fail "$1" /tmp/terraced.log /tmp/status.json "$2"
}
installed() { dpkg-query --show --showformat '${Version}' terrace 2>/dev/null; }
is_active() { systemctl is-active --quiet terraced; }

# The kernel's settings that terraced changes; 'pidof' is not asked, for it starts again by itself.
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

# Redis, of the user redis, with its memory in the slow tier: pages that are read must come up.
mkdir -p /etc/systemd/system/redis-server.service.d
cat >/etc/systemd/system/redis-server.service.d/slow.conf <<EOF
[Service]
NUMAPolicy=preferred
NUMAMask=1
EOF
systemctl daemon-reload && systemctl restart redis-server || fail "no redis-server"
# The keys that redis-benchmark asks for.
keys() { redis-cli dbsize; }
redis-cli eval "for i = 0, 19999 do redis.call('set', string.format('key:%012d', i), string.rep('x', 500)) end" 0 >/dev/null
[ "$(keys)" = 20000 ] || fail "redis has no data: $(keys)"
user=$(ps -o user= -p "$(systemctl show --value --property MainPID redis-server)")
[ "$user" = redis ] || fail "redis-server is of the user '$user'"
reads() { while :; do redis-benchmark -q -t get -r 20000 -n 2000 -P 16 >/dev/null 2>&1; sleep 0.5; done; }
step "$(systemctl --version | head -n 1), $(uname -r); redis-server is active, of the user $user"

# Installed by apt, from a folder.
cat >/etc/apt/sources.list <<EOF
deb [trusted=yes] file:/srv/packages $1/
EOF
settings >/tmp/settings
apt-get update -qq 2>/tmp/apt.log || fail "apt-get update" /tmp/apt.log
apt-get install -y -qq --no-install-recommends terrace >/tmp/apt.log 2>&1 || fail "apt-get install" /tmp/apt.log
[ "$(installed)" = "$1" ] || fail "installed: '$(installed)'" /tmp/apt.log
step "apt-get install terrace: $(installed)"
is_active && fail "it was started before anybody configured it"
exposure=$(systemd-analyze security --no-pager terraced.service | sed -nE 's/.*exposure level.*: ([0-9.]+) .*/\1/p')
[ "$(echo "$exposure" | tr -d .)" -le 35 ] || fail "systemd-analyze security: exposure '$exposure', expected 3.5 at most"
step "systemd-analyze security: exposure $exposure"

config() {
    cat >/etc/terrace/terraced.toml <<EOF
[daemon]
period_ms = 2000
discover_ms = 1000
[[groups]]
name = "redis"
cgroup = "/system.slice/redis-server.service"
policy = "$1"
page_size = "4K"
fast = "24M"
EOF
}

# A fault in the configuration, and one that only the host shows: reported once, not tried again.
echo 'surprise = 1' >>/etc/terrace/terraced.toml
systemctl start terraced 2>/dev/null
has_failed() { systemctl is-failed --quiet terraced; }
until_true 60 has_failed || failed "a faulty configuration"
log | grep -q surprise || failed "no word on the fault"
restarts() { systemctl show --value --property NRestarts terraced; }
[ "$(restarts)" = 0 ] || failed "started again for a faulty configuration: $(restarts)"
systemctl reset-failed terraced
step "a faulty configuration: refused, not tried again"

config lru
systemctl start terraced || failed "systemctl start"
reads &
reading=$!
until_true 60 is_active || failed "it does not run"
until_true 300 at_least redis scans 2 || failed "redis is not tracked"
until_true 300 at_least redis promoted_pages 100 || failed "no page of redis was promoted"
step "systemctl start: redis tracked, $(value redis scans) scans, $(value redis promoted_pages) pages promoted"
changed || failed "nothing was changed on the host: what is put back later would show nothing"

config lfu
systemctl reload terraced || failed "systemctl reload"
is_lfu() { terrace status --format json | grep -q '"policy": "lfu"'; }
until_true 60 is_lfu || failed "the new policy is not in force"
is_active || failed "a reload ended it"
step "systemctl reload: the new policy is in force"

# Killed, everything is put back before it starts again. The pause is for this script to see it.
mkdir -p /etc/systemd/system/terraced.service.d
printf '[Service]\nRestartSec=60\n' >/etc/systemd/system/terraced.service.d/slow.conf
systemctl daemon-reload
before=$(restarts)
systemctl kill --kill-who=main --signal KILL terraced
until_true 55 as_it_was || { settings | diff /tmp/settings -; failed "settings after kill -9"; }
step "kill -9: every setting is as it was"
started_again() { [ "$(restarts)" -gt "$before" ] && is_active; }
until_true 180 started_again || failed "it was not started again"
until_true 300 at_least redis scans 2 || failed "redis is not tracked again"
step "started again by systemd, redis tracked again"

# It hangs: the watchdog ends it, everything is put back, it starts again.
changed || failed "nothing was changed on the host: what is put back would show nothing"
before=$(restarts)
systemctl kill --kill-who=main --signal STOP terraced
until_true 150 as_it_was || { settings | diff /tmp/settings -; failed "settings after a hang"; }
journalctl --no-pager --unit terraced | grep -q 'Watchdog timeout' || failed "no word of the watchdog"
until_true 180 started_again || failed "it was not started again after it had hung"
until_true 300 at_least redis scans 2 || failed "redis is not tracked after a hang"
step "SIGSTOP: ended by the watchdog, every setting as it was, started again, redis tracked again"
rm -r /etc/systemd/system/terraced.service.d
systemctl daemon-reload

# Another version: started anew, with the configuration that was there.
sed -i "s| $1/| $2/|" /etc/apt/sources.list
before=$(systemctl show --value --property MainPID terraced)
apt-get update -qq 2>/tmp/apt.log || fail "apt-get update" /tmp/apt.log
apt-get upgrade -y -qq --no-install-recommends >/tmp/apt.log 2>&1 || fail "apt-get upgrade" /tmp/apt.log
[ "$(installed)" = "$2" ] || fail "upgraded: '$(installed)'" /tmp/apt.log
other() { is_active && [ "$(systemctl show --value --property MainPID terraced)" != "$before" ]; }
until_true 120 other || failed "the upgrade did not start the new one"
until_true 300 at_least redis scans 2 || failed "redis is not tracked after the upgrade"
grep -q lfu /etc/terrace/terraced.toml || fail "the configuration was lost"
step "apt-get upgrade: $(installed) runs, with the configuration that was there"

kill $reading
wait $reading 2>/dev/null
systemctl stop terraced || failed "systemctl stop"
until_true 60 as_it_was || { settings | diff /tmp/settings -; failed "settings after the end"; }
step "systemctl stop: every setting is as it was"

systemctl start terraced || failed "systemctl start"
until_true 180 changed || failed "nothing was changed on the host"
apt-get purge -y -qq terrace >/tmp/apt.log 2>&1 || fail "apt-get purge" /tmp/apt.log
until_true 60 as_it_was || { settings | diff /tmp/settings -; fail "settings after purge" /tmp/apt.log; }
left=$(ls -d /etc/terrace /var/lib/terrace /run/terrace /usr/share/doc/terrace /usr/lib/terrace \
    /usr/bin/terrace* /lib/systemd/system/terraced.service \
    /etc/systemd/system/*/terraced.service 2>/dev/null)
[ -z "$left" ] || fail "left after purge: $left" /tmp/apt.log
pidof terraced && fail "it still runs"
systemctl is-active --quiet redis-server || fail "redis-server has ended"
[ "$(keys)" = 20000 ] || fail "redis lost data: $(keys)"
step "apt-get purge: nothing is left, every setting is as it was, redis has its data"
echo "all held"
