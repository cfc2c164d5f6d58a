"""The object storage of the account: the part of S3's REST API by which the SDK uploads build contexts.

The SDK's uploader, obstore, uses only TLS and trusts the system's certificates, so this server listens on its own port
with a certificate of its own authority.

obstore reads SSL_CERT_FILE from the environment of the process when it makes a client. At that time the SDK empties
`os.environ`, which also removes all variables in `os.environ` from the environment of the process. So the variable must
be in the environment without being in `os.environ`: `trusted` does this for this process, and `Authority.variables` for
other processes, by a `sitecustomize` on PYTHONPATH. Neither changes the SDK.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import hashlib
import ipaddress
import os
import secrets
import ssl
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from finqa_testing.daytona.http_service import HOST, HttpServer, Refusal
from finqa_testing.daytona.loopback_sandboxes import ORGANIZATION, REGION

BUCKET = "loopback-builds"
XML = "application/xml"
CA_VARIABLE = "LOOPBACK_DAYTONA_CA"
CERTIFICATE_LIFE = datetime.timedelta(days=30)
SITECUSTOMIZE = f'''"""Trusts the certificate of a loopback Daytona, then runs the sitecustomize that this one hides."""

import os
import sys

path = os.environ.get("{CA_VARIABLE}", "")
if os.path.isfile(path):
    os.environ.pop("SSL_CERT_FILE", None)
    os.putenv("SSL_CERT_FILE", path)
here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
this = sys.modules.pop("sitecustomize")
try:
    import sitecustomize
except ModuleNotFoundError as error:
    if error.name != "sitecustomize":
        raise
    sys.modules["sitecustomize"] = this  # the import under way looks for it there
'''


class Storage:
    """Stores objects as files below `folder`. Requests must state the access key that `push_access` returned."""

    def __init__(self, folder: Path, authority: Authority) -> None:
        self._folder = folder
        self._authority = authority
        self._access_key = f"loopback-{secrets.token_hex(8)}"
        self._server = HttpServer(self._serve)
        self._opening = asyncio.Lock()
        self._port = 0

    def context(self, digest: str) -> Path | None:
        """Returns the archive of a build context; None if it was not uploaded."""
        path = self._path(f"{ORGANIZATION}/{digest}/context.tar")
        return path if path.is_file() else None

    async def push_access(self, _: Request) -> Response:
        """Returns where and how to upload; the first call starts the server."""
        async with self._opening:
            if not self._port:
                self._port = await self._server.open(tls=self._authority.context())
        body = {
            "accessKey": self._access_key,
            "secret": secrets.token_hex(16),
            "sessionToken": "loopback",
            "storageUrl": f"https://{HOST}:{self._port}",
            "organizationId": ORGANIZATION,
            "bucket": BUCKET,
            "region": REGION,
        }
        return JSONResponse(body)

    async def close(self) -> None:
        """Stops listening."""
        await self._server.close()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._answer(Request(scope, receive))
        except Refusal as refusal:
            response = refusal.response(scope["path"])
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if f"Credential={self._access_key}/" not in request.headers.get("authorization", ""):
            raise Refusal(403, "The access key is wrong")
        bucket, _, key = request.scope["path"].strip("/").partition("/")
        if bucket != BUCKET or not key:
            raise Refusal(404, "No such bucket")
        path = self._path(key)
        method, query = request.method, request.query_params
        upload = query.get("uploadId", "")
        if method == "POST" and query.get("uploads") == "":
            return _xml("InitiateMultipartUpload", key, UploadId=secrets.token_hex(8))
        if method == "PUT":
            target = self._part(upload, query.get("partNumber", "")) if upload else path
            content = await request.body()
            await asyncio.to_thread(write_file, target, content)
            return Response(headers={"ETag": _etag(content)})
        if method == "POST" and upload:
            await asyncio.to_thread(self._join, upload, path)
            return _xml("CompleteMultipartUpload", key, ETag=_etag(key.encode()))
        if method == "HEAD":
            return _head(path)
        raise Refusal(405, f"The loopback's object storage does not know {method}")

    def _path(self, key: str) -> Path:
        return self._folder / "objects" / hashlib.sha256(key.encode()).hexdigest()

    def _part(self, upload: str, number: str) -> Path:
        if not (upload.isalnum() and number.isdecimal()):
            raise Refusal(400, "The upload's id or the part's number is wrong")
        return self._folder / "uploads" / upload / f"{int(number):06d}"

    def _join(self, upload: str, target: Path) -> None:
        parts = sorted(self._part(upload, "0").parent.iterdir())
        write_file(target, b"".join(part.read_bytes() for part in parts))


class Authority:
    """A certificate authority for this loopback only.

    Attributes:
        bundle: PEM file with the system's authorities, and with this one after a call of `context`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.bundle = folder / "certificates.pem"
        self._python_path = folder / "python"
        self._python_path.mkdir(parents=True)
        (self._python_path / "sitecustomize.py").write_text(SITECUSTOMIZE, encoding="utf-8")
        known = ssl.get_default_verify_paths().cafile
        self.bundle.write_bytes(Path(known).read_bytes() if known else b"")

    def variables(self) -> dict[str, str]:
        """Returns variables with which a Python process trusts the object storage."""
        paths = [str(self._python_path), os.environ.get("PYTHONPATH", "")]
        return {CA_VARIABLE: str(self.bundle), "PYTHONPATH": os.pathsep.join(path for path in paths if path)}

    def context(self) -> ssl.SSLContext:
        """Returns the server's TLS context with a new certificate."""
        authority, certificate, key = _certificates()
        with self.bundle.open("ab") as bundle:
            bundle.write(b"\n" + authority)
        chain = self._folder / "server.pem"
        chain.touch(mode=0o600)
        chain.write_bytes(certificate + key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain)
        return context


@contextlib.contextmanager
def trusted(bundle: str | Path) -> Iterator[None]:
    """Makes obstore in this process trust only the certificates of a file, which should contain the system's too."""
    before = os.environ.pop("SSL_CERT_FILE", None)
    os.putenv("SSL_CERT_FILE", str(bundle))
    try:
        yield
    finally:
        os.unsetenv("SSL_CERT_FILE")
        if before is not None:
            os.environ["SSL_CERT_FILE"] = before


def _head(path: Path) -> Response:
    if not path.is_file():
        raise Refusal(404, "No such key")
    status = path.stat()
    headers = {
        "Content-Length": str(status.st_size),
        "Last-Modified": formatdate(status.st_mtime, usegmt=True),
        "ETag": _etag(path.name.encode()),
    }
    return Response(headers=headers)


def write_file(path: Path, content: bytes) -> None:
    """Writes a file, and makes missing folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _etag(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


def _xml(name: str, key: str, **fields: str) -> Response:
    inner = "".join(f"<{field}>{value}</{field}>" for field, value in fields.items())
    text = f"<{name}Result><Bucket>{BUCKET}</Bucket><Key>{key}</Key>{inner}</{name}Result>"
    return Response(f'<?xml version="1.0" encoding="UTF-8"?>{text}', media_type=XML)


def _certificates() -> tuple[bytes, bytes, bytes]:
    """Returns the certificate of an authority, a certificate for 127.0.0.1 and the key of the latter, all as PEM."""
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    names = [
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        for name in ("Loopback Daytona authority", "Loopback Daytona")
    ]
    now = datetime.datetime.now(datetime.UTC)

    def unsigned(subject: x509.Name, public: ec.EllipticCurvePublicKey, *, ca: bool) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder(issuer_name=names[0], subject_name=subject, public_key=public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + CERTIFICATE_LIFE)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )

    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))])
    authority = unsigned(names[0], authority_key.public_key(), ca=True).sign(authority_key, hashes.SHA256())
    server = unsigned(names[1], key.public_key(), ca=False).add_extension(address, critical=False)
    pem = serialization.Encoding.PEM
    return (
        authority.public_bytes(pem),
        server.sign(authority_key, hashes.SHA256()).public_bytes(pem),
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
