"""Translates standard input with an exported model on TensorFlow Serving: a line for every line.

    python examples/serving_client.py m30k < text > translations
    python examples/serving_client.py m30k --grpc localhost:8500 < text > translations

Over REST it needs nothing but Python; over gRPC, `pip install tensorflow-serving-api`. Take it
apart: it is a start for your own client, and imports nothing of this package.
"""

import argparse
import http.client
import itertools
import json
import os
import re
import sys
import urllib.error
import urllib.parse
import urllib.request


def translate_rest(texts, address, model, timeout):
    """Returns list of (translation, score) of a list of str.

    Raises:
        OSError: no answer, or a refusal; the message has what the server says.
        ValueError: an answer that is not one of this model.
    """
    request = urllib.request.Request(
        f"http://{address}/v1/models/{urllib.parse.quote(model, safe='')}:predict",
        data=json.dumps({"instances": texts}).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            found = json.load(response)["predictions"]
        return [(one["translation"], one["score"]) for one in found]
    except urllib.error.HTTPError as error:
        with error:
            raise OSError(f"{error.code}: {reason_of(error.read())}") from error
    except (http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"not the answer of an exported translator ({error!r})") from error


def reason_of(body):
    """Returns the reason in a refusal, str."""
    try:
        return json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")


def translate_grpc(texts, address, model, timeout):
    """As `translate_rest`, through `PredictRequest`."""
    import grpc
    import tensorflow as tf
    from tensorflow_serving.apis import model_pb2, predict_pb2, prediction_service_pb2_grpc

    request = predict_pb2.PredictRequest(
        model_spec=model_pb2.ModelSpec(name=model, signature_name="serving_default"),
        inputs={"text": tf.make_tensor_proto(texts, tf.string)},
    )
    with grpc.insecure_channel(address) as channel:
        service = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        try:
            outputs = service.Predict(request, timeout=timeout).outputs
        except grpc.RpcError as error:
            raise OSError(f"{error.code().name}: {error.details()}") from error
    translations, scores = (tf.make_ndarray(outputs[name]).tolist() for name in ("translation", "score"))
    return [(text.decode(), score) for text, score in zip(translations, scores, strict=True)]


def main(argv=None, stdin=None):
    """Runs the program; returns its exit code."""
    parser = argparse.ArgumentParser(description="Translates standard input with TensorFlow Serving.")
    parser.add_argument("model", metavar="NAME", help="of the model on the server")
    parser.add_argument("--rest", default="localhost:8501", metavar="HOST:PORT", help="localhost:8501")
    parser.add_argument("--grpc", metavar="HOST:PORT", help="gRPC in place of REST")
    parser.add_argument("--lines", type=int, default=64, metavar="N", help="lines sent together (64)")
    parser.add_argument("--timeout", type=float, default=60, metavar="SECONDS", help="for each answer (60)")
    args = parser.parse_args(argv)
    if args.lines < 1 or not 0 < args.timeout < 1e6:
        parser.error("--lines must be at least 1, and --timeout above 0")
    if not re.fullmatch(r".+:[0-9]+", args.grpc or args.rest):
        parser.error(f"the address must be HOST:PORT. Received: {args.grpc or args.rest}")
    if sys.stdin is None or sys.stdout is None:
        parser.error("standard input and output must not be closed")
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    translate = translate_grpc if args.grpc else translate_rest
    stdin = sys.stdin.buffer if stdin is None else stdin
    lines = (line.decode(errors="replace").rstrip("\r\n") for line in stdin)
    address = args.grpc or args.rest
    try:
        while texts := list(itertools.islice(lines, args.lines)):
            try:
                found = translate(texts, address, args.model, args.timeout)
                if len(found) != len(texts):
                    raise ValueError(f"{len(found)} translations for {len(texts)} lines")
            except ImportError as error:
                remedy = "pip install tensorflow-serving-api"
                print(f"serving_client.py: --grpc needs {error.name}: {remedy}", file=sys.stderr)
                return 2
            except (OSError, ValueError) as error:
                print(f"serving_client.py: {address}: {error}", file=sys.stderr)
                return 2
            for translation, _ in found:
                print(translation)
            sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the translations has had enough; Python would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"serving_client.py: standard output: {error.strerror.lower()}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
