//! A chat of many members, over [messages](rdma::aio::message). A member that does not read delays no other one: it misses
//! lines instead.

use std::future;
use std::io::BufRead as _;
use std::process::ExitCode;
use std::thread;

use clap::{Parser, Subcommand};
use rdma::aio::Endpoint;
use rdma::aio::message::{Message, MessageError, Messages, MessagesListener, Options, SendError};
use rdma::prelude::*;
use rdma_examples_common::{Failure, print, program};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc};
use tokio::task::JoinSet;

/// A chat. Without a command, it runs a demonstration: a server, members that write to each other, and one that does not read.
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
    /// Serve a chat until this process is killed; prints the server's address
    Serve {
        /// The address to listen on; port 0 selects a free port
        #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
        listen: String,
    },
    /// Join a chat, and send each line of the standard input
    Join {
        /// The name of the member
        name: String,
        /// The address of the server
        #[arg(long, value_name = "ADDR")]
        connect: String,
    },
}

/// The number of lines that the server keeps for members that read slowly.
const KEPT: usize = 64;

type Lines = broadcast::Sender<String>;

fn main() -> ExitCode {
    program(|arguments| {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(run(arguments))
    })
}

async fn run(arguments: &Arguments) -> Result<String, Failure> {
    let endpoint = Endpoint::new(&open_device(&arguments.device)?)?;
    let listen = |address| endpoint.listen_for_messages(address, Options::new());
    match &arguments.command {
        None => show(&endpoint, listen("127.0.0.1:0").await?, &arguments.device).await,
        Some(Command::Serve { listen: address }) => {
            let listener = listen(address).await?;
            print(&format!("listening on {}", listener.local_addr()))?;
            serve(listener).await
        }
        Some(Command::Join { name, connect }) => {
            talk(join(&endpoint, connect, name).await?, name).await
        }
    }
}

/// Serves each member in its own task.
async fn serve(listener: MessagesListener) -> Result<String, Failure> {
    let lines = Lines::new(KEPT);
    loop {
        match listener.accept().await {
            Ok(member) => _ = tokio::spawn(host(member, lines.clone())),
            Err(error) if listener.has_ended() => return Err(error.into()),
            Err(error) => eprintln!("a member was not accepted: {error}"),
        }
    }
}

/// Passes the lines of a member to all members, and all lines to the member, until it leaves.
async fn host(member: Messages, lines: Lines) -> Result<(), Failure> {
    let Some(request) = member.receive().await?.filter(Message::is_request) else { return Ok(()) };
    let name = text(&request);
    let mut all = lines.subscribe();
    request.reply(b"welcome").await?;
    let report = |line: String| _ = lines.send(line);
    report(format!("{name} has joined"));
    // Both directions make progress at once. If the server received nothing while it waits to send, and the member did the
    // same, both would wait.
    let ended = tokio::select! {
        ended = pass_on(&mut all, &member) => ended,
        ended = async {
            while let Some(line) = member.receive().await? {
                report(format!("{name}: {}", text(&line)));
            }
            Ok(())
        } => ended,
    };
    report(format!("{name} {}", if ended.is_ok() { "has left" } else { "was lost" }));
    ended
}

/// Posts all lines to a member until it leaves. If it reads slowly, skips lines and reports their number.
async fn pass_on(
    lines: &mut broadcast::Receiver<String>,
    member: &Messages,
) -> Result<(), Failure> {
    loop {
        let line = match lines.recv().await {
            Ok(line) => line,
            Err(RecvError::Lagged(count)) => format!("{count} lines skipped"),
            Err(RecvError::Closed) => return Ok(()),
        };
        match member.post(line.as_bytes()).await {
            // The member may have sent more before it left.
            Err(MessageError::NotSent(SendError::PeerFinished)) => return future::pending().await,
            posted => posted?,
        }
    }
}

fn text(message: &Message) -> String {
    String::from_utf8_lossy(message).into_owned()
}

async fn join(endpoint: &Endpoint, server: &str, name: &str) -> Result<Messages, Failure> {
    let server = endpoint.connect_messages(server, Options::new()).await?;
    server.call(name.as_bytes()).await?;
    Ok(server)
}

/// Prints the lines of all members, and sends those of the standard input. Leaves at its end.
async fn talk(server: Messages, name: &str) -> Result<String, Failure> {
    let (typed, mut input) = mpsc::channel(1);
    // A read of the standard input may block until the process ends.
    thread::spawn(move || {
        let lines = std::io::stdin().lock().lines().map_while(Result::ok);
        lines.map(|line| typed.blocking_send(line)).find(Result::is_err)
    });
    let sends = async {
        while let Some(line) = input.recv().await {
            server.send(line.as_bytes()).await?;
        }
        Ok::<(), Failure>(server.finish().await?)
    };
    let receives = async {
        while let Some(line) = server.receive().await? {
            print(&text(&line))?;
        }
        Ok(())
    };
    tokio::try_join!(sends, receives)?;
    Ok(format!("{name} has left"))
}

/// The members of the demonstration, and the lines that each sends.
const MEMBERS: usize = 4;
const LINES: usize = 100;

/// Runs a server and members in this process. One member reads only after all others have left.
async fn show(
    endpoint: &Endpoint,
    listener: MessagesListener,
    device: &str,
) -> Result<String, Failure> {
    let server = listener.local_addr().to_string();
    let serves = tokio::spawn(serve(listener));
    let silent = join(endpoint, &server, "silent").await?;
    let mut members = Vec::new();
    for number in 0..MEMBERS {
        members.push(join(endpoint, &server, &format!("member {number}")).await?);
    }
    let mut talks: JoinSet<_> = members.into_iter().map(converse).collect();
    while let Some(talked) = talks.join_next().await {
        talked??;
    }
    // All have joined, sent their lines, and left.
    let (mut rest, mut missed) = (1 + MEMBERS * (2 + LINES), 0);
    while rest > 0 {
        let line = text(&silent.receive().await?.ok_or("the server has left")?);
        let skipped = line.strip_suffix(" lines skipped").map_or(Ok(0), str::parse)?;
        missed += skipped;
        rest = rest.saturating_sub(skipped.max(1));
    }
    serves.abort();
    let sent = MEMBERS * LINES;
    Ok(format!("{device}: {MEMBERS} members read {sent} lines, and a silent one missed {missed}"))
}

/// Sends each line after it has received the lines before from all.
async fn converse(server: Messages) -> Result<(), Failure> {
    let mut received = 0;
    for number in 1..=LINES {
        server.send(b"a line").await?;
        while received < number * MEMBERS {
            let line = server.receive().await?.ok_or("the server has left")?;
            received += usize::from(text(&line).ends_with(": a line"));
        }
    }
    Ok(server.finish().await?)
}
