"""How clients come to trust the certificate of the object storage.

obstore reads SSL_CERT_FILE from the process's environment when it makes a client. The SDK empties `os.environ` around
that moment, which also empties the environment beneath it of all that `os.environ` knows. So the variable has to be in
the environment without being in `os.environ`: `trusted` does it for this process, and `Authority.variables` for
others, by a `sitecustomize` on PYTHONPATH. Neither touches the SDK.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import ssl
from collections.abc import Iterator
from pathlib import Path

from finqa_cli.testing.daytona.listener import HOST

CA_VARIABLE = "LOOPBACK_DAYTONA_CA"
LIFE = datetime.timedelta(days=30)
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


class Authority:
    """A certificate authority of this loopback alone.

    Attributes:
        bundle: PEM file with the system's authorities, and this one once `context` was called.
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
        """With these a Python process trusts the object storage."""
        paths = [str(self._python_path), os.environ.get("PYTHONPATH", "")]
        return {CA_VARIABLE: str(self.bundle), "PYTHONPATH": os.pathsep.join(path for path in paths if path)}

    def context(self) -> ssl.SSLContext:
        """For the server's side, with a new certificate.

        Raises:
            ImportError: The package `cryptography` is missing; it comes with openenv-core.
        """
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
    """This process trusts the certificates of this file, which should hold the system's too."""
    before = os.environ.pop("SSL_CERT_FILE", None)
    os.putenv("SSL_CERT_FILE", str(bundle))
    try:
        yield
    finally:
        os.unsetenv("SSL_CERT_FILE")
        if before is not None:
            os.environ["SSL_CERT_FILE"] = before


def _certificates() -> tuple[bytes, bytes, bytes]:
    """PEM of an authority, and of a certificate for 127.0.0.1 with its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

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
            .not_valid_after(now + LIFE)
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
