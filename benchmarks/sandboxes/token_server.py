"""A server of tokens in its own process, which speaks as vLLM does and computes nothing.

    python -m benchmarks.sandboxes.token_server --root MODEL [--port N] [--seconds S] [--replies FILE]

It answers each completion after about so many seconds with one of the replies in the file (JSON: a list of lists of
token ids), chosen by seed and length of the prompt. Log-probabilities tell one adapter from another and follow the
temperature, as the checks before a run demand. `GET /facts` says what was asked of it, `POST /seconds` changes how long
later completions take. The first line of its output is its port.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
import random
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MODEL = "base-model"
MAX_CONTEXT = 32_768
LOGITS = (2.0, 1.0, 0.5, 0.0, -1.0)
"""Of the five tokens that it could draw, before the temperature."""


class Tokens:
    """What the server knows.

    Attributes:
        adapters: Name -> what tells its weights from others.
        paths: Name -> its folder; names stay when an adapter is unloaded.
        served: Name of a model or adapter -> completions.
        waiting, most_waiting: Completions in progress.
        request_seconds: Seconds of service, summed over the completions that ended.
        aborted: Completions whose connection was closed before their end.
    """

    def __init__(self, root: str, seconds: float, replies: Sequence[Sequence[int]]) -> None:
        self.root, self.seconds, self.replies = root, seconds, replies
        self.adapters: dict[str, str] = {}
        self.paths: dict[str, str] = {}
        self.served: Counter[str] = Counter()
        self.waiting = self.most_waiting = self.aborted = 0
        self.request_seconds = 0.0
        self.prompt_ids = 0

    def facts(self) -> dict[str, Any]:
        """What was asked of the server."""
        names = ("waiting", "most_waiting", "aborted", "request_seconds", "prompt_ids")
        numbers = {name: getattr(self, name) for name in names}
        return {**numbers, "served": self.served, "paths": self.paths}

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """Status and document of everything but completions."""
        match method, path:
            case "GET", "/health":
                return 200, b""
            case "GET", "/facts":
                return 200, json.dumps(self.facts()).encode()
            case "GET", "/v1/models":
                card = {"id": MODEL, "root": self.root, "parent": None, "max_model_len": MAX_CONTEXT}
                return 200, json.dumps({"object": "list", "data": [card]}).encode()
            case "POST", "/seconds":
                self.seconds = body["seconds"]
                return 200, b""
            case "POST", "/v1/load_lora_adapter":
                name, folder = body["lora_name"], Path(body["lora_path"])
                if not (folder / "adapter_model.safetensors").is_file():
                    return 404, _error(f"Loading lora {name} failed: No adapter found for {folder}")
                weights = (folder / "adapter_model.safetensors").read_bytes()
                self.adapters[name] = hashlib.sha256(weights).hexdigest()
                self.paths[name] = str(folder)
                return 200, b"Success"
            case "POST", "/v1/unload_lora_adapter":
                known = self.adapters.pop(body["lora_name"], None)
                return (200, b"Success") if known else (404, _error("The lora adapter cannot be found."))
        return 404, b'{"detail": "Not Found"}'

    def completion(self, body: dict[str, Any]) -> tuple[int, bytes]:
        """Status and document of a completion."""
        name, prompt = body["model"], body["prompt"]
        if name != MODEL and name not in self.adapters:
            return 404, _error(f"The model `{name}` does not exist.")
        self.served[name] += 1
        self.prompt_ids += len(prompt)
        temperature = body["temperature"] or 1.0
        total = math.log(sum(math.exp(logit / temperature) for logit in LOGITS))
        place = random.Random(f"{body['seed']}:{len(prompt)}").randrange(len(self.replies))
        ids = list(self.replies[place][: body["max_tokens"]])
        # shifted a little by the adapter, so that what it serves can be distinguished from the base model
        shift = int(self.adapters.get(name, "0")[:6], 16) / 0xFFFFFF
        logprobs = [LOGITS[0] / temperature - total - 0.1 * shift] * len(ids)
        top = {f"token_id:{token}": logit / temperature - total for token, logit in enumerate(LOGITS)}
        choice = {
            "index": 0,
            "text": "",
            "finish_reason": "stop" if ids[-1] in body["stop_token_ids"] else "length",
            "logprobs": {"token_logprobs": logprobs, "top_logprobs": [top] if body["logprobs"] else None},
            "token_ids": ids,
            "prompt_token_ids": prompt,
        }
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids), "total_tokens": len(prompt) + len(ids)}
        return 200, json.dumps({"model": name, "choices": [choice], "usage": usage}).encode()

    def delay_s(self, body: dict[str, Any]) -> float:
        """Seconds until a completion is done; requests without a seed of their own are those of checks."""
        return self.seconds * random.Random(f"{body['seed']}").uniform(0.5, 1.5) if body["seed"] else 0.0


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._buffer = bytearray()
        self._answering: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps it."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        """Frees the place of the request."""
        if self._answering is not None:
            self._answering.cancel()
            self._tokens.waiting -= 1
            self._tokens.aborted += 1

    def data_received(self, data: bytes) -> None:
        """Answers once the request is whole."""
        self._buffer += data
        head, found, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        fields = head.lower().split(b"\r\n")
        length = next((int(one[15:]) for one in fields if one.startswith(b"content-length:")), 0)
        if not found or len(rest) < length:
            return
        self._buffer.clear()
        method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
        body = json.loads(rest[:length]) if length else {}
        if path != "/v1/completions":
            self._send(*self._tokens.answer(method, path, body))
            return
        tokens, loop = self._tokens, asyncio.get_running_loop()
        tokens.waiting += 1
        tokens.most_waiting = max(tokens.most_waiting, tokens.waiting)
        self._answering = loop.call_later(tokens.delay_s(body), self._complete, body, loop.time())

    def _complete(self, body: dict[str, Any], began: float) -> None:
        self._answering = None
        self._tokens.waiting -= 1
        self._tokens.request_seconds += asyncio.get_running_loop().time() - began
        self._send(*self._tokens.completion(body))

    def _send(self, status: int, document: bytes) -> None:
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(document)}\r\n\r\n"
        self._transport.write(head.encode() + document)


class ServerProcess:
    """A running server; made by `token_server`."""

    def __init__(self, root: Path, *, seconds: float, replies: Path, port: int = 0) -> None:
        self._arguments = ["--root", str(root), "--seconds", str(seconds), "--replies", str(replies)]
        self._process: subprocess.Popen[str] | None = None
        self.port = port

    @property
    def url(self) -> str:
        """Address of its API."""
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        """Starts it, again at the same port."""
        command = [sys.executable, "-m", __name__, "--port", str(self.port), *self._arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None, "the server is not started"
        return self._process.pid

    def kill(self) -> None:
        """As `kill -9` does."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def facts(self) -> dict[str, Any]:
        """`Tokens.facts`."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/facts", timeout=10) as reply:
            found: dict[str, Any] = json.load(reply)
            return found

    def set_seconds(self, seconds: float) -> None:
        """Changes the mean time of later completions."""
        body = json.dumps({"seconds": seconds}).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/seconds", data=body, timeout=10):
            pass


@contextmanager
def token_server(
    root: Path, replies: Sequence[Sequence[int]], *, seconds: float, home: Path
) -> Iterator[ServerProcess]:
    """A server for as long as the block lasts.

    Args:
        root: Folder that it says it loaded its model from.
        replies: What it answers with.
        seconds: Mean time of a completion.
        home: Where the replies are written to.
    """
    file = home / "replies.json"
    file.write_text(json.dumps([list(reply) for reply in replies]))
    server = ServerProcess(root, seconds=seconds, replies=file)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def _error(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": "BadRequestError", "param": None, "code": 400}}).encode()


async def _serve(port: int, tokens: Tokens) -> None:
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(tokens), "127.0.0.1", port, backlog=1024, reuse_address=True
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    """Reads the flags and serves until it is killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="folder of the model that it says it serves")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.0, help="mean time of a completion")
    parser.add_argument("--replies", type=Path, required=True)
    arguments = parser.parse_args()
    replies = json.loads(arguments.replies.read_text())
    asyncio.run(_serve(arguments.port, Tokens(arguments.root, arguments.seconds, replies)))


if __name__ == "__main__":
    main()
