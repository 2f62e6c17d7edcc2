//! The TCP connection between the two processes. Each command and each answer is a line of JSON.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::arguments::Serve;
use super::command::{Answer, Command};
use super::station::Station;

/// The time to wait for the other process, in addition to `--patience`.
const MARGIN: Duration = Duration::from_secs(30);

/// Waits for the other process, and executes its commands until it leaves.
pub(super) fn serve(arguments: &Serve) -> Result<()> {
    let mut station = Station::open(&arguments.own)?;
    let listener = TcpListener::bind(&arguments.listen)
        .with_context(|| format!("cannot listen on {}", arguments.listen))?;
    println!("listening on {}", listener.local_addr()?);
    let (stream, _) = listener.accept()?;
    // No command arrives while the driving process waits for its own device. That may take as long
    // as its `--patience`, which should be the same as here.
    let mut lines = Lines::new(stream, arguments.own.patience() + MARGIN)?;
    loop {
        match lines.take::<Command>().context("no further command")? {
            Command::Leave => return Ok(()),
            command => lines.put(&station.execute(command))?,
        }
    }
}

/// The driving process's connection to the serving one.
pub(super) struct Remote(Lines);

impl Remote {
    /// Connects to the process that listens at this address, or that will soon do so.
    pub(super) fn connect(address: &str, patience: Duration) -> Result<Self> {
        let end = Instant::now() + patience;
        let places: Vec<SocketAddr> = address.to_socket_addrs()?.collect();
        loop {
            for place in &places {
                match TcpStream::connect_timeout(place, patience) {
                    // If no process listens, TCP may connect the port to itself.
                    Ok(stream) if stream.local_addr()? == stream.peer_addr()? => {}
                    Ok(stream) => return Ok(Self(Lines::new(stream, patience + MARGIN)?)),
                    Err(error) if Instant::now() >= end => {
                        return Err(error).with_context(|| format!("cannot connect to {address}"));
                    }
                    Err(_) => {}
                }
            }
            ensure!(
                Instant::now() < end,
                "no process is listening on {address}; start `interop serve` there"
            );
            // No event reports that a process has begun to listen, so try again.
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub(super) fn ask(&mut self, command: &Command) -> Result<Answer> {
        self.0.put(command)?;
        self.0.take().context("the other process does not answer")
    }

    pub(super) fn leave(mut self) -> Result<()> {
        self.0.put(&Command::Leave)
    }
}

struct Lines {
    reader: BufReader<TcpStream>,
    stream: TcpStream,
}

impl Lines {
    fn new(stream: TcpStream, limit: Duration) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(limit))?;
        Ok(Self { reader: BufReader::new(stream.try_clone()?), stream })
    }

    fn put(&mut self, value: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_string(value)?;
        line.push('\n');
        Ok(self.stream.write_all(line.as_bytes())?)
    }

    fn take<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            bail!("the other process has closed the connection");
        }
        Ok(serde_json::from_str(&line)?)
    }
}
