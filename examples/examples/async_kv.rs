//! The key-value store of `kv`, implemented with tokio tasks. The store itself is in
//! `examples/src/kv/tasks.rs`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use rdma::aio::Driver;
use rdma::prelude::*;
use rdma_examples::kv::tasks::{Client, Store};
use rdma_examples_common::{Failure, print, program};
use tokio::task::JoinSet;

/// A key-value store that uses tokio tasks. Without a command, it runs a demonstration: a server,
/// and clients that read and write concurrently.
#[derive(Debug, Parser)]
struct Arguments {
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
    },
    /// Print the value of a key
    Get {
        key: String,
        /// The address of the server
        #[arg(long, value_name = "ADDR")]
        connect: String,
    },
    /// Store a value under a key
    Put {
        key: String,
        value: String,
        /// The address of the server
        #[arg(long, value_name = "ADDR")]
        connect: String,
    },
}

fn main() -> ExitCode {
    program(|arguments| {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(run(arguments))
    })
}

async fn run(arguments: &Arguments) -> Result<String, Failure> {
    let context = open_device(&arguments.device)?;
    let pd = context.allocate_pd()?;
    let driver = Driver::spawn(&context)?;
    match &arguments.command {
        None => show(&driver, &pd, &arguments.device).await,
        Some(Command::Serve { listen }) => {
            let store = Store::new(&driver, &pd, listen).await?;
            print(&format!("listening on {}", store.address()))?;
            store.run().await?;
            Ok(String::new())
        }
        Some(Command::Get { key, connect }) => {
            let client = Client::connect(&driver, &pd, connect).await?;
            let value =
                client.get(key).await?.ok_or_else(|| format!("the key `{key}` does not exist"))?;
            Ok(String::from_utf8_lossy(&value).into_owned())
        }
        Some(Command::Put { key, value, connect }) => {
            let client = Client::connect(&driver, &pd, connect).await?;
            client.put(key, value).await?;
            Ok(format!("stored `{key}`"))
        }
    }
}

/// Runs a server and several clients in this process. Each client has several tasks.
async fn show(driver: &Driver, pd: &ProtectionDomain, device: &str) -> Result<String, Failure> {
    const CLIENTS: u32 = 4;
    const KEYS: u32 = 8;
    let store = Store::new(driver, pd, "127.0.0.1:0").await?;
    let address = store.address().to_string();
    let serves = tokio::spawn(async move { store.run().await });
    let mut tasks = JoinSet::new();
    for number in 0..CLIENTS {
        let client = Client::connect(driver, pd, &address).await?;
        for key in 0..KEYS {
            let client = client.clone();
            tasks.spawn(async move {
                let (key, value) = (format!("{number}/{key}"), format!("{}", number * key));
                client.put(&key, &value).await?;
                match client.get(&key).await? {
                    Some(found) if found == value.as_bytes() => Ok::<_, Failure>(()),
                    found => Err(format!("{key} is {found:?}").into()),
                }
            });
        }
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    let client = Client::connect(driver, pd, &address).await?;
    let none = if client.get("plum").await?.is_none() { "no plum" } else { "a plum" };
    let count = match client.operations().await? {
        Some(count) => format!("{count} operations"),
        None => "operations not counted: the device has no atomics".to_owned(),
    };
    serves.abort();
    Ok(format!("{device}: {} keys, {none}, {count}", CLIENTS * KEYS))
}
