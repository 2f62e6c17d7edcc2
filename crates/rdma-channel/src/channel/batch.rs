//! Several requests in one call to the provider, with one doorbell.

use rdma_connect::TransportError;
use rdma_qp::{WcOpcode, WorkSuccess};

use crate::channel::Channel;
use crate::channel::blocking::wait_all;
use crate::deadline::BatchDeadline;
use crate::ledger::Ledger;
use crate::ledger::post::BatchNotPosted;
use crate::request::BatchRequest;

impl Ledger {
    /// Posts all requests, and returns when they have completed.
    fn block_batch<'data, const N: usize>(
        &mut self,
        mut requests: [BatchRequest<'_, 'data>; N],
    ) -> Result<[WorkSuccess; N], TransportError> {
        let (mut place, mut successes) = (0, [WorkSuccess::of_send(WcOpcode::SEND); N]);
        self.block_all(|call| {
            let (ledger, mut deadline) = (call.ledger(), BatchDeadline::new(None));
            let mut slots = [ledger.dead_slot(); N];
            match call.post_batch(ledger.only(), &mut requests, &mut slots, &mut deadline) {
                Ok(plain) => {
                    place = if plain { ledger.take_batch(&slots, &mut successes) } else { 0 };
                    Ok(wait_all(ledger, &slots[place..], &mut deadline, |success| {
                        successes[place] = success;
                        place += 1;
                    }))
                }
                Err(BatchNotPosted { error, posted: 0 }) => Err(error),
                Err(refused) => Ok(Err(ledger.disown_posted(refused, &slots))),
            }
        })?;
        Ok(successes)
    }
}

impl Channel {
    /// Posts requests with one doorbell, and waits until all have completed. Returns the successes in the order of the
    /// requests.
    ///
    /// An unsignaled request completes together with the next signaled one. The last request is always signaled. Of the
    /// time limits that apply to the operations in the batch, the longest applies to the whole batch. If the number of
    /// requests is known only at run time, use [`post_batch_of`](crate::ScopedPeer::post_batch_of) in a scope.
    ///
    /// # Errors
    /// Same errors as [`send`](Self::send), for the first request that failed. [`TransportError::BatchTooLarge`] if the
    /// queue cannot hold the batch.
    ///
    /// # Examples
    /// ```
    /// use rdma_channel::prelude::*;
    /// use rdma_qp::WriteWorkRequest;
    /// # use rdma_mem::AccessFlags;
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let channel = pd.create_channel().build()?;
    /// # let endpoint = channel.endpoint();
    /// # let mut channel = channel.handshake(endpoint)?; // to itself
    /// # let access = AccessFlags::new().with_local_write().with_remote_write();
    /// # let board = pd.allocate_shared_region(128, access)?;
    /// # let (body_there, head_there) = (board.remote().slice(64..128).unwrap(), board.remote());
    /// let mut memory = pd.allocate_region(72)?;
    /// memory[..8].fill(1);
    /// let (head, body) = memory.as_slice().split_at(8);
    /// channel.batch([
    ///     WriteWorkRequest::new(&[body.gather_element()], body_there).signaled(false).into(),
    ///     WriteWorkRequest::new(&[head.gather_element()], head_there).into(),
    /// ])?;
    /// # let mut word = [0; 8];
    /// # board.read(0, &mut word).unwrap();
    /// # assert_eq!(word, [1; 8]);
    /// # Ok::<(), rdma_channel::TransportError>(())
    /// ```
    pub fn batch<const N: usize>(
        &mut self,
        requests: [BatchRequest<'_, '_>; N],
    ) -> Result<[WorkSuccess; N], TransportError> {
        self.ledger.block_batch(requests)
    }
}
