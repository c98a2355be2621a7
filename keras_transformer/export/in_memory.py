"""Exports by the name of the format, for `Translator.export`."""

from keras_transformer.config.fields import did_you_mean

FORMATS = ("savedmodel", "ctranslate2", "keras")


def export_run(run, path, format, **options):
    """Exports a run folder.

    Args:
        run: `RunFolder`.
        path: folder to write.
        format: one of `FORMATS`.
        **options: those of the function of the format.

    Returns:
        What that function returns.

    Raises:
        ValueError: an unknown format, or as the function.
    """
    if format == "savedmodel":
        from keras_transformer.export.saved_model import export_saved_model

        return export_saved_model(run.path, path, **options)
    if format == "ctranslate2":
        from keras_transformer.export.ctranslate2 import export_ctranslate2

        return export_ctranslate2(run, path, **options)
    if format == "keras":
        from keras_transformer.export.keras_files import export_keras

        return export_keras(run, path, **options)
    hint = did_you_mean(format, FORMATS)
    raise ValueError(f"`format` must be one of {', '.join(FORMATS)}. Received: {format!r}. {hint}".rstrip())
