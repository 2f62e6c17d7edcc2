//! The resolution of addresses and of the routes to them by the kernel, without waiting.

use std::ffi::c_int;
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rdma_mem::Context;
use rdma_proto::cm::PortSpace;
use rdma_sys::Errno;
use rdma_sys::cm::rdma_cm_event_type as Kind;

use super::RESOLVED_WITHIN;
use super::candidates::Candidates;
use super::entry::{Entry, Stage};
use super::iwarp::addresses_of;
use super::library::system_error;
use crate::engine::{Engine, Handle, NEXT, State};
use crate::error::{End, Error, Phase};
use crate::happening::{Happening, Way};

impl Engine {
    /// Begins to resolve the first of these addresses that the device reaches, and the route to it. An event follows, or
    /// [`Handle::reached`] returns the result.
    pub(crate) fn reach(
        self: &Arc<Self>,
        space: PortSpace,
        all: &[SocketAddr],
        is_awaited: bool,
    ) -> Result<Handle, Error> {
        self.check_process()?;
        let own = addresses_of(self.context())?;
        let token = NEXT.fetch_add(1, Ordering::Relaxed);
        let handle = self.handle(token);
        let waiting = all.iter().map(|&to| (None, to)).collect();
        let mut state = self.locked();
        let until = Instant::now().checked_add(RESOLVED_WITHIN);
        let candidates = Candidates { space, waiting, own, failed: None, until, is_awaited };
        self.try_next(&mut state, token, candidates);
        self.finish(&mut state, token);
        drop(state);
        Ok(handle)
    }

    /// Begins to resolve the next address, with another ID. If there is none, queues the event with the reason that the
    /// first one failed. The entry of the last ID stays, so that its file becomes readable.
    fn try_next(&self, state: &mut State, token: u64, mut candidates: Candidates) {
        let Some(managed) = &mut state.managed else { return };
        while let Some((source, to)) = candidates.next(Instant::now()) {
            let begun = managed.channel.create_id(token, candidates.space).and_then(|id| {
                id.resolve_address(source, to)?;
                Ok(id)
            });
            match begun {
                Ok(id) => {
                    let before = managed.entries.get_mut(&token);
                    // The program may poll the file.
                    let watch = before.map(|it| mem::take(&mut it.watch)).unwrap_or_default();
                    let candidates = Some(candidates);
                    let entry = Entry { candidates, watch, ..Entry::new(id, Stage::Resolving) };
                    managed.entries.insert(token, entry);
                    return;
                }
                Err(errno) => {
                    let error = unreached(to, self.context(), (Kind::ADDR_ERROR, errno));
                    candidates.fail(error, false);
                }
            }
        }
        let error = candidates.failed.unwrap_or(Error::Closed);
        self.report(state, token, Err(error), candidates.is_awaited);
    }

    fn report(&self, state: &mut State, token: u64, result: Result<Way, Error>, is_awaited: bool) {
        match &mut state.managed {
            Some(managed) if is_awaited => _ = managed.reached.insert(token, result),
            _ => {
                let event = Happening::Resolved(Box::new(result));
                self.add_managed(state, token, Some(event));
            }
        }
    }

    /// Continues a resolution after an event: with the next address, or with the event for the program.
    pub(super) fn resolved(&self, state: &mut State, token: u64, (event, status): (Kind, c_int)) {
        let Some(managed) = &mut state.managed else { return };
        let Some(entry) = managed.entries.get_mut(&token) else { return };
        if !matches!(entry.stage, Stage::Resolved | Stage::Unresolved) {
            return;
        }
        let Some(mut candidates) = entry.candidates.take() else { return };
        let Some(&(chosen, to)) = candidates.waiting.front() else { return };
        if entry.stage == Stage::Resolved {
            let way = Way { to, port: entry.id.port(), source: None, chosen };
            return self.report(state, token, Ok(way), candidates.is_awaited);
        }
        let found = entry.id.check_device(self.context()).err();
        let is_other = found.is_some();
        let error = match found {
            Some(found) => {
                let device = self.context().device().name().to_owned();
                Error::OtherDevice { address: to.ip(), device, found }
            }
            None => {
                let errno = Errno::from_raw(status.saturating_abs());
                unreached(to, self.context(), (event, errno))
            }
        };
        candidates.fail(error, is_other);
        self.try_next(state, token, candidates);
    }
}

/// Returns the error of an address that the kernel does not reach through a device.
fn unreached(to: SocketAddr, context: &Context, failure: (Kind, Errno)) -> Error {
    match failure {
        (Kind::DEVICE_REMOVAL, _) => End::DeviceRemoved.into(),
        (_, errno @ (Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE | Errno::EIO)) => {
            Error::System { tried: "resolve the address", source: system_error(errno) }
        }
        (_, Errno::ETIMEDOUT) => End::Unanswered { phase: Phase::Resolve }.into(),
        _ => Error::NoRoute { address: to.ip(), device: context.device().name().to_owned() },
    }
}

impl Handle {
    /// Waits until the address is resolved, for at most `limit`. After it, returns the reason that the first address
    /// failed, if it has. No other thread receives the result.
    pub(crate) fn reached(&self, limit: Duration) -> Result<Way, Error> {
        let reached = self
            .engine
            .wait_for(Some(limit), |state| state.managed.as_mut()?.reached.remove(&self.token));
        reached?.unwrap_or_else(|| {
            let mut state = self.engine.locked();
            let managed = state.managed.as_mut();
            let entry = managed.and_then(|managed| managed.entries.get_mut(&self.token));
            let failed = entry.and_then(|entry| entry.candidates.as_mut()?.failed.take());
            Err(failed.unwrap_or_else(|| End::Unanswered { phase: Phase::Resolve }.into()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_a_resolution_name_their_cause() {
        rdma_soft::install();
        let context = rdma_mem::open_device("soft0").unwrap();
        let to = ([192, 0, 2, 1], 7).into();
        let error = |event, errno| unreached(to, &context, (event, errno));
        let removed = error(Kind::DEVICE_REMOVAL, Errno::from_raw(0));
        assert!(matches!(removed, Error::Ended(End::DeviceRemoved)), "{removed}");
        for event in [Kind::ADDR_ERROR, Kind::ROUTE_ERROR] {
            let late = error(event, Errno::ETIMEDOUT);
            let phase = Phase::Resolve;
            assert!(matches!(late, Error::Ended(end) if end == End::Unanswered { phase }));
            let unreached = error(event, Errno::ENETUNREACH);
            assert!(matches!(unreached, Error::NoRoute { .. }), "{unreached}");
            let failed = error(event, Errno::EMFILE);
            assert!(failed.to_string().contains("cannot resolve the address: "), "{failed}");
        }
    }
}
