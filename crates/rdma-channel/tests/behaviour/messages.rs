//! The contents of errors and `Debug`: the operation, the peer, the limit, and a remedy.

use std::time::Duration;

use crate::common::{DRAIN, HANG, HELD, Pair, lacks, must_end, short};
use rdma_channel::{Channel, Operation, Recovery, ScopeError, TransportError, prelude::*};
use rdma_mem::{Errno, GatherList, RemoteMemoryRegion, VerbError};
use rdma_qp::{ReceiveWorkRequest, SendWorkRequest, WorkErrorCode, WriteWorkRequest};
use test_support::features::Feature;

/// The name of a channel's peer in errors, on a device with Ethernet ports.
fn name_of_peer(channel: &Channel) -> String {
    let peer = channel.peer().unwrap();
    let gid = peer.route.unwrap().destination;
    format!("QPN {} at GID {gid}", peer.peer_qpn)
}

#[test]
fn a_timeout_names_the_operation_the_peer_and_the_limit() {
    must_end(|| {
        let mut pair = Pair::new(HELD);
        let peer = name_of_peer(&pair.here);
        let mut memory = pair.memory(8, 0);
        let error = pair.here.read_into(&mut memory, pair.board.remote()).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "the RDMA read with {peer} did not complete within 40ms: check that the peer is \
                 running and has reached the same step"
            )
        );
        let closed = pair.here.send_from(&memory).unwrap_err().to_string();
        assert_eq!(
            closed,
            format!(
                "the channel to {peer} is closed, since an RDMA read did not complete in time: \
                 connect a new one"
            )
        );
    });
}

#[test]
fn a_failure_names_the_operation_and_the_peer_in_each_form() {
    if lacks("soft0", Feature::Inline(8)) {
        return;
    }
    // There is no memory region with this key.
    let refused = |act: fn(&mut Channel) -> Result<(), TransportError>| {
        let mut pair = Pair::with("soft0", |builder| short(builder).max_inline_data(8));
        let peer = name_of_peer(&pair.here);
        let error = act(&mut pair.here).unwrap_err();
        let begin = format!("the RDMA write with {peer} failed: ");
        assert!(error.to_string().starts_with(&begin), "{error}");
        let TransportError::WorkError(work) = error else { panic!("{error}") };
        assert_eq!(work.code(), WorkErrorCode::RemoteAccessError, "it dereferences to the cause");
        assert_eq!((work.operation, work.peer.unwrap().to_string()), (Operation::Write, peer));
    };
    fn nowhere() -> RemoteMemoryRegion {
        RemoteMemoryRegion::new(0, 8, 1)
    }
    refused(|channel| channel.write_inline(&[1; 8], nowhere()));
    refused(|channel| {
        channel
            .scope(|s| s.write_inline(&[1; 8], nowhere())?.wait(HANG).map(drop))
            .map_err(ScopeError::flatten)
    });
    refused(|channel| {
        let ended = channel.scope(|s| s.write_inline(&[1; 8], nowhere()).map(drop));
        ended.map_err(ScopeError::flatten)
    });
    refused(|channel| {
        let memory = channel.pd().allocate_region(8)?;
        let ended = channel.scope(|s| {
            s.write_from(memory.as_slice(), nowhere())?.done(HANG)?;
            Ok::<_, TransportError>(())
        });
        ended.map_err(ScopeError::flatten)
    });
}

#[test]
fn a_failed_operation_of_a_scope_is_named_by_its_kind_and_id() {
    must_end(|| {
        let mut pair = Pair::new(HELD);
        let peer = name_of_peer(&pair.here);
        let mut id = None;
        let left = pair.here.scope(|s| {
            id = Some(s.post_send(SendWorkRequest::new(&[]))?.id());
            Ok::<_, TransportError>(())
        });
        let Err(ScopeError::AutoPollError(errors)) = left else { panic!("{left:?}") };
        let (id, error) = (id.unwrap(), errors[0].to_string());
        assert!(error.ends_with(&format!(" (send, {id})")), "{error}");
        assert!(error.contains(&peer) || error.contains("closed"), "{error}");
    });
}

/// Checks a blocking call, a post in a scope, and the second request of a batch.
#[test]
fn a_refusal_names_the_operation_and_the_peer_in_each_form() {
    let mut pair = Pair::new("soft0");
    let (peer, too_short) = (name_of_peer(&pair.here), RemoteMemoryRegion::new(0, 7, 1));
    let memory = pair.memory(8, 1);
    let assert_refused = |error: TransportError| {
        let (begin, said) =
            (format!("the RDMA write with {peer} was refused: "), error.to_string());
        let why = "8 bytes of elements do not fit into 7 bytes of remote memory";
        assert!(said.starts_with(&begin) && said.ends_with(why), "{said}");
        let TransportError::PostError(refused) = error else { panic!("{error}") };
        assert_eq!(refused.operation, Operation::Write);
        assert_eq!(refused.peer.unwrap().to_string(), peer);
    };
    assert_refused(pair.here.write_from(&memory, too_short).unwrap_err());
    let scoped = pair.here.scope(|s| {
        s.write_from(memory.as_slice(), too_short).map(drop).map_err(TransportError::from)
    });
    assert_refused(scoped.map_err(ScopeError::flatten).unwrap_err());
    let list = GatherList::from([memory.as_slice()]);
    let good = WriteWorkRequest::from_list(&list, pair.board.remote());
    let bad = WriteWorkRequest::from_list(&list, too_short);
    assert_refused(pair.here.batch([good.into(), bad.into()]).map(drop).unwrap_err());
    assert_eq!(pair.here.closed(), None);
}

#[test]
fn a_full_queue_names_the_option_that_makes_it_longer() {
    let mut pair = Pair::with("soft0", |builder| builder.max_recv_wr(1));
    let error = pair
        .here
        .scope(|s| {
            s.post_receive(ReceiveWorkRequest::only_immediate())?;
            let full = s.post_receive(ReceiveWorkRequest::only_immediate()).map(drop);
            s.close();
            full
        })
        .map_err(ScopeError::flatten);
    let error = error.unwrap_err();
    assert!(matches!(error, TransportError::WouldBlock));
    assert!(error.to_string().contains("max_recv_wr"), "{error}");
}

#[test]
fn debug_is_one_readable_line() {
    let mut pair = Pair::new("soft0");
    let (own, peer) = (pair.here.qpn().unwrap(), name_of_peer(&pair.here));
    assert_eq!(format!("{:?}", pair.here), format!("Channel(QPN {own} to {peer})"));
    let (endpoint, region) =
        (pair.pd.create_channel().build().unwrap().endpoint(), pair.memory(8, 0));
    for (name, shown) in [
        ("QueuePairEndpoint", format!("{endpoint:?}")),
        ("OwnedRegion", format!("{region:?}")),
        ("SharedRegion", format!("{:?}", pair.board)),
        ("RemoteMemoryRegion", format!("{:?}", pair.board.remote())),
    ] {
        assert!(shown.starts_with(name) && !shown.contains('\n') && shown.len() < 300, "{shown}");
    }
    let shown = pair.here.scope(|s| {
        let waits = s.post_receive(ReceiveWorkRequest::only_immediate())?;
        let shown = [format!("{s:?}"), format!("{waits:?}")];
        let id = waits.id();
        s.close();
        Ok::<_, TransportError>((shown, id))
    });
    let ([scope, handle], id) = shown.unwrap();
    assert_eq!(scope, format!("Scope[QPN {own} to {peer}]"));
    assert_eq!(handle, format!("PendingWork(receive, {id})"));
    let closed = format!("Channel(QPN {own} to {peer}, closed, since this end has closed it)");
    assert_eq!(format!("{:?}", pair.here), closed);
    let _ = pair.there.within(DRAIN).receive(ReceiveWorkRequest::only_immediate());
    assert!(format!("{:?}", pair.there).ends_with("since a receive did not complete in time)"));
}

/// The action that a program can take.
#[test]
fn each_error_has_its_recovery() {
    let pair = || Pair::new("soft0");
    let verb = |errno| rdma_qp::Error::from(VerbError::new("ibv_reg_mr", errno)).into();
    let errors: [(TransportError, Recovery); 8] = [
        (verb(Errno::EPERM), Recovery::Permission),
        (verb(Errno::ENOMEM), Recovery::Resource),
        (verb(Errno::EAGAIN), Recovery::Retry),
        (verb(Errno::EINVAL), Recovery::Programming),
        (pair().here.send_inline(&[0; 65]).unwrap_err(), Recovery::Programming),
        (TransportError::WouldBlock, Recovery::Retry),
        (
            pair().here.within(DRAIN).receive(ReceiveWorkRequest::only_immediate()).unwrap_err(),
            Recovery::Retry,
        ),
        (
            {
                let mut pair = pair();
                let late = pair.here.within(DRAIN).receive(ReceiveWorkRequest::only_immediate());
                late.unwrap_err();
                pair.here.send_inline(&[]).unwrap_err()
            },
            Recovery::Reconnect,
        ),
    ];
    for (error, recovery) in errors {
        assert_eq!(error.recovery(), recovery, "{error}");
    }
    let pd = crate::common::open("soft0").allocate_pd().unwrap();
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nobody = Channel::connect(address, &pd).unwrap_err();
    assert_eq!(nobody.recovery(), Recovery::Retry, "{nobody}");
    let many = pd.create_channel().user_bytes(&[0; 2000]).connect(address).unwrap_err();
    assert_eq!(many.recovery(), Recovery::Programming, "{many}");
    let large = pd.create_channel().max_send_wr(1 << 29).build().unwrap_err();
    assert_eq!(large.recovery(), Recovery::Programming, "{large}");
}

/// The first failure of a scope, converted to an error of the program.
#[test]
fn a_scopes_error_flattens_to_the_error_of_its_cause() {
    let mut pair = Pair::new("soft0");
    let own: Result<(), Box<dyn std::error::Error>> =
        pair.here.scope(|_| Err("mine".into())).map_err(ScopeError::flatten);
    assert_eq!(own.unwrap_err().to_string(), "mine");
    let late = pair.here.within(Duration::ZERO).scope(|s| {
        s.post_receive(ReceiveWorkRequest::only_immediate())?.wait(Duration::ZERO)?;
        Ok::<_, TransportError>(())
    });
    let late = late.map_err(ScopeError::flatten).unwrap_err();
    assert!(matches!(late, TransportError::Timeout { operation: Operation::Receive, .. }));
}
