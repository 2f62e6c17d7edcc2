# In the machine, on the host's files: makes rxe0, runs the command, reports.
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

tries=0
until $b grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state &&
    $b grep -q ffff:c612:0001 /sys/class/infiniband/rxe0/ports/1/gids/1; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || stop "rxe0 does not become active"
    $b sleep 0.1
done
echo "rxe: rxe0 is active"

folder=$($b sed 's/.* rxe=\([^ ]*\).*/\1/' /proc/cmdline)
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
