#!/bin/sh
# Compares collectives of rdma-group with Open MPI (packages openmpi-bin and libopenmpi-dev) by turns: over UCX and the
# drop-in on soft0, and over Open MPI's own shared memory. docs/performance.md has the results.
#
#     crates/benches/benches/groups/compare.sh [TURNS [COMMAND...]]
#
# The command starts each program, for example `chrt -r 1`.
set -eu
turns=${1:-5}
[ $# -eq 0 ] || shift
root=$(cd "$(dirname "$0")/../../../.." && pwd)
cd "$root"
command -v mpicc mpirun > /dev/null || { echo "apt install openmpi-bin libopenmpi-dev" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cargo xtask dropin > /dev/null
mpicc -O2 -o "$folder/mpi" crates/benches/benches/groups/mpi.c
bench=$(cargo bench -q -p benches --bench groups --no-run --message-format json |
    sed -n 's/.*"executable":"\([^"]*groups-[^"]*\)".*/\1/p')

# All processes yield the processor while they wait.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PMIX_MCA_pcompress_base_silence_warning=1
run="mpirun -np 2 --oversubscribe --bind-to none --mca plm isolated --mca mpi_yield_when_idle 1"
run="$run --mca mca_base_component_show_load_errors 0"
ours() { "$@" "$bench" --bench; }
over_soft0() {
    env LD_LIBRARY_PATH="$root/target/dropin/lib" UCX_TLS=rc_v UCX_NET_DEVICES=soft0:1 \
        "$@" "$root/target/dropin/bin/rdma-soft-run" $run --mca pml ucx --mca btl self --mca osc ^ucx "$folder/mpi"
}
shared_memory() { "$@" $run --mca pml ob1 --mca btl self,vader "$folder/mpi"; }

turn=0
while [ "$turn" -lt "$turns" ]; do
    for way in ours over_soft0 shared_memory; do
        $way "$@" 2> "$folder/errors" | sed "s/^/$way: /" >> "$folder/times"
    done
    turn=$((turn + 1))
done

printf '%-33s%12s%12s%8s%16s%8s\n' 'us per call, medians' rdma-group 'over soft0' ratio 'shared memory' ratio
for call in barrier 'all_reduce of 8 B' 'all_reduce of 1 MiB' 'all_reduce of 1 MiB, registered'; do
    for way in ours over_soft0 shared_memory; do
        sed -n "s/^$way: $call: //p" "$folder/times" | sort -n | sed -n "$(((turns + 1) / 2))p"
    done | paste -s -d ' ' | while read -r own soft0 memory; do
        awk -v call="$call" -v own="$own" -v soft0="$soft0" -v memory="$memory" 'BEGIN {
            printf "%-33s%12.2f%12.2f%8.2f%16.2f%8.2f\n", call, own, soft0, own / soft0, memory, own / memory }'
    done
done
