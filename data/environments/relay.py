"""Inside the sandbox of an agent program: starts it, and carries its requests out.

Run by path with `python -I -S`, and imports nothing of ours. The program finds the policy on the
sandbox's own loopback; what it sends goes through a socket in the scratch directory, the only way
out. When the episode is over, both end.
"""

import os
import socket
import subprocess
import sys
import threading

SOCKET = "gateway.socket"


def connected() -> socket.socket:
    """A connection to the gateway of the episode."""
    made = socket.socket(socket.AF_UNIX)
    made.connect(SOCKET)
    return made


def carry(source: socket.socket, target: socket.socket) -> None:
    """All that comes, until no more does."""
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:  # one of them has hung up
        source.close()
        target.close()


def listen(listener: socket.socket) -> None:
    """Carry every connection."""
    while True:
        inside, _ = listener.accept()
        outside = connected()
        for pair in ((inside, outside), (outside, inside)):
            threading.Thread(target=carry, args=pair, daemon=True).start()


def wait(path: str, child: subprocess.Popen) -> None:
    """End the program when the episode is over, which answers this request."""
    life = connected()
    life.sendall(f"GET {path}/over HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    life.recv(1)
    child.kill()
    os._exit(1)


def main() -> None:
    """Arguments: path of the episode, key, seed, and the command."""
    path, key, seed, *command = sys.argv[1:]
    listener = socket.create_server(("127.0.0.1", 0))
    base = f"http://127.0.0.1:{listener.getsockname()[1]}{path}"
    given = {
        "OPENAI_BASE_URL": f"{base}/v1",
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": base,
        "ANTHROPIC_API_KEY": key,
        "JAXRL_SEED": seed,
    }
    threading.Thread(target=listen, args=(listener,), daemon=True).start()
    child = subprocess.Popen(command, env={**os.environ, **given})
    threading.Thread(target=wait, args=(path, child), daemon=True).start()
    status = child.wait()
    os._exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
