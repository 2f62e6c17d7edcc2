//! The suites.

mod crates;
mod deferred;
mod exits;
mod gloo;
mod mooncake;
mod mpi;
mod nixl;
mod perftest;
mod pingpong;
mod pyverbs;
mod rdmacm;
mod ucx;
mod udp;

use anyhow::Result;

use super::installation::Installation;
use super::packages::Needs;
use super::report::Row;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Suite {
    /// The tests of rdma-core's Python bindings, on both devices
    Pyverbs,
    /// The pingpong programs of rdma-core, in two processes
    Pingpong,
    /// The programs of perftest, in two processes
    Perftest,
    /// `ucx_perftest` over RC and UD, in two processes
    Ucx,
    /// Programs whose peer is killed, exits, or is stopped
    Exits,
    /// The programs of librdmacm, and perftest with rdma_cm, in two processes; with `--full` also over UDP
    Rdmacm,
    /// perftest between two addresses of this host, without losses and with a loss of 1 %
    Udp,
    /// pyverbs and the quick pingpong and perftest sets on devices that execute requests later
    Deferred,
    /// Mooncake's transfer engine, in two processes
    Mooncake,
    /// NIXL with its UCX backend, in two processes
    Nixl,
    /// Open MPI over UCX, in two and three processes
    Mpi,
    /// Gloo's transport for ibverbs, in two and three processes
    Gloo,
    /// libfabric's verbs provider, qperf and fio, which connect with rdma_cm
    Applications,
    /// The test and the example of the crate `ibverbs`
    Ibverbs,
    /// The tests and examples of the crate `sideway`
    Sideway,
    /// The tests and examples of the crate `ibverbs-rs`, in up to three processes
    IbverbsRs,
}

impl Suite {
    pub(super) const QUICK: &[Self] = &[
        Self::Pyverbs,
        Self::Pingpong,
        Self::Perftest,
        Self::Ucx,
        Self::Exits,
        Self::Rdmacm,
        Self::Applications,
    ];

    /// Returns the name in the report, and the package whose version is reported.
    pub(super) fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Pyverbs => ("pyverbs", "python3-pyverbs"),
            Self::Pingpong => ("pingpong", "ibverbs-utils"),
            Self::Perftest => ("perftest", "perftest"),
            Self::Ucx => ("ucx", "ucx-utils"),
            Self::Exits => ("exits", "perftest"),
            Self::Rdmacm => ("rdmacm", "rdmacm-utils"),
            Self::Udp => ("udp", "perftest"),
            Self::Deferred => ("deferred", "rdma-core"),
            Self::Mooncake => ("mooncake", mooncake::WHEEL),
            Self::Nixl => ("nixl", nixl::WHEEL),
            Self::Mpi => ("mpi", "openmpi-bin"),
            Self::Gloo => ("gloo", "libgloo0"),
            Self::Applications => ("applications", "libfabric-bin"),
            Self::Ibverbs => ("ibverbs", crates::IBVERBS.package),
            Self::Sideway => ("sideway", crates::SIDEWAY.package),
            Self::IbverbsRs => ("ibverbs-rs", crates::IBVERBS_RS.package),
        }
    }

    /// Returns what the suite needs in addition to the packages of the quick run.
    pub(super) fn needs(self) -> Needs {
        match self {
            Self::Mooncake => mooncake::NEEDS,
            Self::Nixl => nixl::NEEDS,
            Self::Mpi => mpi::NEEDS,
            Self::Gloo => gloo::NEEDS,
            Self::Applications => rdmacm::NEEDS,
            Self::Ibverbs | Self::Sideway | Self::IbverbsRs => crates::NEEDS,
            _ => Needs::NONE,
        }
    }

    /// Returns true if the programs find the devices only by files in `/sys` and `/dev`.
    pub(super) fn needs_files(self) -> bool {
        matches!(self, Self::Ucx | Self::Mooncake | Self::Nixl | Self::Mpi)
    }

    /// Runs the cases of the suite.
    ///
    /// # Errors
    /// Returns an error if this process cannot start programs.
    pub(super) fn run(self, installation: &Installation, full: bool, row: &mut Row) -> Result<()> {
        match self {
            Self::Pyverbs => pyverbs::run(installation, &[], row),
            Self::Pingpong => pingpong::run(installation, full, row),
            Self::Perftest => perftest::run(installation, full, row),
            Self::Ucx => ucx::run(installation, full, row),
            Self::Exits => exits::run(installation, row),
            Self::Rdmacm => rdmacm::run(installation, full, row),
            Self::Udp => udp::run(installation, row),
            Self::Deferred => deferred::run(installation, row),
            Self::Mooncake => mooncake::run(installation, row),
            Self::Nixl => nixl::run(installation, row),
            Self::Mpi => mpi::run(installation, row),
            Self::Gloo => gloo::run(installation, row),
            Self::Applications => rdmacm::run_applications(installation, full, row),
            Self::Ibverbs => crates::run(installation, &crates::IBVERBS, row),
            Self::Sideway => crates::run(installation, &crates::SIDEWAY, row),
            Self::IbverbsRs => crates::run(installation, &crates::IBVERBS_RS, row),
        }
    }
}
