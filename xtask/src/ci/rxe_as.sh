# In the virtual machine of SoftRoCE: runs a command where the RXE device has this name. A program that opens a software
# device of the name gets SoftRoCE, which comes before those in the list of devices.
name=$1
shift
rdma link delete rxe0 || exit
rdma link add "$name" type rxe netdev dummy0 || exit
exec "$@"
