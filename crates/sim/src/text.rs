//! Formats a script for people to read.

use std::fmt;

use crate::script::{
    ALWAYS, ATOMICS, Kind, Operation, READS, SLOTS, Script, ScriptRequest, WRITES, Weather, Window,
};

impl fmt::Display for Weather {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.loss >= ALWAYS {
            return write!(f, "cut");
        }
        write!(f, "{} ns", self.latency_ns)?;
        let rest = [
            (self.jitter_ns, "jitter"),
            (self.bits_per_second, "bit/s"),
            (self.loss.into(), "loss"),
            (self.duplication.into(), "duplication"),
            (self.reordering.into(), "reordering"),
            (self.corruption.into(), "corruption"),
        ];
        rest.iter().filter(|(n, _)| *n > 0).try_for_each(|(n, what)| write!(f, ", {what} {n}"))
    }
}

impl Window {
    fn describe(&self, kind: Kind, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { slot, back, careful, from, bytes, rights, .. } = *self;
        let by = if slot % SLOTS == 0 { "type 1" } else { "type 2" };
        match kind {
            Kind::Bind => {
                match bytes {
                    usize::MAX => write!(f, " window {slot} ({by}) to all from {from} on, for")?,
                    _ => write!(f, " window {slot} ({by}) to {bytes} bytes from {from} on, for")?,
                }
                let rights = [(READS, "READs"), (WRITES, "WRITEs"), (ATOMICS, "atomics")]
                    .into_iter()
                    .filter(|(right, _)| rights & right != 0);
                rights.map(|(_, what)| what).try_for_each(|what| write!(f, " {what}"))?;
            }
            Kind::Invalidate => write!(f, " window {slot} ({by})")?,
            Kind::Send => write!(f, ", invalidates window {slot}")?,
            _ => write!(f, " through window {slot}")?,
        }
        match self.edge.filter(|_| matches!(kind, Kind::Read | Kind::Write)) {
            Some(true) => write!(f, " to one byte after its end")?,
            Some(false) => write!(f, " to its end")?,
            None => {}
        }
        if back > 0 {
            write!(f, " of {back} binds before")?;
        }
        if careful { write!(f, " if it works") } else { Ok(()) }
    }
}

impl fmt::Display for ScriptRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, length, at, elements, .. } = self;
        match kind {
            Kind::Send | Kind::Write | Kind::Read => write!(f, "{kind:?} {length} bytes")?,
            _ => write!(f, "{kind:?}")?,
        }
        if *kind != Kind::Send && !kind.is_local() {
            write!(f, " at {at}")?;
        }
        if let Some(window) = &self.window {
            window.describe(*kind, f)?;
        }
        if *elements > 1 {
            write!(f, ", {elements} elements")?;
        }
        let flags = [
            (self.immediate, "immediate"),
            (self.fenced, "fenced"),
            (self.inline, "inline"),
            (!self.signaled, "unsignaled"),
        ];
        flags.iter().filter(|(is, _)| *is).try_for_each(|(_, what)| write!(f, ", {what}"))
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Post { end, request } => {
                write!(f, "q{end}: {request}")?;
                match request.group {
                    Some(group) => write!(f, ", to group {group}"),
                    None if request.to != usize::MAX => write!(f, ", to q{}", request.to),
                    None => Ok(()),
                }
            }
            Self::Receive { end, count, elements } => {
                write!(f, "q{end}: {count} receives of {elements} elements")
            }
            Self::Pass { nanoseconds } => write!(f, "{nanoseconds} ns pass"),
            Self::Link { from, to, weather } => write!(f, "link d{from} to d{to}: {weather}"),
            Self::Port { device, up } => {
                write!(f, "d{device}: port {}", if *up { "up" } else { "down" })
            }
            Self::Die { device } => write!(f, "d{device}: its queue pairs are destroyed"),
            Self::Deregister { end } => write!(f, "q{end}: its target is deregistered"),
            Self::Error { end } => write!(f, "q{end}: to error"),
            Self::Reconnect { connection } => write!(f, "c{connection}: reset and connected again"),
            Self::Deallocate { end, slot } => write!(f, "q{end}: window {slot} is deallocated"),
            Self::Join { end, group } => write!(f, "q{end}: joins group {group}"),
            Self::Leave { end, group } => write!(f, "q{end}: leaves group {group}"),
        }
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, settings, operations, .. } = self;
        let link = if settings.infiniband { "InfiniBand" } else { "RoCE" };
        writeln!(f, "{} devices of {link}, seed {seed:#x}", settings.devices)?;
        writeln!(f, "links: {}", settings.weather)?;
        writeln!(f, "messages of up to {} bytes", settings.longest)?;
        for (n, c) in settings.connections.iter().enumerate() {
            let [a, b] = c.devices;
            let shared = c.shared.map(|shared| if shared { " (shared receives)" } else { "" });
            let (first, second) = (2 * n, 2 * n + 1);
            write!(
                f,
                "c{n}: {:?}, q{first} of d{a}{} and q{second} of d{b}{}",
                c.service, shared[0], shared[1]
            )?;
            write!(f, ", MTU {}, PSN {:#x}, timeout {}", c.mtu, c.psn, c.timeout)?;
            write!(f, ", retries {} and {} by {}", c.retries, c.rnr_retries, c.min_rnr_timer)?;
            writeln!(f, ", {} READs, queues of {} and {}", c.rd_atomic, c.sends, c.receives)?;
        }
        for (n, device) in settings.datagrams.iter().enumerate() {
            writeln!(f, "q{}: Datagram, of d{device}", 2 * settings.connections.len() + n)?;
        }
        operations.iter().try_for_each(|operation| writeln!(f, "  {operation}"))
    }
}
