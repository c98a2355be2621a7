"""Records of a comparison as tables: ratios within a round, shares of the machine's peak."""

import statistics

UNITS = {"train": "target tokens/s", "decode": "sentences/s"}
TITLES = {"train": "Training", "decode": "Decoding"}
COLUMNS = ("ratio to the fastest other", "GFLOP/s", "of peak", "peak memory (MB)", "parameters", "rounds")


def is_ours(peer):
    """Whether a peer, `NAME:VARIANT`, is this package."""
    return peer.partition(":")[0].startswith("ours")


def groups_of(records):
    """Records of the same work together.

    Args:
        records: list of dict, as `compare.py` writes them.

    Returns:
        dict: `(task, size, batch, precision)` -> dict: peer -> list of its records, in the order in which
        they were first met. `batch` is `None` in training; of precisions, only bfloat16 has groups of its
        own: int8 stands beside float32.
    """
    groups = {}
    for record in records:
        if "speed" in record:
            precision = "bfloat16" if record["precision"] == "bfloat16" else "float32"
            key = record["task"], record["size"], record.get("batch"), precision
            groups.setdefault(key, {}).setdefault(record["peer"], []).append(record)
    return groups


def fastest_other(peers, precision):
    """The peer that ratios are to.

    Args:
        peers: dict: peer -> list of records.
        precision: `"float32"` or `"bfloat16"`; peers of another, such as int8, are passed over.

    Returns:
        str, the peer that is not ours with the highest median speed; `None` where there is none.
    """
    others = {
        peer: _median(records, "speed")
        for peer, records in peers.items()
        if not is_ours(peer) and records[0]["precision"] == precision
    }
    return max(others, key=others.get, default=None)


def ratios(records, reference):
    """Speeds of a peer as multiples of another's in the same round.

    Args:
        records: list of dict, of one peer.
        reference: list of dict, of the other.

    Returns:
        list of float, one for each round that both have.
    """
    speeds = {_round(record): record["speed"] for record in reference}
    return [record["speed"] / speeds[_round(record)] for record in records if _round(record) in speeds]


def peaks_of(records):
    """The machine's matrix products of each round.

    Returns:
        dict: `(run, round)` -> dict: `"float32"` or `"bfloat16"` -> float, GFLOP/s of the fastest library.
    """
    peaks = {}
    for record in records:
        if record["task"] == "peak" and "failed" not in record:
            best = peaks.setdefault(_round(record), {})
            for name, gflops in record["gflops"].items():
                precision = "bfloat16" if "bfloat16" in name else "float32"
                best[precision] = max(best.get(precision, 0.0), gflops)
    return peaks


def spread(values, digits):
    """Returns `"minimum / median / maximum"` of a list of float."""
    found = min(values), statistics.median(values), max(values)
    return " / ".join(f"{value:,.{digits}f}" for value in found)


def table(key, peers, failures, peaks):
    """One table, the fastest peer first.

    Args:
        key: as of `groups_of`.
        peers: dict: peer -> list of records.
        failures: dict: peer -> str, why it has none.
        peaks: as of `peaks_of`.

    Returns:
        str, Markdown.
    """
    task, _, _, precision = key
    digits = 0 if task == "train" else 2
    reference = fastest_other(peers, precision)
    lines = [_row("peer", UNITS[task], *COLUMNS), "|---|" + "---:|" * (len(COLUMNS) + 1)]
    for peer in sorted(peers, key=lambda peer: _median(peers[peer], "speed"), reverse=True):
        records = peers[peer]
        found = ratios(records, peers[reference]) if reference else []
        shares = [
            record["gflops"] / peaks[_round(record)][record["precision"]]
            for record in records
            if record["precision"] in peaks.get(_round(record), {})
        ]
        lines.append(
            _row(
                f"**{peer}**" if is_ours(peer) else peer,
                spread([record["speed"] for record in records], digits),
                spread(found, 2) if found else "-",
                f"{_median(records, 'gflops'):,.0f}",
                f"{100 * statistics.median(shares):.0f} %" if shares else "-",
                f"{max(record['peak_memory_mb'] for record in records):,}",
                f"{records[0]['parameters']:,}",
                len(records),
            )
        )
    lines += [_row(peer, f"none: {reason}", *[""] * len(COLUMNS)) for peer, reason in failures.items()]
    return "\n".join(lines)


def report(records):
    """All that a comparison found.

    Args:
        records: list of dict, of one or several runs.

    Returns:
        str, Markdown: machine, dates, versions, peaks and load, then a table for each kind of work.
    """
    peaks, groups = peaks_of(records), groups_of(records)
    parts = [_about(records)]
    for task, size, precision in _failed_alone(records, groups):
        groups.setdefault((task, size, None, precision), {})
    for key, peers in groups.items():
        task, size, batch, precision = key
        title = f"### {TITLES[task]}, `{size}`" + (f", batch of {batch}" if batch else "") + f", {precision}"
        failures = {
            record["peer"]: record["failed"].replace("|", "/")
            for record in _failed(records)
            if (record["task"], record["size"], _precision(record)) == (task, size, precision)
        }
        parts += [title, table(key, peers, failures, peaks)]
    return "\n\n".join(parts) + "\n"


def _about(records):
    """Lines on the machine and what else it did."""
    lines = []
    for record in records:
        if record["task"] == "machine":
            lines.append(
                f"- {record['run']}: {record['processor']}, {record['cores']} cores, {record['system']}"
                f"{', ' + record['gpu'] if 'gpu' in record else ''}; "
                f"{record['threads']} threads for each peer, {record['rounds']} rounds, "
                f"about {record['seconds']:g} s timed in each process; "
                f"malloc {record.get('malloc', 'default')}, MKL {record.get('mkl', 'as it is')}"
            )
    versions = {}
    for record in records:
        if "versions" in record:
            libraries = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
            versions.setdefault(libraries, {})[record["peer"].partition(":")[0]] = None
    if versions:
        found = "; ".join(f"{', '.join(peers)}: {libraries}" for libraries, peers in versions.items())
        lines.append(f"- Versions: {found}")
    products = {}
    for record in records:
        if record["task"] == "peak" and "failed" not in record:
            for name, gflops in record["gflops"].items():
                products.setdefault(name, []).append(gflops)
    if products:
        found = "; ".join(f"{name} {spread(values, 0)}" for name, values in products.items())
        lines.append(f"- Matrix products in the same rounds, GFLOP/s (min / median / max): {found}")
    watched = [record for record in records if "others_cores" in record]
    if watched:
        others, stolen = (
            spread([record[name] for record in watched], 2) for name in ("others_cores", "stolen_cores")
        )
        lines.append(f"- Cores that others took meanwhile: {others}; the host: {stolen}")
    lines.append("- Speeds and ratios: min / median / max of the rounds; a ratio is within one round")
    return "\n".join(lines)


def _failed_alone(records, groups):
    """Kinds of work at which every peer failed."""
    found = {(task, size, precision) for task, size, _, precision in groups}
    kinds = {(record["task"], record["size"], _precision(record)): None for record in _failed(records)}
    return [kind for kind in kinds if kind not in found]


def _failed(records):
    """Records of peers that failed; peaks that could not be measured are none."""
    return [record for record in records if "failed" in record and "peer" in record]


def _precision(record):
    return "bfloat16" if "bfloat16" in record["peer"] else "float32"


def _round(record):
    return record["run"], record["round"]


def _median(records, name):
    return statistics.median(record[name] for record in records)


def _row(*cells):
    return "| " + " | ".join(map(str, cells)) + " |"
