#!/bin/busybox sh
# The first process of a guest: makes an RDMA device of an interface, shows the host's tree, which
# nothing here can write to, runs the job that lies in the shared folder and says how it ended.
# Lines that begin with "bed: " are read by the host.
b() { /bin/busybox "$@"; }
say() { b echo "bed: $*"; }
# busybox's shell would run its own ip and tc: these are iproute2's.
ip() { /bin/ip "$@"; }

end() {
  say "done $1"
  b sync
  b reboot -f
}

b mkdir -p /proc /sys /dev /run /tmp /out /host
b mount -t proc proc /proc
b mount -t sysfs sysfs /sys
b mount -t devtmpfs dev /dev
b mkdir -p /dev/shm /dev/pts
b mount -t tmpfs shm /dev/shm
b mount -t devpts pts /dev/pts
b mount -t tmpfs run /run

for word in $(b cat /proc/cmdline); do
  case "$word" in
    bed.rail=*) RAIL="${word#bed.rail=}" ;;
    bed.net=*) NET="${word#bed.net=}" ;;
    bed.address=*) ADDRESS="${word#bed.address=}" ;;
    bed.control=*) CONTROL="${word#bed.control=}" ;;
    bed.job=*) JOB="${word#bed.job=}" ;;
  esac
done

while read -r module; do
  b insmod "/$module" || { say "failed: module $module"; end 1; }
done < /modules

# The RDMA device's own interface has the first address of its network.
ip link set lo up
if [ ! -e "/sys/class/net/$RAIL" ]; then ip link add "$RAIL" type dummy; fi
ip link set "$RAIL" mtu 4200
ip address add "$ADDRESS" dev "$RAIL"
ip link set "$RAIL" up
if [ -n "${NET:-}" ]; then
  ip address add "$CONTROL" dev "$NET"
  ip link set "$NET" up
fi
/usr/bin/rdma link add rxe0 type rxe netdev "$RAIL" || { say "failed: rxe"; end 1; }

# GID 1 is made of the address, a moment after it was given.
gid=/sys/class/infiniband/rxe0/ports/1/gids/1
tries=0
while ! b grep -q '[1-9a-f]' "$gid" 2> /dev/null; do
  tries=$((tries + 1))
  if [ "$tries" -gt 600 ]; then say "failed: no address of rxe0"; end 1; fi
  b usleep 50000
done

options=trans=virtio,version=9p2000.L,msize=262144
b mount -t 9p -o "$options" out /out || { say "failed: the shared folder"; end 1; }
b mount -t 9p -o "$options,cache=loose,ro" host /host || { say "failed: the host's tree"; end 1; }
for folder in dev proc sys; do b mount --rbind "/$folder" "/host/$folder"; done
b mount -t tmpfs run /host/run
b mkdir -p /host/run/tmp /host/run/out /host/run/bed
b mount --bind /out /host/run/out
b mount --bind / /host/run/bed
say "up"

# Runs a program of the host's tree.
host() { b chroot /host /bin/sh /run/out/enter.sh "$@"; }
. "/out/$JOB"
end "$?"
