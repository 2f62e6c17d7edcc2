"""Moves memory between two processes with NIXL's UCX backend, and checks each byte."""

import argparse
import ctypes
import random
import sys
from multiprocessing.connection import Client, Listener

from nixl_cu12 import nixl_agent

SIZE = 1 << 20
ROUNDS = 20
HOST = "127.0.0.1"


def agent(name, buffer):
    """Returns an agent that has registered the buffer, and the buffer's description."""
    made = nixl_agent(name)
    made.register_memory([(ctypes.addressof(buffer), SIZE, 0, "")], "DRAM")
    return made, made.get_xfer_descs([(ctypes.addressof(buffer), SIZE, 0)], "DRAM")


def serve(port, buffer):
    own, described = agent("server", buffer)
    with Listener((HOST, port)) as listener, listener.accept() as peer:
        own.add_remote_agent(peer.recv())
        peer.send((own.get_agent_metadata(), own.get_serialized_descs(described)))
        for expected, note in iter(peer.recv, None):
            while not own.check_remote_xfer_done("client", note):
                pass
            peer.send(buffer.raw == expected)


def transfer(port, buffer):
    own, described = agent("client", buffer)
    generator = random.Random(1)
    with Client((HOST, port)) as peer:
        peer.send(own.get_agent_metadata())
        metadata, remote = peer.recv()
        server = own.add_remote_agent(metadata)
        remote = own.deserialize_descs(remote)

        def moved(operation, note):
            handle = own.initialize_xfer(operation, described, remote, server, note)
            state = own.transfer(handle)
            while state == "PROC":
                state = own.check_xfer_state(handle)
            if state != "DONE":
                sys.exit(f"the transfer ended as {state}")
            own.release_xfer_handle(handle)

        for number in range(ROUNDS):
            text = generator.randbytes(SIZE)
            for operation in ("WRITE", "READ"):
                note = f"{operation} {number}.".encode()
                buffer.raw = text if operation == "WRITE" else bytes(SIZE)
                moved(operation, note)
                if buffer.raw != text:
                    sys.exit("other bytes were read than the peer has")
                peer.send((text, note))
                if not peer.recv():
                    sys.exit("the peer has other bytes than were written")
        peer.send(None)
    print(f"finished: {ROUNDS} writes and {ROUNDS} reads of {SIZE} bytes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-p", "--port", type=int, required=True)
    parser.add_argument("server", nargs="?", help="makes this process the client")
    arguments = parser.parse_args()
    run = transfer if arguments.server else serve
    run(arguments.port, ctypes.create_string_buffer(SIZE))
