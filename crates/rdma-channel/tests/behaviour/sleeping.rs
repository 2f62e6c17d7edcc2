//! Channels that sleep while they wait: they wake for what comes, and at the end of each limit, and cost no processor.

mod files;
mod limits;
mod loops;
mod many;
mod process;
mod virtual_time;
mod waits;

use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::common::{DEFERRED, Pair, WIRE};
use rdma_channel::{Channel, Wait};
use rdma_qp::SendWorkRequest;

const MODES: [Wait; 3] = [Wait::Spin, Wait::SpinThenSleep, Wait::Sleep];
/// Those that sleep.
const SLEEPING: [Wait; 2] = [Wait::SpinThenSleep, Wait::Sleep];
/// Those that work by themselves, also while a program sleeps.
const DEVICES: [&str; 4] = ["soft0", "softib0", WIRE, DEFERRED];
const SECONDS: Duration = Duration::from_secs(10);
/// In which another thread falls asleep, most likely.
const SHORTLY: Duration = Duration::from_millis(15);

/// On each device, in each mode.
fn each(test: impl Fn(&'static str, Wait)) {
    for device in DEVICES {
        MODES.into_iter().for_each(|wait| test(device, wait));
    }
}

fn pair(device: &str, wait: Wait) -> Pair {
    Pair::with(device, |builder| builder.wait(wait).drain_timeout(SECONDS))
}

/// Sends that number from another thread, in a short time.
fn sends_shortly(mut peer: Channel, number: u32) -> JoinHandle<Channel> {
    thread::spawn(move || {
        thread::sleep(SHORTLY);
        peer.send(SendWorkRequest::only_immediate(number)).unwrap();
        peer
    })
}
