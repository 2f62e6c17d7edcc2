//! The second end if it runs on this machine, in another process of this program or in a thread.

use std::env;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::perf::ends::Local;
use crate::perf::server::serve;

/// The interval between checks whether the second process is still running. It normally connects
/// within milliseconds.
const LOOK: Duration = Duration::from_millis(100);

/// The second end. When dropped, it ends the process or the thread.
#[derive(Debug)]
pub(crate) enum SecondEnd {
    Process(Child),
    Thread(Option<JoinHandle<()>>),
}

impl SecondEnd {
    /// Starts another process of this program. Returns the connection to it.
    ///
    /// # Errors
    /// Returns an error if the process cannot be started or exits before it connects.
    pub(crate) fn process(local: &Local) -> anyhow::Result<(Self, TcpStream)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?.to_string();
        let program = env::current_exe().context("cannot find this program")?;
        let device = local.context.device();
        let mut command = Command::new(program);
        command.args(["perf", "--device", device.name(), "--serve", &address]);
        if let Some(index) = local.gid_index {
            command.args(["--gid-index", &index.to_string()]);
        }
        let mut child = command.spawn().context("cannot start the second process")?;
        let stream = loop {
            let timeout = Timespec::try_from(LOOK)?;
            if poll(&mut [PollFd::new(&listener, PollFlags::IN)], Some(&timeout))? > 0 {
                break listener.accept()?.0;
            }
            if let Some(status) = child.try_wait()? {
                bail!("the second process ended early: {status}");
            }
        };
        Ok((Self::Process(child), stream))
    }

    /// Starts a thread for the second end. Returns the connection to it.
    ///
    /// # Errors
    /// Returns an error if a socket or the thread cannot be created.
    pub(crate) fn thread(local: &Local) -> anyhow::Result<(Self, TcpStream)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let stream = TcpStream::connect(listener.local_addr()?)?;
        let (other, local) = (listener.accept()?.0, local.clone());
        let work = move || {
            // `serve` sends its error to the client over the connection.
            let _ = serve(other, &local, |_| {});
        };
        let thread = thread::Builder::new().spawn(work)?;
        Ok((Self::Thread(Some(thread)), stream))
    }
}

impl Drop for SecondEnd {
    fn drop(&mut self) {
        match self {
            Self::Process(child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
            // The thread ends because the client has already dropped its connection.
            Self::Thread(thread) => {
                let _ = thread.take().map(JoinHandle::join);
            }
        }
    }
}
