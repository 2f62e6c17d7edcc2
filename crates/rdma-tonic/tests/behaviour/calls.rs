//! Calls of gRPC.

use std::time::Duration;

use greeter::MyGreeter;
use greeter::proto::RepeatRequest;
use greeter::proto::greeter_client::GreeterClient;
use tokio::sync::mpsc::channel;
use tokio::task::yield_now;
use tokio::time::{advance, pause};
use tokio_stream::iter;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::rig::{call, gated, meet, name, run, run_in_one_thread};

#[test]
fn each_kind_of_call_is_answered() {
    run(async {
        let (_server, mut client) = meet(MyGreeter).await;
        let reply = client.say_hello(name("Ada")).await.unwrap().into_inner();
        assert_eq!(reply.message, "Hello Ada!");

        let request = RepeatRequest { name: "Grace".to_owned(), times: 1000 };
        let mut replies = client.repeat_hello(request).await.unwrap().into_inner();
        for _ in 0..1000 {
            assert_eq!(replies.message().await.unwrap().unwrap().message, "Hello Grace!");
        }
        assert_eq!(replies.message().await.unwrap(), None);

        let names = (0..1000).map(|number| name(&number.to_string()));
        let reply = client.greet_all(iter(names)).await.unwrap().into_inner();
        assert!(reply.message.starts_with("Hello 0, 1, 2, "), "{}", reply.message);
        assert!(reply.message.ends_with(", 998, 999!"), "{}", reply.message);

        let names = (0..1000).map(|number| name(&number.to_string()));
        let mut replies = client.chat(iter(names)).await.unwrap().into_inner();
        for number in 0..1000 {
            let reply = replies.message().await.unwrap().unwrap();
            assert_eq!(reply.message, format!("Hello {number}!"));
        }
        assert_eq!(replies.message().await.unwrap(), None);
    });
}

/// Each request is sent only after the reply to the one before.
#[test]
fn both_streams_of_a_call_are_open_at_once() {
    run(async {
        let (_server, mut client) = meet(MyGreeter).await;
        let (asks, asked) = channel(1);
        let mut replies = client.chat(ReceiverStream::new(asked)).await.unwrap().into_inner();
        for number in 0..100 {
            asks.send(name(&number.to_string())).await.unwrap();
            let reply = replies.message().await.unwrap().unwrap();
            assert_eq!(reply.message, format!("Hello {number}!"));
        }
        drop(asks);
        assert_eq!(replies.message().await.unwrap(), None);
    });
}

#[test]
fn a_message_of_64_mib_arrives_in_both_directions() {
    run(async {
        let (_server, mut client) = meet(MyGreeter).await;
        let long: String = ('a'..='z').cycle().take(64 << 20).collect();
        let reply = client.say_hello(name(&long)).await.unwrap().into_inner();
        let inner = reply.message.strip_prefix("Hello ").and_then(|rest| rest.strip_suffix('!'));
        assert!(inner == Some(&long), "{} bytes arrived", reply.message.len());
    });
}

#[test]
fn a_request_has_the_address_of_its_client() {
    run(async {
        let (service, mut gate) = gated();
        let (server, client) = meet(service).await;
        let call = call(&client, "Ada");
        let address = gate.began.recv().await.unwrap().unwrap();
        assert!(address.ip().is_loopback() && address != server.address, "{address}");
        gate.gate.notify_waiters();
        assert_eq!(call.await.unwrap().unwrap(), "Ada");
    });
}

/// The kinds of calls.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Unary,
    Replies,
    Requests,
    Both,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Unary, Self::Replies, Self::Requests, Self::Both];

    const fn has_stream_of_replies(self) -> bool {
        matches!(self, Self::Replies | Self::Both)
    }

    /// Makes a call for "Ada". A stream of requests is open until the call ends or is dropped. Returns the first reply.
    async fn call(
        self,
        mut client: GreeterClient<Channel>,
        limit: Option<Duration>,
    ) -> Result<String, Status> {
        let (asks, asked) = channel(1);
        asks.send(name("Ada")).await.unwrap();
        let requests = Request::new(ReceiverStream::new(asked));
        let reply = match self {
            Self::Unary => client.say_hello(limited(Request::new(name("Ada")), limit)).await?,
            Self::Requests => client.greet_all(limited(requests, limit)).await?,
            Self::Replies | Self::Both => {
                let replies = if matches!(self, Self::Both) {
                    client.chat(limited(requests, limit)).await?
                } else {
                    let request = RepeatRequest { name: "Ada".to_owned(), times: 1 };
                    client.repeat_hello(limited(Request::new(request), limit)).await?
                };
                return Ok(replies.into_inner().message().await?.unwrap().message);
            }
        };
        Ok(reply.into_inner().message)
    }
}

fn limited<T>(mut request: Request<T>, limit: Option<Duration>) -> Request<T> {
    limit.into_iter().for_each(|limit| request.set_timeout(limit));
    request
}

/// The time passes only after the call has arrived.
#[test]
fn a_deadline_ends_each_kind_of_call_at_both_ends() {
    run_in_one_thread(async {
        let (service, mut gate) = gated();
        let (_server, client) = meet(service).await;
        pause();
        // tokio advances a paused clock by itself when no task can run.
        let _never_idle = tokio::spawn(async {
            loop {
                yield_now().await;
            }
        });
        for kind in Kind::ALL {
            let limit = Duration::from_secs(60);
            let call = tokio::spawn(kind.call(client.clone(), Some(limit)));
            gate.began.recv().await.unwrap();
            // tokio's timers are accurate to a millisecond.
            advance(limit + Duration::from_millis(1)).await;
            let status = call.await.unwrap().unwrap_err();
            let codes = [Code::Cancelled, Code::DeadlineExceeded];
            assert!(codes.contains(&status.code()), "{kind:?}: {status:?}");
            gate.ended.recv().await.unwrap();
        }
    });
}

#[test]
fn each_kind_of_call_that_is_dropped_is_cancelled_at_the_server_and_others_continue() {
    run(async {
        let (service, mut gate) = gated();
        let (_server, client) = meet(service).await;
        for kind in Kind::ALL {
            let dropped = tokio::spawn(kind.call(client.clone(), None));
            gate.began.recv().await.unwrap();
            if kind.has_stream_of_replies() {
                // The stream of replies is open.
                gate.gate.notify_waiters();
                gate.ended.recv().await.unwrap();
                gate.began.recv().await.unwrap();
            }
            let continues = tokio::spawn(kind.call(client.clone(), None));
            gate.began.recv().await.unwrap();
            dropped.abort();
            gate.ended.recv().await.unwrap();
            assert!(!continues.is_finished(), "{kind:?}");
            gate.gate.notify_waiters();
            gate.ended.recv().await.unwrap();
            if kind.has_stream_of_replies() {
                gate.began.recv().await.unwrap();
                gate.gate.notify_waiters();
                gate.ended.recv().await.unwrap();
            }
            assert_eq!(continues.await.unwrap().unwrap(), "Ada", "{kind:?}");
        }
    });
}
