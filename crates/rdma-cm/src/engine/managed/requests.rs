//! The requests of iWARP connections. A thread of its own sends each.

use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use rdma_sys::Errno;
use rustix::event::{EventfdFlags, eventfd};

use super::apart;
use super::entry::Request;
use super::library::{Id, Token};
use crate::engine::files::{clear, set};
use crate::error::Error;

/// The maximum number of requests of a channel that are being sent. Requests to a host that does not answer keep their
/// threads for minutes.
const MOST: usize = 128;

/// Sends requests, and collects the reasons that the kernel did not send some.
pub(super) struct Requests(Arc<Unsent>);

struct Unsent {
    reasons: Mutex<Vec<(Token, Errno)>>,
    /// Readable while there are reasons.
    bell: OwnedFd,
}

impl Requests {
    pub(super) fn open() -> Result<Self, Error> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(Error::system("open an event channel"))?;
        Ok(Self(Arc::new(Unsent { reasons: Mutex::default(), bell })))
    }

    /// Sends a request. Does not wait until it is sent. The thread keeps the ID until the kernel has returned.
    ///
    /// # Errors
    /// Fails with `EAGAIN` if [`MOST`] requests are being sent.
    pub(super) fn send(&self, id: &Arc<Id>, request: Request) -> Result<(), Errno> {
        // Each thread has a reference.
        if Arc::strong_count(&self.0) > MOST {
            return Err(Errno::EAGAIN);
        }
        id.end_apart();
        let (unsent, id) = (Arc::clone(&self.0), Arc::clone(id));
        let spawned = apart::spawn(move || {
            if let Err(errno) = id.connect(&request.own, &request.private_data) {
                unsent.add(id.token(), errno);
            }
            // The kernel has the queue pair now, so that it may be destroyed.
            drop(request);
            // The connection may have been dropped meanwhile. No thread waits for this one.
            if let Some(id) = Arc::into_inner(id) {
                id.end_here();
            }
        });
        let errno =
            |error: std::io::Error| error.raw_os_error().map_or(Errno::EAGAIN, Errno::from_raw);
        spawned.map_err(errno)
    }

    /// Returns the requests that were not sent, with the reasons, once.
    pub(super) fn take_unsent(&self) -> Vec<(Token, Errno)> {
        let Unsent { reasons, bell } = &*self.0;
        // First, because a reason that is added meanwhile makes the file readable again.
        clear(bell);
        mem::take(&mut *reasons.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Unsent {
    fn add(&self, token: Token, errno: Errno) {
        self.reasons.lock().unwrap_or_else(PoisonError::into_inner).push((token, errno));
        set(&self.bell);
    }
}

/// Returns the file that is readable while requests have failed.
impl AsFd for Requests {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.bell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::time::Duration;

    use rdma_mem::Context;
    use rdma_proto::cm::PortSpace;
    use rdma_proto::cm::wire::Reason;
    use rdma_qp::{CompletionQueue, PreparedQueuePair, prelude::*};
    use test_support::program::{in_own_process_with, is_emulated};

    use super::*;
    use crate::engine::managed::RESOLVED_WITHIN;
    use crate::engine::managed::gated::{GATE, engine, over_library};
    use crate::engine::{Engine, Handle};
    use crate::error::End;
    use crate::happening::Happening;
    use crate::options::BindOptions;

    /// The limit of a wait. Only an event that is missing reaches it.
    const LIMIT: Duration = Duration::from_secs(60);

    struct Node {
        context: Context,
        engine: Arc<Engine>,
        listener: Handle,
        to: SocketAddr,
    }

    impl Node {
        fn new() -> Self {
            let context = rdma_mem::open_device("soft0").unwrap();
            let engine = engine(&context);
            let any = (Ipv4Addr::LOCALHOST, 0).into();
            let (listener, port) = engine.listen_managed(any, BindOptions::new()).unwrap();
            Self { context, engine, listener, to: (Ipv4Addr::LOCALHOST, port).into() }
        }

        fn queue_pair(&self) -> PreparedQueuePair {
            let cq = CompletionQueue::create(&self.context, 4).unwrap();
            let pd = self.context.allocate_pd().unwrap();
            pd.create_qp().send_cq(&cq).recv_cq(&cq).build().unwrap()
        }

        /// Resolves the listener's address, and requests a connection.
        fn connect(&self) -> Handle {
            let resolved = self.engine.reach(PortSpace::Tcp, &[self.to], true).unwrap();
            let way = resolved.reached(RESOLVED_WITHIN).unwrap();
            let request = Request::new(&self.queue_pair(), b"").unwrap();
            self.engine.connect_managed(Some(resolved), (way.chosen, way.to), request).unwrap()
        }

        fn next(&self, of: &Handle) -> Happening {
            let next = self.engine.next(|token| token == of.token, Some(LIMIT)).unwrap();
            next.expect("an event").1
        }

        /// Calls functions that need the engine.
        fn check_others(&self) {
            let any = (Ipv4Addr::LOCALHOST, 0).into();
            drop(self.engine.listen_managed(any, BindOptions::new()).unwrap());
            let none = self.engine.next(|token| token == 0, Some(Duration::ZERO)).unwrap();
            assert!(none.is_none());
        }
    }

    /// Runs a test with the gated library.
    fn gated(test: &str, work: impl FnOnce(&Node)) {
        if is_emulated() {
            return println!("SKIP: the libraries are not for the emulated machine");
        }
        let name = format!("engine::managed::requests::tests::{test}");
        in_own_process_with(&name, over_library, || work(&Node::new()));
    }

    #[test]
    fn a_request_that_waits_in_the_kernel_holds_up_no_thread() {
        gated("a_request_that_waits_in_the_kernel_holds_up_no_thread", |node| {
            GATE.close();
            let [kept, dropped] = [node.connect(), node.connect()];
            GATE.wait_until(|it| it.connects == 2);
            node.check_others();
            drop(dropped);
            node.check_others();
            // The kernel's calls with the ID have not returned.
            assert_eq!(GATE.ended(), 0);
            GATE.open();
            GATE.wait_until(|it| it.ended == 1);

            // Until the peer has received the withdrawal, both requests can be rejected.
            let mut requesters = Vec::new();
            let is_awaited = |token| token == node.listener.token || token == kept.token;
            let end = loop {
                let next = node.engine.next(is_awaited, Some(LIMIT)).unwrap();
                match next.expect("an event").1 {
                    Happening::Ended(end) => break end,
                    requested => {
                        let token = requested.requester().expect("a request");
                        let requester = Handle { engine: Arc::clone(&node.engine), token };
                        let _ = requester.reject(Reason::CONSUMER_DEFINED, b"");
                        requesters.push(requester);
                    }
                }
            };
            assert!(matches!(end, End::Rejected { .. }), "{end}");
            drop(kept);
            GATE.wait_until(|it| it.ended >= 2);
        });
    }

    #[test]
    fn the_end_of_a_request_holds_up_no_thread() {
        gated("the_end_of_a_request_holds_up_no_thread", |node| {
            let unanswered = node.connect();
            let token = node.next(&node.listener).requester().expect("a request");
            let undecided = Handle { engine: Arc::clone(&node.engine), token };
            GATE.close();
            drop(undecided);
            drop(unanswered);
            GATE.wait_until(|it| it.ends == 2);
            node.check_others();
            assert_eq!(GATE.ended(), 0);
            GATE.open();
            GATE.wait_until(|it| it.ended == 2);
        });
    }

    #[test]
    fn a_request_that_is_not_sent_has_its_event() {
        gated("a_request_that_is_not_sent_has_its_event", |node| {
            GATE.refuse(Errno::ECONNREFUSED);
            let refused = node.connect();
            let Happening::Ended(End::Rejected { reason, .. }) = node.next(&refused) else {
                panic!()
            };
            assert_eq!(reason, Reason::INVALID_SERVICE_ID);

            GATE.refuse(Errno::ENOMEM);
            let failed = node.connect();
            let Happening::Ended(End::Kernel { errno, .. }) = node.next(&failed) else { panic!() };
            assert_eq!(errno, libc::ENOMEM);
            // Each reason is returned once.
            let managed = node.engine.locked();
            let requests = managed.managed.as_ref().and_then(|it| it.requests.as_ref()).unwrap();
            assert_eq!(requests.take_unsent(), []);
        });
    }
}
