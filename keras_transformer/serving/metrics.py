"""Metrics in the text format of Prometheus."""

from keras_transformer.config.extras import needs

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_TOKENS = (16, 64, 256, 512, 1024, 2048, 4096, 8192)


class Metrics:
    """Counters and histograms of one server.

    Attributes:
        requests: counter by method, route and status code.
        seconds: histogram of the time to the answer, by route.
        refused: counter by reason.
        texts, source_tokens: counters by model, of answered requests.
        batch_texts, batch_tokens, batch_seconds: histograms of the batches.
    """

    def __init__(self):
        with needs("serve", "The server"):
            import prometheus_client as prometheus

        self._prometheus = prometheus
        self._registry = registry = prometheus.CollectorRegistry()
        name = "keras_transformer_"

        def counter(key, text, *labels):
            return prometheus.Counter(name + key, text, labels, registry=registry)

        def histogram(key, text, buckets, *labels):
            return prometheus.Histogram(name + key, text, labels, registry=registry, buckets=buckets)

        self.requests = counter("requests", "Requests answered.", "method", "route", "code")
        self.seconds = histogram("request_seconds", "Seconds from request to answer.", _SECONDS, "route")
        self.refused = counter("refused", "Requests that got no translation.", "reason")
        self.texts = counter("texts", "Texts translated.", "model")
        self.source_tokens = counter("source_tokens", "Source tokens translated.", "model")
        self.batch_texts = histogram("batch_texts", "Sentences in a batch.", _TEXTS)
        self.batch_tokens = histogram("batch_tokens", "Source tokens in a batch.", _TOKENS)
        self.batch_seconds = histogram("batch_seconds", "Seconds that a batch took.", _SECONDS)

    def watch(self, queue, models):
        """Adds gauges of the queue and of the models' versions."""
        gauge = self._prometheus.Gauge
        name, registry = "keras_transformer_", self._registry
        texts = gauge(name + "queue_texts", "Sentences that wait.", registry=registry)
        texts.set_function(lambda: queue.num_texts)
        tokens = gauge(name + "queue_tokens", "Source tokens that wait.", registry=registry)
        tokens.set_function(lambda: queue.num_tokens)
        newest = gauge(name + "version", "Version that answers; 0 for none.", ("model",), registry=registry)
        for model in models:
            newest.labels(model.name).set_function(
                lambda model=model: model.newest.number if model.newest else 0
            )

    def on_batch(self, texts, tokens, seconds):
        """Adds a batch."""
        self.batch_texts.observe(texts)
        self.batch_tokens.observe(tokens)
        self.batch_seconds.observe(seconds)

    def text(self):
        """Returns `(bytes, content type)`."""
        prometheus = self._prometheus
        return prometheus.generate_latest(self._registry), prometheus.CONTENT_TYPE_LATEST
