//! The virtual machine: its options, and how to run a command in it.

use std::ffi::OsString;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::ports::{Port, Ports};
use super::script;
use super::tools::tool;

/// A virtual machine that is ready to be started.
#[derive(Debug)]
pub(super) struct Machine {
    /// The folder with the unpacked packages.
    pub(super) tree: PathBuf,
    /// The folder that contains the kernel and the initramfs.
    pub(super) boot: PathBuf,
    pub(super) accelerator: Accelerator,
    /// The folder with the module `siw` for the device `siw0`, if the machine has this device.
    pub(super) siw: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accelerator {
    Kvm,
    Emulation,
}

impl Accelerator {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kvm => "KVM",
            Self::Emulation => "emulation",
        }
    }

    pub(super) fn of(name: &str) -> Option<Self> {
        [Self::Kvm, Self::Emulation].into_iter().find(|one| one.name() == name)
    }
}

/// The reason why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The command exited with this status.
    Status(u8),
    /// The time limit passed.
    TimedOut,
    /// This process received this signal.
    Interrupted(i32),
}

/// An event during a run.
#[derive(Debug)]
pub(super) enum Event {
    /// This many bytes of output were passed on.
    Output(Port, u64),
    /// The command exited with this status. Before that, it wrote this many bytes of output and of
    /// errors.
    Finished {
        status: u8,
        lengths: [u64; 2],
    },
    /// qemu exited, after printing these error messages.
    Stopped(String),
    Signal(i32),
}

impl Machine {
    /// Runs `command` in the machine, in this process's working directory. Returns why the run
    /// ended, and the last lines of the console.
    pub(super) fn run(
        &self,
        command: &[OsString],
        limit: Option<Duration>,
    ) -> Result<(Ended, String)> {
        let folder = tempfile::Builder::new().prefix("rxe-").tempdir()?;
        script::write(&folder.path().join("command"), command)?;
        if let Some(siw) = &self.siw {
            // The guest has the host's files under the same paths.
            symlink(siw, folder.path().join("siw"))?;
        }
        let (sender, events) = channel();
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let handle = signals.handle();
        let signalled = sender.clone();
        thread::spawn(move || {
            signals.forever().for_each(|signal| drop(signalled.send(Event::Signal(signal))));
        });
        let ports = Ports::listen(folder.path(), &sender)?;
        let mut qemu = self.start(folder.path(), &sender)?;
        let ended = follow(&events, limit);
        // qemu can simply be killed: the machine has no disk to write, and if the command has
        // exited, `follow` has waited for its output.
        let killed = qemu.kill().and_then(|()| qemu.wait());
        handle.close();
        ports.close();
        killed.context("ending qemu")?;
        let console = fs::read(folder.path().join("console")).unwrap_or_default();
        let console = format!("its console output:\n{}\n", tail(&console));
        match ended {
            Ok(ended) => Ok((ended, console)),
            Err(error) => Err(error.context(console)),
        }
    }

    fn start(&self, folder: &Path, events: &Sender<Event>) -> Result<Child> {
        let mut command = tool(&self.tree, "qemu-system-x86_64")?;
        command.args(self.arguments(folder));
        // qemu gets its own process group, so that Ctrl-C reaches only this process, which then
        // ends qemu.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut qemu = command.spawn().context("starting qemu")?;
        let mut complaints = qemu.stderr.take().context("qemu has no stderr")?;
        let events = events.clone();
        thread::spawn(move || {
            let mut text = Vec::new();
            let _ = complaints.read_to_end(&mut text); // after an error, what was read is used
            let _ = events.send(Event::Stopped(String::from_utf8_lossy(&text).into_owned()));
        });
        Ok(qemu)
    }

    fn arguments(&self, folder: &Path) -> Vec<OsString> {
        let firmware = ["usr/share/seabios", "usr/share/qemu", "usr/lib/ipxe/qemu"];
        let firmware = firmware.map(|at| self.tree.join(at)).into_iter().filter(|at| at.is_dir());
        let mut words: Vec<OsString> = Vec::new();
        for at in firmware {
            words.extend(["-L".into(), at.into()]);
        }
        words.extend(match self.accelerator {
            Accelerator::Kvm => ["-accel", "kvm", "-cpu", "host"].map(OsString::from),
            Accelerator::Emulation => {
                ["-accel", "tcg,thread=multi", "-cpu", "max"].map(OsString::from)
            }
        });
        let processors = thread::available_parallelism().map_or(1, usize::from).min(4);
        words.extend(["-smp".into(), processors.to_string().into()]);
        let fixed =
            "-m 3G -nodefaults -no-user-config -display none -no-reboot -device virtio-serial";
        words.extend(fixed.split(' ').map(OsString::from));
        // `no_timer_check` is needed because an emulated machine's timer interrupts may be too late
        // for the kernel's check if the host is busy.
        // With `norandmaps`, programs are always at the same addresses, so an emulated processor
        // translates them once. Otherwise it translates them again for each process.
        let fixed = "console=ttyS0 quiet panic=-1 no_timer_check mitigations=off norandmaps";
        let append = format!("{fixed} rxe={} ", folder.display());
        words.extend(["-append".into(), append.into()]);
        words.extend(["-kernel".into(), self.boot.join("vmlinuz").into()]);
        words.extend(["-initrd".into(), self.boot.join("initramfs").into()]);
        words.extend(["-serial".into(), with_path("file:", &folder.join("console"))]);
        for (tag, path) in [("host", Path::new("/")), ("packages", self.tree.as_path())] {
            let share = format!(
                "local,mount_tag={tag},security_model=none,readonly=on,multidevs=remap,path="
            );
            words.extend(["-virtfs".into(), with_path(&share, path)]);
        }
        for port in Port::ALL {
            let name = port.name();
            let socket = format!("socket,id={name},path=");
            words.extend(["-chardev".into(), with_path(&socket, &port.socket(folder))]);
            words.push("-device".into());
            words.push(format!("virtserialport,chardev={name},name={name}").into());
        }
        words
    }
}

/// Returns a qemu option that ends with a path. Commas in the path are doubled, because a single
/// comma ends the path.
fn with_path(option: &str, path: &Path) -> OsString {
    format!("{option}{}", path.display().to_string().replace(',', ",,")).into()
}

/// Waits until the command has exited and all its output has been passed on, or until something
/// else ends the run.
fn follow(events: &Receiver<Event>, limit: Option<Duration>) -> Result<Ended> {
    let end = limit.map(|limit| Instant::now() + limit);
    let (mut passed, mut finished) = ([0; 2], None);
    loop {
        let event = match end {
            Some(end) => events.recv_timeout(end.saturating_duration_since(Instant::now())).ok(),
            None => Some(events.recv()?),
        };
        match event {
            None => return Ok(Ended::TimedOut),
            Some(Event::Signal(signal)) => return Ok(Ended::Interrupted(signal)),
            Some(Event::Stopped(why)) => {
                bail!("the machine stopped before the command ended. {}", why.trim_end());
            }
            Some(Event::Output(port, bytes)) => match port {
                Port::Out => passed[0] += bytes,
                Port::Err => passed[1] += bytes,
                Port::Status => {}
            },
            Some(Event::Finished { status, lengths }) => finished = Some((status, lengths)),
        }
        match finished {
            Some((status, lengths)) if lengths == passed => return Ok(Ended::Status(status)),
            _ => {}
        }
    }
}

/// Returns the last lines of the console.
fn tail(console: &[u8]) -> String {
    let text = String::from_utf8_lossy(console).replace('\r', "");
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn followed(all: impl IntoIterator<Item = Event>, limit: Option<Duration>) -> Result<Ended> {
        let (sender, events) = channel();
        all.into_iter().for_each(|event| sender.send(event).unwrap());
        drop(sender);
        follow(&events, limit)
    }

    #[test]
    fn a_run_ends_after_status_and_all_output_in_any_order() {
        let finished = || Event::Finished { status: 3, lengths: [5, 2] };
        let (out, err) = (|n| Event::Output(Port::Out, n), |n| Event::Output(Port::Err, n));
        let minute = Some(Duration::from_secs(60));
        for events in [[out(3), out(2), err(2), finished()], [finished(), out(1), err(2), out(4)]] {
            assert_eq!(followed(events, minute).unwrap(), Ended::Status(3));
        }
        // While output is missing, the run continues. Here it ends with an error, because all
        // senders are dropped.
        followed([finished(), out(4), err(2)], None).unwrap_err();
        followed([finished(), out(5), err(1)], None).unwrap_err();
    }

    #[test]
    fn a_run_ends_by_limit_by_signal_and_with_the_machine() {
        let (_sender, events) = channel();
        assert_eq!(follow(&events, Some(Duration::ZERO)).unwrap(), Ended::TimedOut);
        let signal = followed([Event::Signal(SIGINT)], None).unwrap();
        assert_eq!(signal, Ended::Interrupted(SIGINT));
        let error = followed([Event::Stopped("no memory\n".to_owned())], None).unwrap_err();
        assert!(error.to_string().contains("no memory"), "{error}");
    }

    #[test]
    fn commas_in_paths_do_not_end_an_option() {
        assert_eq!(with_path("file:", Path::new("/a,b")), "file:/a,,b");
    }

    #[test]
    fn the_tail_is_the_last_thirty_lines() {
        let text: String = (0..40).map(|n| format!("{n}\r\n")).collect();
        let tail = tail(text.as_bytes());
        assert!(tail.starts_with("10\n") && tail.ends_with("\n39"), "{tail}");
    }
}
