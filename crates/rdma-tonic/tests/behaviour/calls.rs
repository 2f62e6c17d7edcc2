//! Calls of gRPC.

use std::time::Duration;

use greeter::MyGreeter;
use greeter::proto::RepeatRequest;
use tokio_stream::iter;
use tonic::{Code, Request};

use crate::rig::{call, gated, meet, name, run};

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
    });
}

/// Each request is sent only after the reply to the one before.
#[test]
fn both_streams_of_a_call_are_open_at_once() {
    run(async {
        let (_server, mut client) = meet(MyGreeter).await;
        let (asks, asked) = tokio::sync::mpsc::channel(1);
        let asked = tokio_stream::wrappers::ReceiverStream::new(asked);
        let mut replies = client.chat(asked).await.unwrap().into_inner();
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

#[test]
fn a_deadline_ends_the_call_at_both_ends() {
    run(async {
        let (service, mut gate) = gated();
        let (_server, mut client) = meet(service).await;
        let mut request = Request::new(name("Ada"));
        request.set_timeout(Duration::from_millis(100));
        let status = client.say_hello(request).await.unwrap_err();
        let codes = [Code::Cancelled, Code::DeadlineExceeded];
        assert!(codes.contains(&status.code()), "{status:?}");
        // On a busy machine, the call may end before it has arrived.
        if gate.began.try_recv().is_ok() {
            gate.ended.recv().await.unwrap();
        }
    });
}

#[test]
fn a_dropped_call_is_cancelled_at_the_server_and_others_continue() {
    run(async {
        let (service, mut gate) = gated();
        let (_server, client) = meet(service).await;
        let call = call(&client, "Ada");
        gate.began.recv().await.unwrap();
        let continues = self::call(&client, "Grace");
        gate.began.recv().await.unwrap();
        call.abort();
        gate.ended.recv().await.unwrap();
        gate.gate.notify_waiters();
        assert_eq!(continues.await.unwrap().unwrap(), "Grace");
    });
}
