# In the virtual machine of SoftRoCE: uses its device and the software devices through the drop-in library in this folder.
export LD_LIBRARY_PATH="$1" RDMA_PROVIDERS=soft,system
list=$(ibv_devices | sed -n '3,$s/^ *\([^ \t]*\).*/\1/p' | tr '\n' ' ')
echo "devices: $list"
[ "$list" = "soft0 softib0 rxe0 " ] || exit
for device in soft0 rxe0; do
    ibv_rc_pingpong -n 200 -d $device -g 1 &
    # The client does not wait for a server.
    until ibv_rc_pingpong -n 200 -d $device -g 1 localhost; do sleep 0.2; done
    wait $! || exit
done
