//! Waiting: the reason why the head of a send queue waits, its deadline, and what happens then.

use rdma_types::{MinRnrTimer, WcStatus as Status};

use crate::engine::aftermath::Aftermath;
use crate::engine::requester::peer::Near;
use crate::engine::requester::side::{Blocked, SendSide, Verdict};

impl<P: Near> SendSide<P> {
    /// Records why the head waits, and sets the timer. If the head already waits for the same reason, its deadline
    /// stays; if it had none, one may be set now. If the head may not wait, returns the error with which it fails.
    #[cold]
    pub(super) fn block(&mut self, own: &P, verdict: Verdict) -> Result<(), Status> {
        if let Verdict::NotReady { .. } = verdict {
            own.adapter.tally.rare.rcvd_rnr_err.count();
        }
        let requester = &self.requester;
        let next = match (verdict, self.blocked) {
            (Verdict::NotReady { .. }, Blocked::NotReady { until: Some(_) })
            | (Verdict::Unanswered, Blocked::Unanswered { at: Some(_), .. }) => return Ok(()),
            (Verdict::NotReady { timer }, _) => {
                let until = match requester.rnr_retries {
                    0 => return Err(Status::RNR_RETRY_EXC_ERR),
                    7 => None,
                    retries => MinRnrTimer::from_code(timer).map(|timer| {
                        own.adapter.fabric.clock.now() + timer.duration() * u32::from(retries)
                    }),
                };
                Blocked::NotReady { until }
            }
            (Verdict::Unanswered, _) => {
                let at = requester
                    .answer_timeout()
                    .map(|timeout| own.adapter.fabric.clock.now() + timeout);
                Blocked::Unanswered { at, left: requester.retries }
            }
            (Verdict::NoRoom, _) => Blocked::NoRoom,
            (Verdict::Done { .. } | Verdict::Failed(_) | Verdict::Paused, _) => return Ok(()),
        };
        self.blocked = next;
        if let Blocked::NotReady { until: Some(at) } | Blocked::Unanswered { at: Some(at), .. } =
            next
        {
            own.entry.set_timer(at);
        }
        Ok(())
    }

    /// Retries a blocked head after its deadline, or gives it up after the last try.
    fn retry(&mut self, own: &P, aftermath: &mut Aftermath) {
        let exhausted = match &mut self.blocked {
            Blocked::NotReady { .. } => Some(Status::RNR_RETRY_EXC_ERR),
            Blocked::Unanswered { left: 0, .. } => {
                return self.give_up(own, Status::RETRY_EXC_ERR, aftermath);
            }
            Blocked::Unanswered { at, left } => {
                *left -= 1;
                own.adapter.tally.rare.completer_retry_err.count();
                let timeout = self.requester.answer_timeout();
                *at = timeout.map(|timeout| own.adapter.fabric.clock.now() + timeout);
                None
            }
            Blocked::No | Blocked::NoRoom => None,
        };
        let before = self.blocked;
        self.take_turn(own, aftermath);
        if self.blocked != before || self.queue.is_empty() {
            return;
        }
        if let Some(status) = exhausted {
            self.give_up(own, status, aftermath);
        } else if let Blocked::Unanswered { at: Some(at), .. } = self.blocked {
            own.entry.set_timer(at);
        }
    }

    /// Handles the expiry of this queue pair's timer.
    pub(crate) fn expire(&mut self, own: &P, aftermath: &mut Aftermath) {
        if self.wire.is_some() {
            self.expire_on_wire(own, aftermath);
            self.run_deferred(own, aftermath);
            return;
        }
        match self.blocked {
            Blocked::No if own.immediate => self.take_turn(own, aftermath),
            Blocked::No => self.run_deferred(own, aftermath),
            Blocked::NotReady { until: Some(at) } | Blocked::Unanswered { at: Some(at), .. }
                if at <= own.adapter.fabric.clock.now() =>
            {
                self.retry(own, aftermath);
            }
            // The timer was set early, because the receiver is gone. It may return before the deadline.
            Blocked::NotReady { until: Some(at) } => {
                let before = self.blocked;
                self.take_turn(own, aftermath);
                if self.blocked == before {
                    own.entry.set_timer(at);
                }
            }
            // The timer was set for an earlier deadline that no longer applies.
            Blocked::Unanswered { at: Some(at), .. } => own.entry.set_timer(at),
            // The receiver is gone.
            Blocked::NotReady { until: None } => self.take_turn(own, aftermath),
            Blocked::Unanswered { at: None, .. } | Blocked::NoRoom => {}
        }
    }
}
