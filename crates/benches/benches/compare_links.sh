#!/bin/sh
# Compares the links of the software device with other libraries by turns, over shared memory, and over TCP and UDP on
# the loopback interface: UCX (package ucx-utils) and libfabric (package libfabric-bin). Prints medians and ranges. The
# cache line between two threads shows how far apart the cores are: near cores pass it in some 50 ns, far ones in 100 ns
# or more. docs/performance.md has the results.
#
#     crates/benches/benches/compare_links.sh [TURNS [COMMAND...]]
#
# The command starts each program, for example `chrt -r 1`.
set -eu
turns=${1:-5}
[ $# -eq 0 ] || shift
root=$(cd "$(dirname "$0")/../../.." && pwd)
cd "$root"
command -v ucx_perftest fi_pingpong > /dev/null || { echo "apt install ucx-utils libfabric-bin" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
bench=$(cargo bench -q -p benches --bench links --no-run --message-format json |
    sed -n 's/.*"executable":"\([^"]*links-[^"]*\)".*/\1/p')

# Prints the last line of a client that begins with a word. Each server ends with its client.
pair() {
    first=$1
    shift
    "$@" > /dev/null 2>&1 &
    server=$!
    tries=0
    until "$@" 127.0.0.1 2> /dev/null > "$folder/output" && grep -q "$first" "$folder/output"; do
        tries=$((tries + 1))
        [ $tries -lt 50 ] || { echo "no answer from $*" >&2; exit 1; }
        sleep 0.1
    done
    kill $server 2> /dev/null || true
    wait $server 2> /dev/null || true
    grep "$first" "$folder/output" | tail -n 1
}

# Notes a figure of a row. Rows with the same number are compared.
note() {
    [ -n "$2" ] || { echo "no figure: $1" >&2; exit 1; }
    echo "$1: $2" >> "$folder/figures"
}
own() { "$command" $prefix "$bench" --bench "$@" > "$folder/own"; }
figure() { sed -n "s/^$1 *\([0-9.]*\).*/\1/p" "$folder/own" | tail -n 1; }
# The median latency is the third word of the last line of ucx_perftest, the bandwidth the sixth.
latency() { pair Final: "$command" $prefix ucx_perftest "$@" | awk '{ print 1000 * $3 }'; }
bandwidth() { pair Final: "$command" $prefix ucx_perftest "$@" | awk '{ print $6 * 1.048576 / 1000 }'; }

# The figure in the first line with the second words after a line with the first words.
mapped() { sed -n "/^$1/,\$s/^$2 *\([0-9.]*\).*/\1/p" "$folder/own" | head -n 1; }
# The time of a message is the seventh word of the last line of fi_pingpong.
fabric() { pair '^8 ' "$command" $prefix fi_pingpong -e rdm "$@" | awk '{ print 1000 * $7 }'; }

command=${1:-env}
[ $# -eq 0 ] || shift
prefix=$*
export UCX_NET_DEVICES=lo
memory=posix,cma,self,tcp
turn=0
while [ "$turn" -lt "$turns" ]; do
    own soft0 trips
    note '1 SEND of 8 bytes, half a round trip, ns' "$(figure 'SEND on soft0')"
    note '1 UCX over shared memory, a message' "$(UCX_TLS=$memory latency -t tag_lat -s 8 -n 50000)"
    note '1 libfabric over shared memory, a message' "$(fabric -p shm -S 8 -I 50000)"
    own udp trips
    note '2 SEND of 8 bytes by UDP, half a round trip, ns' "$(figure 'SEND on UDP')"
    note '2 UCX over TCP, a message' "$(UCX_TLS=tcp latency -t tag_lat -s 8 -n 50000)"
    note '2 libfabric over UDP, a message' "$(fabric -p 'udp;ofi_rxd' -S 8 -I 5000)"
    own soft0 sends
    note '3 SENDs of 64 KiB, GB/s' "$(figure 'SEND of   64 KiB on soft0')"
    note '3 UCX over shared memory, messages' "$(UCX_TLS=$memory bandwidth -t tag_bw -s 65536 -n 32768)"
    note '3 copies of 64 KiB through a ring' "$(sed -n 's/^ring copies, 64 KiB *//p' "$folder/own" | sed -n 2p)"
    note '4 SENDs of 1 MiB, GB/s' "$(figure 'SEND of 1024 KiB on soft0')"
    note '4 UCX over shared memory, messages' "$(UCX_TLS=$memory bandwidth -t tag_bw -s 1048576 -n 2048)"
    own soft0 mapped
    note '5 WRITEs of 64 KiB to mapped memory, GB/s' "$(mapped 'copies of   64 KiB' 'WRITEs')"
    note '5 READs of 64 KiB from mapped memory' "$(mapped 'copies of   64 KiB' 'READs')"
    note '5 copies of 64 KiB within a process' "$(figure 'copies of   64 KiB')"
    note '5 UCX over shared memory, puts' "$(UCX_TLS=$memory bandwidth -t ucp_put_bw -s 65536 -n 32768)"
    note '8 WRITEs of 8 bytes, 64 in flight, mapped, M/s' "$(figure 'between processes')"
    note '8 the same within a process' "$(figure 'within a process')"
    note '9 WRITE of 8 bytes until it is seen, mapped, ns' "$(figure 'WRITEs of 8 bytes')"
    note '9 a cache line between two threads' "$(figure 'stores of two threads')"
    own udp writes
    note '6 WRITEs of 64 KiB by UDP, GB/s' "$(figure 'WRITE of   64 KiB on UDP')"
    note '6 UCX over TCP, puts' "$(UCX_TLS=tcp bandwidth -t ucp_put_bw -s 65536 -n 20000)"
    note '7 WRITEs of 1 MiB by UDP, GB/s' "$(figure 'WRITE of 1024 KiB on UDP')"
    note '7 UCX over TCP, puts' "$(UCX_TLS=tcp bandwidth -t ucp_put_bw -s 1048576 -n 1000)"
    turn=$((turn + 1))
done

printf '%-50s%10s%10s%10s\n' 'medians and ranges' median least most
cut -d: -f1 "$folder/figures" | LC_ALL=C sort -u | while read -r row; do
    sed -n "s|^$row: ||p" "$folder/figures" | sort -n | awk -v row="${row#? }" '
        { all[NR] = $1 } END { printf "%-50s%10.2f%10.2f%10.2f\n", row, all[int((NR + 1) / 2)], all[1], all[NR] }'
done
