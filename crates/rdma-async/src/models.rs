//! Models of operations in every interleaving of threads. Some threads await, drop and close; one is a device that ends
//! requests; one is the driver, which sleeps until it is notified. A lost wake-up is a deadlock, which loom reports.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::mem_forget)] // for tests

mod endings;
mod limits;
mod slots;
mod wakes;

use std::future::IntoFuture;
use std::sync::Arc;

use loom::model::Builder;
use loom::thread::{self, JoinHandle};
use rdma_connect::TransportError;

use crate::connection::Connection;
use crate::mock::{Rig, block_on};
use crate::operation::failed::Failed;
use crate::operation::kinds::SendOut;
use crate::operation::posted::Posted;
use crate::{Buffer, CloseReason};

/// Runs a model in which threads are preempted at most `interruptions` times. At the end all memory must have been
/// released and all objects destroyed.
fn model(interruptions: usize, act: impl Fn(&Arc<Rig>) + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(interruptions);
    builder.check(move || {
        let rig = Arc::new(Rig::new());
        act(&rig);
        assert_eq!(rig.pool.usage().buffers, 0, "memory was not released");
        let nic = Arc::clone(&rig.nic);
        drop(rig);
        assert_eq!(nic.objects(), 0, "objects were not destroyed");
    });
}

fn spawn(rig: &Arc<Rig>, act: impl FnOnce(&Rig) + 'static) -> JoinHandle<()> {
    let rig = Arc::clone(rig);
    thread::spawn(move || act(&rig))
}

/// The threads of the device and of the driver's task.
struct Others {
    nic: JoinHandle<()>,
    driver: JoinHandle<()>,
}

impl Others {
    /// Starts the driver, and a device that ends this many requests.
    fn new(rig: &Arc<Rig>, requests: usize) -> Self {
        Self::with(rig, move |rig| rig.nic.serve(requests))
    }

    fn with(rig: &Arc<Rig>, device: impl FnOnce(&Rig) + 'static) -> Self {
        Self { nic: spawn(rig, device), driver: spawn(rig, Rig::drive) }
    }

    /// Waits until the device and the driver have finished.
    fn end(self, rig: &Rig) {
        self.nic.join().unwrap();
        rig.nic.stop_waiting();
        self.driver.join().unwrap();
    }
}

/// Closes the connection of a posted request while `f` awaits the request and the device serves it.
fn close_meanwhile(rig: &Arc<Rig>, f: impl FnOnce(Posted<'static, SendOut<Buffer>>)) {
    let connection = rig.connect([1, 0]);
    let posted = post(&connection, rig);
    let others = Others::with(rig, |rig| rig.serve_what_is_there());
    let other = connection.clone();
    let task = spawn(rig, move |_| other.close().unwrap());
    f(posted);
    task.join().unwrap();
    others.end(rig);
}

type Outcome = Result<Buffer, Failed<Buffer>>;

/// Sends, and waits for the outcome.
fn send(connection: &Connection, rig: &Rig) -> Outcome {
    block_on(connection.send(rig.buffer()).into_future())
}

/// Sends, and waits until the request is posted.
fn post(connection: &Connection, rig: &Rig) -> Posted<'static, SendOut<Buffer>> {
    let op = connection.send(rig.buffer()).into_owned(connection);
    block_on(op.post()).unwrap()
}

/// Returns true if the operation succeeded, and false if it ended with the connection.
#[track_caller]
fn is_done(outcome: Outcome, closed: CloseReason) -> bool {
    match outcome {
        Ok(_) => true,
        Err(Failed { error: TransportError::Closed { reason, .. }, .. }) if reason == closed => {
            false
        }
        Err(failed) => panic!("{failed}"),
    }
}
