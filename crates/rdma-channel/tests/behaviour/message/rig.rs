//! Both ends of a connection for messages or of a stream.

use std::thread;
use std::time::Duration;

use rdma_channel::message::{Messages, Options, Stream};
use rdma_channel::{
    BufferPool, Channel, ChannelBuilder, ProtectionDomain, RendezvousBuilder, Wait, prelude::*,
};
use rdma_mem::Context;

use crate::common::{DEFERRED, HANG, WIRE, must_end, open};

/// Runs a test on each device that works by itself, with each way to wait.
pub(super) fn on_each(test: impl Fn(Rig) + Send + Copy + 'static) {
    for device in ["soft0", DEFERRED, WIRE] {
        for wait in [Wait::Spin, Wait::SpinThenSleep, Wait::Sleep] {
            must_end(move || test(Rig::new(device, wait)));
        }
    }
}

/// Runs a test on one device.
pub(super) fn once(test: impl FnOnce(Rig) + Send + 'static) {
    must_end(move || test(Rig::new("soft0", Wait::SpinThenSleep)));
}

/// The objects that both ends use.
pub(super) struct Rig {
    pub(super) pd: ProtectionDomain,
    pub(super) pool: BufferPool,
    wait: Wait,
    /// The time limit of the calls of clients, if there is one.
    limit: Option<Duration>,
    /// Whether no end watches the other one.
    is_unwatched: bool,
}

impl Rig {
    pub(super) fn new(device: &str, wait: Wait) -> Self {
        Self::of(open(device), wait)
    }

    /// The objects on an opened device.
    pub(super) fn of(device: Context, wait: Wait) -> Self {
        let pd = device.allocate_pd().unwrap();
        Self { pool: BufferPool::new(&pd), pd, wait, limit: None, is_unwatched: false }
    }

    /// The same with this time limit for the calls of clients.
    pub(super) fn within(self, limit: Duration) -> Self {
        Self { limit: Some(limit), ..self }
    }

    /// The same with channels that do not watch.
    pub(super) fn unwatched(self) -> Self {
        Self { is_unwatched: true, ..self }
    }

    fn server(&self) -> ChannelBuilder<'_> {
        self.pd.create_channel().wait(self.wait)
    }

    fn client(&self) -> ChannelBuilder<'_> {
        match self.limit {
            Some(limit) => self.server().send_timeout(limit).receive_timeout(limit),
            None => self.server(),
        }
    }

    /// Extends the limit of the rendezvous: on a busy machine, one end may get no processor for some seconds.
    fn patient(builder: ChannelBuilder<'_>) -> RendezvousBuilder<'_> {
        builder.rendezvous_timeout(HANG)
    }

    /// Both ends of a connection for messages: the client's and the server's.
    pub(super) fn messages(&self, options: Options) -> (Messages, Messages) {
        let any = "127.0.0.1:0";
        let mut listener =
            Self::patient(self.server()).listen_for_messages(any, &self.pool, options).unwrap();
        let address = listener.local_addr();
        thread::scope(|threads| {
            let server = threads.spawn(|| listener.accept().unwrap());
            let client = Self::patient(self.client())
                .connect_messages(address, &self.pool, options)
                .unwrap();
            assert_eq!(client.peer_addr().unwrap(), address);
            (client, server.join().unwrap())
        })
    }

    /// Both ends of a stream: the client's and the server's.
    pub(super) fn streams(&self, options: Options) -> (Stream, Stream) {
        let any = "127.0.0.1:0";
        let mut listener =
            Self::patient(self.server()).listen_for_streams(any, &self.pool, options).unwrap();
        let address = listener.local_addr();
        thread::scope(|threads| {
            let server = threads.spawn(|| listener.accept().unwrap());
            let client =
                Self::patient(self.client()).connect_stream(address, &self.pool, options).unwrap();
            (client, server.join().unwrap())
        })
    }

    /// Both ends of a channel whose queues fit the options.
    pub(super) fn channels(&self, options: Options) -> (Channel, Channel) {
        self.channels_with(options, |client| client)
    }

    /// The same with this change to the client's.
    pub(super) fn channels_with(
        &self,
        options: Options,
        change: impl FnOnce(ChannelBuilder<'_>) -> ChannelBuilder<'_>,
    ) -> (Channel, Channel) {
        let (server, client) = (
            Self::patient(self.server().fit(&options)),
            Self::patient(change(self.client()).fit(&options)),
        );
        let any = "127.0.0.1:0";
        let listener = match self.is_unwatched {
            true => server.watch_nothing().listen(any),
            false => server.listen(any),
        };
        let mut listener = listener.unwrap();
        let address = listener.local_addr();
        thread::scope(|threads| {
            let server = threads.spawn(|| listener.accept().unwrap());
            let client = match self.is_unwatched {
                true => client.watch_nothing().connect(address),
                false => client.connect(address),
            };
            (client.unwrap().0, server.join().unwrap())
        })
    }
}

/// Short queues and frames, so that most messages need many parts.
pub(super) fn short() -> Options {
    Options::new().receives(4).sends(6).frame_bytes(256).window_bytes(1024)
}

/// Some bytes that differ from their neighbours.
pub(super) fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251).to_le_bytes()[0]).collect()
}
