

# What follows is added to the file base.py of pyverbs' tests, which imports all that it needs except these modules. Each
# test of librdmacm then has its two ends in two processes, of which each runs all tests in a network namespace of its own,
# instead of two children. The processes are forked before one of them has used a device.
import atexit
import ctypes
import socket

_HOSTS = ('10.9.0.1', '10.9.0.2')
_LOG = os.path.join(os.path.dirname(__file__), 'other_host.log')
_CLONE_NEWNET = 0x40000000
_fork = mp.get_context('fork')
# One for each test, because a barrier cannot be used again after a failure.
_SHARED = [(_fork.Barrier(NUM_OF_PROCESSES, timeout=60), _fork.Queue()) for _ in range(32)]


def _network_of_other_host():
    """Returns the file of the namespace of the program that writes the file's path into the FIFO."""
    fifo = os.environ['RDMA_TEST_OTHER_HOST']
    os.mkfifo(fifo)
    # This socket is the sign that the FIFO exists.
    ready = socket.socket(socket.AF_UNIX)
    ready.bind('\0pyverbs-hosts')
    ready.listen()
    with open(fifo) as path:
        network = os.open(path.read(), os.O_RDONLY)
    # The program ends after this.
    with open(fifo, 'w'):
        ready.close()
    os.unlink(fifo)
    return network


_network = _network_of_other_host()
_other = os.fork()
_is_active = _other == 0
if _is_active:
    _libc = ctypes.CDLL(None, use_errno=True)
    if _libc.setns(_network, _CLONE_NEWNET):
        os._exit(3)
    os.environ['RDMA_SOFT_LISTEN'] = _HOSTS[1]
    _log = os.open(_LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(_log, 1)
    os.dup2(_log, 2)


def _end():
    if _is_active:
        return
    status = os.waitstatus_to_exitcode(os.waitpid(_other, 0)[1])
    if status:
        with open(_LOG) as log:
            print(f'the other host ended with {status}:\n{log.read()}', flush=True)
        os._exit(1)


atexit.register(_end)


def _get_ip_mac(self, dev, port, idx):
    self.args.append([dev, port, idx, _HOSTS[0], None])


def _addresses(**words):
    from pyverbs.cmid import AddrInfo
    if words.get('src') == _HOSTS[0]:
        words['src'] = _HOSTS[1]
    return AddrInfo(**words)


def _one_of_two_nodes(self, connection_resources, test_flow, bad_flow=False, **words):
    self.syncer, self.notifier = _SHARED.pop()
    if bad_flow:
        raise unittest.SkipTest('The test kills its processes')
    if _is_active:
        # The other host's address is not its own.
        for name in ('tests.base_rdmacm', 'tests.rdmacm_utils'):
            if hasattr(sys.modules.get(name), 'AddrInfo'):
                sys.modules[name].AddrInfo = _addresses
    test_flow(connection_resources=connection_resources, passive=not _is_active, **words)


def _fail(passive, exception):
    raise exception


RDMATestCase._get_ip_mac = _get_ip_mac
RDMACMBaseTest.two_nodes_rdmacm_traffic = _one_of_two_nodes
RDMACMBaseTest._rdmacm_exception_handler = staticmethod(_fail)
