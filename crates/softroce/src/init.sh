#!/busybox sh
# The first process of the virtual machine: mounts the unpacked packages over the host's files, both
# read-only, and switches the root there. Writes go to memory.
/busybox mkdir -p /bin /proc /dev /host /packages /memory /new
/busybox --install -s /bin
export PATH=/bin

stop() {
    echo "rxe: $1"
    poweroff -f
}

mount -t proc proc /proc
mount -t devtmpfs dev /dev
while read -r module; do
    insmod "/modules/$module" || stop "the kernel cannot load the module $module"
done < /modules/order

share=ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose
mount -t 9p -o "$share" host /host || stop "no share of the host's files"
mount -t 9p -o "$share" packages /packages || stop "no share of the packages"
mount -t tmpfs -o mode=755 tmpfs /memory
mkdir /memory/written /memory/work
mount -t overlay -o lowerdir=/packages:/host,upperdir=/memory/written,workdir=/memory/work \
    overlay /new || stop "no overlay of packages and host"

mount -t proc proc /new/proc
mount -t sysfs sys /new/sys
mount -t devtmpfs dev /new/dev
mkdir -p /new/dev/pts /new/dev/shm
mount -t devpts devpts /new/dev/pts
mount -t tmpfs tmpfs /new/dev/shm
mount -t tmpfs -o mode=755 tmpfs /new/run
mkdir /new/run/rxe
cp /busybox /guest.sh /new/run/rxe/
umount /dev /proc
exec switch_root /new /run/rxe/busybox sh /run/rxe/guest.sh
