//! Ends of servers and clients.

use greeter::MyGreeter;
use rdma_tonic::{Incoming, Options};
use tokio::time::timeout;

use crate::rig::{
    HANG, Running, call, connect, endpoint, gated, name, run, serve, server_of_this_client,
    start_client,
};

#[test]
fn a_server_that_shuts_down_completes_its_calls() {
    run(async {
        let endpoint = endpoint();
        let (service, mut gate) = gated();
        let Running { address, stop, ended } = serve(&endpoint, service).await;
        let client = connect(&endpoint, address).await.unwrap();
        let call = call(&client, "Ada");
        gate.began.recv().await.unwrap();
        stop.send(()).unwrap();
        assert!(!ended.is_finished());
        gate.gate.notify_waiters();
        assert_eq!(call.await.unwrap().unwrap(), "Ada");
        ended.await.unwrap().unwrap();
        // The task of the listener may end later. Until then it fails connections in another way.
        let refused = async {
            let is_refusal = |error| format!("{error:?}").contains("no process is listening");
            while !connect(&endpoint, address).await.is_err_and(is_refusal) {}
        };
        timeout(HANG, refused).await.unwrap();
    });
}

#[test]
fn a_server_that_is_dropped_fails_the_calls_of_its_clients() {
    run(async {
        let endpoint = endpoint();
        let (service, mut gate) = gated();
        let server_only = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let server = server_only.spawn(async { serve(&self::endpoint(), service).await });
        let server = server.await.unwrap();
        let client = connect(&endpoint, server.address).await.unwrap();
        let call = call(&client, "Ada");
        gate.began.recv().await.unwrap();
        server_only.shutdown_background();
        call.await.unwrap().unwrap_err();
        gate.ended.recv().await.unwrap();
    });
}

#[test]
fn a_client_that_is_killed_during_a_call_ends_only_its_own_calls() {
    if let Some(address) = server_of_this_client() {
        return run(async {
            let mut client = connect(&endpoint(), address).await.unwrap();
            client.say_hello(name("Ada")).await.unwrap();
        });
    }
    run(async {
        let endpoint = endpoint();
        let (service, mut gate) = gated();
        let server = serve(&endpoint, service).await;
        let test = "ends::a_client_that_is_killed_during_a_call_ends_only_its_own_calls";
        let mut killed = start_client(test, server.address);
        gate.began.recv().await.unwrap();
        let client = connect(&endpoint, server.address).await.unwrap();
        let continues = call(&client, "Grace");
        gate.began.recv().await.unwrap();
        killed.kill().unwrap(); // SIGKILL
        killed.wait().unwrap();
        gate.ended.recv().await.unwrap();
        gate.gate.notify_waiters();
        assert_eq!(continues.await.unwrap().unwrap(), "Grace");
        let again = call(&client, "Ada");
        gate.began.recv().await.unwrap();
        gate.gate.notify_waiters();
        again.await.unwrap().unwrap();
    });
}

#[test]
fn a_client_connects_again_after_its_server_was_restarted() {
    run(async {
        let endpoint = endpoint();
        let Running { address, stop, ended } = serve(&endpoint, MyGreeter).await;
        let mut client = connect(&endpoint, address).await.unwrap();
        client.say_hello(name("Ada")).await.unwrap();
        stop.send(()).unwrap();
        ended.await.unwrap().unwrap();
        // While no server listens, calls fail.
        client.say_hello(name("Ada")).await.unwrap_err();
        // The task of the first listener may close its socket later.
        let bound = async {
            loop {
                match Incoming::bind(&endpoint, address, Options::new()).await {
                    Ok(incoming) => break incoming,
                    Err(error) => {
                        assert!(error.to_string().contains("another program listens"), "{error}");
                    }
                }
            }
        };
        let incoming = timeout(HANG, bound).await.unwrap();
        let service = greeter::proto::greeter_server::GreeterServer::new(MyGreeter);
        let server = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(incoming));
        let reply = client.say_hello(name("Grace")).await.unwrap().into_inner();
        assert_eq!(reply.message, "Hello Grace!");
    });
}
