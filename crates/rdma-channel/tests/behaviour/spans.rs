//! Spans of the control path.

use std::sync::{Arc, Mutex};
use std::thread;

use rdma_channel::prelude::*;
use test_support::events::{Event, Hears};
use test_support::program::in_own_process;
use tracing::Level;
use tracing::subscriber::with_default;

type Spans = Arc<Mutex<Vec<Event>>>;

fn hears(spans: &Spans) -> Hears<impl Fn(Event) + Send + Sync + 'static> {
    let list = Arc::clone(spans);
    Hears(move |event: Event| {
        if event.target.starts_with("rdma_") && event.span.is_some() {
            list.lock().unwrap().push(event);
        }
    })
}

/// This test runs in a child process. Otherwise a thread of another test without a subscriber could reach a span first,
/// and `tracing` would remember that the span is disabled.
#[test]
fn each_call_of_the_control_path_opens_a_span_with_its_peer_or_queue_pair() {
    let name = "spans::each_call_of_the_control_path_opens_a_span_with_its_peer_or_queue_pair";
    in_own_process(name, || {
        rdma_soft::install();
        let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
        let (at_server, at_client) = (Spans::default(), Spans::default());
        let (address, qpns) = with_default(hears(&at_server), || {
            let mut listener = pd.create_channel().listen("127.0.0.1:0").unwrap();
            let server = listener.local_addr();
            let client = thread::spawn({
                let (pd, spans) = (pd.clone(), Arc::clone(&at_client));
                move || {
                    with_default(hears(&spans), || {
                        let (channel, _) = pd.create_channel().connect(server).unwrap();
                        let qpn = channel.qpn().unwrap();
                        channel.disconnect_with(b"").unwrap();
                        qpn
                    })
                }
            });
            let incoming = listener.incoming(None).unwrap();
            let address = incoming.peer_addr().to_string();
            let channel = incoming.accept(b"").unwrap();
            let qpn = channel.qpn().unwrap();
            (address, [qpn, client.join().unwrap()].map(|qpn| qpn.to_string()))
        });
        let spans = |spans: &Spans| std::mem::take(&mut *spans.lock().unwrap());
        let (at_server, at_client) = (spans(&at_server), spans(&at_client));
        let all = || at_server.iter().chain(&at_client);
        assert!(all().all(|event| event.level == Level::DEBUG), "{at_server:?} {at_client:?}");
        let names =
            |spans: &[Event]| spans.iter().filter_map(|event| event.span).collect::<Vec<_>>();
        assert_eq!(names(&at_server), ["listen", "answer", "accept"]);
        assert_eq!(names(&at_client), ["connect", "disconnect"]);
        for span in [&at_server[0], &at_client[0]] {
            assert_eq!(span.field("device"), Some("soft0"));
        }
        for span in &at_server[1..] {
            assert_eq!(span.field("client"), Some(&*address));
        }
        assert_eq!(at_server[2].field("qpn"), Some(&*qpns[0]));
        assert_eq!(at_client[1].field("qpn"), Some(&*qpns[1]));
    });
}
