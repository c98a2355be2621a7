"""A stand-in for the explorer: answers of the right form without a model, the same at every call.

It translates each word into the same word in capitals. Attention and probabilities are made up from hashes.
"""

import base64
import math
import random
import struct

EOS, UNKNOWN = 3, 4
HEADS_KEYS = ("kind", "layer", "head")


class FakeInvalidRequestError(ValueError):
    """A request that the explorer refuses."""


class FakeExplorer:
    """Has the methods of `Explorer` that the page needs."""

    def __init__(self, name="fake", layers=2, heads=4, seed=0):
        self.name, self.layers, self.heads, self.seed = name, layers, heads, seed
        self._ids, self._pieces = {"</s>": EOS}, {EOS: "</s>", UNKNOWN: "<unk>"}

    def model(self):
        return {
            "name": self.name, "source": "en", "target": "de", "encoder_layers": self.layers,
            "decoder_layers": self.layers, "heads": self.heads, "d_model": 64, "vocab_size": 8000,
            "beam_size": 4, "alpha": 0.6, "length_penalty": "wu", "max_beam": 16, "max_bytes": 2000,
            "max_tokens": 60, "max_length": 80,
        }  # fmt: skip

    def search(self, body):
        text, off = self._checked(body)
        beam, alpha = body.get("beam_size", 4), body.get("alpha", 0.6)
        source = self._source(text)
        nodes = [self._node(0, None, -1, 1, "<s>", 0.0, 0.0, 0.0, 0)]
        nodes[0]["forced"] = False
        live, finished = [0], []
        for position in range(len(source) + 3):
            candidates = []
            for parent in live:
                prefix = self._path(nodes, parent)
                for token, log_prob in self._next(source, prefix, off, body.get("prefix", ())):
                    total = nodes[parent]["total"] + log_prob
                    score = total / ((5 + position + 1) / 6) ** alpha
                    candidates.append((score, total, log_prob, token, parent))
            candidates.sort(key=lambda each: (-each[0], each[3]))
            forced = position < len(body.get("prefix", ()))
            live = []
            for rank, (score, total, log_prob, token, parent) in enumerate(candidates[: 2 * beam]):
                node = self._node(
                    len(nodes), parent, position, token, self._pieces[token], log_prob, total, score, rank
                )
                node["forced"] = forced
                if token == EOS:
                    finished.append(node["id"])
                    node["state"] = "finished" if len(finished) <= beam else "dropped"
                elif len(live) < beam:
                    live.append(node["id"])
                else:
                    node["state"] = "pruned"
                nodes.append(node)
            if len(finished) >= beam:
                break
        kept = sorted(finished[:beam], key=lambda each: -nodes[each]["score"]) or live[:1]
        for each in live:
            nodes[each]["state"] = "cut"
        self._mark_deaths(nodes, kept)
        return {
            "model": self.name, "text": text, "beam_size": beam, "alpha": alpha,
            "prefix": body.get("prefix", []), "heads_off": body.get("heads_off", []),
            "source": source, "cut": len(source) > 60,
            "hypotheses": [self._hypothesis(nodes, each) for each in kept],
            "nodes": nodes, "steps": nodes[-1]["position"] + 1, "milliseconds": 12.5,
        }  # fmt: skip

    def inspect(self, body):
        text, off = self._checked(body)
        source, target = self._source(text), body["target"]
        ids = [self._id("▁" + word) for word in target.split()] if isinstance(target, str) else list(target)
        ids = [token for token in ids if token != EOS] + [EOS]
        tokens = [
            self._token(token, self._next(source, ids[:position], off, ()))
            for position, token in enumerate(ids)
        ]
        pieces = [{"id": token, "text": self._pieces.get(token, f"#{token}")} for token in ids]
        return {
            "model": self.name, "text": text, "heads_off": body.get("heads_off", []), "source": source,
            "target": pieces, "target_text": self._text(ids), "tokens": tokens,
            "log_prob": sum(each["log_prob"] for each in tokens),
            "alignment": [[i, i] for i in range(min(len(source), len(ids)) - 1)],
            "attention": {
                "encoder": self._attention("encoder", off, len(source), len(source)),
                "decoder": self._attention("decoder", off, len(ids), len(ids)),
                "cross": self._attention("cross", off, len(ids), len(source)),
            },
            "milliseconds": 8.0,
        }  # fmt: skip

    def _token(self, token, options):
        known = dict(options)
        rank = list(known).index(token) + 1 if token in known else 40
        others = [{"id": each, "piece": self._pieces[each], "log_prob": value} for each, value in options[:5]]
        return {
            "id": token, "piece": self._pieces.get(token, f"#{token}"), "log_prob": known.get(token, -6.5),
            "rank": rank, "entropy": -sum(math.exp(value) * value for _, value in options),
            "alternatives": others,
        }  # fmt: skip

    def _checked(self, body):
        if body.get("model") != self.name:
            raise FakeInvalidRequestError(f"no model {body.get('model')!r}")
        text = body.get("text")
        if not isinstance(text, str) or not text.strip():
            raise FakeInvalidRequestError("text is empty")
        if len(text.encode()) > 2000:
            raise FakeInvalidRequestError("text has more than 2000 bytes")
        return text, {tuple(head[key] for key in HEADS_KEYS) for head in body.get("heads_off", ())}

    def _id(self, piece):
        if piece not in self._ids:
            self._ids[piece] = len(self._ids) + 10
            self._pieces[self._ids[piece]] = piece
        return self._ids[piece]

    def _source(self, text):
        words = ["▁" + word for word in text.split()] + ["</s>"]
        return [{"id": self._id(word), "text": word} for word in words]

    def _next(self, source, prefix, off, forced):
        """Returns (id, log-probability) of the likely next tokens, best first."""
        position = len(prefix)
        if position < len(forced):
            return [(forced[position], -0.5)]
        if position >= len(source) - 1:
            choices = ["</s>", "▁!", "▁?", "▁DOCH", "▁SO", "▁JA"]
        else:
            word = source[position]["text"].upper()
            choices = [word, word + "S", word + "EN", "</s>", "▁NUN", "▁" + word[1:2] + "O", "▁AUCH", "▁ES"]
        chance = random.Random(repr((self.seed, position, source[-2]["text"], sorted(off), list(prefix))))
        scores = [3.0 * chance.random() - 1.2 * i for i in range(len(choices))]
        scores[0] += 1.5 - 0.2 * len(off)
        if position < len(source) - 1:
            scores[choices.index("</s>")] -= 4
        total = math.log(sum(map(math.exp, scores)) + 0.3)
        found = {self._id(choice): score - total for choice, score in zip(choices, scores, strict=True)}
        return sorted(found.items(), key=lambda each: -each[1])

    def _attention(self, kind, off, rows, columns):
        values = []
        for layer in range(self.layers):
            for head in range(self.heads):
                chance = random.Random(repr((self.seed, kind, layer, head)))
                shift, width = chance.randint(-2, 2), 0.3 + 2 * chance.random()
                for row in range(rows):
                    last = row + 1 if kind == "decoder" else columns
                    weights = [math.exp(-abs(row + shift - column) / width) + 0.02 for column in range(last)]
                    total = sum(weights) if (kind, layer, head) not in off else math.inf
                    values += [round(65535 * weight / total) for weight in weights] + [0] * (columns - last)
        data = base64.b64encode(struct.pack(f"<{len(values)}H", *values)).decode()
        return {"layers": self.layers, "heads": self.heads, "rows": rows, "columns": columns, "data": data}

    @staticmethod
    def _node(number, parent, position, token, piece, log_prob, total, score, rank):
        return {
            "id": number, "parent": parent, "position": position, "token": token, "piece": piece,
            "log_prob": log_prob, "total": total, "score": score, "state": "live", "rank": rank,
            "died_at": None,
        }  # fmt: skip

    @staticmethod
    def _path(nodes, number):
        ids = []
        while number:
            ids.append(nodes[number]["token"])
            number = nodes[number]["parent"]
        return ids[::-1]

    def _hypothesis(self, nodes, number):
        ids = self._path(nodes, number)
        node = nodes[number]
        return {
            "text": self._text(ids), "ids": ids, "pieces": [self._pieces[token] for token in ids],
            "score": node["score"], "log_prob": node["total"], "finished": ids[-1] == EOS, "node": number,
        }  # fmt: skip

    def _text(self, ids):
        pieces = [self._pieces.get(token, "?") for token in ids if token != EOS]
        return "".join(pieces).replace("▁", " ").strip()

    @staticmethod
    def _mark_deaths(nodes, kept):
        alive = set()
        for number in kept:
            while number is not None:
                alive.add(number)
                number = nodes[number]["parent"]
        last = {}
        for node in reversed(nodes):
            last[node["id"]] = max(last.get(node["id"], -1), node["position"])
            if node["parent"] is not None:
                last[node["parent"]] = max(last.get(node["parent"], -1), last[node["id"]])
        for node in nodes:
            if node["state"] == "live" and node["id"] not in alive:
                node["died_at"] = last[node["id"]]
