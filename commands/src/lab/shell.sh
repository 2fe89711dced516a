# shellcheck shell=dash
# Runs in the virtual machine of 'terrace lab --shell': starts a workload, the arguments, in a control
# group of its own and terraced over it, says what there is, and becomes a shell.
config=/etc/terrace/terraced.toml
mkdir -p /run /var/lib /sys/fs/cgroup/workload
echo +memory >/sys/fs/cgroup/cgroup.subtree_control
# shellcheck disable=SC2016 # for the shell that becomes the workload
sh -c 'echo $$ >/sys/fs/cgroup/workload/cgroup.procs && exec "$@"' workload "$@" \
    </dev/null >/tmp/workload.log 2>&1 &
terraced run $config >/tmp/terraced.log 2>&1 &
daemon=$!
up_s() { cut -d . -f 1 /proc/uptime; }
end=$(($(up_s) + 60))
until terrace status >/dev/null 2>&1; do
    if ! kill -0 $daemon 2>/dev/null || [ "$(up_s)" -ge $end ]; then
        cat /tmp/terraced.log
        break
    fi
    sleep 0.2
done

cat <<TEXT

A machine with two memory tiers. terraced manages the control group 'workload' by
$config: $(grep ^fast $config). What runs there:
  $*

  terrace top                the group, live ('q' ends it)
  terrace status             the same, once
  terrace explain workload   what is moved, what is not, and why
  vi $config; terrace reload
  tail /tmp/terraced.log /tmp/workload.log
  exit                       switches the machine off; so does Ctrl-] at any time

TEXT
export PS1='lab:\w# '
exec sh
