# Runs a command in the virtual machine of SoftRoCE, after the RXE device has got this IPv6 address.
address=$1
shift
before=$(cat /sys/class/infiniband/rxe0/ports/1/gids/*)
ip address add "$address/64" dev dummy0 nodad || exit
# The GID table follows the addresses a little later.
until [ "$(cat /sys/class/infiniband/rxe0/ports/1/gids/*)" != "$before" ]; do
    sleep 0.1
done
exec "$@"
