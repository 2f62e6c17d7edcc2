#!/bin/sh
# Compares the links of the software device with other libraries, over shared memory, and over TCP and UDP on the
# loopback interface: UCX (package ucx-utils) and libfabric (package libfabric-bin). docs/performance.md has the results.
set -eu
export UCX_TLS=tcp UCX_NET_DEVICES=lo

# Each server ends with its client.
pair() {
    "$@" > /dev/null 2>&1 &
    server=$!
    tries=0
    until "$@" 127.0.0.1 2> /dev/null > "$output" && grep -q "$last" "$output"; do
        tries=$((tries + 1))
        [ $tries -lt 50 ] || { echo "no answer from $1" >&2; exit 1; }
        sleep 0.1
    done
    kill $server 2> /dev/null || true
    wait $server 2> /dev/null || true
    grep "$last" "$output"
}

command -v ucx_perftest fi_pingpong > /dev/null || { echo "apt install ucx-utils libfabric-bin" >&2; exit 1; }
output=$(mktemp)
trap 'rm -f "$output"' EXIT
cargo bench -q -p benches --bench links
last=Final:
echo "UCX over TCP: 8 bytes, then puts of 64 KiB and of 1 MiB, and messages of 64 KiB (us, MB/s)"
pair ucx_perftest -t tag_lat -s 8 -n 50000
pair ucx_perftest -t ucp_put_bw -s 65536 -n 20000
pair ucx_perftest -t ucp_put_bw -s 1048576 -n 1000
pair ucx_perftest -t tag_bw -s 65536 -n 20000
echo "UCX over shared memory, messages of 64 KiB and of 1 MiB (us, MB/s)"
export UCX_TLS=posix,cma,self,tcp
pair ucx_perftest -t tag_bw -s 65536 -n 32768
pair ucx_perftest -t tag_bw -s 1048576 -n 2048
last='^8 '
echo "libfabric over UDP: 8 bytes (us per transfer, half a round trip)"
pair fi_pingpong -p 'udp;ofi_rxd' -e rdm -S 8 -I 5000
