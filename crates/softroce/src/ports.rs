//! The output ports of the virtual machine: one each for the command's output, its errors and its
//! status.

use std::io::{Read as _, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::thread;

use anyhow::{Context as _, Result};
use signal_hook::consts::SIGPIPE;

use super::machine::Event;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Port {
    Out,
    Err,
    Status,
}

impl Port {
    pub(super) const ALL: [Self; 3] = [Self::Out, Self::Err, Self::Status];

    /// Returns the name that the port has in the guest.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Out => "out",
            Self::Err => "err",
            Self::Status => "status",
        }
    }

    /// Returns the path of the socket to which qemu connects the port.
    pub(super) fn socket(self, folder: &Path) -> PathBuf {
        folder.join(self.name())
    }
}

/// The sockets of the ports. A thread reads each one.
pub(super) struct Ports(Vec<PathBuf>);

impl Ports {
    pub(super) fn listen(folder: &Path, events: &Sender<Event>) -> Result<Self> {
        let mut sockets = Vec::new();
        for port in Port::ALL {
            let socket = port.socket(folder);
            let listener = UnixListener::bind(&socket)
                .with_context(|| format!("making the socket {}", socket.display()))?;
            sockets.push(socket);
            let events = events.clone();
            thread::spawn(move || {
                if let Ok((stream, _)) = listener.accept() {
                    read(port, stream, &events);
                }
            });
        }
        Ok(Self(sockets))
    }

    /// Ends the threads that still wait because qemu never connected to their sockets.
    pub(super) fn close(self) {
        self.0.into_iter().for_each(|socket| drop(UnixStream::connect(socket)));
    }
}

/// Passes the data on until the machine ends. If the receiver of `events` is dropped, the run has
/// already ended.
fn read(port: Port, mut stream: UnixStream, events: &Sender<Event>) {
    match port {
        Port::Out => pass(port, stream, std::io::stdout(), events),
        Port::Err => pass(port, stream, std::io::stderr(), events),
        Port::Status => {
            let (mut line, mut byte) = (String::new(), [0]);
            while stream.read(&mut byte).is_ok_and(|n| n > 0) && byte != *b"\n" {
                line.push(char::from(byte[0]));
            }
            if let Some(finished) = parse(&line) {
                let _ = events.send(finished);
            }
        }
    }
}

fn pass(port: Port, mut from: UnixStream, mut to: impl Write, events: &Sender<Event>) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(n @ 1..) = from.read(&mut bytes) {
        // If the write fails, the reader of the output has closed it. The run then ends with the
        // signal that the command would have received.
        let written = to.write_all(&bytes[..n]).and_then(|()| to.flush());
        let event = match written {
            Ok(()) => Event::Output(port, u64::try_from(n).unwrap_or(0)),
            Err(_) => Event::Signal(SIGPIPE),
        };
        if events.send(event).is_err() {
            return;
        }
    }
}

/// Parses a line of the form `STATUS BYTES-OF-OUTPUT BYTES-OF-ERRORS`.
fn parse(line: &str) -> Option<Event> {
    let mut words = line.split(' ');
    let status = words.next()?.parse().ok()?;
    let lengths = [words.next()?.parse().ok()?, words.next()?.parse().ok()?];
    Some(Event::Finished { status, lengths })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_status_has_three_numbers() {
        let Some(Event::Finished { status, lengths }) = parse("3 10 0") else { panic!("none") };
        assert_eq!((status, lengths), (3, [10, 0]));
        for line in ["", "3", "3 10", "3 10 x", "300 1 1"] {
            assert!(parse(line).is_none(), "{line}");
        }
    }

    #[test]
    fn bytes_are_passed_on_and_counted() {
        let (mut there, here) = UnixStream::pair().unwrap();
        there.write_all(&[0, 255, b'x']).unwrap();
        drop(there);
        let ((sender, events), mut passed) = (channel(), Vec::new());
        pass(Port::Out, here, &mut passed, &sender);
        drop(sender);
        assert_eq!(passed, [0, 255, b'x']);
        let counts = events.iter().map(|event| match event {
            Event::Output(Port::Out, n) => n,
            other => panic!("{other:?}"),
        });
        assert_eq!(counts.sum::<u64>(), 3);
    }

    #[test]
    fn threads_end_if_the_machine_never_connects() {
        let folder = tempfile::tempdir().unwrap();
        let (sender, events) = channel();
        let ports = Ports::listen(folder.path(), &sender).unwrap();
        drop(sender);
        ports.close();
        // This fails only if all senders are dropped, that is, if the threads have ended.
        assert!(events.recv().is_err());
    }
}
