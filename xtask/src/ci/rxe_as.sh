# Runs a command in the virtual machine of SoftRoCE, with this name for the RXE device. A program that opens a software
# device of this name gets SoftRoCE, which precedes software devices in the list of devices.
name=$1
shift
rdma link delete rxe0 || exit
rdma link add "$name" type rxe netdev dummy0 || exit
exec "$@"
