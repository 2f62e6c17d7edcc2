"""Moves memory between two processes with Mooncake's transfer engine, and checks each byte."""

import argparse
import ctypes
import random
import sys
from multiprocessing.connection import Client, Listener

from mooncake.engine import TransferEngine

SIZE = 1 << 20
ROUNDS = 20
HOST = "127.0.0.1"


def initialized(device, buffer):
    """Returns an engine on this device that has registered the buffer."""
    engine = TransferEngine()
    if engine.initialize(HOST, "P2PHANDSHAKE", "rdma", device) != 0:
        sys.exit("the engine cannot be initialized")
    if engine.register_memory(ctypes.addressof(buffer), SIZE) != 0:
        sys.exit("the memory cannot be registered")
    return engine


def serve(engine, port, buffer):
    with Listener((HOST, port)) as listener, listener.accept() as peer:
        peer.send((f"{HOST}:{engine.get_rpc_port()}", ctypes.addressof(buffer)))
        for expected in iter(peer.recv, None):
            peer.send(buffer.raw == expected)


def transfer(engine, port, buffer):
    generator = random.Random(1)
    with Client((HOST, port)) as peer:
        segment, address = peer.recv()

        def moved(transfer):
            if transfer(segment, ctypes.addressof(buffer), address, SIZE) != 0:
                sys.exit("a transfer failed")

        for _ in range(ROUNDS):
            text = generator.randbytes(SIZE)
            buffer.raw = text
            moved(engine.transfer_sync_write)
            peer.send(text)
            if not peer.recv():
                sys.exit("the peer has other bytes than were written")
            ctypes.memset(buffer, 0, SIZE)
            moved(engine.transfer_sync_read)
            if buffer.raw != text:
                sys.exit("other bytes were read than the peer has")
        peer.send(None)
    print(f"finished: {ROUNDS} writes and {ROUNDS} reads of {SIZE} bytes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="soft0")
    parser.add_argument("-p", "--port", type=int, required=True)
    parser.add_argument("server", nargs="?", help="makes this process the client")
    arguments = parser.parse_args()
    buffer = ctypes.create_string_buffer(SIZE)
    engine = initialized(arguments.device, buffer)
    (transfer if arguments.server else serve)(engine, arguments.port, buffer)
