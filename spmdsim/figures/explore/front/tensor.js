// The tensor as a picture: its elements, cut into the boxes that ranks hold.

import { colour, hatching, LETTERING, many, onFill, s, slice } from "./elements.js";

const MOST_LINES = 24; // more elements than this are drawn without lines between them

/** A tensor seen as rectangles: its last two dims. */
const planes = (shape) => (shape.length === 1 ? { rows: 1, columns: shape[0] } : { rows: shape.at(-2), columns: shape.at(-1) });

/** The part of a box that says on which panel it is. */
const panelOf = (box) => box.slice(0, -2);

const flat = (box) => (box.length === 1 ? [[0, 1], box[0]] : box.slice(-2));

const LEAST = 0.34; // of the longest edge: shorter ones are drawn longer, or nobody would see them

/** Edges of a small tensor in pixels, as wide or high as `size`: depth goes to the right and up. */
function edges(size, shape) {
  const [d, r, c] = shape.length === 3 ? shape : [1, ...(shape.length === 1 ? [1, shape[0]] : shape)];
  const most = Math.max(d, r, c), share = (n) => Math.max(n / most, LEAST);
  const depth = shape.length === 3 ? share(d) * 0.6 : 0, right = depth * 0.8, up = depth * 0.6;
  const scale = size / Math.max(share(c) + right, share(r) + up);
  return { wide: share(c) * scale, high: share(r) * scale, right: right * scale, up: up * scale, counts: [d, r, c] };
}

/** A small tensor with one box filled, hatched if it is an addend: what a rank owns. `x`, `y`, `size` in pixels. */
export function miniature(x, y, size, shape, box, number, words, addend) {
  const { wide, high, right, up, counts } = edges(size, shape), left = x + (size - wide - right) / 2;
  const at = (d, r, c) => [left + (c / counts[2]) * wide + (d / counts[0]) * right, y + up + (r / counts[1]) * high - (d / counts[0]) * up];
  const face = (corners, props) => s("polygon", { points: corners.map((corner) => at(...corner).join(",")).join(" "), ...props });
  const cuboid = ([[d0, d1], [r0, r1], [c0, c1]], props) => [
    right && face([[d0, r0, c0], [d1, r0, c0], [d1, r0, c1], [d0, r0, c1]], props), right && face([[d0, r0, c1], [d1, r0, c1], [d1, r1, c1], [d0, r1, c1]], props),
    face([[d0, r0, c0], [d0, r0, c1], [d0, r1, c1], [d0, r1, c0]], props)].filter(Boolean);
  const spans = shape.length === 3 ? box : [[0, 1], ...flat(box)], full = spans.every(([start, stop]) => stop > start);
  const front = () => {
    const [[depth], [r0, r1], [c0, c1]] = spans, [a, b] = at(depth, r0, c0), [c, d] = at(depth, r1, c1);
    return [hatching(a, b, c - a, d - b), s("text", { class: "haloed plus", x: (a + c) / 2, y: (b + d) / 2 + 5, "text-anchor": "middle" }, "+")];
  };
  return s("g", {}, s("title", {}, words), cuboid(counts.map((n) => [0, n]), { class: "hole" }),
    full && cuboid(spans, { fill: colour(number), stroke: LETTERING, "stroke-opacity": 0.55, "stroke-linejoin": "round" }), full && addend && front());
}

/** The height that a miniature takes. */
export function miniatureHeight(size, shape) {
  const { high, up } = edges(size, shape);
  return high + up;
}

function panel(x, y, [sx, sy], shape, pieces, chosen, pick) {
  const { rows, columns } = planes(shape);
  const parts = [];
  for (const piece of pieces) {
    const [[r0, r1], [c0, c1]] = flat(piece.box);
    const left = x + c0 * sx, top = y + r0 * sy, width = (c1 - c0) * sx, height = (r1 - r0) * sy;
    const group = s("g", { class: "pick piece", "data-shard": piece.shard, "data-box": slice(piece.box), "data-ranks": piece.ranks.join(","), onclick: () => pick(piece.ranks[0]) },
      s("title", {}, `${piece.shard === null ? "the tensor" : `shard #${piece.shard}`} = ${slice(piece.box)}, ${piece.result ? `${piece.result} addends, those of` : piece.ranks.length > 1 ? "copies on" : "on"} ${piece.ranks.length === 1 ? "rank" : "ranks"} ${piece.ranks.join(", ")}`),
      s("rect", { x: left, y: top, width, height, fill: piece.shard === null ? "var(--faint)" : colour(piece.shard), stroke: LETTERING, "stroke-opacity": 0.65 }), piece.result && hatching(left, top, width, height));
    const middle = left + width / 2, centre = top + height / 2;
    if (piece.shard === null) group.append(s("text", { x: middle, y: centre + 4, "text-anchor": "middle" }, "not cut yet"));
    else if (width > 26 && height > 15) {
      const small = height < 34, style = onFill(colour(piece.shard)), long = piece.result ? `#${piece.shard} = ${piece.result}` : `#${piece.shard}`;
      const name = long.length * 7 < width ? long : piece.result ? `+#${piece.shard}` : `#${piece.shard}`;
      group.append(s("text", { x: middle, y: centre + (small ? 4 : -2), "text-anchor": "middle", style: `${style};font-weight:700` }, name));
      const words = `${piece.ranks.length === 1 ? "rank" : "ranks"} ${piece.ranks.join(piece.result ? "+" : ",")}`;
      if (!small && words.length * 6.4 < width) group.append(s("text", { x: middle, y: centre + 13, "text-anchor": "middle", style }, words));
    }
    parts.push(group);
  }
  if (rows <= MOST_LINES && columns <= MOST_LINES) {
    for (let c = 1; c < columns; c += 1) parts.push(s("line", { class: "grid", x1: x + c * sx, x2: x + c * sx, y1: y, y2: y + rows * sy, "pointer-events": "none" }));
    for (let r = 1; r < rows; r += 1) parts.push(s("line", { class: "grid", x1: x, x2: x + columns * sx, y1: y + r * sy, y2: y + r * sy, "pointer-events": "none" }));
  }
  parts.push(s("rect", { class: "edge", x, y, width: columns * sx, height: rows * sy, "pointer-events": "none" }));
  if (chosen) {
    const [[r0, r1], [c0, c1]] = flat(chosen);
    parts.push(s("rect", { class: "mark", x: x + c0 * sx, y: y + r0 * sy, width: (c1 - c0) * sx, height: (r1 - r0) * sy, "pointer-events": "none" }));
  }
  const ticks = (edges, at) => [...new Set(edges)].sort((a, b) => a - b).map(at);
  parts.push(ticks(pieces.flatMap(({ box }) => flat(box)[1]), (c) => s("text", { class: "soft", x: x + c * sx, y: y - 5, "text-anchor": "middle" }, c)));
  if (shape.length > 1) parts.push(ticks(pieces.flatMap(({ box }) => flat(box)[0]), (r) => s("text", { class: "soft", x: x - 6, y: y + r * sy + 4, "text-anchor": "end" }, r)));
  return parts;
}

/** The whole tensor, `width` pixels wide: one panel, or one for every range of the dims before the last two. */
export function tensorPicture(width, shape, pieces, chosen, pick) {
  const { rows, columns } = planes(shape);
  const full = pieces.filter(({ box }) => box.every(([start, stop]) => stop > start));
  const ranges = shape.length < 3 ? [null] : [...new Map(full.map(({ box }) => [slice(panelOf(box)), panelOf(box)])).values()].sort((a, b) => a.map(([start], k) => start - b[k][0]).find(Boolean) ?? 0);
  const high = (ranges.length > 1 ? 200 : 330), sx = Math.min(46, (width - 44) / columns), sy = Math.min(46, high / rows);
  const square = rows <= MOST_LINES && columns <= MOST_LINES ? Math.min(sx, sy) : null, steps = square ? [square, square] : [sx, Math.max(sy, 60 / rows)];
  const tall = Math.max(rows * steps[1], shape.length === 1 ? 44 : 0);
  const parts = [];
  ranges.forEach((range, k) => {
    const top = 22 + k * (tall + 46) + (range ? 16 : 0);
    const here = range ? full.filter(({ box }) => slice(panelOf(box)) === slice(range)) : full;
    const inside = chosen && (!range || slice(panelOf(chosen)) === slice(range)) ? chosen : null;
    if (range) parts.push(s("text", { x: 34, y: top - 20, style: "font-weight:600" }, range.map(([start, stop], dim) => `dim ${dim}: ${start} to ${stop}`).join(", ")));
    parts.push(panel(34, top, steps, shape, here, inside && inside.every(([a, b]) => b > a) ? inside : null, pick));
  });
  const height = 22 + ranges.length * (tall + 46) - 46 + (ranges[0] ? 16 : 0) + 12;
  const names = shape.length === 1 ? "columns: dim 0" : `rows: dim ${shape.length - 2}, columns: dim ${shape.length - 1}`;
  return [height, parts, `The tensor of ${shape.join(" × ")} elements in ${many(full.length, "piece")}; ${names}`];
}
