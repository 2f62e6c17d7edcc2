//! The command line of the program `interop`.

use std::net::IpAddr;
use std::time::Duration;

/// Two RDMA devices that communicate, each in a separate process.
#[derive(Debug, clap::Parser)]
#[command(name = "interop")]
pub(super) struct Arguments {
    #[command(subcommand)]
    pub(super) role: Role,
}

#[derive(Debug, clap::Subcommand)]
pub(super) enum Role {
    /// Wait for the other process, and execute its commands
    Serve(Serve),
    /// Run the checks, in both directions
    Drive(Drive),
}

#[derive(Debug, clap::Args)]
pub(super) struct Serve {
    #[command(flatten)]
    pub(super) own: Own,
    #[arg(
        long,
        value_name = "ADDR:PORT",
        help = "The address to listen at; port 0 is any free port"
    )]
    pub(super) listen: String,
}

#[derive(Debug, clap::Args)]
pub(super) struct Drive {
    #[command(flatten)]
    pub(super) own: Own,
    #[arg(long, value_name = "ADDR:PORT", help = "The address where the other process listens")]
    pub(super) connect: String,
    #[arg(long, default_value_t = 1024, help = "The path MTU of connections, in bytes")]
    pub(super) mtu: u32,
    #[arg(long, default_value_t = 1, help = "The seed of the bytes of messages")]
    pub(super) seed: u64,
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20, help = "Leave out longer messages")]
    pub(super) longest: usize,
    #[arg(long, help = "The network loses packets: UC and UD messages may be lost")]
    pub(super) lossy: bool,
    #[arg(long, value_name = "TEXT", help = "Only checks with this text in their names")]
    pub(super) only: Option<String>,
    #[arg(long, value_enum, default_value_t = Format::Table, help = "The format of the results")]
    pub(super) format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// A table for people, in Markdown
    Table,
    /// One line of JSON for each check and direction
    Json,
}

/// The options that both subcommands have.
#[derive(Debug, clap::Args)]
pub(super) struct Own {
    #[arg(long, value_name = "NAME", default_value = "soft0", help = "The RDMA device")]
    pub(super) device: String,
    #[arg(long, value_name = "INDEX|ADDR", help = "The GID to use [default: the first IPv4 one]")]
    pub(super) gid: Option<Source>,
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 60,
        help = "The time limit for each expected completion"
    )]
    pub(super) patience: u64,
}

impl Own {
    pub(super) fn patience(&self) -> Duration {
        Duration::from_secs(self.patience)
    }
}

/// The way to select a GID from the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Index(u8),
    /// The RoCE v2 GID with this address.
    Address(IpAddr),
}

impl std::str::FromStr for Source {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let index = || text.parse().ok().map(Self::Index);
        let source = index().or_else(|| text.parse().ok().map(Self::Address));
        source.ok_or("give an index of the GID table, or an IPv4 or IPv6 address")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gid_is_named_by_its_index_or_its_address() {
        assert_eq!("3".parse(), Ok(Source::Index(3)));
        assert_eq!("198.18.1.2".parse(), Ok(Source::Address([198, 18, 1, 2].into())));
        assert_eq!("fd00::2".parse(), Ok(Source::Address("fd00::2".parse().unwrap())));
        for wrong in ["", "256", "soft0", "1.2.3"] {
            assert!(wrong.parse::<Source>().is_err(), "{wrong}");
        }
    }
}
