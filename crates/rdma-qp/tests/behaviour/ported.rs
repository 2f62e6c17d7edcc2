//! A program written for `ibverbs-rs`, with other `use` lines: see `docs/from-ibverbs-rs.md`.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use rdma_mem::{
    AccessFlags, GatherElement, RemoteMemoryRegion, ScatterElement, open_device,
    remote_struct_array_field, remote_struct_field,
};
use rdma_qp::{
    AckTimeout, CompletionQueue, MaxAckRetries, MaxRnrRetries, MaximumTransferUnit, MinRnrTimer,
    PacketSequenceNumber, PollSlot, ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest,
    WorkSuccess, WriteWorkRequest, prelude::*,
};

#[repr(C)]
struct Board {
    generation: u64,
    slots: [u32; 4],
}

/// Polls until there is a completion, and returns its result.
fn wait(cq: &CompletionQueue, wr_id: u64) -> Result<WorkSuccess, Box<dyn std::error::Error>> {
    let (mut slots, begin) = ([PollSlot::default(); 4], Instant::now());
    while begin.elapsed() < Duration::from_secs(20) {
        for completion in cq.poll(&mut slots)? {
            if completion.wr_id() == wr_id {
                return Ok(completion.result()?);
            }
        }
    }
    Err("it does not complete".into())
}

#[test]
fn a_program_for_ibverbs_rs_runs_with_other_use_lines() -> Result<(), Box<dyn std::error::Error>> {
    rdma_soft::install();
    let context = open_device("soft0")?;
    let pd = context.allocate_pd()?;
    let cq = context.create_cq(64)?;
    let access = AccessFlags::new().with_local_write().with_remote_read().with_remote_write();
    let prepared = pd
        .create_qp()
        .send_cq(&cq)
        .recv_cq(&cq)
        .access(access)
        .max_send_wr(16)
        .max_recv_wr(16)
        .mtu(MaximumTransferUnit::MTU1024)
        .min_rnr_timer(MinRnrTimer::limited(12).ok_or("a code")?)
        .max_rnr_retries(MaxRnrRetries::unlimited())
        .ack_timeout(AckTimeout::limited(14).ok_or("a code")?)
        .max_ack_retries(MaxAckRetries::limited(7).ok_or("a code")?)
        .send_psn(PacketSequenceNumber::new(3).ok_or("a number")?)
        .build()?;
    let endpoint = prepared.endpoint();
    let qp = prepared.handshake(endpoint)?;

    let mut memory = [0_u8; 64];
    memory[..8].copy_from_slice(b"a number");
    let (data, room) = memory.split_at_mut(32);
    let local = pd.register_local_mr_slice(data)?;
    let other = pd.register_local_mr_slice(room)?;
    let gather = [GatherElement::new(&local, &data[..8])];
    let mut scatter = [ScatterElement::new_checked(&other, &mut room[..8])?];
    // SAFETY: SAFETY.md F8: the memory lives until both have completed.
    unsafe { qp.post_receive(ReceiveWorkRequest::new(&mut scatter), 1) }?;
    // SAFETY: SAFETY.md F8: as above.
    unsafe { qp.post_send(SendWorkRequest::new(&gather).with_immediate(7), 2) }?;
    let received = wait(&cq, 1)?;
    assert_eq!((received.immediate_data(), received.scattered_bytes()), (Some(7), Some(8)));
    assert_eq!(&room[..8], b"a number");

    let mut board = vec![0_u8; size_of::<Board>()];
    // SAFETY: SAFETY.md F8: the board lives until the region is dropped, and is read only after
    // that.
    let shared = unsafe { pd.register_shared_mr(board.as_mut_ptr(), board.len()) }?;
    let remote: RemoteMemoryRegion = shared.remote();
    let slot = remote_struct_array_field!(remote, Board, 0, slots).ok_or("it fits")?;
    let generation = remote_struct_field!(remote, Board::generation).ok_or("it fits")?;
    assert!(remote_struct_array_field!(remote, Board, 1, slots).is_none());
    // SAFETY: SAFETY.md F8: the memory lives until it has completed.
    unsafe { qp.post_write(WriteWorkRequest::new(&gather, slot), 3) }?;
    wait(&cq, 3)?;
    let mut scatter = [other.scatter_element(&mut room[16..24])];
    // SAFETY: SAFETY.md F8: as above.
    unsafe { qp.post_read(ReadWorkRequest::new(&mut scatter, generation), 4) }?;
    wait(&cq, 4)?;
    drop((qp, shared));
    assert_eq!((&board[8..16], &room[16..24]), (&b"a number"[..], &[0; 8][..]));
    Ok(())
}
