"""Errors that the server answers with a status code and one line."""


class RequestError(Exception):
    """A request that is refused.

    Args:
        message: str, one line for the client.
        retry_after: int, seconds after which to try again; `None` if that is no use.
    """

    status = 400
    reason = "invalid"

    def __init__(self, message, *, retry_after=None):
        super().__init__(message)
        self.retry_after = retry_after


class UnauthorizedError(RequestError):
    """No token, or a wrong one."""

    status, reason = 401, "unauthorized"


class ForbiddenError(RequestError):
    """The request comes from a page of another origin."""

    status, reason = 403, "forbidden"


class NotFoundError(RequestError):
    """No such model, version, language or path."""

    status, reason = 404, "not_found"


class MethodError(RequestError):
    """The path needs another method."""

    status, reason = 405, "method"


class TooLargeError(RequestError):
    """The request is over a limit."""

    status, reason = 413, "too_large"


class BusyError(RequestError):
    """The queue is full."""

    status, reason = 429, "busy"


class ClientLeftError(RequestError):
    """The client closed the connection before the answer."""

    status, reason = 499, "client_left"


class EngineError(RequestError):
    """The model failed on this request."""

    status, reason = 500, "fault"


class UnavailableError(RequestError):
    """The model is being loaded, or the server is shutting down."""

    status, reason = 503, "unavailable"


class DeadlineError(RequestError):
    """The answer was not ready in time."""

    status, reason = 504, "timeout"
