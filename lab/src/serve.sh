# shellcheck shell=dash
# Runs the command in the guest and sends back how it ended. The host (guest.rs) reads four virtio
# ports:
#   1 control  lines: "ready RELEASE", "missing PATH", "exit CODE OOM_KILLS"
#   2 stdout, 3 stderr, 4 results (tar archives)
# A command with a terminal (terminal.rs) has /dev/hvc0 instead of 2 and 3; the sizes of the window on
# the host, lines "ROWS COLUMNS", come from port 6.
# Ports 2 to 4 end with the trailer that the host chose, for a port has no end of its own.
# When the host has it all it stops the machine; this process only has to stay alive.
exec 4>/dev/vport0p1 5>/dev/vport0p2 6>/dev/vport0p3 7>/dev/vport0p4
read -r trailer </.lab/trailer
if [ -e /.lab/terminal ]; then
    until [ -c /dev/hvc0 ] && [ -c /dev/vport0p6 ]; do sleep 0.1; done
fi
echo "ready $(uname -r)" >&4

# Where accesses are counted (accesses.rs), while the command runs.
[ -x /.lab/begin-counting ] && /.lab/begin-counting
if [ -e /.lab/terminal ]; then
    exec 8</dev/vport0p6
    read -r rows columns <&8
    while read -r rows columns; do
        stty -F /dev/hvc0 rows "$rows" cols "$columns"
    done <&8 4>&- 5>&- 6>&- 7>&- &
    # Leads a session of its own, so that Ctrl-C and a change of size reach what runs there. A size
    # is kept as long as the terminal is open.
    # shellcheck disable=SC2016 # for the shell in the session
    setsid -c sh -c 'stty rows "$1" cols "$2"; exec sh /.lab/command' terminal "$rows" "$columns" \
        </dev/hvc0 >/dev/hvc0 2>&1 4>&- 5>&- 6>&- 7>&- 8<&-
else
    sh /.lab/command </.lab/stdin >&5 2>&6 4>&- 5>&- 6>&- 7>&-
fi
code=$?
[ -x /.lab/end-counting ] && /.lab/end-counting
while read -r name value; do
    [ "$name" = oom_kill ] && oom_kills=$value
done </proc/vmstat

# What the command left running would write behind the trailer. Beside another init those are the
# processes of this one's control group.
if [ $$ = 1 ]; then
    kill -KILL -1 2>/dev/null
else
    while read -r process; do
        [ "$process" = $$ ] || kill -KILL "$process" 2>/dev/null
    done <"/sys/fs/cgroup$(cut -d : -f 3 /proc/self/cgroup)/cgroup.procs"
fi
printf '%s' "$trailer" >&5
printf '%s' "$trailer" >&6

# One archive for each, one behind the other.
while IFS= read -r path; do
    root=/
    case "$path" in
    proc/* | sys/*)
        # These do not know their size beforehand, as tar wants it.
        root=/.lab/staged
        mkdir -p "$root/${path%/*}"
        cp -r "/$path" "$root/$path" 2>/dev/null
        ;;
    esac
    if [ -e "$root/$path" ] || [ -L "$root/$path" ]; then
        tar -c -C "$root" -f - -- "$path" >&7 || echo "missing $path" >&4
    else
        echo "missing $path" >&4
    fi
done </.lab/results
printf '%s' "$trailer" >&7
echo "exit $code ${oom_kills:-0}" >&4
while :; do sleep 3600; done
