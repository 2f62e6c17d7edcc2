//! The requests and responses of READs and atomics.

use rdma_types::WcStatus;

use super::{Requester, Window};
use crate::burst::Burst;
use crate::counters::count;
use crate::operation::{Kind, MessageStart, Remote};
use crate::time::Time;
use crate::wire::{AtomicEth, Headers, Operation, Reth};
use crate::work::{Work, Wqe};

impl<W: Window> Requester<W> {
    /// Returns the request packet of a READ or an atomic. If a part of a READ's data has arrived,
    /// the packet requests the rest (IBTA chapter 9, retries of READs).
    pub(super) fn fetch_burst(&self, start: &MessageStart, length: u32) -> Burst {
        let Remote { va, rkey } = start.remote;
        let operation = match start.kind {
            Kind::CompareSwap => Operation::CompareSwap,
            Kind::FetchAdd => Operation::FetchAdd,
            _ => Operation::RdmaReadRequest,
        };
        let mut headers = self.next_headers(operation);
        headers.bth.ack_request = true;
        if start.kind.is_atomic() {
            let (swap_or_add, compare) = match start.kind {
                Kind::CompareSwap => (start.swap, start.operand),
                _ => (start.operand, 0),
            };
            headers.atomic = Some(AtomicEth { va, rkey, swap_or_add, compare });
        } else {
            let skipped = self.connection.offset(self.packet);
            headers.reth = Some(Reth {
                va: va.wrapping_add(skipped.into()),
                rkey,
                length: length.saturating_sub(skipped),
            });
        }
        Burst::single(headers, 0)
    }

    /// Handles a response whose PSN is that of the oldest packet. A response that does not match
    /// fails the request (IBTA section 9.9.2).
    pub(super) fn response<Q: Work + ?Sized>(
        &mut self,
        now: Time,
        headers: &Headers,
        payload: &[u8],
        work: &mut Q,
    ) {
        let Wqe::Remote { start, end, .. } = work.request(self.head) else { return };
        let operation = headers.bth.opcode.operation();
        let delivered = match start.kind {
            Kind::Read => self.read_response(operation, end.length, payload, work),
            Kind::Send | Kind::Write => Err(WcStatus::BAD_RESP_ERR),
            Kind::CompareSwap | Kind::FetchAdd => match headers.atomic_ack {
                Some(ack) if payload.is_empty() => {
                    work.deliver(self.head, 0, &ack.original.to_ne_bytes())
                }
                _ => Err(WcStatus::BAD_RESP_ERR),
            },
        };
        let in_all = match start.kind {
            Kind::Read => self.connection.packets(end.length),
            _ => 1,
        };
        match delivered {
            Err(status) => {
                if status == WcStatus::BAD_RESP_ERR {
                    count(&mut self.counters.bad_response);
                }
                self.fail(status, work);
            }
            Ok(()) => {
                if self.acknowledged.wrapping_add(1) == in_all {
                    self.in_flight.fetched();
                }
                self.take(now, 1, in_all, work);
            }
        }
    }

    /// Handles one packet of a READ response. If the READ was requested again, the response may
    /// start over with FIRST, or continue with MIDDLE where it stopped, as SoftRoCE does.
    fn read_response<Q: Work + ?Sized>(
        &self,
        operation: Operation,
        length: u32,
        payload: &[u8],
        work: &mut Q,
    ) -> Result<(), WcStatus> {
        use Operation as Op;
        let at = self.connection.offset(self.acknowledged);
        let rest = length.saturating_sub(at);
        let mtu = self.connection.mtu.bytes();
        let last = rest <= mtu;
        let fits = match operation {
            Op::RdmaReadResponseFirst | Op::RdmaReadResponseMiddle => !last,
            Op::RdmaReadResponseLast | Op::RdmaReadResponseOnly => last,
            _ => false,
        };
        if !fits || payload.len() != rest.min(mtu) as usize {
            return Err(WcStatus::BAD_RESP_ERR);
        }
        if payload.is_empty() { Ok(()) } else { work.deliver(self.head, at, payload) }
    }
}
