//! perftest over UDP, between two addresses of this host.

use anyhow::Result;

use crate::foreign::installation::Installation;
use crate::foreign::output::result;
use crate::foreign::pair::{connect, outcome, words};
use crate::foreign::report::Row;

/// The options that select the device, and its GID of the address on which it listens.
const DEVICE: &str = "-d soft0 -x 4 -F";

/// The addresses of the server and the client.
const ADDRESSES: [&str; 2] = ["127.0.0.1", "127.0.0.2"];

/// The time in seconds before requests to a silent peer fail. A busy host may stall a process for longer than the
/// default of 2 seconds.
const RETRY_S: &str = "60";

/// Option sets with reliable connections, which retransmit lost packets.
const RELIABLE: &[(&str, &str)] = &[
    ("ib_send_lat", "-c RC -n 500"),
    ("ib_send_bw", "-c RC -n 200"),
    ("ib_write_lat", "-c RC -n 500"),
    ("ib_write_bw", "-c RC -n 200"),
    ("ib_read_lat", "-n 500"),
    ("ib_read_bw", "-n 200"),
    ("ib_atomic_lat", "-n 500"),
    ("ib_atomic_bw", "-n 500"),
];

/// Option sets without retransmissions. Their programs wait for lost packets.
const UNRELIABLE: &[(&str, &str)] = &[
    ("ib_send_lat", "-c UC -n 500"),
    ("ib_send_lat", "-c UD -n 500"),
    ("ib_write_lat", "-c UC -n 500"),
];

/// Runs the programs without losses, and those with reliable connections with a loss of 1 % in each direction.
///
/// # Errors
/// Returns an error if this process cannot start programs.
pub(super) fn run(installation: &Installation, row: &mut Row) -> Result<()> {
    for (loss, sets) in [(false, RELIABLE), (false, UNRELIABLE), (true, RELIABLE)] {
        let environments = ADDRESSES.map(|address| {
            let mut environment = installation.environment();
            environment.push(("RDMA_SOFT_LISTEN", address.to_owned()));
            environment.push(("RDMA_SOFT_RETRY_TIME", RETRY_S.to_owned()));
            if loss {
                environment.push(("RDMA_SOFT_FAULTS", "seed=7;loss=1%".to_owned()));
            }
            environment
        });
        let [server, client] = &environments;
        for (program, options) in sets {
            let words = [installation.program(program), words(DEVICE), words(options)].concat();
            let suffix = if loss { ", 1 % loss" } else { "" };
            row.case(&format!("{program} {options}{suffix}"), || {
                outcome(connect(&words, [server, client]), |_, client| result(&client.output))
            });
        }
    }
    Ok(())
}
