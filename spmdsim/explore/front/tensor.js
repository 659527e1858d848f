// The tensor as a picture: its elements, cut into the boxes that ranks hold.

import { colour, LETTERING, many, s, slice } from "./elements.js";

const MOST_LINES = 24; // more elements than this are drawn without lines between them

/** A tensor seen as rectangles: panels of rows and columns. */
export function planes(shape) {
  if (shape.length === 1) return { rows: 1, columns: shape[0], panels: [null] };
  const [rows, columns] = shape.slice(-2);
  return { rows, columns, panels: shape.length === 2 ? [null] : null };
}

const flat = (box) => (box.length === 1 ? [[0, 1], box[0]] : box.slice(-2));

/** A small tensor with one box filled: what a rank holds. `x`, `y`, `size` in pixels. */
export function miniature(x, y, size, shape, box, number, words) {
  const depth = shape.length === 3 ? shape[0] : 1;
  const { rows, columns } = planes(shape);
  const scale = Math.min(size / columns, size / (rows * depth + (depth - 1) * 0.4));
  const width = columns * scale, height = rows * scale;
  const parts = [];
  for (let layer = 0; layer < depth; layer += 1) {
    const top = y + layer * (height + 0.4 * scale);
    parts.push(s("rect", { class: "hole", x, y: top, width, height, rx: 2 }));
    if (!box || (shape.length === 3 && (layer < box[0][0] || layer >= box[0][1]))) continue;
    const [[r0, r1], [c0, c1]] = flat(box);
    if (r1 > r0 && c1 > c0) parts.push(s("rect", { x: x + c0 * scale, y: top + r0 * scale, width: (c1 - c0) * scale, height: (r1 - r0) * scale, fill: colour(number), stroke: LETTERING, "stroke-opacity": 0.5, rx: 1.5 }));
  }
  return s("g", {}, s("title", {}, words), parts);
}

/** The height that a miniature takes. */
export function miniatureHeight(size, shape) {
  const depth = shape.length === 3 ? shape[0] : 1;
  const { rows, columns } = planes(shape);
  const scale = Math.min(size / columns, size / (rows * depth + (depth - 1) * 0.4));
  return scale * (rows * depth + (depth - 1) * 0.4);
}

function panel(x, y, scale, shape, pieces, chosen, pick) {
  const { rows, columns } = planes(shape);
  const parts = [];
  for (const piece of pieces) {
    const [[r0, r1], [c0, c1]] = flat(piece.box);
    const left = x + c0 * scale, top = y + r0 * scale, width = (c1 - c0) * scale, height = (r1 - r0) * scale;
    const group = s("g", { class: "pick piece", "data-shard": piece.shard, "data-box": slice(piece.box), "data-ranks": piece.ranks.join(","), onclick: () => pick(piece.ranks[0]) },
      s("title", {}, `${piece.shard === null ? "the tensor" : `shard ${piece.shard}`} = ${slice(piece.box)}, held by ${piece.ranks.length === 1 ? "rank" : "ranks"} ${piece.ranks.join(", ")}`),
      s("rect", { x: left, y: top, width, height, fill: piece.shard === null ? "var(--faint)" : colour(piece.shard), stroke: LETTERING, "stroke-opacity": 0.65 }));
    const middle = left + width / 2, centre = top + height / 2;
    if (piece.shard === null) group.append(s("text", { x: middle, y: centre + 4, "text-anchor": "middle" }, "not cut yet"));
    else if (width > 26 && height > 15) {
      const small = height < 34;
      group.append(s("text", { x: middle, y: centre + (small ? 4 : -2), "text-anchor": "middle", style: `fill:${LETTERING};font-weight:700` }, `#${piece.shard}`));
      const words = `${piece.ranks.length === 1 ? "rank" : "ranks"} ${piece.ranks.join(",")}`;
      if (!small && words.length * 6.4 < width) group.append(s("text", { x: middle, y: centre + 13, "text-anchor": "middle", style: `fill:${LETTERING}` }, words));
    }
    parts.push(group);
  }
  if (rows <= MOST_LINES && columns <= MOST_LINES) {
    for (let c = 1; c < columns; c += 1) parts.push(s("line", { class: "grid", x1: x + c * scale, x2: x + c * scale, y1: y, y2: y + rows * scale, "pointer-events": "none" }));
    for (let r = 1; r < rows; r += 1) parts.push(s("line", { class: "grid", x1: x, x2: x + columns * scale, y1: y + r * scale, y2: y + r * scale, "pointer-events": "none" }));
  }
  parts.push(s("rect", { class: "edge", x, y, width: columns * scale, height: rows * scale, "pointer-events": "none" }));
  if (chosen) {
    const [[r0, r1], [c0, c1]] = flat(chosen);
    parts.push(s("rect", { class: "mark", x: x + c0 * scale, y: y + r0 * scale, width: (c1 - c0) * scale, height: (r1 - r0) * scale, "pointer-events": "none" }));
  }
  const ticks = (edges, at) => [...new Set(edges)].sort((a, b) => a - b).map(at);
  parts.push(ticks(pieces.flatMap(({ box }) => flat(box)[1]), (c) => s("text", { class: "soft", x: x + c * scale, y: y - 5, "text-anchor": "middle" }, c)));
  if (shape.length > 1) parts.push(ticks(pieces.flatMap(({ box }) => flat(box)[0]), (r) => s("text", { class: "soft", x: x - 6, y: y + r * scale + 4, "text-anchor": "end" }, r)));
  return parts;
}

/** The whole tensor, `width` pixels wide: one panel, or one for every range of dim 0 of a tensor of three dims. */
export function tensorPicture(width, shape, pieces, chosen, pick) {
  const { rows, columns } = planes(shape);
  const full = pieces.filter(({ box }) => box.every(([start, stop]) => stop > start));
  const ranges = shape.length < 3 ? [null] : [...new Map(full.map(({ box }) => [box[0].join(":"), box[0]])).values()].sort((a, b) => a[0] - b[0]);
  const scale = Math.max(2, Math.min(46, (width - 44) / columns, ranges.length > 1 ? 220 / rows : 380 / rows));
  const high = Math.max(rows * scale, shape.length === 1 ? 44 : 0);
  const parts = [];
  ranges.forEach((range, k) => {
    const top = 22 + k * (high + 46) + (range ? 16 : 0);
    const here = range ? full.filter(({ box }) => box[0][0] === range[0]) : full;
    const inside = chosen && (!range || chosen[0][0] === range[0]) ? chosen : null;
    if (range) parts.push(s("text", { x: 34, y: top - 20, style: "font-weight:600" }, `dim 0 from ${range[0]} to ${range[1]}`));
    parts.push(panel(34, top, scale, shape, here, inside && inside.every(([a, b]) => b > a) ? inside : null, pick));
  });
  const height = 22 + ranges.length * (high + 46) + 4;
  const names = shape.length === 1 ? "columns: dim 0" : `rows: dim ${shape.length - 2}, columns: dim ${shape.length - 1}`;
  return [height, parts, `The tensor of ${shape.join(" × ")} elements in ${many(full.length, "piece")}; ${names}`];
}
