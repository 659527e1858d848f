// A matrix product: a strategy cuts the factors m, k and n; cutting k leaves partial sums, which a ring adds up.

import { bytes, choice, colour, h, many, select, show, slice, volume } from "./elements.js";
import { motion, player } from "./player.js";
import { choose, number, oneOf } from "./state.js";

const WHAT = { m: "cuts m", k: "cuts k", n: "cuts n", "-": "copies" };

/** A matrix of numbers; `mark(row, column)` gives a colour, or nothing. */
function matrix(rows, title, mark = () => null, addend = false) {
  return h("div", { class: addend ? "matrix addend" : "matrix", role: "img", "aria-label": `${title}: ${rows.map((row) => row.join(" ")).join("; ")}`, style: `grid-template-columns:repeat(${rows[0]?.length ?? 0}, auto)` },
    rows.flatMap((row, r) => row.map((value, c) => {
      const tone = mark(r, c);
      return h("span", { class: tone ? "own" : "", style: tone ? `background-color:${tone};--tone:${tone}` : null }, String(value).replace("-", "−"));
    })));
}

const cut = (matrixOf, [[r0, r1], [c0, c1]]) => matrixOf.slice(r0, r1).map((row) => row.slice(c0, c1));
const inside = ([[r0, r1], [c0, c1]], r, c) => r >= r0 && r < r1 && c >= c0 && c < c1;
const shaped = (flat, [[r0, r1], [c0, c1]]) => Array.from({ length: r1 - r0 }, (_, r) => flat.slice(r * (c1 - c0), (r + 1) * (c1 - c0)));

function chosen(data) {
  const names = data.products.map((one) => one.mesh), mesh = oneOf("mesh", names, data.start.mesh);
  const facts = data.meshes.find((one) => one.name === mesh), strategies = data.products.find((one) => one.mesh === mesh).strategies;
  const busy = facts.axes.filter((_, k) => facts.sizes[k] > 1), keys = Object.keys(strategies);
  const usual = [busy.map((_, k) => (k === 0 && busy.length > 1 ? "m" : k === busy.length - 1 ? "k" : "n")).join(","), keys.at(-1)].find((key) => keys.includes(key));
  const key = oneOf("strategy", keys, usual);
  return { names, mesh, facts, strategies, busy, keys, key, one: strategies[key] };
}

function controls(data, { names, mesh, facts, busy, keys, key }) {
  const picks = key.split(",");
  return [select("mesh", "mesh: ranks in a grid", [["", names.map((name) => [name, name])]], mesh, (value) => choose({ mesh: value, strategy: "", rank: "", step: "" })),
    busy.map((axis, k) => {
      const turned = (pick) => picks.map((old, i) => (i === k ? pick : old)).join(",");
      return choice(`factor-${axis}`, `axis ${axis} = ${facts.sizes[facts.axes.indexOf(axis)]}`, Object.entries(WHAT).map(([pick, words]) => [pick, words, !keys.includes(turned(pick))]), picks[k], (pick) => choose({ strategy: turned(pick), step: "" }));
    })];
}

/** What a rank has at a step: its slices, its product, its sums on the way. */
function rankCard(data, { facts, one }, k, step, rounds, followed) {
  const rank = facts.ranks[k], box = one.y[k], round = step > 2 ? one.rounds[step - 3] : null;
  const got = round ? round.sent.filter(([, to]) => to === rank) : [];
  const fresh = new Map(got.flatMap(([from, , elements]) => elements.map((element) => [element, from])));
  const flat = round ? round.held[k] : one.local[k], columns = box[1][1] - box[1][0];
  const parts = [h("h4", {}, `rank ${rank}`)];
  if (step === 0) parts.push(h("p", { class: "hint" }, `x ${slice(one.x[k])}`, h("br"), `w ${slice(one.w[k])}`));
  if (step === 1 || step === 2) parts.push(h("div", {}, h("span", { class: "label" }, `x ${slice(one.x[k])}`), matrix(cut(data.operands.x, one.x[k]), `x of rank ${rank}`, () => colour(k)), h("span", { class: "label" }, `w ${slice(one.w[k])}`), matrix(cut(data.operands.w, one.w[k]), `w of rank ${rank}`, () => colour(k))));
  const pending = one.pending.length > 0 && step < 2 + rounds;
  if (step >= 2) parts.push(h("span", { class: "label" }, `${pending ? (step === 2 ? `${one.owned[k]} of y` : "y, partly added up (hatched):") : "y"} ${slice(box)}`),
    h("div", { class: "local", "data-rank": rank, "data-values": flat.join(",") }, matrix(shaped(flat, box), `y of rank ${rank}`, (r, c) => (round ? (fresh.has(r * columns + c) ? colour(facts.ranks.indexOf(fresh.get(r * columns + c))) : null) : colour(k)), pending)));
  if (got.length) parts.push(h("p", { class: "hint" }, got.filter(([, , elements]) => elements.length).map(([from, , elements, adds]) => `${many(elements.length, "number")} from rank ${from}, ${adds ? "added" : "copied"}`).join("; ") || "nothing new"));
  return h("section", { class: "rank", "aria-label": `Rank ${rank}`, style: rank === followed ? "box-shadow:0 0 0 2px var(--accent)" : null, onclick: () => choose({ rank }) }, parts);
}

/** The numbers of a round on their way from card to card. */
function flights(scene, { facts, one }, step) {
  const round = one.rounds[step - 3], before = step > 3 ? one.rounds[step - 4].held : one.local;
  const cell = (rank, element) => scene.querySelector(`.local[data-rank="${rank}"]`)?.querySelectorAll(".matrix span")[element]?.getBoundingClientRect();
  for (const [from, to, elements] of round.sent) for (const element of elements) {
    const start = cell(from, element), end = cell(to, element), k = facts.ranks.indexOf(from);
    if (!start || !end) continue;
    const chip = h("span", { class: "flying", "aria-hidden": "true", style: `left:${start.left}px;top:${start.top}px;background:${colour(k)}` }, String(before[k][element]).replace("-", "−"));
    document.body.append(chip);
    chip.animate([{ transform: "none" }, { transform: `translate(${end.left - start.left}px, ${end.top - start.top}px)`, opacity: 1, offset: 0.85 }, { transform: `translate(${end.left - start.left}px, ${end.top - start.top}px)`, opacity: 0 }], { duration: 1100, easing: "ease-in-out" }).finished.finally(() => chip.remove()).catch(() => {});
  }
}

/** The view. */
export function productView(data, root) {
  const top = h("section", { class: "card", "aria-label": "Choose" }), whole = h("section", { class: "card", "aria-label": "Global matrices" }), film = h("section", { class: "card", "aria-label": "Ranks" });
  const sentence = h("p", { class: "sentence" }), walk = player((step) => choose({ step })), scene = h("div", { class: "ranks" }), after = h("div");
  film.append(h("h3", {}, "What every rank has"), walk.node, scene, after);
  root.append(h("h2", {}, "How do ranks multiply matrices together?"), sentence, h("div", { class: "cards" }, top, whole, film));
  let last = "";
  return () => {
    const now = chosen(data), { facts, one, key } = now, rounds = one.rounds.length, count = 2 + rounds;
    const step = number("step", count, Math.min(2, count)), place = Math.max(0, facts.ranks.indexOf(number("rank", 99, facts.ranks[0]))), rank = facts.ranks[place];
    const { x, w, y } = data.operands, most = Math.max(...one.received);
    show(sentence, "The picture shows ", h("b", {}, "the numbers that every rank has"), ` while y = x · w is computed with the strategy ${one.text}: `,
      one.pending.length ? h("b", {}, `k is cut, so each rank has a partial sum, and an all_reduce over ${one.pending.join(", ")} adds them up; the busiest rank receives ${bytes(most)}.`) : h("b", {}, "k is not cut, so every local product is final and nothing is sent."));
    show(top, h("div", { class: "controls" }, controls(data, now), choice("rank", "rank that is followed", facts.ranks.map((value) => [String(value), String(value)]), String(rank), (value) => choose({ rank: value }))),
      h("p", { class: "hint" }, `x ${one.layouts[0]}; w ${one.layouts[1]}; y comes out as ${one.layouts[2]}. All numbers are integers, so that sums are exact.`));
    const own = (box, r, c) => (inside(box, r, c) ? colour(place) : null);
    show(whole, h("h3", {}, `The global matrices; coloured: what rank ${rank} works on`), h("div", { class: "controls" },
      h("div", {}, h("span", { class: "label" }, "x: m × k = 4 × 8"), matrix(x, "x", (r, c) => own(one.x[place], r, c))), h("div", {}, h("span", { class: "label" }, "w: k × n = 8 × 4"), matrix(w, "w", (r, c) => own(one.w[place], r, c))),
      h("div", {}, h("span", { class: "label" }, "y = x · w: m × n = 4 × 4"), matrix(y, "y", (r, c) => own(one.y[place], r, c)))));
    const words = step === 0 ? "where the operands live" : step === 1 ? "every rank has its slices of x and w" : step === 2 ? `every rank multiplies its slices${one.pending.length ? ": addends of y (hatched), whose sum is pending" : ": its block of y, done"}` : `round ${step - 3} of the ring: ${step === count ? "every rank has the sum" : one.rounds[step - 3].sent.some(([, , , adds]) => adds) ? "chunks of the partial sums travel and are added" : "finished chunks are passed on"}`;
    walk.update(step, count, words);
    show(scene, facts.ranks.map((_, k) => rankCard(data, now, k, step, rounds, rank)));
    const moment = `${now.mesh} ${key} ${step}`;
    if (step > 2 && moment !== last && motion()) flights(scene, now, step);
    last = moment;
    show(after, step === count && h("p", { class: "good" }, `Every rank's numbers are those of x · w: ${many(volume(one.y[0]), "element")} on rank ${facts.ranks[0]}${one.pending.length ? `, after ${many(rounds, "round")}` : ""}.`));
  };
}
