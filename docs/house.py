"""Draws house.svg, the picture of the package in CONTRIBUTING.md, from the imports of its modules.

    python docs/house.py

A box is a folder (or a module) of `keras_transformer/`; an arrow points to what it imports. A grey arrow says
nothing new: the black ones lead there as well. `tests/test_structure.py` compares the file with the imports.
"""

import ast
import pathlib

PACKAGE = pathlib.Path(__file__).resolve().parents[1] / "keras_transformer"
PICTURE = pathlib.Path(__file__).with_name("house.svg")
WIDTH, ROW, BOX_WIDTH, BOX_HEIGHT = 720, 92, 118, 40


def imports():
    """Returns a dict of each folder or module in the package's root to the set it imports."""
    paths = {path: path.relative_to(PACKAGE).with_suffix("").parts[0] for path in PACKAGE.rglob("*.py")}
    rooms = {room: set() for room in sorted(set(paths.values()) - {"__init__", "__main__"})}
    for path, room in paths.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                first, *rest = name.split(".")
                if first == PACKAGE.name and rest and rest[0] in rooms and room in rooms:
                    rooms[room].add(rest[0])
    return {room: found - {room} for room, found in rooms.items()}


def floors(arrows):
    """Returns a dict of each folder to its layer: 0, or one more than the highest layer it imports."""
    floor = {}
    while len(floor) < len(arrows):
        ready = [room for room, below in arrows.items() if room not in floor and below <= floor.keys()]
        if not ready:
            raise ValueError(f"imports in a circle among {sorted(arrows.keys() - floor.keys())}")
        floor |= {room: max((floor[each] + 1 for each in arrows[room]), default=0) for room in ready}
    return floor


def implied(arrows):
    """Returns the edges (from, to) that are implied by longer paths."""

    def reached(room):
        return set().union(*({below} | reached(below) for below in arrows[room]))

    return {
        (room, below)
        for room, found in arrows.items()
        for below in found
        if any(below in reached(other) for other in found - {below})
    }


def draw():
    """Returns the picture as SVG text."""
    arrows = imports()
    floor, faint = floors(arrows), implied(arrows)
    highest = max(floor.values())
    centre = {}
    for number in range(highest + 1):
        rooms = sorted(room for room, at in floor.items() if at == number)
        for place, room in enumerate(rooms):
            x = WIDTH * (place + 0.5) / len(rooms) + 26 * (-1) ** number
            centre[room] = (round(x), (highest - number) * ROW + 36)
    lines, boxes = [], []
    for room, found in sorted(arrows.items(), key=lambda item: item[0]):
        for below in sorted(found):
            (x1, y1), (x2, y2) = centre[room], centre[below]
            grey = (room, below) in faint
            style = 'stroke="#ddd"' if grey else 'stroke="#333" marker-end="url(#head)"'
            y1, y2 = y1 + BOX_HEIGHT // 2, y2 - BOX_HEIGHT // 2
            lines.append((not grey, f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" {style}/>'))
    for room, (x, y) in sorted(centre.items()):
        name = room if (PACKAGE / room).is_dir() else f"{room}.py"
        box = f'x="{x - BOX_WIDTH // 2}" y="{y - BOX_HEIGHT // 2}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}"'
        boxes.append(f'<rect {box} rx="6" fill="#eaf2f8" stroke="#0072b2"/>')
        boxes.append(f'<text x="{x}" y="{y + 5}" text-anchor="middle">{name}</text>')
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {highest * ROW + 72}" '
            'font-family="sans-serif" font-size="15">',
            '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
            'orient="auto"><path d="M0 0 8 4 0 8z" fill="#333"/></marker></defs>',
            '<rect width="100%" height="100%" fill="white"/>',
            *(line for _, line in sorted(lines)),
            *boxes,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
