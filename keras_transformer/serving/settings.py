"""Settings of the server: each is a flag of `serve`."""

import re
import time

from keras_transformer.config.fields import require, section, setting

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@section("Settings of the server.")
class ServerConfig:
    host: str = setting("127.0.0.1", "address to listen on; 0.0.0.0 for all, then set `token`, too")
    port: int = setting(8501, "port to listen on; 0 for a free one", at_least=0, at_most=65535)
    token: str = setting(
        "",
        "what clients must send as `Authorization: Bearer TOKEN`, except to check health or list languages; "
        "better by the environment variable KERAS_TRANSFORMER_TOKEN, which others cannot see",
    )
    allow_origin: str = setting("", "one web origin whose pages may call the server (CORS); none by default")
    workers: int = setting(0, "batches translated in parallel; 0 for one per core", at_least=0, at_most=1024)
    batch_tokens: int = setting(2048, "most source tokens of a batch, padding included", at_least=1)
    max_wait_ms: float = setting(
        20.0, "milliseconds that a text waits for others while a batch is running", at_least=0, at_most=1000
    )
    max_body_bytes: int = setting(1_000_000, "most bytes of a request body", at_least=1000)
    max_texts: int = setting(256, "most texts of a request", at_least=1)
    max_request_tokens: int = setting(20_000, "most source tokens of a request", at_least=1)
    max_queue_tokens: int = setting(
        50_000,
        "most source tokens in the queue, fewer if they need over half of `timeout_seconds`; further "
        "requests get status 429",
        at_least=1,
    )
    max_beam_size: int = setting(16, "largest beam that a request may ask for", at_least=1, at_most=1000)
    timeout_seconds: float = setting(60.0, "most seconds for a request; then it gets status 504", above=0)
    drain_seconds: float = setting(
        30.0, "seconds that accepted requests have to finish after SIGTERM", above=0
    )
    reload_seconds: float = setting(
        5.0, "seconds between two looks for a newer version of a model; 0 for none", at_least=0
    )
    explorer: bool = setting(True, "serves the explorer of attention and search at `/`")
    log_texts: bool = setting(False, "also writes the texts of requests to the log")

    def __post_init__(self):
        sizes = {"max_request_tokens": self.max_request_tokens, "max_queue_tokens": self.max_queue_tokens}
        demand = "`max_request_tokens` must be at most `max_queue_tokens`"
        require(self.max_request_tokens <= self.max_queue_tokens, demand, **sizes)
        if not self.token.isascii() or any(map(str.isspace, self.token)):
            raise ValueError("`token` must be ASCII without spaces")
        require(
            not self.allow_origin or re.fullmatch("https?://[^/]+", self.allow_origin),
            "`allow_origin` must be http:// or https:// and a host, without a path",
            allow_origin=self.allow_origin,
        )

    @property
    def is_local(self):
        """Whether only programs on this machine can connect."""
        return self.host in LOOPBACK


def utc_time():
    """Returns the time for a line of the log, such as `2017-06-12T17:57:34Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
