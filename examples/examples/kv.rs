//! A key-value store: GET is an RDMA read, and PUT is a message. The store itself is in
//! `examples/src/kv.rs`.

use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use clap::{Parser, Subcommand};
use rdma::prelude::*;
use rdma_examples::kv::client::Client;
use rdma_examples::kv::server::Store;
use rdma_examples::kv::{RING, SLOTS};
use rdma_examples_common::{Failure, print, program};

/// A key-value store whose clients read the server's table by RDMA, and send changes to the server.
/// Without a command, it runs a demonstration: a server and a client in one process.
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    /// The RDMA device
    #[arg(long, value_name = "NAME", default_value = "soft0", global = true)]
    device: String,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve a table until this process is killed; prints the server's address
    Serve {
        /// The address to listen on; port 0 selects a free port
        #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
        listen: String,
        /// The maximum number of clients at the same time
        #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
        clients: u16,
    },
    /// Print the value of a key
    Get {
        key: String,
        #[command(flatten)]
        server: At,
    },
    /// Store a value under a key
    Put {
        key: String,
        value: String,
        #[command(flatten)]
        server: At,
    },
    /// Print all keys and values
    Scan {
        #[command(flatten)]
        server: At,
    },
    /// Read slots of the table, 16 at a time, and print how long that takes
    Bench {
        /// The number of slots to read
        reads: usize,
        #[command(flatten)]
        server: At,
    },
}

#[derive(Debug, clap::Args)]
struct At {
    /// The address of the server
    #[arg(long, value_name = "ADDR")]
    connect: String,
}

fn main() -> ExitCode {
    program(run)
}

pub(crate) fn run(arguments: &Arguments) -> Result<String, Failure> {
    let pd = open_device(&arguments.device)?.allocate_pd()?;
    let with = |server: &At, f: &dyn Fn(&mut Client) -> Result<String, Failure>| {
        let mut client = Client::connect(&pd, &server.connect)?;
        f(&mut client).map_err(|error| match error.is::<TransportError>() {
            true => format!("the server at {} is lost: {error}", server.connect).into(),
            false => error,
        })
    };
    match &arguments.command {
        None => show(&pd, &arguments.device),
        Some(Command::Serve { listen, clients }) => {
            let mut store = Store::new(&pd, listen, u32::from(*clients))?;
            print(&format!("listening on {}", store.address()))?;
            store.run().map(counted)
        }
        Some(Command::Get { key, server }) => with(server, &|client| {
            let value =
                client.get(key)?.ok_or_else(|| format!("the key `{key}` does not exist"))?;
            Ok(String::from_utf8_lossy(&value).into_owned())
        }),
        Some(Command::Put { key, value, server }) => with(server, &|client| {
            client.put(key, value)?;
            Ok(format!("stored `{key}`"))
        }),
        Some(Command::Scan { server }) => with(server, &|client| scan(client)),
        Some(Command::Bench { reads, server }) => with(server, &|client| {
            print(&format!("connected to {}", server.connect))?;
            bench(client, *reads).map(|line| format!("{}: {line}", arguments.device))
        }),
    }
}

/// Formats the number of operations that the clients have counted.
fn counted(count: Option<u64>) -> String {
    match count {
        Some(count) => format!("the server counted {count} operations"),
        None => "the server counted no operations: its device has no atomics".to_owned(),
    }
}

/// Formats all entries, one per line.
fn scan(client: &mut Client) -> Result<String, Failure> {
    let entries = client.scan(0..SLOTS)?;
    let mut lines: Vec<_> = (entries.iter())
        .map(|entry| [&entry.key, &entry.value].map(|text| String::from_utf8_lossy(text)).join("="))
        .collect();
    lines.sort();
    lines.push(format!("{} of {SLOTS} slots have an entry", entries.len()));
    Ok(lines.join("\n"))
}

/// Reads this number of slots by scanning the table repeatedly. Each scan has its own deadline.
fn bench(client: &mut Client, reads: usize) -> Result<String, Failure> {
    let begin = Instant::now();
    let mut left = reads;
    while left > 0 {
        let slots = left.min(SLOTS);
        client.scan(0..slots)?;
        left -= slots;
    }
    Ok(format!("{reads} slots in {:.2?}, {RING} at a time", begin.elapsed()))
}

/// Runs a server and a client in this process.
fn show(pd: &ProtectionDomain, device: &str) -> Result<String, Failure> {
    let mut store = Store::new(pd, "127.0.0.1:0", 2)?;
    let (address, waker) = (store.address(), store.waker());
    thread::scope(|threads| {
        let serves = threads.spawn(|| store.run());
        let lines = visit(pd, &address);
        waker.wake();
        let count = serves.join().map_err(|_| "the server panicked")??;
        Ok(format!("{device}: {}\n{}", lines?, counted(count)))
    })
}

fn visit(pd: &ProtectionDomain, address: &str) -> Result<String, Failure> {
    let mut client = Client::connect(pd, address)?;
    for (key, value) in [("apple", "green"), ("cherry", "black"), ("apple", "red")] {
        client.put(key, value)?;
    }
    let apple = client.get("apple")?.ok_or("the apple is missing")?;
    let none = if client.get("plum")?.is_none() { "no plum" } else { "a plum" };
    let lines =
        format!("an apple is {}, {none}\n{}", String::from_utf8_lossy(&apple), scan(&mut client)?);
    Ok(lines)
}
