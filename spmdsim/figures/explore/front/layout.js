// Where a tensor lives: number the device matrix, adjust by the tensor map, compute the shard numbers, cut the slices.

import { bytes, chip, choice, colour, h, hatching, many, onFill, picture, s, same, show, slice, table, volume } from "./elements.js";
import { caseControls, chosenCase, chosenLayout, layoutPicker } from "./picker.js";
import { player } from "./player.js";
import { choose, number } from "./state.js";
import { tensorPicture } from "./tensor.js";

const STEPS = [
  "the ranks, and the tensor as one piece of memory: nothing is cut yet",
  "number: every rank gets a coordinate on the device matrix, the last axis counts fastest",
  "adjust: the columns go into the order of the tensor map; axes that it does not use are dropped",
  "compute: digits times strides, added up, are the shard number",
  "slice: each dim is cut axis by axis, and a shard number is a box of the tensor",
];

/** The first layouts that a page offers to somebody who has chosen none. */
export function usual(mesh, ndim) {
  const axes = mesh.axes.filter((_, k) => mesh.sizes[k] > 1);
  const dims = Array.from({ length: ndim }, () => "");
  const one = [...dims], two = [...dims];
  axes.slice(0, ndim).forEach((axis, k) => (two[k] = axis));
  one[0] = axes[0] ?? "";
  return [two.join(";"), one.join(";"), dims.join(";")];
}

/** Distinct boxes with the ranks that own copies or, where a sum is pending, addends of them. */
export function pieces(mesh, boxes, facts) {
  const found = new Map();
  boxes.forEach((box, k) => {
    const key = slice(box);
    if (!found.has(key)) found.set(key, { box, shard: facts.shard[k], ranks: [], result: facts.result });
    found.get(key).ranks.push(mesh.ranks[k]);
  });
  return [...found.values()];
}

/** What a rank owns, in words. */
const owned = (facts, k) => `${facts.owned.length ? `${facts.owned[k]} of ` : ""}shard #${facts.shard[k]}`;

function matrix(width, mesh, facts, step, chosen, pick) {
  const big = mesh.axes.map((axis, k) => [axis, mesh.sizes[k], k]).filter(([, size]) => size > 1);
  const columnAxis = big.at(-1) ?? [mesh.axes.at(-1) ?? "", 1, mesh.axes.length - 1];
  const rowAxis = big.at(-2), panelAxis = big.at(-3);
  const columns = columnAxis[1], rows = rowAxis?.[1] ?? 1, panels = panelAxis?.[1] ?? 1;
  const left = rowAxis ? 62 : 8, cell = Math.min(104, (width - left - 6) / columns), high = facts.addends.length ? 64 : 52;
  const parts = [], block = rows * high + 50;
  for (let p = 0; p < panels; p += 1) {
    const top = p * block;
    if (panelAxis) parts.push(s("text", { x: left, y: top + 14, style: "font-weight:600" }, `${panelAxis[0]} = ${p}`));
    for (let c = 0; c < columns; c += 1) parts.push(s("text", { class: "soft", x: left + (c + 0.5) * cell, y: top + 34, "text-anchor": "middle" }, `${columnAxis[0]}=${c}`));
    for (let r = 0; rowAxis && r < rows; r += 1) parts.push(s("text", { class: "soft", x: 2, y: top + 42 + (r + 0.55) * high }, `${rowAxis[0]}=${r}`));
  }
  mesh.coords.forEach((coords, k) => {
    const x = left + coords[columnAxis[2]] * cell, y = (panelAxis ? coords[panelAxis[2]] * block : 0) + 42 + (rowAxis ? coords[rowAxis[2]] : 0) * high;
    const rank = mesh.ranks[k], known = step >= 3, middle = x + cell / 2;
    const second = known ? `#${facts.shard[k]}` : step >= 1 ? `(${coords.join(",")})` : "";
    const addend = known ? facts.addends[k] : undefined, fill = known ? colour(facts.shard[k]) : "var(--faint)", style = known ? onFill(fill) : "";
    parts.push(s("g", { class: "pick device", "data-rank": rank, "data-shard": facts.shard[k], "data-addend": addend, onclick: () => pick(rank) },
      s("title", {}, `rank ${rank} at ${mesh.axes.map((axis, a) => `${axis}=${coords[a]}`).join(", ")} owns ${owned(facts, k)}`),
      s("rect", { x: x + 2, y: y + 2, width: cell - 4, height: high - 4, rx: 7, fill, stroke: rank === chosen ? "var(--ink)" : "var(--line)", "stroke-width": rank === chosen ? 3 : 1 }),
      addend && hatching(x + 5, y + 5, cell - 10, high - 10),
      s("text", { x: middle, y: y + (second ? 22 : 31), "text-anchor": "middle", style: `font-weight:700;${style}` }, cell < 58 ? rank : `rank ${rank}`),
      second && s("text", { x: middle, y: y + 38, "text-anchor": "middle", style }, second),
      addend && s("text", { x: middle, y: y + 54, "text-anchor": "middle", style: `font-weight:700;${style}` }, cell < 58 ? addend.replace(" of ", "/") : addend)));
  });
  return picture(width, panels * block, `Device matrix ${mesh.name}`, parts);
}

function derivationTable(mesh, facts, at, boxes, step, chosen) {
  const heads = ["rank", ...(step >= 1 ? mesh.axes.map((axis, k) => `${axis} (base\u00a0${mesh.sizes[k]})`) : [])];
  if (step >= 2) heads.push(facts.adjusted.length ? `adjusted: ${facts.adjusted.join(", ")}` : "adjusted");
  if (step >= 3) heads.push("digits × strides", "shard number", ...(facts.addends.length ? ["addend"] : []), facts.addends.length ? "copies on ranks" : "on ranks");
  if (step >= 4) heads.push("slice", "local shape", "bytes");
  const rows = mesh.ranks.map((rank, k) => {
    const row = [String(rank), ...(step >= 1 ? mesh.coords[k].map((digit) => [String(digit), step === 1 ? "new" : ""]) : [])];
    if (step >= 2) row.push([facts.digits[k].join(" ") || "–", step === 2 ? "new mono" : "mono"]);
    if (step >= 3) {
      const sum = facts.digits[k].map((digit, i) => `${digit}·${facts.strides[i]}`).join(" + ") || "nothing is split";
      row.push([sum, "mono"], [chip(`${facts.shard[k]}`, facts.shard[k]), step === 3 ? "new" : ""], ...(facts.addends.length ? [[facts.addends[k], step === 3 ? "new" : ""]] : []), facts.replicas[k].join(", "));
    }
    if (step >= 4) row.push([slice(boxes[k]), "mono"], boxes[k].map(([a, b]) => b - a).join(" × "), `${volume(boxes[k]) * at.itemsize} B`);
    return row;
  });
  return table("Every rank through the steps", heads, rows, (k) => ({ "data-rank": mesh.ranks[k], class: mesh.ranks[k] === chosen ? "on" : "", onclick: () => choose({ rank: mesh.ranks[k] }) }));
}

function notes(facts, step) {
  const lines = [];
  if (step >= 2) {
    lines.push(facts.moves ? `Columns move: the tensor map wants ${facts.adjusted.join(", ")}.` : "No column moves: the tensor map has the axes in the device matrix's order.");
    const copied = facts.dropped.filter((axis) => !facts.pending.includes(axis));
    if (facts.dropped.length) lines.push(`Not in the tensor map, so dropped: ${facts.dropped.join(", ")}. ${[copied.length && `Ranks that differ only in ${copied.join(", ")} own copies of the same ${facts.pending.length ? "addend" : "shard"}.`, facts.pending.length && `Ranks that differ in ${facts.pending.join(", ")} own different addends.`].filter(Boolean).join(" ")}`);
  }
  if (step >= 3) lines.push(...facts.stride_texts);
  if (facts.pending.length) lines.push(`Pending over ${facts.pending.join(", ")}: a shard is the ${facts.result} arrays (hatched, ${facts.addends[0]} …), which no rank has computed yet.`);
  return lines.map((line) => h("p", { class: "hint" }, line));
}

/** The view. */
export function layoutView(data, root) {
  const controls = h("section", { class: "card w4", "aria-label": "Choose" }), grid = h("section", { class: "card half w4", "aria-label": "Device matrix" });
  const tensor = h("section", { class: "card half w4", "aria-label": "Tensor" }), steps = h("section", { class: "card", "aria-label": "Derivation" });
  const walk = player((step) => choose({ step })), tableBox = h("div");
  const sentence = h("p", { class: "sentence" }), gridBox = h("div"), gridHead = h("h3");
  steps.append(h("h3", {}, "The derivation, step by step"), walk.node, tableBox);
  grid.append(gridHead, gridBox);
  root.append(h("h2", {}, "Where does the tensor live?"), sentence, h("div", { class: "cards" }, controls, grid, tensor, steps));
  return () => {
    const where = chosenCase(data), { mesh, at } = where;
    const facts = mesh.derivations[at.shape.length], offered = Object.keys(facts);
    const key = chosenLayout("layout", offered, [mesh.name === data.start.mesh ? data.start.layout : null, ...usual(mesh, at.shape.length)]), one = facts[key];
    const boxes = at.layouts.find(([name]) => name === key)[2];
    const walked = number("step", 4, -1), step = Math.max(0, walked), seen = walked < 0 ? 4 : walked;
    const found = mesh.ranks.indexOf(number("rank", Math.max(...mesh.ranks), mesh.ranks[0]));
    const place = Math.max(0, found), rank = mesh.ranks[place], pick = (value) => choose({ rank: value });
    show(sentence, "The picture shows which box of the tensor ", h("b", {}, "each rank"), " keeps in its memory: ",
      h("b", {}, `rank ${rank}`), ` owns ${owned(one, place)}, the slice ${slice(boxes[place])}, ${many(volume(boxes[place]), "element")} = ${bytes(volume(boxes[place]) * at.itemsize)}. ${one.ownership}.`);
    show(controls, h("h3", {}, "Choose"), h("div", { class: "controls" }, caseControls(data, where)),
      h("div", { style: "margin-top:1rem" }, layoutPicker("layout", "What does each mesh axis do?", mesh, offered, key, one.text)),
      h("p", { class: "hint" }, `Other words for it: placements ${one.short}; device_matrix (${mesh.sizes.join(", ")}), alias_name (${mesh.axes.join(", ")}), tensor_map (${one.tensor_map.map((entry) => (Array.isArray(entry) ? `(${entry.join(", ")})` : entry)).join(", ")}).`),
      h("div", { style: "margin-top:1rem" }, choice("rank", "rank that is followed", mesh.ranks.map((value) => [String(value), String(value)]), String(rank), pick)));
    gridHead.textContent = `The device matrix: ${mesh.name}`;
    show(gridBox, matrix(gridBox.clientWidth || 320, mesh, one, seen, rank, pick));
    const cut = seen >= 4 ? pieces(mesh, boxes, one) : [{ box: at.shape.map((size) => [0, size]), shard: null, ranks: mesh.ranks, result: "" }];
    const width = Math.max(240, tensor.clientWidth - 34);
    const [height, parts, title] = tensorPicture(width, at.shape, cut, seen >= 4 ? boxes[place] : null, pick);
    show(tensor, h("h3", {}, `The tensor: ${at.shape.join(" × ")} elements of ${at.dtype}`), picture(width, height, title, parts),
      seen >= 4 && h("p", { class: "hint" }, same(new Set(boxes.map(volume)).size, 1) ? `All ranks own ${many(volume(boxes[0]), "element")}.` : `Uneven: ranks own from ${Math.min(...boxes.map(volume))} to ${many(Math.max(...boxes.map(volume)), "element")}; the first blocks of a cut get one more.`));
    walk.update(step, 4, walked < 0 ? "pictures and table show the result; play, or press ▶, to derive it step by step" : STEPS[step]);
    show(tableBox, derivationTable(mesh, one, at, boxes, seen, rank), notes(one, seen));
  };
}
