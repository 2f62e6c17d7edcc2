//! The operations of ends: each is started, and its result is checked.

use std::pin::Pin;
use std::task::{Context, Waker};

use rdma_async::Connection;
use rdma_async::message::{Message, MessageError};
use tokio::task::unconstrained;

use super::end::{End, Started, check};
use super::hostile;
use super::model::{Kind, Shared};
use super::run::World;
use super::script::By;
use crate::memory;

impl World<'_> {
    /// Sends a message.
    pub(super) fn send(&mut self, end: usize, length: usize, by: By) {
        let Some(messages) = self.ends[end].messages.clone() else { return };
        let connection = &self.script.settings.connections[end / 2];
        let pool = self.hosts[connection.devices[end % 2]].pool.as_blocking();
        let buffer = match by {
            By::SendBuffer => pool.try_allocate(length).ok().flatten(),
            By::Send | By::Post => None,
        };
        let kind = if by == By::Post { Kind::Post } else { Kind::Message };
        self.start(end, (kind, length, None), |bytes| async move {
            let sent = match (by, buffer) {
                (By::Post, _) => messages.post(&bytes).await,
                (_, Some(mut buffer)) => {
                    buffer.copy_from_slice(&bytes);
                    messages.send_buffer(buffer).await
                }
                _ => messages.send(&bytes).await,
            };
            sent.map(|()| None)
        });
    }

    /// Sends a frame of a hostile end.
    pub(super) fn frame(&mut self, end: usize, seed: u64) {
        let settings = &self.script.settings;
        if !settings.is_hostile(end) {
            return;
        }
        let frame = hostile::frame(seed, &settings.connections[end / 2]);
        let Some(sending) = self.send_frame(end, &frame) else { return };
        let number = self.model.lock().number();
        self.spawn(end, (number, None, false), async move {
            // The peer may have closed the connection.
            let _ = sending.await;
        });
    }

    /// Sends a frame. Returns a future that is ready with true when the peer's device has it, or `None` if there is no
    /// memory. The frames are in a pool of their own, because the device's pool must not grow.
    pub(super) fn send_frame(
        &self,
        end: usize,
        frame: &[u8],
    ) -> Option<impl Future<Output = bool> + use<>> {
        let device = self.script.settings.connections[end / 2].devices[end % 2];
        let mut buffer = self.hosts[device].of_hostile.allocate(frame.len()).ok()?;
        buffer.copy_from_slice(frame);
        let connection = self.ends[end].connection.clone();
        Some(async move { connection.send(buffer).await.is_ok() })
    }

    /// Sends a request, and waits for the reply.
    pub(super) fn call(&mut self, end: usize, length: usize) {
        let Some(messages) = self.ends[end].messages.clone() else { return };
        let request = (Kind::Request, length, None);
        self.start(end, request, |bytes| async move { messages.call(&bytes).await.map(Some) });
    }

    /// Replies to an open request, or drops it.
    pub(super) fn answer(&mut self, end: usize, nth: usize, length: Option<usize>) {
        let (number, request) = {
            let mut requests = self.ends[end].gate.requests.lock().expect("no panic");
            if requests.is_empty() {
                return;
            }
            let at = nth % requests.len();
            requests.swap_remove(at)
        };
        check(&request, (number, 0), &self.model);
        match length {
            Some(length) => {
                self.start(end, (Kind::Reply, length, Some(number)), |bytes| async move {
                    request.reply(&bytes).await.map(|()| None)
                });
            }
            None => {
                self.model.lock().refuses(number);
                drop(request);
            }
        }
    }

    fn start<F>(
        &mut self,
        end: usize,
        operation: (Kind, usize, Option<u64>),
        work: impl FnOnce(Vec<u8>) -> F,
    ) where
        F: Future<Output = Result<Option<Message>, MessageError>> + Send + 'static,
    {
        let limits = &self.script.settings.connections[end / 2].limits;
        let limits = [limits[end % 2].operations, limits[1 - end % 2].calls];
        let (kind, length, request) = operation;
        let number = {
            let mut model = self.model.lock();
            let number = model.number();
            model.begins(end, number, (kind, length), limits);
            if let Some(request) = request {
                model.replies(request, number, length);
            }
            number
        };
        let (work, model) = (work(memory::bytes(number, length)), self.model.clone());
        self.spawn(end, (number, request, length >= 8), async move {
            let result = work.await;
            let result = result.as_ref().map(Option::as_deref);
            model.lock().ends(end, number, operation, result);
        });
    }

    /// Waits until all messages are at the peer's device.
    pub(super) fn flush(&mut self, end: usize, exits: bool) {
        let End { connection, messages, .. } = &self.ends[end];
        let Some(messages) = messages.clone() else { return };
        let (number, begun) = self.model.lock().flushes(end);
        let (connection, model) = (connection.clone(), self.model.clone());
        self.spawn(end, (number, None, true), async move {
            let result = messages.flush().await;
            model.lock().flushed(end, (number, &begun), &result);
            if exits && result.is_ok() {
                kill(end, &connection, &model);
            }
        });
    }

    /// Polls the future of an operation at once, so that operations begin in this order. A task continues it.
    fn spawn(
        &mut self,
        end: usize,
        (number, request, can_be_cancelled): (u64, Option<u64>, bool),
        future: impl Future<Output = ()> + Send + 'static,
    ) {
        let mut future = Box::pin(future);
        let mut first = unconstrained(future.as_mut());
        let mut cx = Context::from_waker(Waker::noop());
        if Pin::new(&mut first).poll(&mut cx).is_pending() {
            let task = tokio::spawn(future);
            let started = Started { number, request, task, can_be_cancelled };
            self.ends[end].operations.push(started);
        }
    }

    /// Drops the future of an operation. A short message cannot be distinguished from others, so it is
    /// not cancelled.
    pub(super) fn cancel(&mut self, end: usize, nth: usize) {
        let operations = &mut self.ends[end].operations;
        let can = |started: &&mut Started| started.can_be_cancelled && !started.task.is_finished();
        let count = operations.iter_mut().filter(can).count();
        let Some(started) = operations.iter_mut().filter(can).nth(nth % count.max(1)) else {
            return;
        };
        started.can_be_cancelled = false;
        started.task.abort();
        self.model.lock().cancels(end, started.number, started.request);
    }

    pub(super) fn finish(&mut self, end: usize, exits: bool) {
        let End { connection, messages, gate, tasks, .. } = &mut self.ends[end];
        gate.exits(exits);
        gate.writes.close();
        let Some(messages) = messages.clone() else { return };
        self.model.lock().end(end).has_finished = true;
        let (connection, model) = (connection.clone(), self.model.clone());
        tasks.push(tokio::spawn(async move {
            let result = messages.finish().await;
            model.lock().finishes(end, &result);
            if exits && result.is_ok() {
                kill(end, &connection, &model);
            }
        }));
    }

    /// Drops an end and all its futures.
    pub(super) fn leave(&mut self, end: usize) {
        let mut model = self.model.lock();
        model.end(end).has_left = true;
        let End { messages, gate, tasks, operations, .. } = &mut self.ends[end];
        *messages = None;
        for Started { number, request, task, .. } in operations.drain(..) {
            if !task.is_finished() {
                task.abort();
                model.cancels(end, number, request);
            }
        }
        tasks.drain(..).for_each(|task| task.abort());
        drop(model);
        gate.requests.lock().expect("no panic").clear();
    }

    pub(super) fn kill(&self, end: usize) {
        kill(end, &self.ends[end].connection, &self.model);
    }
}

/// Destroys the queue pair of an end.
pub(super) fn kill(end: usize, connection: &Connection, model: &Shared) {
    model.lock().break_connection(end / 2);
    connection.close().unwrap();
}
