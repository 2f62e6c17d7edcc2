//! Models of services without acknowledgements.

use super::*;

/// Returns a model whose queue pairs use unreliable connections.
fn unreliable() -> Model {
    let device = device();
    let service = Service::UnreliableConnection;
    let [a, b] = [(); 2].map(|()| queue_pair_of(service, device, None));
    let model = Model { a, b };
    model.connect();
    model
}

/// A request fails while its queue pair is modified: the send queue stops, whichever happens first.
#[test]
fn loom_a_failed_send_queue_is_not_revived_by_accident() {
    loom::model(|| {
        let model = unreliable();
        let bad = Sge { addr: 8, length: 8, lkey: 1 };
        let sender = {
            let a = Arc::clone(&model.a);
            thread::spawn(move || post(&a, 1, &[bad], None))
        };
        let ready = QpState::RTS;
        let new = Settings { state: ready, current_state: ready, ..Settings::default() };
        let mask = QpAttributes::STATE | QpAttributes::CUR_STATE;
        // Either the change happens while the queue is still intact, or it is refused.
        let _ = model.a.modify(&new, mask);
        sender.join().unwrap();
        assert_eq!(model.a.query().settings.state, QpState::SQE);
        assert_eq!(polled(&model.a.send_cq), [(1, WcStatus::LOC_PROT_ERR)]);
        model.end();
    });
}

/// The receiver of a message is destroyed: the message arrives or is lost, and its memory does not change afterwards.
#[test]
fn loom_a_message_arrives_or_is_lost() {
    loom::model(|| {
        let model = unreliable();
        let source = Memory::new(&model.a.pd, 1);
        let mut sink = Memory::new(&model.b.pd, 0);
        let (pd, from) = (Arc::clone(&model.b.pd), source.sge());
        model.b.post_receive(11, &[sink.sge()], &mut Turn::new()).unwrap();
        let sender = {
            let a = Arc::clone(&model.a);
            thread::spawn(move || post(&a, 1, &[from], None))
        };
        model.b.destroy();
        sink.free(&pd);
        sender.join().unwrap();
        assert!(sink.is_free(), "written after it was freed");
        assert_eq!(polled(&model.a.send_cq), [(1, WcStatus::SUCCESS)]);
        model.a.destroy();
    });
}
