//! The memory that the two ends of a control connection lend to and borrow from each other.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdma_connect::LeaseEnd;
use rdma_mem::{AccessFlags, ProtectionDomain, RegionMemory, SharedRegion};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout_at;

use super::borrower::{Borrower, Granted, PendingAsk};
use super::error::LeaseDenial;
use super::frame::{Ask, LeaseFrame, Return};
use super::lender::{Current, Lender, Open, Opened, Why, close, close_refused, deadline_after};
use super::limits::{Account, Counted, LeaseLimits};
use super::outbox::Outbox;
use crate::ledger::after::contain_panic;
use crate::region::descriptor::Descriptor;
use crate::region::reserve::{AT_ONCE, add_local_write};
use crate::sync::now;

/// The maximum number of outstanding requests of this end. The other end accepts twice as many, and ends the connection
/// if it receives more.
const MOST_OUTSTANDING: usize = 32;

/// Memory that another thread is closing.
#[derive(Debug)]
pub(crate) struct Closing {
    /// The number of the lease in `Lender::closing`.
    pub(crate) number: u64,
    pub(crate) thread: JoinHandle<()>,
}

/// Records, when dropped, that handed-over memory has been closed, even if the provider's call panicked.
struct HandingOver<'a> {
    leases: &'a Leases,
    number: u32,
}

impl Drop for HandingOver<'_> {
    fn drop(&mut self) {
        self.leases.lender().note_handing_over(self.number, false);
        self.leases.notify_waiters();
    }
}

/// The state shared by the lender's and the borrower's side. The two sides' locks are never held at the same time.
pub(crate) struct Leases {
    lender: Mutex<Lender>,
    borrower: Mutex<Borrower>,
    pub(super) out: Arc<Outbox>,
    /// Notified when a lease has to be closed, or the earliest deadline changes.
    to_close: Notify,
    /// Notifies all waiters when the state that they wait for may have changed.
    changed: Notify,
    /// Notifies all waiters when a connection ends.
    ended: Notify,
    /// One permit for each request that may be outstanding.
    pub(super) outstanding: Arc<Semaphore>,
    /// The limits for the peer's requests. If `None`, all requests are denied.
    limits: Option<LeaseLimits>,
    account: Arc<Account>,
    /// The time that a lease must have left for a request to be posted.
    pub(super) margin: Duration,
    process: u32,
}

impl Leases {
    pub(crate) fn new(out: Arc<Outbox>, limits: Option<LeaseLimits>, margin: Duration) -> Self {
        Self {
            lender: Mutex::default(),
            borrower: Mutex::default(),
            out,
            to_close: Notify::new(),
            changed: Notify::new(),
            ended: Notify::new(),
            outstanding: Arc::new(Semaphore::new(MOST_OUTSTANDING)),
            limits,
            account: Arc::default(),
            margin,
            process: std::process::id(),
        }
    }

    pub(super) fn is_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }

    pub(super) fn lender(&self) -> MutexGuard<'_, Lender> {
        self.lender.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn borrower(&self) -> MutexGuard<'_, Borrower> {
        self.borrower.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all waiters, which recheck their conditions.
    fn notify_waiters(&self) {
        contain_panic(|| self.changed.notify_waiters());
    }

    /// Same as [`notify_waiters`](Self::notify_waiters), but also wakes tasks that wait for the end of a connection.
    pub(crate) fn notify_all(&self) {
        contain_panic(|| self.ended.notify_waiters());
        self.notify_waiters();
    }

    /// Adds a connection, or its next queue pair. Ends the leases of the previous queue pair.
    pub(crate) fn enter(
        &self,
        number: u32,
        epoch: u32,
        pd: &ProtectionDomain,
        access: AccessFlags,
    ) {
        if let Some(before) = epoch.checked_sub(1) {
            self.end_of(number, before);
        }
        let current = Current { epoch, pd: pd.clone(), access };
        let mut lender = self.lender();
        lender.current.insert(number, current);
        lender.given.entry(number).or_insert_with(|| (epoch, VecDeque::new()));
    }

    /// Ends all leases of a connection's queue pairs up to this epoch.
    pub(crate) fn end_of(&self, number: u32, epoch: u32) {
        let mut lender = self.lender();
        if lender.epoch_of(number).is_none_or(|current| current > epoch)
            && !lender.has_of(number, epoch)
        {
            return; // nothing to end
        }
        if lender.epoch_of(number).is_some_and(|current| current <= epoch) {
            lender.current.remove(&number);
        }
        lender.end_of(number, epoch);
        drop(lender);
        // The senders are dropped after the lock is released, because dropping them notifies the waiting tasks.
        let ended = self.borrower().end_of(number, epoch);
        ended.into_iter().for_each(|answer| contain_panic(|| drop(answer)));
        self.to_close.notify_one();
        self.notify_all();
    }

    /// Removes the connection. Frees memory that the peer has handed over and the program has not received.
    pub(crate) fn leave(&self, number: u32) {
        self.end_of(number, u32::MAX);
        let given = self.lender().given.remove(&number);
        drop(given);
    }

    /// Closes all lent memory and ends all borrowing after the stream has closed.
    pub(crate) fn end(&self) {
        self.out.end();
        let due = self.lender().end_all();
        due.into_iter().for_each(|due| self.close(due));
        let ended = self.borrower().end_all();
        ended.into_values().for_each(|asked| contain_panic(|| drop(asked)));
        self.notify_all();
    }

    /// Closes a lease that is due, or makes another thread close it. Returns that thread, so that the caller can wait
    /// for it.
    fn begin_close(self: &Arc<Self>, due: (Open, Why)) -> Option<Closing> {
        let (open, why) = &due;
        if why.end == LeaseEnd::TimeOver && open.is_lent() {
            // The lease may still wait for the other end's program.
            let over = LeaseFrame::Over { lease: why.lease };
            self.out.send(open.number, open.epoch, &over);
        }
        if open.len() <= AT_ONCE {
            self.close(due);
            return None;
        }
        let left = self.lender().leave_to_close(due);
        let number = match left {
            Ok(number) => number,
            Err(due) => {
                self.close(due);
                return None;
            }
        };
        let leases = Arc::clone(self);
        // If the thread has not started when the stream ends, the memory is closed at that point.
        let thread = tokio::task::spawn_blocking(move || {
            leases.close_left(number);
        });
        Some(Closing { number, thread })
    }

    /// Closes a lease if no thread has started to close it. Returns true if this call closed it.
    pub(crate) fn close_left(&self, number: u64) -> bool {
        let due = self.lender().closing.remove(&number);
        let is_left = due.is_some();
        if let Some(due) = due {
            self.close(due);
        }
        is_left
    }

    fn close(&self, due: (Open, Why)) {
        let (number, epoch, hands_over) = (due.0.number, due.0.epoch, due.1.hands_over);
        let _handing_over = hands_over.then(|| HandingOver { leases: self, number });
        if let Some(given) = close(due) {
            let kept = self.lender().keep_given(number, epoch, given);
            // If the connection is gone, this frees the memory.
            drop(kept);
        }
    }

    /// Closes leases when they end, until the future is dropped.
    pub(crate) async fn close_ended_leases(self: &Arc<Self>) -> ! {
        loop {
            let due = self.lender().next_due(now());
            match due {
                Ok(due) => drop(self.begin_close(due)),
                Err(Some(until)) => {
                    let _ = timeout_at(until.into(), self.to_close.notified()).await;
                }
                Err(None) => self.to_close.notified().await,
            }
            // Lets other tasks run when many leases end at once.
            tokio::task::coop::consume_budget().await;
        }
    }

    /// Waits until `look` returns a value. Calls it whenever `changed` is notified.
    pub(super) async fn until<R>(&self, look: impl FnMut() -> Option<R>) -> R {
        crate::sync::until(&self.changed, look).await
    }

    /// Waits until `look` returns a value. Calls it whenever a connection ends.
    pub(super) async fn until_end<R>(&self, look: impl FnMut() -> Option<R>) -> R {
        crate::sync::until(&self.ended, look).await
    }

    /// Adds open memory and notifies the peer. Returns the number of the lease.
    ///
    /// # Errors
    /// Returns the memory if the connection has ended.
    #[allow(clippy::result_large_err)] // it is the memory
    pub(super) fn lend(&self, open: Open) -> Result<u32, Open> {
        let (number, epoch) = (open.number, open.epoch);
        let mut lender = self.lender();
        let lease = lender.insert(open)?;
        // Sent under the lock, because the lease may end at once, and this frame must be the first one about it.
        self.out.send(number, epoch, &LeaseFrame::Lend { lease });
        drop(lender);
        self.to_close.notify_one();
        Ok(lease)
    }

    /// Ends a lease before its time is up.
    pub(super) fn revoke(&self, number: u32, lease: u32) {
        let mut lender = self.lender();
        let Some(epoch) = lender.lease(number, lease).map(|open| open.epoch) else { return };
        lender.end(lease, LeaseEnd::Revoked);
        self.out.send(number, epoch, &LeaseFrame::Over { lease });
        drop(lender);
        self.to_close.notify_one();
    }

    /// Handles a frame from the other end. If the frame ends a lease that must be closed before the next frame is
    /// handled, returns the closing.
    ///
    /// # Errors
    /// A description of the violation, if the other end must not send this frame.
    pub(crate) fn receive(
        self: &Arc<Self>,
        number: u32,
        epoch: u32,
        frame: LeaseFrame,
    ) -> Result<Option<Closing>, &'static str> {
        let mut closing = None;
        match frame {
            LeaseFrame::Ask(ask) => self.handle_ask(number, epoch, ask)?,
            LeaseFrame::Back { lease, how } => {
                let hands_over = how == Return::HandedOver;
                let mut lender = self.lender();
                let is_there = lender.lease(number, lease).is_some();
                let ended = is_there.then(|| lender.take(lease)).flatten();
                if hands_over && ended.is_some() {
                    lender.note_handing_over(number, true);
                }
                drop(lender);
                // The memory is closed before the next frame is handled, which may request more memory or end the
                // connection.
                let end = match how {
                    Return::Failed => LeaseEnd::BorrowerFailed,
                    Return::Dropped | Return::HandedOver => LeaseEnd::Returned,
                };
                let why = Why { end, lease, hands_over };
                closing = ended.and_then(|open| self.begin_close((open, why)));
            }
            LeaseFrame::Lend { lease } => {
                let is_current = self.lender().epoch_of(number) == Some(epoch);
                if is_current && self.borrower().announce(number, epoch, lease) {
                    self.forget_ended(number, epoch);
                } else {
                    self.out.reply(
                        number,
                        epoch,
                        &LeaseFrame::Back { lease, how: Return::Dropped },
                    )?;
                }
            }
            LeaseFrame::Over { lease } => self.borrower().note_closed(number, lease),
            LeaseFrame::Deny { ask, denial } => {
                if let Some(mut asked) = self.take_answered(number, ask) {
                    let answer = asked.answer.take();
                    contain_panic(|| drop(answer.map(|answer| answer.send(Err(denial)))));
                    contain_panic(|| drop(asked));
                }
            }
            LeaseFrame::Grant { ask, lease, access, descriptor } => {
                let Some(asked) = self.take_answered(number, ask) else {
                    // This end has no such request, so the memory returns to the peer.
                    let back = LeaseFrame::Back { lease, how: Return::Dropped };
                    self.out.reply(number, epoch, &back)?;
                    return Ok(None);
                };
                self.handle_grant(asked, lease, access, descriptor)?;
            }
        }
        self.notify_waiters();
        Ok(closing)
    }

    /// Sends a request to the peer. Returns the receiver of the answer, which fails if the connection has ended.
    pub(super) fn ask(
        &self,
        number: u32,
        mut ask: Ask,
        permit: OwnedSemaphorePermit,
    ) -> oneshot::Receiver<Result<Granted, LeaseDenial>> {
        let (answer, answered) = oneshot::channel();
        let Some(epoch) = self.lender().epoch_of(number) else { return answered };
        let mut borrower = self.borrower();
        ask.ask = borrower.next();
        let since = Instant::now();
        borrower.note_pending(PendingAsk {
            number,
            epoch,
            since,
            ask,
            answer: Some(answer),
            _permit: permit,
        });
        self.out.send(number, epoch, &LeaseFrame::Ask(ask));
        drop(borrower);
        self.forget_ended(number, epoch);
        answered
    }

    /// Removes and returns the answered request, or returns `None` if this connection has no such request.
    fn take_answered(&self, number: u32, ask: u32) -> Option<PendingAsk> {
        self.borrower().answered(number, ask)
    }

    fn handle_grant(
        self: &Arc<Self>,
        mut asked: PendingAsk,
        lease: u32,
        access: AccessFlags,
        descriptor: Descriptor,
    ) -> Result<(), &'static str> {
        if asked.is_violated_by(access, &descriptor) {
            // This error ends the connection, which notifies the waiting task.
            self.borrower().note_pending(asked);
            return Err("it lends less than was requested, or invalid memory");
        }
        let granted = Granted {
            leases: Arc::clone(self),
            number: asked.number,
            epoch: asked.epoch,
            lease,
            access,
            descriptor: descriptor.asked_at(asked.since),
            awaits: asked.ask.lease != 0,
            is_closed: self.borrower().note_borrowed(lease),
            hands_over: false.into(),
            has_failed: false.into(),
            is_detached: false.into(),
        };
        // If the task no longer waits, the memory returns to the peer, or the lease waits for the program again.
        let answer = asked.answer.take();
        contain_panic(move || match answer {
            Some(answer) => drop(answer.send(Ok(granted))),
            None => drop(granted),
        });
        contain_panic(|| drop(asked));
        Ok(())
    }

    pub(super) fn forget_borrowed(
        &self,
        lease: u32,
        is_closed: &Arc<std::sync::atomic::AtomicBool>,
    ) {
        self.borrower().forget_borrowed(lease, is_closed);
    }

    /// Puts back a lease that was granted but not received, so that it waits for the program again.
    pub(super) fn await_again(&self, number: u32, epoch: u32, lease: u32) {
        if self.lender().epoch_of(number) == Some(epoch) {
            self.borrower().announce_again(number, epoch, lease);
            self.forget_ended(number, epoch);
            self.notify_waiters();
        }
    }

    /// Cleans up if the connection has just ended: entries added since then would stay forever.
    fn forget_ended(&self, number: u32, epoch: u32) {
        if self.lender().epoch_of(number) != Some(epoch) {
            let ended = self.borrower().end_of(number, epoch);
            ended.into_iter().for_each(|answer| contain_panic(|| drop(answer)));
        }
    }

    fn handle_ask(self: &Arc<Self>, number: u32, epoch: u32, ask: Ask) -> Result<(), &'static str> {
        self.out.note_ask()?;
        match self.admit(number, epoch, &ask) {
            Err(denial) => self.deny(number, epoch, ask.ask, denial),
            Ok(None) => {}
            Ok(Some((counted, pd))) => {
                let is_large = ask.length > AT_ONCE as u64;
                let leases = Arc::clone(self);
                let serve = move || leases.serve(number, epoch, &ask, counted, &pd);
                if is_large {
                    // If the runtime shuts down first, the stream ends, too.
                    drop(tokio::task::spawn_blocking(serve));
                } else {
                    serve();
                }
            }
        }
        Ok(())
    }

    fn deny(&self, number: u32, epoch: u32, ask: u32, denial: LeaseDenial) {
        self.out.answer(number, epoch, &LeaseFrame::Deny { ask, denial });
    }

    /// Checks a request. For new memory, returns its share of the limits and its domain, and the caller opens the
    /// memory. A request for memory that is already lent is granted here and returns `None`.
    fn admit(
        &self,
        number: u32,
        epoch: u32,
        ask: &Ask,
    ) -> Result<Option<(Counted, ProtectionDomain)>, LeaseDenial> {
        let lender = self.lender();
        let current = lender.current.get(&number).filter(|current| current.epoch == epoch);
        let current = current.ok_or(LeaseDenial::Ended)?;
        if ask.lease != 0 {
            let open = lender.lease(number, ask.lease).ok_or(LeaseDenial::Ended)?;
            self.grant(ask.ask, ask.lease, open);
            return Ok(None);
        }
        let limits = self.limits.as_ref().ok_or(LeaseDenial::NotOffered)?;
        let counted = limits.count(&self.account, ask, current.access)?;
        Ok(Some((counted, current.pd.clone())))
    }

    fn grant(&self, ask: u32, lease: u32, open: &Open) {
        let (access, descriptor) = (open.access, open.descriptor());
        let grant = LeaseFrame::Grant { ask, lease, access, descriptor };
        self.out.answer(open.number, open.epoch, &grant);
    }

    /// Opens new memory for the peer.
    fn serve(&self, number: u32, epoch: u32, ask: &Ask, counted: Counted, pd: &ProtectionDomain) {
        let Some(memory) = allocate(ask, pd) else {
            // Frees the request's share of the limits before the peer is notified of the denial.
            drop(counted);
            return self.deny(number, epoch, ask.ask, LeaseDenial::Failed);
        };
        let until = deadline_after(ask.time);
        let (access, opened) = (ask.access, Opened::Borrowed(memory, counted));
        let mut lender = self.lender();
        let inserted = lender.insert(Open { number, epoch, until, access, opened });
        match inserted {
            Ok(lease) => {
                if let Some(open) = lender.lease(number, lease) {
                    self.grant(ask.ask, lease, open);
                }
                drop(lender);
                self.to_close.notify_one();
            }
            Err(open) => {
                drop(lender);
                close_refused(open);
                self.deny(number, epoch, ask.ask, LeaseDenial::Ended);
            }
        }
    }
}

/// Allocates memory and opens it to the borrower.
fn allocate(ask: &Ask, pd: &ProtectionDomain) -> Option<SharedRegion> {
    let length = usize::try_from(ask.length).ok()?;
    let alignment = usize::try_from(ask.alignment).ok()?;
    let memory = RegionMemory::allocate_aligned(length, alignment);
    let opened = memory.and_then(|memory| {
        pd.register_shared(memory, add_local_write(ask.access)).map_err(|(_, error)| error)
    });
    let error = match opened {
        Ok(opened) => return Some(opened),
        Err(error) => error,
    };
    tracing::debug!(%error, length, "memory that a peer has requested could not be opened");
    None
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases").field("limits", &self.limits).finish_non_exhaustive()
    }
}
