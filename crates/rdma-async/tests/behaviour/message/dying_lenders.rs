//! Senders that die at each step of a long message. The device executes one request at a time.

use std::iter;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use rdma_async::message::{ConnectionError, Message, MessageError, Messages, OperationError};
use rdma_async::{Connection, Pool};
use rdma_soft::{Builder, Schedule, SoftDevice};
use tokio::task::yield_now;

use super::offer_peers::{connections_between, options};
use super::rig::message;
use crate::common::host::Host;
use crate::common::provider::Provider;
use crate::common::{install, poll_once, run_in_one_thread};

/// The length of messages that are lent.
const LENGTH: usize = 100_000;

type Sent = Result<(), MessageError>;
type Received = Result<Option<Message>, MessageError>;

/// The last step of the message before its sender dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    BindPosted,
    Bound,
    OfferPosted,
    OfferArrived,
    ReadPosted,
    ReadHalfDone,
    ReadDone,
    CountPosted,
    CountArrived,
}

impl Step {
    const ALL: [Self; 9] = [
        Self::BindPosted,
        Self::Bound,
        Self::OfferPosted,
        Self::OfferArrived,
        Self::ReadPosted,
        Self::ReadHalfDone,
        Self::ReadDone,
        Self::CountPosted,
        Self::CountArrived,
    ];

    /// Returns true if the receiver's device has the whole message.
    fn is_read(self) -> bool {
        [Self::ReadDone, Self::CountPosted, Self::CountArrived].contains(&self)
    }

    /// The results that the sender may get. It may try to post an offer before it notices that its connection has ended.
    const fn outcomes(self) -> &'static [Result<(), OperationError>] {
        const NOT_SENT: Result<(), OperationError> = Err(OperationError::NotSent);
        const UNKNOWN: Result<(), OperationError> = Err(OperationError::Unknown);
        match self {
            Self::BindPosted => &[NOT_SENT],
            Self::Bound => &[NOT_SENT, UNKNOWN],
            Self::CountArrived => &[Ok(())],
            _ => &[UNKNOWN],
        }
    }

    /// The numbers of unfinished requests of the sender and the receiver.
    fn requests(self) -> [usize; 2] {
        match self {
            Self::BindPosted | Self::OfferPosted => [1, 0],
            Self::ReadPosted | Self::ReadHalfDone | Self::CountPosted => [0, 1],
            _ => [0, 0],
        }
    }
}

/// The first to notice that the sender has died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notice {
    /// The task that receives, after the device has executed its requests.
    Receiver,
    /// The driver, while the receiver's requests are not executed or polled.
    Driver,
}

/// The device of one test, which executes its requests only on release.
fn held(name: &'static str) -> SoftDevice {
    install();
    let _ = Builder::new(name).schedule(Schedule::Held).install();
    SoftDevice::find(name).unwrap()
}

fn host(device: SoftDevice) -> (Host, Arc<Provider>) {
    let (pd, provider) = Provider::faulty(device.name());
    let host = Host::with(pd);
    host.pool.grow(2 << 20).unwrap();
    (host, provider)
}

/// Waits for the future while the device executes all requests.
async fn released<F: Future>(device: SoftDevice, future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        device.release_all();
        if let Poll::Ready(output) = poll_once(&mut future) {
            return output;
        }
        yield_now().await;
    }
}

/// One end of a connection.
struct End {
    messages: Messages,
    connection: Connection,
}

impl End {
    async fn new(host: &Host, connection: Connection) -> Self {
        let pool = Pool::from(host.pool.clone());
        let messages = Messages::new(connection.clone(), &pool, options()).await.unwrap();
        Self { messages, connection }
    }
}

/// The sender and the receiver of a connection.
struct Ends {
    device: SoftDevice,
    sender: End,
    receiver: End,
}

impl Ends {
    /// Connects them, and sends a message in each direction.
    async fn open(device: SoftDevice, lender: &Host, borrower: &Host) -> Self {
        let opens = async {
            let (one, other) = connections_between(lender, borrower, options()).await;
            (End::new(lender, one).await, End::new(borrower, other).await)
        };
        let (sender, receiver) = released(device, opens).await;
        let this = Self { device, sender, receiver };
        this.talk(&this.receiver, &this.sender).await;
        this.talk(&this.sender, &this.receiver).await;
        this
    }

    async fn talk(&self, from: &End, to: &End) {
        let bytes = message(LENGTH);
        let both = async { tokio::join!(from.messages.send(&bytes), to.messages.receive()) };
        let (sent, received) = released(self.device, both).await;
        sent.unwrap();
        assert!(*received.unwrap().unwrap() == bytes[..]);
        // Nothing remains to be executed.
        let both = async { tokio::join!(from.messages.flush(), to.messages.flush()) };
        let (flushed, flushed_too) = released(self.device, both).await;
        flushed.and(flushed_too).unwrap();
    }

    fn requests(&self) -> [usize; 2] {
        [&self.sender, &self.receiver].map(|end| self.device.in_flight(end.connection.qpn()))
    }
}

/// A long message between two ends.
struct Transfer<'t> {
    ends: &'t Ends,
    send: Pin<Box<dyn Future<Output = Sent> + 't>>,
    receive: Pin<Box<dyn Future<Output = Received> + 't>>,
    received: Option<Received>,
}

impl<'t> Transfer<'t> {
    fn new(ends: &'t Ends, lender: &Host) -> Self {
        let bytes = lender.buffer(&message(LENGTH));
        let send = Box::pin(ends.sender.messages.send_buffer(bytes));
        Self { ends, send, receive: Box::pin(ends.receiver.messages.receive()), received: None }
    }

    fn make(&mut self, step: Step) {
        let Ends { device, sender, receiver } = self.ends;
        let execute = |end: &End| assert_eq!(device.release(end.connection.qpn(), 1), 1);
        match step {
            Step::BindPosted | Step::OfferPosted => {
                assert!(poll_once(&mut self.send).is_pending());
            }
            Step::Bound | Step::OfferArrived => execute(sender),
            Step::ReadPosted => assert!(poll_once(&mut self.receive).is_pending()),
            Step::ReadHalfDone => assert!(device.release_half(receiver.connection.qpn())),
            Step::ReadDone | Step::CountArrived => execute(receiver),
            Step::CountPosted => {
                let Poll::Ready(received) = poll_once(&mut self.receive) else { panic!() };
                self.received = Some(received);
            }
        }
        assert_eq!(self.ends.requests(), step.requests(), "{step:?}");
    }

    /// Destroys the sender's queue pair, and overwrites the memory that was lent. Then returns the results of both ends.
    async fn die(mut self, lender: &Host, notice: Notice) -> (Sent, Received) {
        let Ends { device, sender, receiver } = self.ends;
        sender.connection.close().unwrap();
        let Poll::Ready(sent) = poll_once(&mut self.send) else { panic!("still sending") };
        let free = || lender.pool.try_allocate(LENGTH).unwrap();
        let mut overwritten: Vec<_> = iter::from_fn(free).collect();
        overwritten.iter_mut().for_each(|buffer| buffer.fill(0xee));
        while notice == Notice::Driver && receiver.connection.closed().is_none() {
            yield_now().await;
        }
        let received = match self.received {
            Some(received) => received,
            None => released(*device, self.receive).await,
        };
        (sent, received)
    }
}

fn assert_lost(received: &Received, case: &str) {
    let is_lost = matches!(received, Err(MessageError::Ended(ConnectionError::Lost)));
    assert!(is_lost, "{case}: {received:?}");
}

#[test]
fn a_sender_that_dies_at_any_step_of_a_long_message_fails_only_its_own_connection() {
    let device = held("soft-held-dying");
    for last in Step::ALL {
        for notice in [Notice::Receiver, Notice::Driver] {
            run_in_one_thread(|| dies_after(device, last, notice));
        }
    }
}

async fn dies_after(device: SoftDevice, last: Step, notice: Notice) {
    let case = format!("{last:?}, {notice:?}");
    let ((lender, of_lender), (borrower, of_borrower)) = (host(device), host(device));
    let other = Ends::open(device, &lender, &borrower).await;
    let ends = Ends::open(device, &lender, &borrower).await;
    let mut transfer = Transfer::new(&ends, &lender);
    for step in Step::ALL {
        transfer.make(step);
        if step == last {
            break;
        }
    }
    let (sent, received) = transfer.die(&lender, notice).await;
    if last.is_read() {
        assert!(*received.unwrap().unwrap() == message(LENGTH)[..], "{case}");
    } else {
        assert_lost(&received, &case);
    }
    assert_lost(&released(device, ends.receiver.messages.receive()).await, &case);
    let outcome = sent.map_err(|error| match error {
        MessageError::Operation { error, .. } => error,
        error => panic!("{case}: {error}"),
    });
    assert!(last.outcomes().contains(&outcome), "{case}: {outcome:?}");
    other.talk(&other.sender, &other.receiver).await;
    other.talk(&other.receiver, &other.sender).await;
    drop((ends, other));
    for host in [&lender, &borrower] {
        let returned = async {
            while host.pool.usage().buffers > 0 {
                yield_now().await;
            }
        };
        released(device, returned).await;
    }
    drop((lender, borrower));
    of_lender.gone().await;
    of_borrower.gone().await;
}
