//! The parts of a program with messages and a stream.

use std::sync::Arc;

use rdma_async::message::{Messages, Options, Stream};
use rdma_async::{Connection, Driver, Pool};
use tokio::io::AsyncWriteExt as _;

use super::{Part, Parts, watched};
use crate::common::provider::Provider;
use crate::common::{HANG, Pair, poll_once};

/// Both ends of a connection for messages, whose operations have not ended, and messages that were received.
async fn messages(pair: &Pair, pool: &Pool, options: Options) -> Vec<Part> {
    let end = |of: &Connection| Messages::new(of.clone(), pool, options);
    let (one, other) = tokio::try_join!(end(&pair.one), end(&pair.other)).unwrap();
    let one = Arc::new(one);
    one.send(&[1; 600]).await.unwrap();
    let caller = Arc::clone(&one);
    let mut call = Box::pin(async move { drop(caller.call(b"a question").await) });
    assert!(poll_once(&mut call).is_pending());
    let [message, request] = [other.receive().await, other.receive().await];
    let [message, request] = [message, request].map(|received| received.unwrap().unwrap());
    assert!(!message.is_request() && request.is_request());
    // The peer fetches it only when its program uses the connection again.
    let (sender, long) = (Arc::clone(&one), pair.buffer(&[2; 5000]));
    let mut long = Box::pin(async move { drop(sender.send_buffer(long).await) });
    assert!(poll_once(&mut long).is_pending());
    // The offer of the long message arrives before this message.
    one.send(b"later").await.unwrap();
    assert!(poll_once(&mut long).is_pending() && poll_once(&mut call).is_pending());
    vec![
        ("a long message that is lent", 0, Box::new(long)),
        ("a call", 0, Box::new(call)),
        ("the messages", 1, Box::new(one)),
        ("the peer's messages", 1, Box::new(other)),
        ("a message", 3, Box::new(message)),
        ("a request", 3, Box::new(request)),
    ]
}

/// Both ends of a stream, which can send nothing: what has arrived takes the only receive of each.
async fn stream(pair: &Pair, pool: &Pool, options: Options) -> Vec<Part> {
    let options = options.receives(1);
    let end = |of: &Connection| Stream::new(of.clone(), pool, options);
    let (mut one, mut other) = tokio::try_join!(end(&pair.one), end(&pair.other)).unwrap();
    one.write_all(&[3; 900]).await.unwrap();
    other.write_all(&[4; 900]).await.unwrap();
    let (mut reader, writer) = one.into_split();
    let chunk = reader.read_chunk().await.unwrap().unwrap();
    vec![
        ("the reader", 1, Box::new(reader)),
        ("the writer", 1, Box::new(writer)),
        ("the peer's stream", 1, Box::new(other)),
        ("a chunk", 3, Box::new(chunk)),
    ]
}

/// Values of all kinds. Connections end without their time limit, which no test reaches.
pub(super) async fn parts(device: &str) -> Parts {
    let (pd, provider) = Provider::faulty(device);
    let driver = Driver::spawn(pd.context()).unwrap();
    let options = Options::new().receives(8).sends(8).frame_bytes(1024);
    let options = options.eager_bytes(1000).linger(2 * HANG);
    let pair = || Pair::of(driver.clone(), pd.clone(), |builder| options.fit(builder));
    let (of_messages, of_stream) = (pair(), pair());
    let pool = Pool::from(of_messages.pool.clone());
    pool.grow(1 << 20).await.unwrap();
    let mail = of_messages.released(messages(&of_messages, &pool, options)).await;
    let bytes = of_stream.released(stream(&of_stream, &pool, options)).await;
    let [.., windows] = provider.live();
    assert!(windows > 0, "a long message is lent");
    drop(of_stream);
    let Pair { pool: memory, .. } = of_messages;
    let mut parts: Vec<Part> = vec![
        ("the driver", 2, Box::new(driver)),
        ("a buffer", 3, Box::new(memory.allocate(64).unwrap())),
        watched(memory, &provider),
        ("the context", 4, Box::new(pd.context().clone())),
        ("the domain", 4, Box::new(pd)),
    ];
    parts.extend(mail.into_iter().chain(bytes));
    (parts, provider)
}
