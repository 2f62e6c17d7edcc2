//! Several requests on rented memory, with one doorbell.
#![allow(unsafe_code)]

use std::fmt;

use rdma_mem::RemoteMemoryRegion;
use rdma_qp::{ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WriteWorkRequest};

use crate::batch::{BatchRefused, Item};
use crate::rent::sealed::{Gathered as _, Scattered as _};
use crate::ticket::Ticket;
use crate::{InFlight, Rent, RentMut, Request, Scope, TransportError};

/// A batch that was not posted, or not wholly, with its memory.
#[non_exhaustive]
pub struct RefusedBatch<'scope, B> {
    /// What is under way, or may be: the first ones.
    pub posted: Vec<InFlight<'scope, B>>,
    /// The memory of the others.
    pub refused: Vec<B>,
    /// Why they were not posted.
    pub error: TransportError,
}

impl<B> fmt::Debug for RefusedBatch<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefusedBatch")
            .field("posted", &self.posted.len())
            .field("refused", &self.refused.len())
            .field("error", &self.error)
            .finish()
    }
}

type Rented<'scope, B, const N: usize> = Result<[InFlight<'scope, B>; N], RefusedBatch<'scope, B>>;

/// Each ticket with its memory.
#[inline]
#[allow(clippy::expect_used)] // both are of N
fn with_memory<'scope, B, const N: usize>(
    posted: Result<[Ticket<'scope>; N], BatchRefused<'scope, N>>,
    bufs: [B; N],
) -> Rented<'scope, B, N> {
    match posted {
        Ok(tickets) => {
            let mut tickets = tickets.into_iter();
            Ok(bufs.map(|buf| InFlight::new(tickets.next().expect("one for each"), buf)))
        }
        Err(BatchRefused { error, tickets }) => {
            let mut batch = RefusedBatch { posted: Vec::new(), refused: Vec::new(), error };
            for (ticket, buf) in tickets.into_iter().zip(bufs) {
                match ticket {
                    Some(ticket) => batch.posted.push(InFlight::new(ticket, buf)),
                    None => batch.refused.push(buf),
                }
            }
            Err(batch)
        }
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Sends a message of each, with one doorbell. Waits for room for all.
    ///
    /// # Errors
    /// [`RefusedBatch`] with the memory of what was not posted.
    #[inline]
    pub fn send_batch_from<B: Rent + 'scope, const N: usize>(
        &'scope self,
        bufs: [B; N],
    ) -> Rented<'scope, B, N> {
        let lists = bufs.each_ref().map(|buf| buf.gather());
        let posted = self.post_rented(lists.each_ref().map(|list| {
            let (elements, domains) = list.parts();
            Request::from(SendWorkRequest::new(elements).with_domains(domains))
        }));
        drop(lists);
        with_memory(posted, bufs)
    }

    /// Writes each to the beginning of its remote memory, with one doorbell. Waits for room for all.
    ///
    /// # Errors
    /// [`RefusedBatch`] with the memory of what was not posted.
    #[inline]
    pub fn write_batch_from<B: Rent + 'scope, const N: usize>(
        &'scope self,
        writes: [(B, RemoteMemoryRegion); N],
    ) -> Rented<'scope, B, N> {
        let lists = writes.each_ref().map(|(buf, remote)| (buf.gather(), *remote));
        let posted = self.post_rented(lists.each_ref().map(|(list, remote)| {
            let (elements, domains) = list.parts();
            Request::from(WriteWorkRequest::new(elements, *remote).with_domains(domains))
        }));
        drop(lists);
        with_memory(posted, writes.map(|(buf, _)| buf))
    }

    /// Fills each from the beginning of its remote memory, with one doorbell. Waits for room for all.
    ///
    /// # Errors
    /// [`RefusedBatch`] with the memory of what was not posted.
    #[inline]
    pub fn read_batch_into<B: RentMut + 'scope, const N: usize>(
        &'scope self,
        mut reads: [(B, RemoteMemoryRegion); N],
    ) -> Rented<'scope, B, N> {
        let mut lists = reads.each_mut().map(|(buf, remote)| (buf.scatter(), *remote));
        let posted = self.post_rented(lists.each_mut().map(|(list, remote)| {
            let (elements, domains) = list.parts();
            Request::from(ReadWorkRequest::new(elements, *remote).with_domains(domains))
        }));
        drop(lists);
        with_memory(posted, reads.map(|(buf, _)| buf))
    }

    /// Takes a message into each, with one doorbell. A full queue is as for
    /// [`post_receive`](Self::post_receive).
    ///
    /// # Errors
    /// [`RefusedBatch`] with the memory of what was not posted.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use rdma_channel::{TransportError, prelude::*};
    /// # use rdma_qp::SendWorkRequest;
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let channel = pd.create_channel().build()?;
    /// # let endpoint = channel.endpoint();
    /// # let mut channel = channel.handshake(endpoint)?; // to itself
    /// let mut memory = pd.allocate_region(128)?;
    /// channel
    ///     .scope(|s| {
    ///         let (one, other) = memory.as_slice_mut().split_at(64);
    ///         let [first, second] = s.receive_batch_into([one, other])?;
    /// #       s.post_batch([1, 2].map(|n| SendWorkRequest::only_immediate(n).into()))?;
    ///         let (_, message) = first.done(Duration::from_secs(1))?;
    ///         println!("{} bytes", message.scattered_bytes().unwrap_or(0));
    ///         Ok::<_, TransportError>(drop(second)) // the scope ends it
    ///     })
    ///     .unwrap();
    /// # Ok::<(), TransportError>(())
    /// ```
    #[inline]
    pub fn receive_batch_into<B: RentMut + 'scope, const N: usize>(
        &'scope self,
        mut bufs: [B; N],
    ) -> Rented<'scope, B, N> {
        let mut lists = bufs.each_mut().map(|buf| buf.scatter());
        let posted = self.post_rented(lists.each_mut().map(|list| {
            let (elements, domains) = list.parts();
            ReceiveWorkRequest::new(elements).with_domains(domains).with_id(0)
        }));
        drop(lists);
        with_memory(posted, bufs)
    }

    #[inline]
    fn post_rented<I: Item, const N: usize>(
        &'scope self,
        mut items: [I; N],
    ) -> Result<[Ticket<'scope>; N], BatchRefused<'scope, N>> {
        let mut patience = self.core.usual_patience(&items);
        // SAFETY: SAFETY.md F22: as of `send_from`.
        unsafe { self.core.post_batch(&mut items, patience.as_mut(), |ticket| ticket) }
    }
}
