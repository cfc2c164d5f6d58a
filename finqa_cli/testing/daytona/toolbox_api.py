"""`/toolbox/{box}`: commands and sessions inside boxes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from finqa_cli.testing.daytona.account import Account
from finqa_cli.testing.daytona.http_messages import Cut, Refusal, Reply, Request
from finqa_cli.testing.daytona.loopback_sandboxes import Box
from finqa_cli.testing.daytona.router import Router
from finqa_cli.testing.daytona.servers import image_environment
from finqa_cli.testing.daytona.toolbox_sessions import (
    DEFAULT_TIMEOUT_S,
    Command,
    FailedCommand,
    ServerCommand,
    Session,
    ShellCommand,
    command_dto,
    server_command,
)

DEFAULT_PORT = 8000


class ToolboxApi:
    """Handlers of one account."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def register(self, router: Router) -> None:
        """Adds the routes."""
        process = "/toolbox/{box}/process"
        router.add("POST", f"{process}/execute", self.execute)
        router.add("GET", f"{process}/session", self.sessions)
        router.add("POST", f"{process}/session", self.create_session)
        router.add("GET", f"{process}/session/{{session}}", self.session)
        router.add("DELETE", f"{process}/session/{{session}}", self.delete_session)
        router.add("POST", f"{process}/session/{{session}}/exec", self.session_execute)
        router.add("GET", f"{process}/session/{{session}}/command/{{command}}", self.command)
        router.add("GET", f"{process}/session/{{session}}/command/{{command}}/logs", self.logs)

    async def running(self, id_or_name: str) -> Box:
        """A box whose toolbox answers; one that is frozen keeps its callers waiting.

        Raises:
            Refusal: It is gone (404), does not run (400), or its processes died (502).
        """
        box = self._account.box(id_or_name)
        if box.frozen:
            await box.thawed.wait()
        if box.dead:
            raise Refusal(502, "Bad gateway: the sandbox does not answer")
        if box.state != "started":
            raise Refusal(400, f"Sandbox is not running: {box.state}")
        box.touch()
        return box

    async def execute(self, request: Request, box: str) -> Reply:
        """Runs a shell command to its end."""
        body = request.json()
        found = await self.running(box)
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
        if self._account.dice.hit("lost_execution", self._account.config.faults.lost_execution):
            raise Cut
        return Reply(body={"exitCode": command.exit_code(), "result": command.output()})

    async def create_session(self, request: Request, box: str) -> Reply:
        """Begins a session."""
        found = await self.running(box)
        identifier = request.json().get("sessionId")
        if not isinstance(identifier, str) or not identifier:
            raise Refusal(400, "sessionId must be a string")
        if identifier in found.sessions:
            raise Refusal(409, "session already exists")
        found.sessions[identifier] = Session(identifier)
        return Reply(201)

    async def sessions(self, _: Request, box: str) -> Reply:
        """All sessions."""
        found = await self.running(box)
        return Reply(body=[session.dto() for session in found.sessions.values()])

    async def session(self, _: Request, box: str, session: str) -> Reply:
        """One session."""
        return Reply(body=_session(await self.running(box), session).dto())

    async def delete_session(self, _: Request, box: str, session: str) -> Reply:
        """Ends a session and its commands. A server that it started answers no more."""
        found = await self.running(box)
        ended = _session(found, session)
        ended.end()
        del found.sessions[session]
        served = {command.server.port for command in ended.commands.values() if isinstance(command, ServerCommand)}
        found.ports = {port: real for port, real in found.ports.items() if real not in served}
        return Reply(204)

    async def session_execute(self, request: Request, box: str, session: str) -> Reply:
        """Runs a command in a session; with `runAsync` a server is attached, or a shell command goes on by itself."""
        body = request.json()
        found = await self.running(box)
        held = _session(found, session)
        identifier = self._account.dice.identifier()
        text = _command(body)
        in_background = body.get("runAsync") is True or body.get("async") is True
        if in_background and (parsed := server_command(text)) is not None:
            held.commands[identifier] = self._serve(found, text, *parsed)
            return Reply(202, {"cmdId": identifier})
        command = ShellCommand(text)
        held.commands[identifier] = command
        work = self._shell(found, command, found.environment, None)
        if in_background:
            self._account.run(asyncio.get_running_loop().create_task(work))
            return Reply(202, {"cmdId": identifier})
        await work
        output = command.output()
        body = {"cmdId": identifier, "exitCode": command.exit_code(), "output": output, "stdout": output, "stderr": ""}
        return Reply(body=body)

    async def command(self, _: Request, box: str, session: str, command: str) -> Reply:
        """A command's state."""
        found = _session(await self.running(box), session)
        return Reply(body=command_dto(command, _of(found, command)))

    async def logs(self, _: Request, box: str, session: str, command: str) -> Reply:
        """What a command has written."""
        output = _of(_session(await self.running(box), session), command).output()
        return Reply(body={"output": output, "stdout": output, "stderr": ""})

    def _serve(
        self, box: Box, text: str, variables: dict[str, str], module: str, arguments: tuple[str, ...]
    ) -> Command:
        if box.image.broken:
            return FailedCommand(text, f"ModuleNotFoundError: No module named '{module}' (the image is broken)\n")
        told = {**box.image.environment, **box.environment, **variables}
        try:
            port = int(told.get("PORT", DEFAULT_PORT))
            server = self._account.servers.attach(box.image, module, arguments, told)
        except (OSError, ValueError) as error:
            return FailedCommand(text, f"{error}\n")
        command = ServerCommand(text, server)

        def listen() -> None:
            if not box.dead and not command.ended:
                box.ports[port] = server.port

        delay = self._account.dice.seconds("boot", self._account.config.latency.boot)
        self._account.later(delay, listen)
        return command

    async def _shell(
        self, box: Box, command: ShellCommand, variables: Mapping[str, str], timeout_s: float | None
    ) -> None:
        translated = command.text
        for inside, outside in sorted({**box.image.mounts, **box.files}.items(), reverse=True):
            translated = translated.replace(inside, str(outside))
        box.folder.mkdir(parents=True, exist_ok=True)
        environment = image_environment(box.image, variables)
        await command.run(translated, box.folder, environment, timeout_s or DEFAULT_TIMEOUT_S)


def _session(box: Box, identifier: str) -> Session:
    if identifier not in box.sessions:
        raise Refusal(404, "session not found")
    return box.sessions[identifier]


def _of(session: Session, identifier: str) -> Command:
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
