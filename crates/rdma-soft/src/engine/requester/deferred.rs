//! Requests that a deferred schedule holds back.

use std::time::Duration;

use crate::engine::aftermath::Aftermath;
use crate::engine::requester::drive::Work;
use crate::engine::requester::peer::Near;
use crate::engine::requester::side::SendSide;
use crate::engine::station::Station;
use crate::fabric::deferred::{Deferred, PATIENCE, STEP};

impl<P: Near> SendSide<P> {
    /// Schedules a queued request, if the device has a deferred schedule.
    pub(crate) fn defer(&mut self, own: &P) {
        if let Some(deferred) = &own.adapter.deferred {
            self.add_pending(own, deferred);
            self.arm_if_deferred(own);
        }
    }

    pub(crate) fn add_pending(&mut self, own: &Station, deferred: &Deferred) {
        if !self.pending
            && self.may_run()
            && !self.queue.is_empty()
            && let Some(owner) = own.owner.upgrade()
        {
            self.pending = true;
            deferred.add(owner);
        }
    }

    /// Makes the device's thread check the queue soon, if there is something to execute.
    pub(crate) fn arm_if_deferred(&self, own: &Station) {
        let Some(deferred) = &own.adapter.deferred else { return };
        if !self.has_work() {
            return;
        }
        if self.requester.progress > 0 {
            return own.entry.wake();
        }
        let micros = deferred.below(u32::try_from(PATIENCE.as_micros()).unwrap_or(1));
        own.entry
            .set_timer(own.adapter.fabric.clock.now() + Duration::from_micros(u64::from(micros)));
    }

    /// Executes some requests on the device's thread.
    pub(crate) fn run_deferred(&mut self, own: &P, aftermath: &mut Aftermath) {
        let Some(deferred) = &own.adapter.deferred else { return };
        let requests = 1 + deferred.below(STEP);
        self.drive(own, Work::Turn(requests), aftermath);
        self.arm_if_deferred(own);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::{Arc, OnceLock};

    use rdma_types::QpState;

    use crate::device::Device;
    use crate::device::subnet::Subnet;
    use crate::engine::completion::CompletionQueue;
    use crate::engine::events::report::Reporter;
    use crate::engine::queue_pair::QueuePair;
    use crate::engine::queue_pair::capacity::{Capacity, Init};
    use crate::engine::queue_pair::service::Service;
    use crate::engine::requester::request::{Payload, Request};
    use crate::fabric::random::Seed;
    use crate::limits::Limits;
    use crate::link::Link;
    use crate::memory::protection::ProtectionDomain;
    use crate::schedule::Schedule;

    #[test]
    fn queue_pair_that_was_destroyed_with_work_to_do_is_forgotten() {
        let schedule = Schedule::Deferred { seed: 1 };
        // The device is in a static, so that a leak checker finds it.
        static SUBNET: Subnet = Subnet::new();
        static DEVICE: OnceLock<Device> = OnceLock::new();
        let device = DEVICE.get_or_init(|| {
            Device::new(
                &SUBNET,
                "d".into(),
                Link::Ethernet,
                Vec::new(),
                Limits::default(),
                schedule,
                &Seed::new(1),
            )
        });
        let (pd, cq) = (
            ProtectionDomain::new(&device.memory),
            Arc::new(CompletionQueue::new(&SUBNET, 2, None).unwrap()),
        );
        let capacity =
            Capacity { send_wr: 1, receive_wr: 0, send_sge: 1, receive_sge: 0, inline: 0 };
        let service = Service::ReliableConnection;
        let init = Init { service, capacity, signal_all: false };
        let queue_pair =
            QueuePair::create(device, &pd, &cq, &cq, None, init, Reporter::silent()).unwrap();
        {
            let mut send = queue_pair.send.lock();
            send.state = QpState::RTS;
            send.push(&Request::EMPTY, Payload::keyed(&[]));
            send.defer(&queue_pair);
        }
        let pending = || device.deferred.as_ref().unwrap().pending();
        assert_eq!(pending(), 1);
        let weak = Arc::downgrade(&queue_pair);
        queue_pair.destroy();
        assert_eq!(pending(), 0);
        // The device's thread may still hold a reference to the queue pair.
        while weak.strong_count() > 0 {
            std::thread::yield_now();
        }
    }
}
