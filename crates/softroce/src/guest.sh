# In the machine, on the host's files: makes rxe0 and, if wanted, siw0, runs the command, reports.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
b=/run/rxe/busybox

stop() {
    echo "rxe: $1"
    $b poweroff -f
}

# By path, since the shell would otherwise use its own, which load no compressed modules.
modprobe() { /sbin/modprobe "$@"; }
ip() { /sbin/ip "$@"; }

ip link set lo up
modprobe virtio_console || stop "no module virtio_console"
# Without it the device cannot be made on some kernels; others have it built in.
modprobe -q crc32_generic
modprobe rdma_rxe || stop "the kernel has no rdma_rxe"
modprobe -q -a ib_uverbs rdma_ucm
ip link add dummy0 type dummy || stop "no dummy interface"
ip address add 198.18.0.1/24 dev dummy0
# Space for a path MTU of 4096.
ip link set dummy0 mtu 4200 up
rdma link add rxe0 type rxe netdev dummy0 || stop "no RXE device on the dummy interface"

folder=$($b sed 's/.* rxe=\([^ ]*\).*/\1/' /proc/cmdline)
if [ -d "$folder/siw" ]; then
    # An interface of its own, since rdma_cm chooses the device by the interface's address.
    modprobe -q -a libcrc32c iw_cm
    modprobe -q siw || /sbin/insmod "$folder/siw/siw.ko" || stop "the kernel cannot load siw"
    ip link add dummy1 type dummy
    ip address add 198.18.1.1/24 dev dummy1
    ip link set dummy1 up
    rdma link add siw0 type siw netdev dummy1 || stop "no siw device on the dummy interface"
fi

# Waits until a condition holds.
wait_for() {
    what=$1 tries=0
    shift
    until "$@"; do
        tries=$((tries + 1))
        [ $tries -lt 100 ] || stop "$what does not become active"
        $b sleep 0.1
    done
    echo "rxe: $what is active"
}
wait_for rxe0 $b grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state
wait_for "GID 1 of rxe0" $b grep -q ffff:c612:0001 /sys/class/infiniband/rxe0/ports/1/gids/1
[ ! -d "$folder/siw" ] || wait_for siw0 $b grep -q ACTIVE /sys/class/infiniband/siw0/ports/1/state

for port in /sys/class/virtio-ports/*; do
    read -r name < "$port/name"
    $b ln -s "/dev/${port##*/}" "/run/rxe/port-$name"
done
# Through pipes, since a port can be opened once only, and programs open /dev/stdout.
pass() { $b tee "/run/rxe/port-$1" < "/run/rxe/$1" | $b wc -c > "/run/rxe/$1-count"; }
$b mkfifo /run/rxe/out /run/rxe/err
pass out &
out=$!
pass err &
err=$!
ulimit -l unlimited
/bin/sh "$folder/command" < /dev/null > /run/rxe/out 2> /run/rxe/err
status=$?

# Processes left by the command would keep the pipes open.
for process in /proc/[0-9]*; do
    [ "$($b readlink "$process/exe")" = $b ] || kill -KILL "${process#/proc/}" 2> /dev/null
done
wait $out $err
read -r out < /run/rxe/out-count
read -r err < /run/rxe/err-count
echo "$status $out $err" > /run/rxe/port-status
# The host ends the machine when it has all of the output.
$b sleep 30
$b poweroff -f
