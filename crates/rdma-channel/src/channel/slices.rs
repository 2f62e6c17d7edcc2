//! Blocking operations with one slice of registered memory, plain bytes, or a number.

use rdma_connect::TransportError;
use rdma_mem::{GatherList, InlineElement, RemoteMemoryRegion, ScatterList, SliceMut, SliceRef};
use rdma_qp::{
    AtomicWorkRequest, ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WriteWorkRequest,
};

use super::Channel;
use super::exchanging::received_bytes;

/// Operations with one element and no flags. For lists of elements, immediate data or flags, use the methods that take
/// a work request: [`send`](Self::send), [`receive`](Self::receive), [`write`](Self::write), [`read`](Self::read),
/// [`atomic`](Self::atomic).
impl Channel {
    /// Sends registered bytes as one message, which arrives in the peer's next receive. The bytes can be a region, a
    /// pool buffer, an array, or a slice of any of these.
    ///
    /// # Errors
    /// Same errors as [`send`](Self::send).
    ///
    /// # Examples
    /// ```
    /// use rdma_channel::prelude::*;
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let (here, there) = (pd.create_channel().build()?, pd.create_channel().build()?);
    /// # let (here_end, there_end) = (here.endpoint(), there.endpoint());
    /// # let (mut here, mut there) = (here.handshake(there_end)?, there.handshake(here_end)?);
    /// # let other = pd.clone();
    /// # let receiver = std::thread::spawn(move || {
    /// #     let pd = other;
    /// let mut buffer = pd.allocate_region(64)?;
    /// let length = there.receive_into(&mut buffer)?;
    /// assert_eq!(&buffer[..length], b"hello");
    /// #     Ok::<_, rdma_channel::TransportError>(())
    /// # });
    /// let mut message = pd.allocate_region(64)?;
    /// message[..5].copy_from_slice(b"hello");
    /// here.send_from(message.get_ref(0, 5).expect("within the region"))?;
    /// # receiver.join().unwrap()?;
    /// # Ok::<(), rdma_channel::TransportError>(())
    /// ```
    #[doc(alias = "message")]
    #[doc(alias = "IBV_WR_SEND")]
    pub fn send_from<'a>(&mut self, from: impl Into<SliceRef<'a>>) -> Result<(), TransportError> {
        let list = GatherList::from([from.into()]);
        self.send(SendWorkRequest::from_list(&list)).map(drop)
    }

    /// Receives one message from the peer. Returns the number of bytes placed into the memory.
    ///
    /// 0 means an empty message, or an RDMA write with immediate data, whose bytes are placed elsewhere. If you expect
    /// immediate data, use [`receive`](Self::receive). There is no time limit unless the
    /// [builder](crate::ChannelBuilder::receive_timeout) or [`within`](Self::within) sets one.
    ///
    /// # Errors
    /// Same errors as [`receive`](Self::receive). If the message is longer than the memory, the operation fails at both
    /// ends.
    #[doc(alias = "byte_len")]
    pub fn receive_into<'a>(
        &mut self,
        into: impl Into<SliceMut<'a>>,
    ) -> Result<usize, TransportError> {
        let mut list = ScatterList::from([into.into()]);
        let message = self.receive(ReceiveWorkRequest::from_list(&mut list))?;
        Ok(received_bytes(&message))
    }

    /// Writes registered bytes to the beginning of `remote`, which may be longer than the bytes.
    ///
    /// # Errors
    /// Same errors as [`write`](Self::write). If `remote` is shorter than the bytes, nothing is posted.
    pub fn write_from<'a>(
        &mut self,
        from: impl Into<SliceRef<'a>>,
        remote: impl Into<RemoteMemoryRegion>,
    ) -> Result<(), TransportError> {
        let list = GatherList::from([from.into()]);
        self.write(WriteWorkRequest::from_list(&list, remote.into())).map(drop)
    }

    /// Fills registered memory from the beginning of `remote`. If `remote` is shorter than the memory, nothing is
    /// posted.
    ///
    /// # Errors
    /// Same errors as [`read`](Self::read).
    pub fn read_into<'a>(
        &mut self,
        into: impl Into<SliceMut<'a>>,
        remote: impl Into<RemoteMemoryRegion>,
    ) -> Result<(), TransportError> {
        let mut list = ScatterList::from([into.into()]);
        self.read(ReadWorkRequest::from_list(&mut list, remote.into())).map(drop)
    }

    /// Sends these bytes as one message. They need not be registered, because the post copies them. The maximum number
    /// of bytes is set with [`max_inline_data`](crate::ChannelBuilder::max_inline_data); the default is 64.
    ///
    /// If the device does not support enough inline data, the bytes are copied into registered memory of the channel.
    /// This requires the option [`Inline::UpTo`](rdma_qp::Inline::UpTo), which is the default.
    ///
    /// For immediate data, use [`send`](Self::send) with [`SendWorkRequest::inline`]. Memory that peers may write
    /// cannot be borrowed as a slice, so copy the bytes out of it first.
    ///
    /// # Errors
    /// Same errors as [`send`](Self::send). Too many bytes fail with
    /// [`TooMuchInline`](rdma_qp::PostErrorKind::TooMuchInline), and more than 4 GiB - 1 with
    /// [`TransportError::ElementError`].
    ///
    /// # Examples
    /// ```
    /// use rdma_channel::prelude::*;
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let (here, there) = (pd.create_channel().build()?, pd.create_channel().build()?);
    /// # let (here_end, there_end) = (here.endpoint(), there.endpoint());
    /// # let (mut here, mut there) = (here.handshake(there_end)?, there.handshake(here_end)?);
    /// # let receiver = std::thread::spawn(move || {
    /// #     let mut buffer = pd.allocate_region(16)?;
    /// #     let length = there.receive_into(&mut buffer)?;
    /// #     Ok::<_, rdma_channel::TransportError>(buffer[..length].to_vec())
    /// # });
    /// here.send_inline(b"a few bytes")?;
    /// # assert_eq!(receiver.join().unwrap()?, b"a few bytes");
    /// # Ok::<(), rdma_channel::TransportError>(())
    /// ```
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline]
    pub fn send_inline(&mut self, data: &[u8]) -> Result<(), TransportError> {
        if self.ledger.has_copies()
            && let Some(copy) = self.ledger.call_copy(data)?
        {
            return self.send(SendWorkRequest::from_list(&copy.list())).map(drop);
        }
        self.send(SendWorkRequest::inline(&[InlineElement::new_checked(data)?])).map(drop)
    }

    /// Writes these bytes to the beginning of `remote`, like [`send_inline`](Self::send_inline).
    ///
    /// # Errors
    /// Same errors as [`send_inline`](Self::send_inline).
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline]
    pub fn write_inline(
        &mut self,
        data: &[u8],
        remote: impl Into<RemoteMemoryRegion>,
    ) -> Result<(), TransportError> {
        if self.ledger.has_copies()
            && let Some(copy) = self.ledger.call_copy(data)?
        {
            let list = copy.list();
            return self.write(WriteWorkRequest::from_list(&list, remote.into())).map(drop);
        }
        let data = [InlineElement::new_checked(data)?];
        self.write(WriteWorkRequest::inline(&data, remote.into())).map(drop)
    }

    /// Adds `add` to the peer's word, wrapping on overflow, and returns the previous value.
    ///
    /// The value is returned through memory of the channel: the first such call registers 8 bytes for each request that
    /// the queues can hold. To use the caller's memory instead, pass an [`AtomicWorkRequest`] to
    /// [`atomic`](Self::atomic).
    ///
    /// # Errors
    /// Same errors as [`atomic`](Self::atomic), and the provider's error if the memory cannot be registered.
    ///
    /// # Examples
    /// ```
    /// use rdma_channel::prelude::*;
    /// # use rdma_mem::AccessFlags;
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let access = AccessFlags::new().with_local_write().with_remote_atomic();
    /// # let channel = pd.create_channel().access(access).build()?;
    /// # let endpoint = channel.endpoint();
    /// # let mut channel = channel.handshake(endpoint)?; // to itself
    /// let counter = pd.allocate_shared_region(8, access)?; // memory of the peer
    /// assert_eq!(channel.fetch_add(counter.remote(), 3)?, 0);
    /// assert_eq!(channel.compare_and_swap(counter.remote(), 3, 10)?, 3);
    /// assert_eq!(channel.fetch_add(counter.remote(), 0)?, 10);
    /// # Ok::<(), rdma_channel::TransportError>(())
    /// ```
    pub fn fetch_add(
        &mut self,
        remote: impl Into<RemoteMemoryRegion>,
        add: u64,
    ) -> Result<u64, TransportError> {
        let word = self.ledger.call_word()?;
        self.atomic(AtomicWorkRequest::fetch_and_add(&mut word.list(), remote, add))?;
        Ok(word.value())
    }

    /// Replaces the peer's word with `swap` if it equals `compare`. Returns the previous value, which equals `compare`
    /// if the word was replaced. The value is returned through memory of the channel, like that of
    /// [`fetch_add`](Self::fetch_add).
    ///
    /// # Errors
    /// Same errors as [`atomic`](Self::atomic), and the provider's error if the memory cannot be registered.
    pub fn compare_and_swap(
        &mut self,
        remote: impl Into<RemoteMemoryRegion>,
        compare: u64,
        swap: u64,
    ) -> Result<u64, TransportError> {
        let word = self.ledger.call_word()?;
        let mut list = word.list();
        self.atomic(AtomicWorkRequest::compare_and_swap(&mut list, remote, compare, swap))?;
        Ok(word.value())
    }
}
