#!/bin/bash
# In new namespaces: makes a throw-away copy of this machine (an overlay over its root), and boots systemd in it. BASE is a folder
# with `upper/`: what is to be in the copy beside what is here. A second boot goes on with the files of the first; /disk is a file system
# that stays.
set -euo pipefail
base=$1
root=$base/root
if [ -d "$base/disk" ]; then again=yes; else again=; fi
mkdir -p "$base/work" "$base/disk" "$root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$base/upper,workdir=$base/work" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
for dir in run tmp dev; do mount -t tmpfs tmpfs "$root/$dir"; done
for node in null zero full random urandom tty fuse; do cp -a "/dev/$node" "$root/dev/"; done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts "$root/dev/pts"
mount -t tmpfs tmpfs "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
# The kernel is not the copy's to change; what this machine runs does not run a second time.
mkdir -p "$root/etc/systemd/system"
for unit in systemd-sysctl.service systemd-modules-load.service systemd-binfmt.service proc-sys-fs-binfmt_misc.automount \
    systemd-udevd.service systemd-udev-trigger.service kmod-static-nodes.service systemd-random-seed.service systemd-remount-fs.service \
    timers.target sys-kernel-config.mount sys-kernel-debug.mount sys-kernel-tracing.mount dev-hugepages.mount systemd-timesyncd.service; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
printf '[Unit]\nRequires=basic.target\nAfter=basic.target\nAllowIsolate=yes\n' >"$root/etc/systemd/system/packages.target"
[ "$again" ] || : >"$root/etc/fstab"
mkdir -p "$root/disk"
mount --bind "$base/disk" "$root/disk"
rm -rf "$root/etc/machine-id"
: >"$root/etc/machine-id"
cd "$root"
mkdir -p .old
pivot_root . .old
umount -l /.old
# As on a booted machine: what a unit mounts is everybody's.
mount --make-rshared /
exec env -i container=forebay-test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --unit=packages.target --log-target=journal
