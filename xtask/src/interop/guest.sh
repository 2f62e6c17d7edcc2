# Runs in the guest: sets up two ends of a wire, and runs `interop` between them. Fails if any run fails.
#
#   sh guest.sh KIND BUILT DROPIN RUNS
#
# KIND is the kind of the ends: `rxe-rxe` or `rxe-soft`. BUILT is cargo's folder with the programs, and DROPIN the one of
# the drop-in. RUNS are lines `FAMILY MTU LOSS LONGEST ONLY`: 4 or 6, bytes, percent, bytes, a text in the names of checks
# or `-`. With the MTU `rc` or `uc`, a program of rdma-core runs instead; with `perftest`, the programs of perftest; with
# `cm`, `rping` of librdmacm; with `cm-tools`, its other programs.
set -u
kind=$1 built=$2 dropin=$3 runs=$4
ip() { /sbin/ip "$@"; }

stop() {
    echo "interop: $1" >&2
    exit 125
}

/sbin/modprobe veth || stop "the kernel has no veth"
/sbin/modprobe sch_netem || stop "the kernel has no sch_netem"
/sbin/modprobe rdma_ucm || stop "the kernel has no rdma_ucm"
work=$(mktemp -d) || stop "no folder for files"

# Room for a path MTU of 4096.
ip link add vethA mtu 4200 type veth peer name vethB mtu 4200 || stop "no pair of veth"
address_a=$(cat /sys/class/net/vethA/address)
address_b=$(cat /sys/class/net/vethB/address)

# end NAME NUMBER NUMBER-OF-THE-OTHER ADDRESS-OF-THE-OTHER: `far` runs a command on the end's side.
end() {
    $far sysctl -q -w "net.ipv4.conf.$1.accept_local=1" "net.ipv4.conf.$1.rp_filter=0" \
        net.ipv4.conf.all.rp_filter=0
    $far /sbin/ip address add "198.18.1.$2/24" dev "$1"
    $far /sbin/ip address add "fd00:1::$2/64" dev "$1" nodad
    $far /sbin/ip link set "$1" up
    # Neighbour discovery does not work for an address on the same host.
    $far /sbin/ip neighbour replace "198.18.1.$3" lladdr "$4" dev "$1" nud permanent
    $far /sbin/ip neighbour replace "fd00:1::$3" lladdr "$4" dev "$1" nud permanent
}

far=
end vethA 1 2 "$address_b"
case $kind in
rxe-rxe)
    end vethB 2 1 "$address_a"
    control=127.0.0.1
    far_control=127.0.0.1
    far_device=rxe2
    # Without these rules, packets of a host to its own address go through no interface. For IPv4 the kernel checks the
    # interface anyway.
    ip -6 rule add pref 10 iif vethA lookup local
    ip -6 rule add pref 11 iif vethB lookup local
    ip -6 rule add pref 20 iif lo to fd00:1::/64 lookup 100
    ip -6 rule add pref 30 lookup local
    ip -6 rule del pref 0
    ip -6 route add fd00:1::2 dev vethA table 100
    ip -6 route add fd00:1::1 dev vethB table 100
    rdma link add rxe2 type rxe netdev vethB || stop "no RXE device on vethB"
    ;;
rxe-soft)
    ip netns add soft || stop "no network namespace"
    ip link set vethB netns soft
    # A link without loss, through which the processes stay connected.
    ip link add ctlA type veth peer name ctlB netns soft
    ip address add 192.0.2.1/30 dev ctlA
    ip link set ctlA up
    # The device uses the largest buffer that the system allows, and here messages arrive faster than they are read.
    sysctl -q -w net.core.rmem_max=16777216
    far="/sbin/ip netns exec soft"
    $far /sbin/ip link set lo up
    $far /sbin/ip address add 192.0.2.2/30 dev ctlB
    $far /sbin/ip link set ctlB up
    end vethB 2 1 "$address_a"
    control=192.0.2.1
    far_control=192.0.2.2
    far_device=soft0
    far="$far env RDMA_SOFT_LISTEN=198.18.1.2,fd00:1::2"
    ;;
*) stop "no kind $kind" ;;
esac
rdma link add rxe1 type rxe netdev vethA || stop "no RXE device on vethA"

# until_gid DEVICE PATTERN: the GID table follows the addresses a little later.
until_gid() {
    tries=0
    until grep -q "$2" /sys/class/infiniband/$1/ports/1/gids/[123]; do
        tries=$((tries + 1))
        [ $tries -lt 200 ] || stop "$1 gets no GID $2"
        sleep 0.1
    done
}
until_gid rxe1 fd00:0001
until_gid rxe1 ffff:c612:0101
if [ $kind = rxe-rxe ]; then
    until_gid rxe2 fd00:0001
    until_gid rxe2 ffff:c612:0102
fi

# lose PERCENT: in both directions.
lose() {
    if [ "$1" = 0 ]; then
        ip link show vethA | grep -q netem && /sbin/tc qdisc del dev vethA root
        $far /sbin/ip link show vethB | grep -q netem && $far /sbin/tc qdisc del dev vethB root
        return 0
    fi
    /sbin/tc qdisc replace dev vethA root netem loss "$1%" limit 10000 &&
        $far /sbin/tc qdisc replace dev vethB root netem loss "$1%" limit 10000
}

# lives PROCESS: fails if a process has ended. It exists as a zombie until it is waited for.
lives() {
    grep -q '^State:[[:space:]]*[^Z[:space:]]' "/proc/$1/status" 2> /dev/null
}

# listening FILE: prints the address of the process that writes to FILE, as soon as it listens.
listening() {
    until grep -q '^listening on ' "$1"; do
        lives $! || return 1
        sleep 0.1
    done
    sed -n 's/^listening on //p' "$1"
}

# interop FAMILY MTU LOSS LONGEST ONLY
interop() {
    near_gid=198.18.1.1 far_gid=198.18.1.2
    [ "$1" = 6 ] && near_gid=fd00:1::1 far_gid=fd00:1::2
    : > "$work/served"
    timeout -k 1 900 "$built/interop" serve --device rxe1 --gid $near_gid --listen "$control:0" \
        --patience 60 > "$work/served" &
    served=$!
    where=$(listening "$work/served") || return 1
    lossy=
    [ "$3" = 0 ] || lossy=--lossy
    only=
    [ "$5" = - ] || only="--only $5"
    # shellcheck disable=SC2086
    timeout -k 1 900 $far "$built/interop" drive --device $far_device --gid $far_gid --connect "$where" \
        --mtu "$2" --longest "$4" --patience 60 $lossy $only 2> "$work/progress"
    status=$?
    [ $status = 0 ] || [ $status = 1 ] || tail -n 5 "$work/progress"
    kill $served 2> /dev/null
    wait $served
    return $status
}

# index DEVICE PATTERN: prints the index of a GID of the kernel's device.
index() { grep -l "$2" /sys/class/infiniband/$1/ports/1/gids/[1-3] | sed 's,.*/,,'; }

# indexes FAMILY: stores the indexes of the GIDs in `near` and `there`.
indexes() {
    case $1 in
    4) near=$(index rxe1 ffff:c612:0101) there=$(index rxe2 ffff:c612:0102 2> /dev/null) soft=4 ;;
    *) near=$(index rxe1 fd00:0001) there=$(index rxe2 fd00:0001 2> /dev/null) soft=5 ;;
    esac
    # After the four that the device always has.
    [ $kind = rxe-soft ] && there=$soft
    return 0
}

# both TOOL OURS: runs a program of C here and ours at the far end; each listens once. Their output is in `tool` and
# `ours`, that of the second run in `tool2` and `ours2`.
both() {
    $1 -p 18600 > "$work/tool" 2>&1 &
    tool_here=$!
    # It tries again until the tool listens.
    $2 --connect "$control:18600" > "$work/ours" 2>&1
    status=$?
    [ $status = 0 ] || kill $tool_here 2> /dev/null
    wait $tool_here || status=1
    : > "$work/ours2"
    : > "$work/tool2"
    $2 --listen "$far_control:0" > "$work/ours2" 2>&1 &
    ours_there=$!
    where=$(listening "$work/ours2") || return 1
    $1 -p "${where##*:}" "$far_control" > "$work/tool2" 2>&1 || status=1
    wait $ours_there || status=1
    return $status
}

# pingpong FAMILY SERVICE: runs a program of rdma-core.
pingpong() {
    indexes "$1"
    both "timeout -k 1 60 ibv_$2_pingpong -d rxe1 -g $near -n 50" \
        "timeout -k 1 60 $far $built/examples/rc_pingpong --service $2 --device $far_device --gid-index $there --iterations 50"
    status=$?
    tail -qn 1 "$work/ours" "$work/tool" "$work/ours2" "$work/tool2"
    return $status
}

# perftest FAMILY: runs each of its programs, with each service that it supports here.
perftest() {
    indexes "$1"
    all=0
    while read -r name service size; do
        case $name in
        # Atomics have no size option.
        atomic*) length= ;;
        *) length="-s $size" ;;
        esac
        both "timeout -k 1 60 ib_$(echo "$name" | tr - _) -d rxe1 -x $near -n 50 -F -c $service $length" \
            "timeout -k 1 60 $far $built/rdmatool perftest $name --service $(echo "$service" | tr A-Z a-z) \
            --device $far_device --gid-index $there --iterations 50 --size $size"
        if [ $? = 0 ]; then
            echo "$name $service $size: passed"
            tail -qn 1 "$work/ours" "$work/ours2"
            # The figures of the C programs, the sizes first.
            grep -hE '^ *[0-9]+ +[0-9]+ ' "$work/tool" "$work/tool2" | tr -s ' \t' ' '
        else
            echo "$name $service $size: FAILED"
            tail -n 4 "$work/ours" "$work/tool" "$work/ours2" "$work/tool2"
            all=1
        fi
    done << PROGRAMS
send-lat RC 64
send-bw RC 8192
write-lat RC 64
write-bw RC 8192
read-lat RC 64
read-bw RC 8192
atomic-lat RC 8
atomic-bw RC 8
send-lat UC 64
send-bw UC 1024
write-lat UC 64
write-bw UC 1024
send-lat UD 64
send-bw UD 1024
PROGRAMS
    return $all
}

# kernel_listens PROCESS PORT: waits until a process listens in the kernel's rdma_cm.
kernel_listens() {
    until rdma resource show cm_id 2> /dev/null | grep -q "LISTEN.*$2"; do
        lives "$1" || return 1
        sleep 0.1
    done
}

# addresses FAMILY: stores the addresses of the ends, without and with brackets, and that of localhost.
addresses() {
    near_ip=198.18.1.1 far_ip=198.18.1.2 here=198.18.1.1 there=198.18.1.2 localhost=127.0.0.1
    [ "$1" = 4 ] || near_ip=fd00:1::1 far_ip=fd00:1::2 here=[fd00:1::1] there=[fd00:1::2] localhost=[::1]
}

# row NAME: prints the outcome of a run, which is in `status`. If it failed, stores this in `all`.
row() {
    if [ $status = 0 ]; then
        echo "$1: passed"
    else
        echo "$1: FAILED"
        tail -n 4 "$work/ours" "$work/tool"
        all=1
    fi
}

# can_connect FAMILY: fails if the ends cannot connect through the kernel's rdma_cm.
can_connect() {
    [ "$kind:$1" = rxe-rxe:6 ] || return 0
    echo "skipped: the kernel finds no route between IPv6 addresses of one host"
    return 1
}

# rping FAMILY: runs `rping`, which connects through the kernel's rdma_cm, first as the server and then as the client.
# `rping` destroys its ID at once, so the kernel sends the message that disconnects only once. If this message is lost,
# the example reports at its limit that it has not arrived, after it has served all texts.
rping() {
    can_connect "$1" || return 0
    addresses "$1"
    tool="timeout -k 1 200 rping -C 20 -S 1000 -V -p"
    ours="timeout -k 1 200 $far $built/examples/rping --device $far_device --count 20 --size 1000"
    $tool 7174 -s -a $near_ip > "$work/tool" 2>&1 &
    tool_here=$!
    kernel_listens $tool_here 7174 || return 1
    $ours --connect "$here:7174" > "$work/ours" 2>&1
    status=$?
    [ $status = 0 ] || kill $tool_here 2> /dev/null
    wait $tool_here || status=1
    : > "$work/ours2"
    $ours --listen "$there:0" > "$work/ours2" 2>&1 &
    ours_there=$!
    where=$(listening "$work/ours2") || return 1
    $tool "${where##*:}" -c -a $far_ip -I $near_ip > "$work/tool2" 2>&1 || status=1
    wait $ours_there || { [ "$loss" != 0 ] && grep -q "peer's disconnect did not arrive" "$work/ours2"; } || status=1
    tail -qn 1 "$work/ours" "$work/tool" "$work/ours2" "$work/tool2"
    return $status
}

# at_localhost FAMILY: runs the example `rping`, which listens at localhost through the kernel's rdma_cm. It must reject
# librdmacm's `rping` at the far end, and then serve a client of this host.
at_localhost() {
    [ $kind = rxe-soft ] || return 0
    addresses "$1"
    ours="timeout -k 1 200 $built/examples/rping --device rxe1 --count 2"
    : > "$work/ours"
    $ours --listen "$localhost:0" > "$work/ours" 2>&1 &
    ours_here=$!
    where=$(listening "$work/ours") || return 1
    port=${where##*:}
    status=0 all=0
    timeout -k 1 200 $far env LD_LIBRARY_PATH="$dropin" rping -c -a $near_ip -p "$port" -C 2 > "$work/tool" 2>&1
    # The reason is that of a program that rejects. A port without a listener has another one.
    grep -q 'RDMA_CM_EVENT_REJECTED, error 28' "$work/tool" || status=1
    row "rping of another host is rejected at localhost"
    status=0
    $ours --connect "$localhost:$port" > "$work/tool" 2>&1 || status=1
    [ $status = 0 ] || kill $ours_here 2> /dev/null
    wait $ours_here || status=1
    row "rping of this host is served at localhost"
    return $all
}

# cm_channel FAMILY: runs the example `cm_channel` at the far end, as the client of `rdma_server` and `ucmatose` and
# as the server of `rdma_client`. Those use the kernel's rdma_cm. `rdma_client` does not choose its source, so with
# rxe-rxe it uses rxe2.
cm_channel() {
    can_connect "$1" || return 0
    addresses "$1"
    near="timeout -k 1 300"
    ours="$near $far $built/examples/cm_channel --device $far_device"
    while read -r server bind port messages; do
        $near $server -p "$port" "$bind" $near_ip > "$work/tool" 2>&1 &
        tool_here=$!
        # shellcheck disable=SC2086
        kernel_listens $tool_here "$port" && $ours --connect "$here:$port" $messages > "$work/ours" 2>&1
        status=$?
        [ $status = 0 ] || kill $tool_here 2> /dev/null
        wait $tool_here || status=1
        row "$server, client with a channel"
    done << PROGRAMS
rdma_server -s 7475
ucmatose -b 7476 --count 10 --size 100
PROGRAMS
    : > "$work/ours"
    $ours --listen "$there:0" > "$work/ours" 2>&1 &
    ours_there=$!
    where=$(listening "$work/ours") && $near rdma_client -p "${where##*:}" -s $far_ip > "$work/tool" 2>&1
    status=$?
    [ $status = 0 ] || kill $ours_there 2> /dev/null
    wait $ours_there || status=1
    row "rdma_client, server with a channel"
}

# cm_tools FAMILY LOSS: runs other programs of librdmacm, first with the example at the far end. Then they run at both ends,
# with the kernel's rdma_cm and with the drop-in. Each end runs as the server and as the client. Two pairs run without
# loss. `udaddy` does not repeat its datagrams, and its server ends after its answer to a query. `rdma_server` and
# `rdma_client` end although an acknowledgement may be lost. SoftRoCE then repeats the peer's message without end
# (docs/rxe-differences.md, seven-retries-are-endless).
cm_tools() {
    all=0
    cm_channel "$1"
    [ $kind = rxe-soft ] || { echo "the rest is skipped: both ends use the kernel's rdma_cm" && return $all; }
    ours="$near $far env LD_LIBRARY_PATH=$dropin"
    while read -r server client port ends; do
        case $2:$server in
        0:*) ;;
        *:udaddy | *:rdma_server) continue ;;
        esac
        option="-p $port"
        [ "$server" = udaddy ] && option=
        bind=-b
        [ "$server" = rdma_server ] && bind=-s
        few=
        [ "$client" = cmtime ] && few="-c 20"
        for listens in kernel drop-in; do
            if [ $listens = kernel ]; then
                $near $server $option $bind $near_ip > "$work/tool" 2>&1 &
                tool_here=$!
                kernel_listens $tool_here "$port" &&
                    $ours $client $option $few -s $near_ip > "$work/ours" 2>&1
                status=$?
            else
                $ours $server $option $bind $far_ip > "$work/tool" 2>&1 &
                tool_here=$!
                until $far cat /proc/net/unix | grep -q ' 00010000 .*@rdma-cm/'; do
                    lives $tool_here || break
                    sleep 0.1
                done
                lives $tool_here &&
                    $near $client $option $few -s $far_ip > "$work/ours" 2>&1
                status=$?
            fi
            [ $status = 0 ] && [ "$ends" = yes ] || kill $tool_here 2> /dev/null
            wait $tool_here 2> /dev/null || [ "$ends" = no ] || status=1
            row "$client, server with the $listens"
        done
    done << PROGRAMS
rdma_server rdma_client 7471 yes
ucmatose ucmatose 7472 yes
udaddy udaddy 7174 yes
cmtime cmtime 7473 no
PROGRAMS
    return $all
}

failed=0
while read -r family mtu loss longest only; do
    [ -n "$family" ] || continue
    lose "$loss" || stop "no loss of $loss %"
    begin=$(cut -d . -f 1 /proc/uptime)
    echo
    case $mtu in
    perftest)
        echo "### $kind, IPv$family, perftest"
        echo
        perftest "$family"
        ;;
    cm-tools)
        echo "### $kind, IPv$family, programs of librdmacm, loss $loss %"
        echo
        cm_tools "$family" "$loss"
        ;;
    cm)
        echo "### $kind, IPv$family, rping, loss $loss %"
        echo
        rping "$family" && at_localhost "$family"
        ;;
    rc | uc)
        echo "### $kind, IPv$family, ibv_${mtu}_pingpong"
        echo
        pingpong "$family" "$mtu"
        ;;
    *)
        echo "### $kind, IPv$family, MTU $mtu, loss $loss %, messages of up to $longest bytes"
        echo
        interop "$family" "$mtu" "$loss" "$longest" "$only"
        ;;
    esac || failed=$((failed + 1))
    echo "($(($(cut -d . -f 1 /proc/uptime) - begin)) s)"
done << END
$runs
END
echo
echo "$failed runs failed"
[ $failed = 0 ]
