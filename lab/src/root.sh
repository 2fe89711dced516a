# shellcheck shell=dash
# Hands over to the init of a disk's root file system, in which the command runs as a service, after
# what that system starts by itself. The disk is thrown away: what is written to it goes with the
# machine.
fail() {
    echo "lab: $1" >/dev/console
    exit 1
}
for module in /.lab/modules/*; do
    [ ! -e "$module" ] || insmod "$module" || fail "cannot load $module"
done
tries=0
until [ -b /dev/vda ]; do
    tries=$((tries + 1))
    [ $tries -lt 600 ] || fail "no disk: the kernel has no virtio_blk, built in or as a module"
    sleep 0.1
done
mkdir /disk
mount -t ext4 /dev/vda /disk || fail "cannot mount the disk: expected a file system of ext4"
# Often an absolute link, which is not followed here.
[ -L /disk/sbin/init ] || [ -x /disk/sbin/init ] || fail "the disk has no /sbin/init"

# What the job carries in, and the lab's own.
while IFS= read -r path; do
    tar -c -C / -f - -- "$path" | tar -x -C /disk -f - || fail "cannot copy $path to the disk"
done </.lab/carried
units=/disk/etc/systemd/system
mkdir -p $units/multi-user.target.wants
cat >$units/terrace-lab.service <<EOF
[Unit]
Description=The command of the lab
After=multi-user.target
[Service]
ExecStart=/bin/sh /.lab/serve
StandardError=journal+console
# The machine ends by it: nothing else may be taken first.
OOMScoreAdjust=-900
KillMode=process
EOF
ln -s ../terrace-lab.service $units/multi-user.target.wants/
# The console is the kernel's: nobody logs in there.
ln -sf /dev/null $units/serial-getty@ttyS0.service
umount /sys /proc
mount --move /dev /disk/dev
exec switch_root /disk /sbin/init
