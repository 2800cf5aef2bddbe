"""Inside the sandbox of an agent program: starts it, and carries its requests out.

Run by path with `python -I -S`, and imports nothing of ours. The program finds the policy on the
sandbox's own loopback; what it sends goes through a socket in the scratch directory, the only way
out.
"""

import os
import socket
import subprocess
import sys
import threading

SOCKET = "gateway.socket"


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
        outside = socket.socket(socket.AF_UNIX)
        outside.connect(SOCKET)
        for pair in ((inside, outside), (outside, inside)):
            threading.Thread(target=carry, args=pair, daemon=True).start()


def main() -> None:
    """Arguments: path of the episode, key, seed, and the command."""
    path, key, seed, *command = sys.argv[1:]
    listener = socket.create_server(("127.0.0.1", 0))
    base = f"http://127.0.0.1:{listener.getsockname()[1]}{path}"
    variables = {
        "OPENAI_BASE_URL": f"{base}/v1",
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": base,
        "ANTHROPIC_API_KEY": key,
        "JAXRL_SEED": seed,
    }
    threading.Thread(target=listen, args=(listener,), daemon=True).start()
    status = subprocess.run(command, env={**os.environ, **variables}, check=False).returncode
    os._exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
