//! The parts that the tests share: a device, its queue pairs, and two connected ends.
#![allow(unsafe_code)] // posting is unsafe

use std::any::Any;
use std::env;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::sync::{Mutex, OnceLock};

use rdma_cm::{Connection, End, Error, EventChannel, Listener, PreparedQueuePair, QueuePair};
use rdma_mem::{AccessFlags, Context, DeviceList, OwnedRegion, ProtectionDomain};
use rdma_proto::cm::wire::{MAD_LEN, Mad, Message, Offer, Path, Req};
use rdma_proto::cm::{CommId, IpCmHeader, PortSpace};
use rdma_qp::prelude::*;
use rdma_qp::{CompletionQueue, PollSlot, ReceiveWorkRequest, SendWorkRequest, WorkError};
use rdma_sys::Verbs;
use rdma_types::{Gid, Guid, Lid, Mtu, Qpn, TransportType};
use test_support::program::this_program;
use test_support::rig::pause;

pub(crate) use test_support::rig::PATIENCE as LIMIT;

/// The environment variable with the system's device that replaces `soft0`. Its connections pass through librdmacm.
pub(crate) const SYSTEM: &str = "RDMA_TEST_CM_SYSTEM";

pub(crate) fn open(name: &str) -> Context {
    rdma_soft::install();
    let Some(system) = system_device().filter(|_| name == "soft0") else {
        return rdma_mem::open_device(name).unwrap();
    };
    let context = rdma_mem::open_device(system).unwrap();
    assert!(rdma_sys::is_installed(context.verbs()));
    context
}

/// Opens a software device of another provider, whose functions are those of the software devices.
pub(crate) fn open_twin(name: &str) -> Context {
    static TABLE: OnceLock<Verbs> = OnceLock::new();
    rdma_soft::install();
    let verbs = TABLE.get_or_init(|| *rdma_soft::verbs());
    // SAFETY: SAFETY.md F2: the functions are the software devices'.
    let list = unsafe { DeviceList::of(verbs) };
    list.iter().find(|device| device.name() == name).unwrap().open().unwrap()
}

/// The environment variable with the address of that device, if 127.0.0.1 does not lead to it.
const ADDRESS: &str = "RDMA_TEST_CM_IP";

/// Returns the address at which tests listen.
pub(crate) fn address() -> IpAddr {
    let address = env::var(ADDRESS).ok().and_then(|address| address.parse().ok());
    address.unwrap_or(Ipv4Addr::LOCALHOST.into())
}

/// Returns the name of the system's device that replaces `soft0`, if there is one.
pub(crate) fn system_device() -> Option<String> {
    env::var(SYSTEM).ok()
}

/// Returns true if the kernel's rdma_cm connects the device that replaces `soft0`.
pub(crate) fn is_over_kernel() -> bool {
    // The drop-in libraries have a device of this name.
    system_device().is_some_and(|device| device != "soft0")
}

/// Returns true if the device that replaces `soft0` speaks iWARP.
pub(crate) fn is_iwarp() -> bool {
    is_over_kernel() && open("soft0").device().transport_type() == TransportType::IWARP
}

/// Runs the tests whose names contain a text in a process that `prepare` changes, except some, and checks how many
/// pass.
pub(crate) fn pass(
    names: &str,
    except: &[&str],
    expected: usize,
    prepare: impl FnOnce(&mut Command),
) {
    let mut program = this_program();
    prepare(&mut program);
    program.arg(names);
    for name in except {
        program.args(["--skip", name]);
    }
    let output = program.output().unwrap();
    let [text, failure] =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{text}\n{failure}");
    assert!(text.contains(&format!(" {expected} passed;")), "{text}");
}

/// The objects of one end.
pub(crate) struct Node {
    pub(crate) channel: EventChannel,
    pub(crate) pd: ProtectionDomain,
    pub(crate) cq: CompletionQueue,
    region: OwnedRegion,
}

impl Node {
    pub(crate) fn new(context: &Context) -> Self {
        let pd = context.allocate_pd().unwrap();
        let region = pd.allocate_region(64).unwrap();
        let cq = CompletionQueue::create(context, 16).unwrap();
        Self { channel: EventChannel::open(context).unwrap(), pd, cq, region }
    }

    pub(crate) fn queue_pair(&self) -> PreparedQueuePair {
        let access = AccessFlags::new().with_remote_write();
        self.pd.create_qp().send_cq(&self.cq).recv_cq(&self.cq).access(access).build().unwrap()
    }

    pub(crate) fn listen(&self) -> Listener {
        Listener::bind(&self.channel, (address(), 0)).unwrap()
    }

    pub(crate) fn post_receive(&mut self, queue_pair: &QueuePair) {
        let mut buffer = self.region.get_mut(0, 64).unwrap();
        let mut elements = [buffer.scatter_element()];
        let receive = ReceiveWorkRequest::new(&mut elements);
        // SAFETY: SAFETY.md F8: nothing uses the region before `received` has polled the completion.
        unsafe { queue_pair.post_receive(receive, 1) }.unwrap();
    }

    /// Waits for the completion of a request.
    pub(crate) fn complete(&self) -> Result<u64, WorkError> {
        let (mut slots, mut turns) = ([PollSlot::default(); 1], 0);
        loop {
            if let Some(completion) = self.cq.poll(&mut slots).unwrap().next() {
                return completion.result().map(|_| completion.wr_id());
            }
            pause(&mut turns);
        }
    }

    /// Waits for a posted receive, and returns its first bytes.
    pub(crate) fn received(&mut self, length: usize) -> Vec<u8> {
        assert_eq!(self.complete().unwrap(), 1);
        self.region[..length].to_vec()
    }

    /// Sends a message and waits until it has arrived.
    pub(crate) fn send(&mut self, queue_pair: &QueuePair, message: &[u8]) {
        assert_eq!(self.try_send(queue_pair, message).unwrap(), 2);
    }

    /// Sends a message and waits for its completion.
    pub(crate) fn try_send(
        &mut self,
        queue_pair: &QueuePair,
        message: &[u8],
    ) -> Result<u64, WorkError> {
        self.region[..message.len()].copy_from_slice(message);
        let data = [self.region.get_ref(0, message.len()).unwrap().gather_element()];
        // SAFETY: SAFETY.md F8: the region is not used before the request has completed below.
        unsafe { queue_pair.post_send(SendWorkRequest::new(&data), 2) }.unwrap();
        self.complete()
    }
}

/// Forgets a value like `mem::forget`, but keeps it visible for a leak checker.
pub(crate) fn forget(value: impl Any + Send) {
    static FORGOTTEN: Mutex<Vec<Box<dyn Any + Send>>> = Mutex::new(Vec::new());
    FORGOTTEN.lock().unwrap().push(Box::new(value));
}

/// Returns the end that a call reports.
pub(crate) fn ended<T: std::fmt::Debug>(result: Result<T, Error>) -> End {
    match result {
        Err(Error::Ended(end)) => end,
        other => panic!("{other:?}"),
    }
}

/// Connects two ends, whose channels are polled in turn by one thread.
pub(crate) fn connect(
    client: &Node,
    server: &Node,
    listener: &Listener,
) -> (Connection, Connection) {
    let resolved = client.channel.resolve(listener.local_address()).unwrap();
    let connecting = resolved.connect(client.queue_pair(), b"hello").unwrap();
    let request = listener.incoming(LIMIT).unwrap();
    let accepting = request.prepare(server.queue_pair()).unwrap();
    let accepted = accepting.accept(b"welcome").unwrap();
    let active = connecting.wait(LIMIT).unwrap().establish().unwrap();
    (active, accepted.wait(LIMIT).unwrap())
}

/// Returns a REQ from one GID to another that is correct, except that nothing has its queue pair.
pub(crate) fn req(
    id: u32,
    [local_gid, remote_gid]: [Gid; 2],
    port: u16,
    change: impl FnOnce(&mut Offer<'_>),
) -> [u8; MAD_LEN] {
    let mut private_data = [0; IpCmHeader::LEN];
    let ip = [127, 0, 0, 1].into();
    IpCmHeader::new(ip, ip, 0).unwrap().emit(&mut private_data);
    let [local_lid, remote_lid] = [Lid::new(0xffff); 2];
    let mut offer = Offer {
        service_id: PortSpace::Tcp.service_id(port),
        qpn: Qpn::masked(0x77),
        mtu_code: Mtu::MTU1024.code(),
        primary: Path { local_lid, remote_lid, local_gid, remote_gid, ..Path::default() },
        private_data: &private_data,
        ..Offer::default()
    };
    change(&mut offer);
    let req = Req { local_id: CommId::new(id), ca_guid: Guid::from_u64(1), offer };
    Mad { tid: 1, message: Message::Req(req) }.emit().unwrap()
}

/// Connects two ends, exchanges messages, and disconnects.
pub(crate) fn messages_pass(mut client: Node, mut server: Node, listener: &Listener) {
    let resolved = client.channel.resolve(listener.local_address()).unwrap();
    let connecting = resolved.connect(client.queue_pair(), b"hello").unwrap();

    let request = listener.incoming(LIMIT).unwrap();
    assert_eq!((request.private_data().len(), &request.private_data()[..6]), (56, &b"hello\0"[..]));
    let accepting = request.prepare(server.queue_pair()).unwrap();
    server.post_receive(accepting.queue_pair());
    let accepted = accepting.accept(b"welcome").unwrap();

    let replied = connecting.wait(LIMIT).unwrap();
    assert_eq!(
        (replied.private_data().len(), &replied.private_data()[..8]),
        (196, &b"welcome\0"[..])
    );
    client.post_receive(replied.queue_pair());
    let active = replied.establish().unwrap();
    let passive = accepted.wait(LIMIT).unwrap();

    client.send(active.queue_pair(), b"ping");
    assert_eq!(server.received(4), b"ping");
    server.send(passive.queue_pair(), b"pong");
    assert_eq!(client.received(4), b"pong");

    let disconnecting = passive.disconnect(b"bye").unwrap();
    assert_eq!(active.wait(LIMIT).unwrap(), disconnected(b"bye", 220));
    let ended = disconnecting.wait(LIMIT).unwrap();
    assert_eq!(*ended.end(), disconnected(b"", 224));
}

/// Returns the end of a connection whose peer's process has exited.
pub(crate) fn vanished() -> End {
    if is_iwarp() { disconnected(b"", 220) } else { End::Disconnected { private_data: Vec::new() } }
}

/// Returns the end of a connection by a message with private data of this length. librdmacm sends none. The kernel
/// reports none, except zeros on iWARP.
pub(crate) fn disconnected(data: &[u8], length: usize) -> End {
    let mut private_data = match system_device() {
        None => data.to_vec(),
        Some(device) if device == "soft0" => Vec::new(),
        Some(_) if is_iwarp() => return End::Disconnected { private_data: vec![0; 220] },
        Some(_) => return End::Disconnected { private_data: Vec::new() },
    };
    private_data.resize(length, 0);
    End::Disconnected { private_data }
}
