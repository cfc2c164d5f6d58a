"""A loopback CoreWeave in a process of its own."""

from __future__ import annotations

from urllib.parse import urlsplit

from finqa_cli.testing.coreweave.config import CoreWeaveConfig
from finqa_cli.testing.coreweave.coreweave_control import CoreWeaveControl
from finqa_cli.testing.served import ServedProcess


class LoopbackCoreWeave(ServedProcess):
    """CoreWeave's sandbox service on 127.0.0.1, with real processes of this machine in its boxes.

    ```python
    with LoopbackCoreWeave() as loopback:
        subprocess.run(["finqa", "sandbox", "ls", "--sandbox", "cwsandbox"], env={**os.environ, **loopback.environment})
    ```

    It ends with this process, also when that is killed with SIGKILL. Boxes isolate nothing: commands that are not to
    be trusted need a supervisor of their own, as the real boxes do.
    """

    def __init__(self, config: CoreWeaveConfig | None = None) -> None:
        self.config = config or CoreWeaveConfig()
        super().__init__("finqa_cli.testing.coreweave.serve_coreweave", self.config, proof="CWSANDBOX_API_KEY")

    @property
    def api_key(self) -> str:
        """CoreWeave's key that it accepts."""
        return self.environment["CWSANDBOX_API_KEY"]

    @property
    def control(self) -> CoreWeaveControl:
        """What happened, and accidents."""
        return CoreWeaveControl(urlsplit(self.environment["CWSANDBOX_BASE_URL"]).netloc)
