"""Any program that talks to a model through OpenAI's or Anthropic's API, unchanged.

Each episode runs the program once, as a process of its own. It reads the problem on standard input,
and the address of the policy in OPENAI_BASE_URL and ANTHROPIC_BASE_URL; what it writes on standard
output is its answer, which the task's reward judges. Its requests are the turns of the episode.
"""

from __future__ import annotations

import dataclasses
import os
import queue
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from jaxrl.data import tasks
from jaxrl.data.environments import Environment, Opening, Reply, Written
from jaxrl.data.environments.bridges import dialects
from jaxrl.data.environments.bridges.dialects import Answer, Json, Said
from jaxrl.data.environments.bridges.gateway import Gateway, Pending
from jaxrl.data.environments.bridges.relay import SOCKET
from jaxrl.data.environments.tools.formats import HERMES, Call
from jaxrl.data.sandbox import processes
from jaxrl.data.sandbox import runner as sandboxes
from jaxrl.data.sources import generate
from jaxrl.data.types import Problem, Task

_OUTPUT = 1 << 20  # bytes of standard output
_ROLES = ("tool", "user")
_LIMITS = sandboxes.Limits(wall_s=86400.0, cpu_s=600, file_mb=64, processes=64, output_kb=1024)
"""Of a program in the sandbox, which may wait for its policy as long as a run takes."""
_KEPT = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV",
    "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip


def task(
    command: str,
    name: str = "arithmetic",
    args: Mapping[str, Any] | str = "{}",
    seconds: float = 60.0,
    roles: str = "tool,user",
    sandbox: bool = False,
    memory_mb: int = 4096,
) -> Task:
    """A task that a program solves, with the policy behind its API.

    Args:
      command: starts the program, without a shell; it is run in the working directory.
      name: of the task whose problems it gets, and whose reward judges what it prints.
      args: that task's parameters, as a mapping or JSON.
      seconds: the program may take so long before its first request, between an answer and the
        next request, and to end.
      roles: of messages that the program may add to its conversation, apart by commas; `user` where
        the chat template knows no `tool`.
      sandbox: run the program in the sandbox (`jaxrl.data.sandbox.runner`), where the policy is
        all that it can reach. It gets the files that the command names.
      memory_mb: what the program, and each process that it starts, may take (Linux).
    """
    inner = tasks.within(name, args)
    if inner.turns is not None or inner.grouped:
        raise ValueError(f"name={name!r}: choose a task whose answers are scored one by one")
    words = shlex.split(command)
    if not words or shutil.which(words[0]) is None:
        raise ValueError(f"command={command!r}: its program is not found; give a path, or install")
    if seconds <= 0:
        raise ValueError(f"seconds={seconds} must be positive")
    if memory_mb <= 0:
        raise ValueError(f"memory_mb={memory_mb} must be positive")
    allowed = tuple(role.strip() for role in roles.split(","))
    if unknown := [role for role in allowed if role not in _ROLES]:
        raise ValueError(f"roles={roles!r}: {unknown[0]!r} is none of {', '.join(_ROLES)}")
    return dataclasses.replace(
        inner,
        name="agent_program",
        gold=None,
        alphabet=inner.alphabet and "".join(dict.fromkeys(inner.alphabet + generate.ASCII)),
        description=__doc__,
        sandboxed=inner.sandboxed or sandbox,
        turns=environment(words, seconds, allowed, sandbox=sandbox, memory_mb=memory_mb),
    )


def environment(
    command: Sequence[str],
    seconds: float = 60.0,
    roles: tuple[str, ...] = _ROLES,
    *,
    sandbox: bool = False,
    memory_mb: int = 4096,
) -> Environment:
    """The environment whose side of an episode is a program; see `task`.

    A request that has the messages of the one before it, the answer, and what is new continues the
    conversation. One with other messages or tools, as of a summary or of another agent, begins
    another context of the same episode, see `Reply.opening`.
    """

    def begin(problem: Problem, seed: int) -> tuple[_Episode, Opening]:
        episode = _Episode(command, seconds, memory_mb)
        try:
            (episode.start_sandboxed if sandbox else episode.start)(problem, seed)
            heard = episode.wait()
        except BaseException:
            episode.close()
            raise
        if isinstance(heard, _Ended):
            episode.close()
            return episode, Opening(error=heard.error or "silent: the program asked for no turn")
        request = heard.asked
        episode.pending, episode.conversation = heard, list(request.messages)
        episode.tools = request.tools
        return episode, Opening(
            episode.messages(request.messages), request.stop, tools=request.tools
        )

    def step(episode: _Episode, action: str) -> Reply:
        calls = episode.say(action)
        heard = episode.wait()
        if isinstance(heard, _Ended):
            return Reply(done=True, error=heard.error, calls=calls, answer=heard.output)
        new, error = episode.new(heard)
        if error is not None:
            return Reply(error=error, calls=calls)
        if new is not None:
            return Reply(episode.messages(new), calls=calls, stop=heard.asked.stop)
        messages = episode.messages(episode.conversation)
        return Reply(calls=calls, opening=Opening(messages, heard.asked.stop, tools=episode.tools))

    return Environment(
        begin,
        step,
        roles=roles,
        close=_Episode.close,
        reads=_Episode.hear,
        tools="tool" in roles,
        waits=True,
        seconds=lambda problem, action: seconds,
    )


@dataclasses.dataclass(frozen=True)
class _Ended:
    output: str
    error: str | None


class _Episode:
    """A program that runs, and its conversation."""

    def __init__(self, command: Sequence[str], seconds: float, memory_mb: int) -> None:
        self._command, self._seconds, self._memory_mb = command, seconds, memory_mb
        self._events: queue.SimpleQueue[Pending | _Ended] = queue.SimpleQueue()
        self._gateway = Gateway(self._events.put)
        self._directory = tempfile.TemporaryDirectory(prefix="agent-")
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline: int | None = None
        """The end of a pipe, which the system closes at the latest when this process ends; the
        program, and what it has started, then end too, in the sandbox or not."""
        self._written = Written((), 0)
        self._turns = 0
        self.pending: Pending | None = None
        self.conversation: list[Said] = []
        """The conversation, of which the episode has the ids."""
        self.tools: tuple[Json, ...] = ()
        self._known: dict[str, list[Said]] = {}
        """The conversation up to each answer but its instructions, by the id of the answer."""
        self._texts: dict[Said, list[str]] = {}
        """Each answer as the policy wrote it; of equal ones, in their order."""

    def start(self, problem: Problem, seed: int) -> None:
        """Run the program; its requests and its end are events."""
        base, key = self._gateway.base, self._gateway.secret
        keeper = str(Path(__file__).with_name("keeper.py"))
        variables = {k: v for k, v in os.environ.items() if k in _KEPT or k.startswith("LC_")}
        alive, self._lifeline = os.pipe()
        bounds = [str(self._memory_mb), "0"]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper, str(alive), *bounds, *self._command],
            pass_fds=[alive],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={
                **variables,
                "OPENAI_BASE_URL": f"{base}/v1",
                "OPENAI_API_KEY": key,
                "ANTHROPIC_BASE_URL": base,
                "ANTHROPIC_API_KEY": key,
                "JAXRL_SEED": str(seed),
                "JAX_PLATFORMS": "cpu",
                "TMPDIR": self._directory.name,
            },
            start_new_session=True,
        )
        os.close(alive)
        prompt = problem.prompt.encode("utf-8", "replace")
        threading.Thread(target=self._watch, args=(self._process, prompt), daemon=True).start()

    def start_sandboxed(self, problem: Problem, seed: int) -> None:
        """As `start`, in the sandbox.

        Raises:
          RuntimeError: none works here that is allowed.
        """
        isolation = sandboxes.check()
        files = {Path(w).name: Path(w).read_text() for w in self._command[1:] if os.path.isfile(w)}
        words = [Path(w).name if os.path.isfile(w) else w for w in self._command[1:]]
        relay_arguments = [self._gateway.path, self._gateway.secret, str(seed)]
        program = [str(Path(shutil.which(self._command[0])).absolute()), *words]
        relay = Path(__file__).with_name("relay.py").read_text()
        alive, self._lifeline = os.pipe()

        def run() -> None:
            try:
                outcome = sandboxes.run(
                    [sys.executable, "-I", "-S", "relay.py", *relay_arguments, *program],
                    files={**files, "relay.py": relay},
                    stdin=problem.prompt,
                    limits=dataclasses.replace(_LIMITS, memory_mb=self._memory_mb),
                    isolation=isolation,
                    given=lambda directory: self._gateway.listen(directory / SOCKET),
                    cancel=alive,
                    inet=True,  # it asks the relay, on loopback
                )
            except (sandboxes.StartError, RuntimeError, OSError) as error:
                self._events.put(_Ended("", f"sandbox: {error}"))
                return
            finally:
                os.close(alive)
            error = None
            if outcome.end != "exit":
                error = f"{outcome.end}: the program was ended for it in its sandbox"
            elif outcome.status:
                why = outcome.stderr[-500:].strip()
                error = f"crash: the program ended with status {outcome.status}: {why}"
            self._events.put(_Ended(outcome.stdout, error))

        threading.Thread(target=run, daemon=True).start()

    def _watch(self, process: subprocess.Popen[bytes], prompt: bytes) -> None:
        errors: list[bytes] = []
        threading.Thread(target=_feed, args=(process.stdin, prompt), daemon=True).start()
        last = threading.Thread(target=_drain, args=(process.stderr, errors), daemon=True)
        last.start()
        output = process.stdout.read(_OUTPUT + 1)
        if len(output) > _OUTPUT:
            processes.kill_tree(process.pid)
        status = process.wait()
        last.join(1.0)
        error = None
        if len(output) > _OUTPUT:
            error = f"output: the program wrote more than {_OUTPUT} bytes"
        elif status:
            why = b"".join(errors)[-500:].decode(errors="replace").strip()
            error = f"crash: the program ended with status {status}: {why}"
        self._events.put(_Ended(output.decode(errors="replace"), error))

    def wait(self) -> Pending | _Ended:
        """The program's next request, or its end."""
        try:
            return self._events.get(timeout=self._seconds)
        except queue.Empty:
            return _Ended("", f"timeout: the program was silent for {self._seconds:g} s")

    def hear(self, written: Written) -> None:
        """How the turn was written that `say` is given next."""
        self._written = written

    def say(self, action: str) -> int:
        """Answer the request that waits; how many tools the answer calls."""
        request = self.pending.asked
        matches = [(at, string) for string in request.stop if (at := action.find(string)) >= 0]
        at, stop = min(matches, default=(None, None))
        text = action[:at]
        content, calls = HERMES.read(text) if self.tools else (text, [])
        read = [call for call in calls if isinstance(call, Call)]
        if len(read) < len(calls):  # what cannot be read stays text
            content, read = text, []
        content = content.strip() if read else text
        self._turns += 1
        tokens, count = self._written
        cut = stop is None and bool(tokens and tokens[-1].text)
        answer = Answer(self._turns, content, tuple(read), tokens, stop, cut, count)
        self.conversation.append(answer.said)
        self._known[f"resp_{self._turns}"] = self.conversation[request.instructions :]
        self._texts.setdefault(answer.said, []).append(action)
        self.pending.answer.set_result(answer)
        return len(calls)

    def new(self, heard: Pending) -> tuple[Sequence[Said] | None, str | None]:
        """The messages of a request that continue the conversation, or an error.

        None: its conversation is another one, which `conversation` then is.
        """
        self.pending, request = heard, heard.asked
        if request.after and request.after not in self._known:
            return None, f"request: it continues the response {request.after!r}, which is none"
        lead, rest = (
            request.messages[: request.instructions],
            request.messages[request.instructions :],
        )
        messages = [*lead, *self._known.get(request.after, []), *rest]
        before, self.conversation = self.conversation, messages
        same, self.tools = request.tools == self.tools, request.tools
        new = messages[len(before) :]
        answered = all(message.role != "assistant" for message in new)
        if same and new and answered and messages[: len(before)] == before:
            return new, None
        return None, None

    def messages(self, messages: Sequence[Said]) -> tuple[dict[str, str], ...]:
        """Messages as an environment gives them; an answer of the policy's is as it was written."""
        places = [messages[:n].count(message) for n, message in enumerate(messages)]
        pairs = zip(messages, places, strict=True)
        return tuple({"role": s.role, "content": self._text(s, place)} for s, place in pairs)

    def _text(self, message: Said, place: int) -> str:
        """The text of a message, of equal ones that of the `place`-th."""
        if message.role != "assistant":
            return message.content
        if texts := self._texts.get(message):
            return texts[min(place, len(texts) - 1)]
        return dialects.text(message)

    def close(self) -> None:
        """End the program with all that it has started."""
        if self._process is not None and self._process.poll() is None:
            processes.kill_tree(self._process.pid)
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
        self._gateway.close()
        self._directory.cleanup()


def _feed(stream: IO[bytes], prompt: bytes) -> None:
    try:
        with stream:
            stream.write(prompt)
    except OSError:  # the program does not read it
        return


def _drain(stream: IO[bytes], pieces: list[Any]) -> None:
    """Read to the end; keep the last of it."""
    while piece := stream.read1(1 << 16):
        pieces[:] = [*pieces, piece][-2:]
