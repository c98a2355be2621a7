"""An HTTP server for trained models, and the explorer's routes.

`app.create_app(Server(ServerConfig(), Models({"name": folder})))` is an ASGI application; `serve` runs it
under uvicorn. A request's way: `tf_serving`, `open_inference` or `libretranslate` read it (`requests`),
`service` divides its texts into lines and sentences, `batching` merges those of all requests, `engines`
translate, and the same modules write the answer. `models` loads and replaces versions. Needs the extra
`serve`.
"""

from keras_transformer import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "app": ("Server", "create_app"),
        "errors": ("NotFoundError", "RequestError", "UnavailableError"),
        "models": ("Models", "named_paths"),
        "settings": ("ServerConfig",),
    },
)
