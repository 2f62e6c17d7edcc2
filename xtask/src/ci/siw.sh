# Connects the example rping and librdmacm's rping on the iWARP device siw0, in both roles. The argument is the folder with
# the example.
example=$1/rping
address=198.18.1.1

"$example" --device siw0 --listen $address:7180 > /tmp/listening &
server=$!
until grep -q listening /tmp/listening; do
    kill -0 $server || exit
    sleep 0.1
done
rping -c -a $address -p 7180 -C 10 || exit
wait $server || exit

rping -s -a $address -p 7181 -C 10 &
server=$!
# The C program does not report that it listens.
until "$example" --device siw0 --connect $address:7181; do
    kill -0 $server || exit
    sleep 0.1
done
wait $server
