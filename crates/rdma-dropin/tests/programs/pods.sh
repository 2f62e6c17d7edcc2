# Runs a pingpong between this network namespace and another one. The argument is the program.
set -eu
port=18515
ready=$(mktemp)
ip link add pod-a type veth peer name pod-b
unshare --net sh -c 'echo ready; exec sleep infinity' > "$ready" &
other=$!
server=
trap 'kill $other $server 2> /dev/null || true; rm -f "$ready"' EXIT
until [ -s "$ready" ]; do sleep 0.01; done
ip link set pod-b netns $other
there() { nsenter --net=/proc/$other/ns/net "$@"; }
ip address add 10.9.0.1/24 dev pod-a
there ip address add 10.9.0.2/24 dev pod-b
ip link set pod-a up
there ip link set pod-b up

# The first address at which a device listens has index 4.
RDMA_SOFT_DEVICES=soft0,address=10.9.0.1 timeout 100 "$1" -d soft0 -g 4 -n 200 -p $port &
server=$!
until grep --quiet "$(printf ':%04X 0' $port)" /proc/net/tcp /proc/net/tcp6; do
    kill -0 $server
    sleep 0.01
done
RDMA_SOFT_DEVICES=soft0,address=10.9.0.2 there timeout 100 "$1" -d soft0 -g 4 -n 200 -p $port 10.9.0.1
wait $server
