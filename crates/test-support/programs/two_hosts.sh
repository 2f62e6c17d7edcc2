# Runs a shell command in this network namespace, and one in another, which a pair of interfaces joins. The second command
# starts when a socket or a membership in a multicast group matches the pattern.
# Arguments: the pattern, the two addresses, and the two commands. With a further argument, the first command is ended after
# the second one.
set -eu
ready=$(mktemp)
ip link add host-a type veth peer name host-b
unshare --net sh -c 'echo ready; exec sleep infinity' > "$ready" &
other=$!
server=
trap 'kill $other $server 2> /dev/null || true; rm -f "$ready"' EXIT
until [ -s "$ready" ]; do sleep 0.01; done
ip link set host-b netns $other
there() { nsenter --net=/proc/$other/ns/net "$@"; }
ip address add "$2/24" dev host-a
there ip address add "$3/24" dev host-b
ip link set host-a up
there ip link set host-b up

timeout 100 sh -c "$4" &
server=$!
until grep --quiet "$1" /proc/net/tcp /proc/net/tcp6 /proc/net/unix /proc/net/igmp; do
    kill -0 $server
    sleep 0.01
done
there timeout 100 sh -c "$5"
if [ "${6-}" ]; then
    kill $server
    wait $server || true
else
    wait $server
fi
