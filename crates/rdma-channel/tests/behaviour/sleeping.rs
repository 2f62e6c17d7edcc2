//! Channels that sleep while they wait: completions and the ends of limits wake them, and they use no processor time.

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
/// Modes that sleep.
const SLEEPING: [Wait; 2] = [Wait::SpinThenSleep, Wait::Sleep];
/// Devices that work by themselves, even while a program sleeps.
const DEVICES: [&str; 4] = ["soft0", "softib0", WIRE, DEFERRED];
const SECONDS: Duration = Duration::from_secs(10);
/// A time after which another thread is most likely asleep.
const SHORTLY: Duration = Duration::from_millis(15);

/// Runs a test on each device, in each mode.
fn each(test: impl Fn(&'static str, Wait)) {
    for device in DEVICES {
        MODES.into_iter().for_each(|wait| test(device, wait));
    }
}

fn pair(device: &str, wait: Wait) -> Pair {
    Pair::with(device, |builder| builder.wait(wait).drain_timeout(SECONDS))
}

/// Sends this number from another thread, after a short time.
fn sends_shortly(mut peer: Channel, number: u32) -> JoinHandle<Channel> {
    thread::spawn(move || {
        thread::sleep(SHORTLY);
        peer.send(SendWorkRequest::only_immediate(number)).unwrap();
        peer
    })
}
