//! The command line.

use std::net::IpAddr;
use std::time::Duration;

/// Two RDMA devices that talk to each other, each in a process of its own.
#[derive(Debug, clap::Parser)]
#[command(name = "interop")]
pub(super) struct Arguments {
    #[command(subcommand)]
    pub(super) role: Role,
}

#[derive(Debug, clap::Subcommand)]
pub(super) enum Role {
    /// Wait for the other process, and do what it says
    Serve(Serve),
    /// Run the checks, in both directions
    Drive(Drive),
}

#[derive(Debug, clap::Args)]
pub(super) struct Serve {
    #[command(flatten)]
    pub(super) own: Own,
    #[arg(long, value_name = "ADDR:PORT", help = "Where to wait; port 0 is any that is free")]
    pub(super) listen: String,
}

#[derive(Debug, clap::Args)]
pub(super) struct Drive {
    #[command(flatten)]
    pub(super) own: Own,
    #[arg(long, value_name = "ADDR:PORT", help = "Where the other process waits")]
    pub(super) connect: String,
    #[arg(long, default_value_t = 1024, help = "The path MTU of connections, in bytes")]
    pub(super) mtu: u32,
    #[arg(long, default_value_t = 1, help = "What the bytes of messages are made of")]
    pub(super) seed: u64,
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20, help = "Leave out longer messages")]
    pub(super) longest: usize,
    #[arg(long, help = "The network loses packets: messages of UC and UD may be lost")]
    pub(super) lossy: bool,
    #[arg(long, value_name = "TEXT", help = "Only checks with this text in their names")]
    pub(super) only: Option<String>,
    #[arg(long, value_enum, default_value_t = Format::Table, help = "How to print what came out")]
    pub(super) format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// A table for people, in Markdown
    Table,
    /// A line of JSON for each check and direction
    Json,
}

/// What both have.
#[derive(Debug, clap::Args)]
pub(super) struct Own {
    #[arg(long, value_name = "NAME", default_value = "soft0", help = "The RDMA device")]
    pub(super) device: String,
    #[arg(long, value_name = "INDEX|ADDR", help = "The GID to use [default: the first of IPv4]")]
    pub(super) gid: Option<Source>,
    #[arg(long, value_name = "SECONDS", default_value_t = 60, help = "For what must come")]
    pub(super) patience: u64,
}

impl Own {
    pub(super) fn patience(&self) -> Duration {
        Duration::from_secs(self.patience)
    }
}

/// Which GID of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Index(u8),
    /// The one of RoCE v2 for this address.
    Address(IpAddr),
}

impl std::str::FromStr for Source {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let index = || text.parse().ok().map(Self::Index);
        let source = index().or_else(|| text.parse().ok().map(Self::Address));
        source.ok_or("an index of the GID table, or an address of IPv4 or IPv6")
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
