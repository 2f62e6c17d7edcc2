//! The option sets of rdma-core's pingpong programs.

use anyhow::Result;

use crate::foreign::installation::Installation;
use crate::foreign::pair::{self, Set};
use crate::foreign::report::Row;

pub(super) const DEVICE: &str = "-d soft0 -g 1";

/// The device with an InfiniBand port, which needs no GID.
const INFINIBAND: (&str, &[Set]) = (
    "-d softib0",
    &[
        Set::quick("ibv_rc_pingpong", "-c"),
        Set::quick("ibv_uc_pingpong", ""),
        Set::quick("ibv_ud_pingpong", ""),
        Set::full("ibv_srq_pingpong", "-q 1"),
    ],
);

const ODP: &str = "the device has no on-demand paging";
const MEMORY: &str = "the device has no memory of its own";
const XRC: &str = "the device has no XRC queue pairs";
const RACE: &str = "the program requests an event after it has found the queue empty, and then requires a completion";

const MORE: &str = "with several queue pairs, the program sends more than its peer waits for, and fails if the peer has ended";

pub(super) const SETS: &[Set] = &[
    Set::quick("ibv_rc_pingpong", ""),
    Set::quick("ibv_rc_pingpong", "-e"),
    Set::quick("ibv_rc_pingpong", "-c"),
    Set::quick("ibv_rc_pingpong", "-t"),
    Set::quick("ibv_rc_pingpong", "-N"),
    Set::full("ibv_rc_pingpong", "-e -c"),
    Set::full("ibv_rc_pingpong", "-e -N"),
    Set::full("ibv_rc_pingpong", "-c -N"),
    Set::full("ibv_rc_pingpong", "-N -t"),
    Set::full("ibv_rc_pingpong", "-c -t"),
    Set::quick("ibv_rc_pingpong", "-e -c -N"),
    Set::quick("ibv_rc_pingpong", "-s 1"),
    Set::quick("ibv_rc_pingpong", "-s 1048576 -n 100"),
    Set::quick("ibv_rc_pingpong", "-m 256"),
    Set::full("ibv_rc_pingpong", "-m 4096"),
    Set::full("ibv_rc_pingpong", "-r 1"),
    Set::full("ibv_rc_pingpong", "-r 16"),
    Set::full("ibv_rc_pingpong", "-l 3"),
    Set::never("ibv_rc_pingpong", "-o", ODP),
    Set::never("ibv_rc_pingpong", "-O", ODP),
    Set::never("ibv_rc_pingpong", "-o -P", ODP),
    Set::never("ibv_rc_pingpong", "-j", MEMORY),
    Set::never("ibv_rc_pingpong", "-t -e", RACE),
    Set::quick("ibv_uc_pingpong", ""),
    Set::quick("ibv_uc_pingpong", "-e"),
    Set::quick("ibv_uc_pingpong", "-c"),
    Set::full("ibv_uc_pingpong", "-e -c"),
    Set::full("ibv_uc_pingpong", "-s 1"),
    Set::quick("ibv_uc_pingpong", "-s 1048576 -n 100"),
    Set::full("ibv_uc_pingpong", "-m 256"),
    Set::full("ibv_uc_pingpong", "-m 4096"),
    Set::full("ibv_uc_pingpong", "-r 16"),
    Set::quick("ibv_ud_pingpong", ""),
    Set::quick("ibv_ud_pingpong", "-e"),
    Set::quick("ibv_ud_pingpong", "-c"),
    Set::full("ibv_ud_pingpong", "-e -c"),
    Set::full("ibv_ud_pingpong", "-s 1"),
    Set::full("ibv_ud_pingpong", "-r 16"),
    Set::full("ibv_ud_pingpong", "-l 3"),
    Set::quick("ibv_srq_pingpong", "-q 1"),
    Set::quick("ibv_srq_pingpong", "-q 1 -e"),
    Set::quick("ibv_srq_pingpong", "-q 1 -c"),
    Set::quick("ibv_srq_pingpong", "-q 1 -e -c"),
    Set::full("ibv_srq_pingpong", "-q 1 -s 1"),
    Set::full("ibv_srq_pingpong", "-q 1 -m 256"),
    Set::full("ibv_srq_pingpong", "-q 1 -r 64"),
    Set::never("ibv_srq_pingpong", "", MORE),
    Set::never("ibv_srq_pingpong", "-o", ODP),
    Set::never("ibv_xsrq_pingpong", "", XRC),
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
