//! The options of the bench: its own, and those of criterion.

use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::{env, process};

/// Environment variables for our options, since criterion does not read the environment.
const DEVICE: &str = "RDMA_DEVICE";
const LISTEN: &str = "RDMA_BENCH_LISTEN";
const CONNECT: &str = "RDMA_BENCH_CONNECT";

const OWN: [(&str, &str); 3] = [("--device", DEVICE), ("--listen", LISTEN), ("--connect", CONNECT)];

/// The location of the other end.
pub(crate) enum Peer {
    /// In this process, on the same device.
    Here,
    /// The other end connects to this address, and measures.
    Client(String),
    /// It listens at this address.
    Server(String),
}

pub(crate) struct Options {
    pub(crate) device: String,
    pub(crate) peer: Peer,
}

impl Options {
    /// Reads our options from the environment. If the command line contains some, moves them to the environment and
    /// starts the program again, because criterion itself reads the remaining arguments.
    pub(crate) fn from_environment() -> Result<Self, String> {
        let (mut rest, mut own) = (Vec::new(), Vec::new());
        let mut arguments = env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let (name, value) = match argument.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (argument.as_str(), None),
            };
            match OWN.iter().find(|option| option.0 == name) {
                Some(option) => {
                    let value = value.or_else(|| arguments.next());
                    let value = value.ok_or_else(|| format!("{name} needs a value"))?;
                    own.push((option.1, value));
                }
                None => rest.push(argument),
            }
        }
        if !own.is_empty() {
            let program = env::current_exe().map_err(|error| error.to_string())?;
            let error = Command::new(program).args(rest).envs(own).exec();
            return Err(format!("the bench cannot start itself: {error}"));
        }
        let peer = match (env::var(LISTEN), env::var(CONNECT)) {
            (Ok(_), Ok(_)) => return Err("either --listen or --connect".to_owned()),
            (Ok(address), _) => Peer::Client(address),
            (_, Ok(address)) => Peer::Server(address),
            _ => Peer::Here,
        };
        let device = env::var(DEVICE).unwrap_or_else(|_| "soft0".to_owned());
        Ok(Self { device, peer })
    }
}

/// Ends the process with a message.
pub(crate) fn fail(error: &dyn std::fmt::Display) -> ! {
    eprintln!("latency: {error}");
    process::exit(1)
}
