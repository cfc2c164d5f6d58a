"""`/toolbox/{sandbox}`: commands, sessions and files inside sandboxes."""

from __future__ import annotations

import asyncio
import posixpath
import secrets
from collections.abc import Mapping
from pathlib import Path

from python_multipart.exceptions import FormParserError
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from finqa_testing.daytona.account import Account
from finqa_testing.daytona.http_service import Endpoint, LostReply, Refusal, json_body, texts_list
from finqa_testing.daytona.loopback_sandboxes import LoopbackSandbox
from finqa_testing.daytona.sandbox_commands import (
    DEFAULT_TIMEOUT_S,
    Command,
    FailedCommand,
    ServerCommand,
    Session,
    ShellCommand,
    command_dto,
    server_command,
)
from finqa_testing.daytona.storage import write_file

DEFAULT_PORT = 8000


class ToolboxApi:
    """The handlers of one account."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def endpoints(self) -> list[Endpoint]:
        """Returns the routes."""
        session = "/toolbox/{sandbox}/process/session/{session}"
        files = "/toolbox/{sandbox}/files"
        return [
            ("POST", "/toolbox/{sandbox}/process/execute", self.execute),
            ("GET", "/toolbox/{sandbox}/process/session", self.sessions),
            ("POST", "/toolbox/{sandbox}/process/session", self.create_session),
            ("GET", session, self.session),
            ("DELETE", session, self.delete_session),
            ("POST", f"{session}/exec", self.session_execute),
            ("GET", f"{session}/command/{{command}}", self.command),
            ("GET", f"{session}/command/{{command}}/logs", self.logs),
            ("POST", f"{files}/bulk-upload", self.upload),
            ("POST", f"{files}/bulk-download", self.download),
        ]

    async def _running(self, id_or_name: str) -> LoopbackSandbox:
        """Returns a sandbox whose toolbox answers; waits while it is frozen.

        Raises:
            Refusal: The sandbox does not exist (404), does not run (400), or its processes have ended (502).
        """
        sandbox = self._account.sandbox(id_or_name)
        if sandbox.frozen:
            await sandbox.thawed.wait()
        if sandbox.dead:
            raise Refusal(502, "Bad gateway: the sandbox does not answer")
        if sandbox.state != "started":
            raise Refusal(400, f"Sandbox is not running: {sandbox.state}")
        sandbox.touch()
        return sandbox

    async def execute(self, request: Request, sandbox: str) -> Response:
        """Runs a shell command until it ends."""
        body = await json_body(request)
        found = await self._running(sandbox)
        timeout = body.get("timeout")
        variables = {**found.environment, **_variables(body.get("envs"))}
        command = ShellCommand(_command(body))
        found.executed.append(command)
        try:
            await self._shell(
                found, command, variables, float(timeout) if isinstance(timeout, int) and timeout else None
            )
        finally:
            if not command.lingers:
                found.executed.remove(command)
        if self._account.random.hit("lost_execution", self._account.config.faults.lost_execution):
            raise LostReply
        return JSONResponse({"exitCode": command.exit_code(), "result": command.output()})

    async def create_session(self, request: Request, sandbox: str) -> Response:
        """Creates a session."""
        found = await self._running(sandbox)
        identifier = (await json_body(request)).get("sessionId")
        if not isinstance(identifier, str) or not identifier:
            raise Refusal(400, "sessionId must be a string")
        if identifier in found.sessions:
            raise Refusal(409, "session already exists")
        found.sessions[identifier] = Session(identifier)
        return Response(status_code=201)

    async def sessions(self, _: Request, sandbox: str) -> Response:
        """Returns all sessions."""
        found = await self._running(sandbox)
        return JSONResponse([session.dto() for session in found.sessions.values()])

    async def session(self, _: Request, sandbox: str, session: str) -> Response:
        """Returns one session."""
        return JSONResponse(_find_session(await self._running(sandbox), session).dto())

    async def delete_session(self, _: Request, sandbox: str, session: str) -> Response:
        """Ends a session and its commands. Servers that it started no longer answer."""
        found = await self._running(sandbox)
        ended = _find_session(found, session)
        ended.end()
        del found.sessions[session]
        served = {command.server.port for command in ended.commands.values() if isinstance(command, ServerCommand)}
        found.ports = {port: real for port, real in found.ports.items() if real not in served}
        return Response(status_code=204)

    async def session_execute(self, request: Request, sandbox: str, session: str) -> Response:
        """Runs a command in a session; with `runAsync` it attaches a server or runs the command in the background."""
        body = await json_body(request)
        found = await self._running(sandbox)
        held = _find_session(found, session)
        identifier = self._account.random.identifier()
        text = _command(body)
        in_background = body.get("runAsync") is True or body.get("async") is True
        if in_background and (parsed := server_command(text)) is not None:
            held.commands[identifier] = self._serve(found, text, *parsed)
            return JSONResponse({"cmdId": identifier}, 202)
        command = ShellCommand(text)
        held.commands[identifier] = command
        work = self._shell(found, command, found.environment, None)
        if in_background:
            self._account.run(work)
            return JSONResponse({"cmdId": identifier}, 202)
        await work
        output = command.output()
        body = {"cmdId": identifier, "exitCode": command.exit_code(), "output": output, "stdout": output, "stderr": ""}
        return JSONResponse(body)

    async def command(self, _: Request, sandbox: str, session: str, command: str) -> Response:
        """Returns the state of a command."""
        found = _find_session(await self._running(sandbox), session)
        return JSONResponse(command_dto(command, _find_command(found, command)))

    async def logs(self, _: Request, sandbox: str, session: str, command: str) -> Response:
        """Returns the output of a command so far."""
        output = _find_command(_find_session(await self._running(sandbox), session), command).output()
        return JSONResponse({"output": output, "stdout": output, "stderr": ""})

    async def upload(self, request: Request, sandbox: str) -> Response:
        """Writes the parts `files[N].file` of a form to the paths in its parts `files[N].path`."""
        found = await self._running(sandbox)
        try:
            form = await request.form()
        except (MultiPartException, FormParserError):
            form = FormData()
        if not form:
            raise Refusal(400, "The body is no form")
        for name, file in form.items():
            if isinstance(file, UploadFile):
                path = str(form.get(name.removesuffix(".file") + ".path", ""))
                target = _own_path(found, path)
                await asyncio.to_thread(write_file, target, await file.read())
                found.files[_normalize(path)] = target
        await form.close()
        return Response()

    async def download(self, request: Request, sandbox: str) -> Response:
        """Sends files as the parts of a form, with a part named `error` for a missing file."""
        found = await self._running(sandbox)
        paths = texts_list(await json_body(request), "paths")
        boundary = secrets.token_hex(16)
        body = b""
        for path in paths:
            file = _readable_path(found, path)
            missing = file is None or not file.is_file()
            content = b"file not found" if file is None or missing else await asyncio.to_thread(file.read_bytes)
            name = "error" if missing else "file"
            body += f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="{path}"\r\n\r\n'.encode()
            body += content + b"\r\n"
        body += f"--{boundary}--\r\n".encode()
        return Response(body, media_type=f"multipart/form-data; boundary={boundary}")

    def _serve(
        self, sandbox: LoopbackSandbox, text: str, variables: dict[str, str], module: str, arguments: tuple[str, ...]
    ) -> Command:
        if sandbox.image.broken:
            return FailedCommand(text, f"ModuleNotFoundError: No module named '{module}' (the image is broken)\n")
        merged = {**sandbox.image.environment, **sandbox.environment, **variables}
        try:
            port = int(merged.get("PORT", DEFAULT_PORT))
            environment = sandbox.image.program_environment(merged)
            paths = [sandbox.image.host_path(one) or one if one.startswith("/") else one for one in arguments]
            server = self._account.servers.attach(sandbox.image.id, module, tuple(paths), environment)
        except (OSError, ValueError) as error:
            return FailedCommand(text, f"{error}\n")
        command = ServerCommand(text, server)

        def listen() -> None:
            if not sandbox.dead and not command.ended:
                sandbox.ports[port] = server.port

        delay = self._account.random.seconds("boot", self._account.config.latency.boot)
        self._account.later(delay, listen)
        return command

    async def _shell(
        self, sandbox: LoopbackSandbox, command: ShellCommand, variables: Mapping[str, str], timeout_s: float | None
    ) -> None:
        translated = command.text
        for inside, outside in sorted({**sandbox.image.mounts, **sandbox.files}.items(), reverse=True):
            translated = translated.replace(inside, str(outside))
        sandbox.folder.mkdir(parents=True, exist_ok=True)
        environment = sandbox.image.program_environment(variables)
        await command.run(translated, sandbox.folder, environment, timeout_s or DEFAULT_TIMEOUT_S)


def _find_session(sandbox: LoopbackSandbox, identifier: str) -> Session:
    if identifier not in sandbox.sessions:
        raise Refusal(404, "session not found")
    return sandbox.sessions[identifier]


def _find_command(session: Session, identifier: str) -> Command:
    if identifier not in session.commands:
        raise Refusal(404, "command not found")
    return session.commands[identifier]


def _command(body: dict[str, object]) -> str:
    text = body.get("command")
    if not isinstance(text, str) or not text.strip():
        raise Refusal(400, "command is required")
    return text


def _variables(value: object) -> dict[str, str]:
    return {str(name): str(text) for name, text in value.items()} if isinstance(value, dict) else {}


def _normalize(path: str) -> str:
    if not path:
        raise Refusal(400, "path is required")
    return posixpath.normpath(posixpath.join("/", path))


def _own_path(sandbox: LoopbackSandbox, path: str) -> Path:
    """Returns the path in the sandbox's own folder for a path inside the sandbox."""
    return sandbox.folder / "root" / _normalize(path).lstrip("/")


def _readable_path(sandbox: LoopbackSandbox, path: str) -> Path | None:
    own = _own_path(sandbox, path)
    if own.exists():
        return own
    outside = sandbox.image.host_path(_normalize(path))
    return None if outside is None else Path(outside)
