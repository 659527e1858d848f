// A search: the best strategy of every operator, what a step takes, and what it would take with any other strategy.

import { bytes, choice, h, many, select, show, table, time } from "./elements.js";
import { player } from "./player.js";
import { choose, number, oneOf } from "./state.js";

const KINDS = [["compute", "#56b4e9", "computing"], ["forward", "#e69f00", "redistributing forward"], ["backward", "#009e73", "redistributing gradients"], ["gradient", "#f0e442", "reducing parameters' gradients"]];

function chosen(data) {
  const programs = [...new Set(data.searches.map((one) => one.program))], program = oneOf("program", programs);
  const at = data.searches.filter((one) => one.program === program), sizes = at.map((one) => String(one.ranks));
  const size = oneOf("n", sizes, sizes.at(-1)), one = at.find((other) => String(other.ranks) === size);
  const names = one.operators.map((row) => row.name), operator = oneOf("operator", names, names.find((name) => (one.why[name] ?? []).length > 2));
  return { programs, program, sizes, size, one, operator };
}

/** Seconds by kind as one bar. */
function stacked(row, most) {
  return h("i", { role: "img", "aria-label": KINDS.map(([kind, , words]) => `${words} ${time(row[kind])}`).join(", "), style: "display:flex;height:1rem;background:var(--faint);border-radius:4px;overflow:hidden;min-width:6rem" },
    KINDS.map(([kind, tone, words]) => row[kind] > 0 && h("b", { title: `${words}: ${time(row[kind])}`, style: `display:block;width:${(100 * row[kind]) / most}%;background:${tone}` })));
}

function operators(one, operator) {
  const most = Math.max(...one.operators.map((row) => row.seconds));
  return table("Operators: strategy, layouts, modelled time of one training step", ["operator", "strategy", "operands → result", "time", "", "why not?"], one.operators.map((row) => [
    row.name, [row.words, "left mono"], [`${row.inputs.join(" ")} → ${row.output || "scalar"}`, "left mono"], time(row.seconds), stacked(row, most),
    one.why[row.name] ? h("button", { type: "button", id: `why-${row.name}`, "aria-pressed": String(row.name === operator), onclick: () => choose({ operator: row.name, step: "" }) }, many(one.why[row.name].length - 1, "other")) : "–"]),
  (k) => ({ class: one.operators[k].name === operator ? "on" : "", "data-operator": one.operators[k].name, "data-strategy": one.operators[k].strategy, "data-seconds": one.operators[k].seconds }));
}

function reasons(one, operator, step) {
  const rows = one.why[operator] ?? [];
  if (!rows.length) return [h("p", { class: "hint" }, "This program is too large to ask of every strategy; spmdsim search --why OPERATOR CUTS answers for one.")];
  const most = Math.max(...rows.map((row) => row.seconds)), taken = one.operators.find((row) => row.name === operator).strategy;
  return rows.map((row, k) => h("div", { class: "bar reason", "data-strategy": row.strategy, "data-seconds": row.seconds },
    h("button", { type: "button", id: `reason-${k}`, "aria-pressed": String(k === step), style: `font-family:var(--mono);font-size:.78rem;text-align:left${k === step ? ";border-color:var(--accent);border-width:2px" : ""}`, onclick: () => choose({ step: k }) }, `${row.words}${row.strategy === taken ? " (taken)" : ""}`),
    h("i", { role: "img", "aria-label": `${time(row.seconds)} per step` }, h("b", { style: `width:${(100 * row.seconds) / most}%` })),
    h("span", {}, row.seconds - one.seconds > 1e-12 ? time(row.seconds - one.seconds, true) : time(row.seconds))));
}

function changes(one, operator, row) {
  const taken = one.operators.find((other) => other.name === operator).words;
  if (!row.changes.length) return h("p", { class: "good" }, `This is what the search took for ${operator}.`);
  const cell = (seconds) => (Math.abs(seconds) < 1e-12 ? "–" : time(seconds, true));
  return [h("p", {}, `With the strategy ${row.words} for ${operator} instead of ${taken}, and all other operators chosen anew, one step takes ${time(row.seconds)} instead of ${time(one.seconds)}.`),
    table("Where the difference comes from: time added (+) or saved (−)", ["operator", "strategy", ...KINDS.map(([kind]) => kind)], row.changes.map(([name, before, after, more]) => [name, [before === after ? before : `${before} ⇒ ${after}`, "left mono"], ...more.map(cell)]))];
}

/** The view. */
export function searchView(data, root) {
  const top = h("section", { class: "card", "aria-label": "Choose" }), result = h("section", { class: "card", "aria-label": "Result" });
  const why = h("section", { class: "card w5", "aria-label": "Why not?" }), because = h("section", { class: "card w7", "aria-label": "Because" });
  const moves = h("section", { class: "card w7", "aria-label": "Redistributions" }), rivals = h("section", { class: "card w5", "aria-label": "Comparison" });
  const sentence = h("p", { class: "sentence" }), walk = player((step) => choose({ step })), list = h("div"), head = h("h3");
  why.append(head, walk.node, list);
  root.append(h("h2", {}, "Which strategy is best, and why not another?"), sentence, h("div", { class: "cards" }, top, result, why, because, moves, rivals));
  return () => {
    for (const card of [top, result, why, because, moves, rivals]) card.hidden = !data.searches.length;
    if (!data.searches.length) return show(sentence, "This page has no search: write one with --program mlp and 2, 4 or 8 ranks.");
    const { programs, program, sizes, size, one, operator } = chosen(data), rows = one.why[operator] ?? [];
    const step = number("step", Math.max(0, rows.length - 1), 0);
    show(sentence, "The table shows for every operator ", h("b", {}, "which mesh axis cuts which factor"), ` in the cheapest training step that the search found: ${time(one.seconds)} on ${one.ranks} ranks as ${one.mesh}, modelled for the machine "${one.machine}"${one.optimal ? ", and no other choice is cheaper in this model" : ""}.`);
    show(top, h("div", { class: "controls" }, select("program", "program", [["", programs.map((name) => [name, name])]], program, (value) => choose({ program: value, operator: "", step: "" })),
      choice("n", "ranks", sizes.map((value) => [value, value]), size, (value) => choose({ n: value, operator: "", step: "" }))),
    h("p", { class: "hint" }, `Per rank: ${bytes(one.nbytes)} received, ${bytes(one.peak)} of memory at the peak; ${Object.entries(one.collectives).map(([name, count]) => `${count} ${name}`).join(", ") || "no collectives"}.`));
    show(result, operators(one, operator), h("p", { class: "hint" }, KINDS.map(([, tone, words]) => [h("span", { class: "key" }, h("span", { class: "chip", style: `background:${tone}` }, "\u00a0"), ` ${words}`), " \u2002"])),
      h("p", { class: "hint" }, "A strategy such as k:dp n:tp cuts the factor k of the operator's rule by axis dp and n by tp: m, k, n are a product's, dim 0 is that dim of the operator's result, such as the batch. Layouts have one letter per axis: S(d) cuts dim d, R copies, P is a pending sum."));
    head.textContent = `Why not another strategy for ${operator}?`;
    walk.node.hidden = !rows.length;
    if (rows.length) walk.update(step, rows.length - 1, `${rows[step].words}: ${time(rows[step].seconds)} per step`);
    show(list, reasons(one, operator, step), rows.length ? h("p", { class: "hint" }, `${many(rows.length, "strategy", "strategies")}, the cheapest first; bars: time of one step; numbers: how much more than the best.`) : null);
    show(because, h("h3", {}, "Because"), rows.length ? changes(one, operator, rows[step]) : h("p", { class: "hint" }, "–"));
    show(moves, h("h3", {}, "What is redistributed"), one.moves.length ? table("Redistributions of one step", ["when", "tensor", "layouts", "collectives", "bytes of rank 0", "time"],
      one.moves.map(([when, name, src, dst, names, nbytes, seconds]) => [when, [name, "left"], [`${src} → ${dst}`, "left mono"], [names.join(", ") || "local", "left"], bytes(nbytes), time(seconds)])) : h("p", { class: "good" }, "Nothing."));
    show(rivals, h("h3", {}, "Beside what people configure by hand"), table("One training step", ["layout", "time", "times the best", "received per rank", "peak memory"],
      [["found", one.seconds, one.nbytes, one.peak], ...one.comparison].map(([name, seconds, nbytes, peak]) => [name, seconds < 1e6 ? time(seconds) : "not allowed", (seconds / one.seconds).toFixed(2), bytes(nbytes), bytes(peak)])));
  };
}
