"""Takes in the body of a reply as it arrives: unpacked, and no more of it than a limit. Pure."""

from __future__ import annotations

import zlib

ACCEPTED = "gzip"
"""What is asked for as Accept-Encoding. Other packings could grow a few bytes beyond any limit in one step."""

_GZIP = 16 + zlib.MAX_WBITS


class BadBodyError(Exception):
    """It is too long, or packed in a way that was not asked for; the message says what."""


class Body:
    """One reply's; `data` is what has arrived."""

    def __init__(self, encoding: str, limit: int) -> None:
        """`encoding` is the reply's Content-Encoding, `limit` counts bytes of what is unpacked.

        Raises:
            BadBodyError: It is packed otherwise than `ACCEPTED`.
        """
        packing = encoding.strip().lower().removeprefix("x-")
        if packing not in ("", "identity", ACCEPTED):
            raise BadBodyError(f"the reply is packed as {packing[:40]!r}, which was not asked for")
        self._unpack = zlib.decompressobj(_GZIP) if packing == ACCEPTED else None
        self._limit = limit
        self.data = bytearray()

    def add(self, chunk: bytes) -> None:
        """Adds bytes as they came.

        Raises:
            BadBodyError: That is more than the limit, or no gzip.
        """
        if self._unpack is None:
            self.data += chunk
        else:
            try:
                self.data += self._unpack.decompress(chunk, self._limit + 1 - len(self.data))
            except zlib.error as error:
                raise BadBodyError(f"the reply cannot be unpacked ({error})") from error
        if len(self.data) > self._limit:
            raise BadBodyError(f"the reply is longer than {self._limit} bytes")
