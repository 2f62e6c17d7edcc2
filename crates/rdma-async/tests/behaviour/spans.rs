//! Spans of the control path.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdma_async::{ConnectionOptions, Driver};
use rdma_qp::prelude::*;
use test_support::events::{Event, Hears};
use test_support::program::in_own_process;
use tracing::Level;

/// Runs in its own process. In a shared one, a thread of another test without a subscriber could reach a span first.
/// `tracing` would then remember that the span has no subscriber.
#[test]
fn each_call_of_the_control_path_opens_a_span_with_its_peer_or_queue_pair() {
    let name = "spans::each_call_of_the_control_path_opens_a_span_with_its_peer_or_queue_pair";
    in_own_process(name, || {
        let opened = Arc::new(Mutex::new(Vec::new()));
        let list = Arc::clone(&opened);
        let hears = Hears(move |event: Event| {
            if event.target.starts_with("rdma_") && event.span.is_some() {
                list.lock().unwrap().push(event);
            }
        });
        let (address, [first, second]) = tracing::subscriber::with_default(hears, calls);
        let opened = opened.lock().unwrap();
        let span = |name| {
            let mut spans = opened.iter().filter(|event| event.span == Some(name));
            spans.next().unwrap_or_else(|| panic!("no span {name} among {opened:?}"))
        };
        assert!(opened.iter().all(|event| event.level == Level::DEBUG), "{opened:?}");
        for name in ["listen", "connect"] {
            assert_eq!(span(name).field("device"), Some("soft0"));
        }
        assert_eq!(span("accept").field("client"), Some(&*address));
        for (name, qpn) in
            [("connect_additional", &first), ("reconnect", &first), ("disconnect", &second)]
        {
            let of_client = |event: &&Event| event.field("qpn") == Some(qpn);
            let spans = opened.iter().filter(|event| event.span == Some(name));
            assert_eq!(spans.filter(of_client).count(), 1, "{name} of {qpn} among {opened:?}");
        }
        assert_eq!(span("connect_additional").field("number"), Some("7"));
    });
}

/// Returns the client's address, and the number of its queue pair before and after it was connected again.
fn calls() -> (String, [String; 2]) {
    rdma_soft::install();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let context = rdma_mem::open_device("soft0").unwrap();
        let pd = context.allocate_pd().unwrap();
        let driver = Driver::spawn(&context).unwrap();
        let options = ConnectionOptions::new(&pd);
        let listener = driver.listen("127.0.0.1:0", options.clone()).await.unwrap();
        let accept = async {
            let incoming = listener.incoming().await.unwrap();
            (incoming.peer_addr().to_string(), incoming.accept(b"").unwrap())
        };
        let (client, (address, server)) =
            tokio::join!(driver.connect(listener.local_addr(), options), accept);
        let (client, _) = client.unwrap();
        let first = client.qpn().to_string();
        let additional = tokio::join!(
            client.connect_additional(7, pd.create_qp()),
            server.connect_additional(7, pd.create_qp())
        );
        assert!(additional.0.is_ok() && additional.1.is_ok());
        let again = tokio::join!(client.reconnect(), server.reconnect());
        assert!(again.0.is_ok() && again.1.is_ok());
        let second = client.qpn().to_string();
        client.disconnect(Duration::from_secs(60)).await.unwrap();
        (address, [first, second])
    })
}
