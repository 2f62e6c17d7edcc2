//! The part of both machines that an end of a pair needs.

use rdma_message::{Chunk, Incoming, Messages, Operation, Options, Output, Stream};

/// A machine and its inputs.
pub(crate) trait Machine {
    fn new(options: &Options) -> Self;
    fn received(&mut self, slot: u32, bytes: &[u8]);
    fn sent(&mut self, slot: u32);
    fn release(&mut self, chunk: Chunk);
    fn lost(&mut self);
    fn poll_output(&mut self) -> Option<Output>;
    fn fetched(&mut self, message: Incoming);
    fn lent(&mut self, operation: Operation, source: Option<rdma_message::frame::Remote>);
}

impl Machine for Messages {
    fn new(options: &Options) -> Self {
        Self::new(options).unwrap()
    }
    fn received(&mut self, slot: u32, bytes: &[u8]) {
        self.received(slot, bytes);
    }
    fn sent(&mut self, slot: u32) {
        self.sent(slot);
    }
    fn release(&mut self, chunk: Chunk) {
        self.release(chunk);
    }
    fn lost(&mut self) {
        self.lost();
    }
    fn poll_output(&mut self) -> Option<Output> {
        self.poll_output()
    }
    fn fetched(&mut self, message: Incoming) {
        self.fetched(message);
    }
    fn lent(&mut self, operation: Operation, source: Option<rdma_message::frame::Remote>) {
        self.lent(operation, source);
    }
}

impl Machine for Stream {
    fn new(options: &Options) -> Self {
        Self::new(options).unwrap()
    }
    fn received(&mut self, slot: u32, bytes: &[u8]) {
        self.received(slot, bytes);
    }
    fn sent(&mut self, slot: u32) {
        self.sent(slot);
    }
    fn release(&mut self, chunk: Chunk) {
        self.release(chunk);
    }
    fn lost(&mut self) {
        self.lost();
    }
    fn poll_output(&mut self) -> Option<Output> {
        self.poll_output()
    }
    fn fetched(&mut self, message: Incoming) {
        panic!("a stream fetched {message:?}");
    }
    fn lent(&mut self, operation: Operation, _: Option<rdma_message::frame::Remote>) {
        panic!("a stream lent {operation:?}");
    }
}
