//! Events about packets that do not get through, received by a subscriber that uses the device itself. In a process of
//! its own, since the subscriber is set for the whole process.

use std::sync::mpsc;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rdma_soft::Builder;
use rdma_sys::ibv_wc_status as Status;
use test_support::events::{Event, Hears};
use test_support::program::in_own_process;
use test_support::rig::connect::{Knobs, Side, connect_sides, pair_with};
use test_support::rig::post::Wr;
use test_support::rig::{ALL_ACCESS, Size};

/// An action to run in the midst of an event.
type Act = Box<dyn FnOnce() + Send>;

/// Polls, posts, makes and destroys queue pairs of the device that the event is about. A queue pair at one end of the
/// connection may be in a call.
#[test]
fn a_subscriber_may_use_the_device() {
    in_own_process("told::a_subscriber_may_use_the_device", || {
        let name = "told";
        Builder::new(name).force_wire().install().unwrap();
        let knobs = Knobs { timeout: 6, retries: 1, ..Knobs::default() };
        let (a, b) = pair_with(name, &Size::default(), &knobs);
        let (c, d) = pair_with(name, &Size::default(), &Knobs::default());
        let gone = b.qp.number();
        let act = move || {
            // Existing queue pairs, and new ones.
            for (e, f) in [(c, d), pair_with(name, &Size::default(), &Knobs::default())] {
                let memory = f.pd.register(8, ALL_ACCESS);
                f.qp.post_receive(1, &[memory.sge(0, 8)]);
                e.qp.post(&Wr::send(2, &[]));
                e.send_cq.expect_success(2);
                f.receive_cq.expect_success(1);
                // To a destroyed queue pair, which causes another event meanwhile.
                drop((memory, f));
                e.qp.post(&Wr::send(3, &[]));
            }
        };
        let (say, heard) = mpsc::channel();
        let act: Mutex<Option<Act>> = Mutex::new(Some(Box::new(act)));
        let hears = Hears(move |event: Event| {
            if event.target == "rdma_soft::wire" {
                let act = act.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some(act) = act {
                    act();
                }
                say.send(event).unwrap();
            }
        });
        tracing::subscriber::set_global_default(hears).unwrap();
        drop(b);
        a.qp.post(&Wr::send(1, &[]));
        a.send_cq.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
        // On a slow machine packets are sent again, which causes events with other reasons.
        let expect = |reason: &str, qpn: u32| loop {
            let event = heard.recv_timeout(Duration::from_secs(20)).expect("an event");
            if event.field("reason") == Some(reason) && event.field("qpn") == Some(&qpn.to_string())
            {
                return;
            }
        };
        expect("unknown_qp", gone);
        // The device continues to work and to report events, here that of an unknown key.
        let (a, b) = (Side::new(name, &Size::default(), 8), Side::new(name, &Size::default(), 8));
        connect_sides(&a, &b, &Knobs::default());
        let source = a.pd.register(8, ALL_ACCESS);
        a.qp.post(&Wr::write(1, &[source.sge(0, 8)], &source, 0).remote(1, 2));
        a.send_cq.expect(1, Status::IBV_WC_REM_ACCESS_ERR);
        expect("resp_remote_access_errors", b.qp.number());
    });
}
