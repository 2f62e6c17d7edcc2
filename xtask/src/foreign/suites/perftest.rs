//! The option sets of perftest.

use anyhow::Result;

use crate::foreign::installation::Installation;
use crate::foreign::pair::{self, Set};
use crate::foreign::report::Row;

pub(super) const DEVICE: &str = "-d soft0 -x 1 -F";

/// The device with an InfiniBand port, which needs no GID.
const INFINIBAND: (&str, &[Set]) =
    ("-d softib0 -F", &[Set::quick("ib_send_lat", "-n 100"), Set::full("ib_write_bw", "-n 100")]);

const GROUP: &str = "a multicast group has members in one process only";

/// The option sets. Datagrams have no flow control, and the programs wait even for lost ones. So the sets with datagrams
/// (`-c UD`) send fewer than the receiver has receive requests (512), and less than 1 MiB.
pub(super) const SETS: &[Set] = &[
    Set::quick("ib_send_lat", "-c RC -n 500"),
    Set::quick("ib_send_lat", "-c RC -n 500 -e"),
    Set::full("ib_send_lat", "-c RC -n 500 -s 1024"),
    Set::full("ib_send_lat", "-c RC -n 500 -I 0"),
    Set::quick("ib_send_lat", "-c RC -n 500 -I 32"),
    Set::full("ib_send_lat", "-c RC -n 500 --use_old_post_send"),
    Set::full("ib_send_lat", "-c RC -n 500 -m 256"),
    Set::full("ib_send_lat", "-c RC -n 500 -r 16"),
    Set::quick("ib_send_bw", "-c RC -n 800"),
    Set::full("ib_send_bw", "-c RC -n 800 -e"),
    Set::quick("ib_send_bw", "-c RC -n 800 -b"),
    Set::quick("ib_send_bw", "-c RC -n 800 -q 4"),
    Set::full("ib_send_bw", "-c RC -n 800 -l 8"),
    Set::quick("ib_send_bw", "-c RC -n 800 -l 8 --recv_post_list=8"),
    Set::full("ib_send_bw", "-c RC -n 800 -Q 1"),
    Set::full("ib_send_bw", "-c RC -n 800 -t 8"),
    Set::full("ib_send_bw", "-c RC -n 800 -I 32 -s 32"),
    Set::full("ib_send_bw", "-c RC -n 800 --use_old_post_send"),
    Set::full("ib_send_bw", "-c RC -n 800 -b --report-both"),
    Set::full("ib_send_bw", "-c RC -n 800 -b -e"),
    Set::quick("ib_send_lat", "-c UC -n 500"),
    Set::full("ib_send_lat", "-c UC -n 500 -e"),
    Set::full("ib_send_lat", "-c UC -n 500 -s 1024"),
    Set::full("ib_send_lat", "-c UC -n 500 -I 0"),
    Set::full("ib_send_lat", "-c UC -n 500 -I 32"),
    Set::full("ib_send_lat", "-c UC -n 500 --use_old_post_send"),
    Set::full("ib_send_lat", "-c UC -n 500 -m 256"),
    Set::full("ib_send_lat", "-c UC -n 500 -r 16"),
    Set::quick("ib_send_bw", "-c UC -n 800"),
    Set::full("ib_send_bw", "-c UC -n 800 -e"),
    Set::full("ib_send_bw", "-c UC -n 800 -b"),
    Set::full("ib_send_bw", "-c UC -n 800 -q 4"),
    Set::full("ib_send_bw", "-c UC -n 800 -l 8"),
    Set::full("ib_send_bw", "-c UC -n 800 -l 8 --recv_post_list=8"),
    Set::full("ib_send_bw", "-c UC -n 800 -Q 1"),
    Set::full("ib_send_bw", "-c UC -n 800 -t 8"),
    Set::full("ib_send_bw", "-c UC -n 800 -I 32 -s 32"),
    Set::full("ib_send_bw", "-c UC -n 800 --use_old_post_send"),
    Set::full("ib_send_bw", "-c UC -n 800 -b -e"),
    Set::quick("ib_send_lat", "-c UD -n 500"),
    Set::quick("ib_send_lat", "-c UD -n 500 -e"),
    Set::full("ib_send_lat", "-c UD -n 500 -s 1024"),
    Set::full("ib_send_lat", "-c UD -n 500 -I 0"),
    Set::full("ib_send_lat", "-c UD -n 500 -I 32"),
    Set::full("ib_send_lat", "-c UD -n 500 --use_old_post_send"),
    Set::full("ib_send_lat", "-c UD -n 500 -m 256"),
    Set::full("ib_send_lat", "-c UD -n 500 -r 16"),
    Set::full("ib_send_bw", "-c UD -n 480 -s 256"),
    Set::quick("ib_send_bw", "-c UD -n 480 -s 256 -e"),
    Set::full("ib_send_bw", "-c UD -n 480 -s 256 -b"),
    Set::full("ib_send_bw", "-c UD -n 480 -s 256 -q 4"),
    Set::full("ib_send_bw", "-c UD -n 480 -s 256 -l 8"),
    Set::full("ib_send_bw", "-c UD -n 480 -s 256 -l 8 --recv_post_list=8"),
    Set::full("ib_send_bw", "-c UD -n 480 -s 256 -Q 1"),
    Set::full("ib_send_bw", "-c UD -n 480 -s 256 -t 8"),
    Set::full("ib_send_bw", "-c UD -n 480 -I 32 -s 32"),
    Set::full("ib_send_bw", "-c UD -n 480 -s 256 --use_old_post_send"),
    Set::full("ib_send_bw", "-c UD -n 480 -s 256 -b -e"),
    Set::full("ib_send_lat", "--use-srq -n 500"),
    Set::full("ib_send_bw", "--use-srq -n 500"),
    Set::full("ib_send_lat", "-a -n 20"),
    Set::full("ib_send_bw", "-a -n 20"),
    Set::full("ib_send_bw", "-D 1"),
    Set::never("ib_send_lat", "-c UD -g -n 500", GROUP),
    Set::never("ib_send_bw", "-c UD -g -n 480 -s 256", GROUP),
    Set::quick("ib_write_lat", "-c RC -n 500"),
    Set::full("ib_write_lat", "-c RC -n 500 -s 1024"),
    Set::full("ib_write_lat", "-c RC -n 500 -I 32"),
    Set::full("ib_write_lat", "-c RC -n 500 --use_old_post_send"),
    Set::full("ib_write_lat", "-c RC -n 20 -a"),
    Set::quick("ib_write_bw", "-c RC -n 800"),
    Set::full("ib_write_bw", "-c RC -n 800 -b"),
    Set::quick("ib_write_bw", "-c RC -n 800 -q 4"),
    Set::full("ib_write_bw", "-c RC -n 800 -l 8"),
    Set::full("ib_write_bw", "-c RC -n 800 -Q 1"),
    Set::full("ib_write_bw", "-c RC -n 800 -I 32 -s 32"),
    Set::full("ib_write_bw", "-c RC -n 800 --use_old_post_send"),
    Set::full("ib_write_bw", "-c RC -n 800 --mr_per_qp -q 2"),
    Set::full("ib_write_bw", "-c RC -n 20 -a"),
    Set::full("ib_write_lat", "-c UC -n 500"),
    Set::full("ib_write_lat", "-c UC -n 500 -s 1024"),
    Set::full("ib_write_lat", "-c UC -n 500 -I 32"),
    Set::full("ib_write_lat", "-c UC -n 500 --use_old_post_send"),
    Set::full("ib_write_lat", "-c UC -n 20 -a"),
    Set::quick("ib_write_bw", "-c UC -n 800"),
    Set::full("ib_write_bw", "-c UC -n 800 -b"),
    Set::full("ib_write_bw", "-c UC -n 800 -q 4"),
    Set::full("ib_write_bw", "-c UC -n 800 -l 8"),
    Set::full("ib_write_bw", "-c UC -n 800 -Q 1"),
    Set::full("ib_write_bw", "-c UC -n 800 -I 32 -s 32"),
    Set::full("ib_write_bw", "-c UC -n 800 --use_old_post_send"),
    Set::full("ib_write_bw", "-c UC -n 800 --mr_per_qp -q 2"),
    Set::full("ib_write_bw", "-c UC -n 20 -a"),
    Set::quick("ib_read_lat", "-n 500"),
    Set::full("ib_read_lat", "-n 500 -e"),
    Set::full("ib_read_lat", "-n 500 -s 65536"),
    Set::full("ib_read_lat", "-n 500 -o 1"),
    Set::full("ib_read_lat", "-n 500 --use_old_post_send"),
    Set::quick("ib_read_bw", "-n 800"),
    Set::full("ib_read_bw", "-n 800 -e"),
    Set::quick("ib_read_bw", "-n 800 -b"),
    Set::full("ib_read_bw", "-n 800 -q 4"),
    Set::full("ib_read_bw", "-n 800 -l 8"),
    Set::full("ib_read_bw", "-n 800 -o 1"),
    Set::full("ib_read_bw", "-n 20 -a"),
    Set::quick("ib_atomic_lat", "-n 500"),
    Set::full("ib_atomic_lat", "-n 500 -e"),
    Set::full("ib_atomic_lat", "-n 500 -A CMP_AND_SWAP"),
    Set::full("ib_atomic_lat", "-n 500 -o 1"),
    Set::full("ib_atomic_bw", "-n 800"),
    Set::full("ib_atomic_bw", "-n 800 -e"),
    Set::quick("ib_atomic_bw", "-n 800 -A CMP_AND_SWAP"),
    Set::full("ib_atomic_bw", "-n 800 -b"),
    Set::full("ib_atomic_bw", "-n 800 -q 4"),
    Set::full("ib_atomic_bw", "-n 800 -l 8"),
    Set::full("ib_atomic_bw", "-n 800 -o 1"),
];

/// Runs the option sets on both devices.
///
/// # Errors
/// Returns an error if this process cannot start programs.
pub(super) fn run(installation: &Installation, full: bool, row: &mut Row) -> Result<()> {
    for (device, sets) in [(DEVICE, SETS), INFINIBAND] {
        pair::run(installation, device, sets, full, row)?;
    }
    Ok(())
}
