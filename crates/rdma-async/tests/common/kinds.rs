//! Operations of every kind, started in every way.

use std::future::Future;
use std::pin::Pin;

use rdma_async::{Failed, Op, TransportError};
use rdma_channel::Operation;
use rdma_mem::Buffer;

use super::Pair;

/// The number of bytes of an operation's memory, if it has some.
pub(crate) const BYTES: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    SendImmediate,
    Receive,
    ReceiveImmediate,
    Write,
    WriteImmediate,
    Read,
    CompareAndSwap,
    FetchAdd,
}

/// The way in which an operation is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// `Run`.
    Awaited,
    /// `Post`, and `Posted`.
    Posted,
    /// `try_post` at once, and `Posted`.
    Tried,
}

pub(crate) const WAYS: [Way; 3] = [Way::Awaited, Way::Posted, Way::Tried];

/// `None` on success; otherwise the error, and the number of bytes of memory that were returned with it.
pub(crate) type Outcome = Option<(TransportError, usize)>;
/// A future of an operation.
pub(crate) type Begun = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// The memory of an operation.
pub(crate) trait Memory {
    fn length(&self) -> usize;
}

impl Memory for Buffer {
    fn length(&self) -> usize {
        self.len()
    }
}

impl Memory for () {
    fn length(&self) -> usize {
        0
    }
}

fn begin<K>(op: Op<'static, K>, way: Way) -> Begun
where
    K: rdma_async::Kind<Memory: Memory> + 'static,
    K::Output: Send,
{
    match way {
        Way::Awaited => Box::pin(async { outcome(op.await) }),
        Way::Posted => Box::pin(async {
            match op.post().await {
                Ok(posted) => outcome(posted.await),
                Err(failed) => outcome::<(), _>(Err(failed)),
            }
        }),
        Way::Tried => {
            let tried = op.try_post();
            Box::pin(async {
                match tried {
                    Ok(posted) => outcome(posted.await),
                    Err(failed) => outcome::<(), _>(Err(failed)),
                }
            })
        }
    }
}

fn outcome<T, M: Memory>(done: Result<T, Failed<M>>) -> Outcome {
    done.err().map(|Failed { memory, error, .. }| (error, memory.unwrap().length()))
}

impl Kind {
    pub(crate) const ALL: [Self; 9] = [
        Self::Send,
        Self::SendImmediate,
        Self::Receive,
        Self::ReceiveImmediate,
        Self::Write,
        Self::WriteImmediate,
        Self::Read,
        Self::CompareAndSwap,
        Self::FetchAdd,
    ];

    /// Creates an operation of the first end, which is not posted yet.
    pub(crate) fn begin(self, pair: &Pair, way: Way) -> Begun {
        let one = &pair.one;
        let buffer = || pair.buffer(&[7; BYTES]);
        let remote = pair.board.remote().slice(0..BYTES).unwrap();
        match self {
            Self::Send => begin(one.send(buffer()).into_owned(one), way),
            Self::SendImmediate => begin(one.send_with_imm(buffer(), 5).into_owned(one), way),
            Self::Receive => begin(one.receive(buffer()).into_owned(one), way),
            Self::ReceiveImmediate => begin(one.receive_imm().into_owned(one), way),
            Self::Write => begin(one.write(buffer(), remote).into_owned(one), way),
            Self::WriteImmediate => {
                begin(one.write_with_imm(buffer(), remote, 6).into_owned(one), way)
            }
            Self::Read => begin(one.read(buffer(), remote).into_owned(one), way),
            Self::CompareAndSwap => begin(one.compare_and_swap(remote, 1, 2).into_owned(one), way),
            Self::FetchAdd => begin(one.fetch_add(remote, 1).into_owned(one), way),
        }
    }

    /// The operation that the other end has to perform, if any.
    pub(crate) fn answer(self, pair: &Pair, way: Way) -> Option<Begun> {
        let other = &pair.other;
        let buffer = || pair.buffer(&[9; BYTES]);
        match self {
            Self::Send | Self::SendImmediate | Self::WriteImmediate => {
                Some(begin(other.receive(buffer()).into_owned(other), way))
            }
            Self::Receive => Some(begin(other.send(buffer()).into_owned(other), way)),
            Self::ReceiveImmediate => {
                let remote = pair.board.remote().slice(BYTES..2 * BYTES).unwrap();
                let told = other.write_with_imm(buffer(), remote, 6);
                Some(begin(told.into_owned(other), way))
            }
            _ => None,
        }
    }

    pub(crate) const fn operation(self) -> Operation {
        match self {
            Self::Send | Self::SendImmediate => Operation::Send,
            Self::Receive | Self::ReceiveImmediate => Operation::Receive,
            Self::Write | Self::WriteImmediate => Operation::Write,
            Self::Read => Operation::Read,
            Self::CompareAndSwap | Self::FetchAdd => Operation::Atomic,
        }
    }

    /// The number of bytes of its memory.
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::ReceiveImmediate | Self::CompareAndSwap | Self::FetchAdd => 0,
            _ => BYTES,
        }
    }
}
