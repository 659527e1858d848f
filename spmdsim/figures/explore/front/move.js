// A redistribution: who sends which box to whom, step by step, and its bytes beside the least that any plan can do.

import { bytes, choice, colour, h, LETTERING, many, picture, s, show, slice, table, volume } from "./elements.js";
import { usual } from "./layout.js";
import { caseControls, chosenCase, chosenLayout, layoutPicker } from "./picker.js";
import { fly, motion, player } from "./player.js";
import { choose, number } from "./state.js";
import { miniature, miniatureHeight } from "./tensor.js";

const WHAT = {
  slice: "every rank keeps a part of what it holds; nothing is sent",
  fill: "what some ranks hold becomes zeros; nothing is sent",
  all_gather: "every rank of a group gets the boxes of the others",
  all_to_all: "every rank of a group cuts its box and gives each other rank its part",
  all_reduce: "the addends of a group are added up, and every rank gets the sum",
  reduce_scatter: "the addends of a group are added up, each rank gets its block of the sum",
  exchange: "every rank gets exactly the boxes that it lacks, from ranks that hold them",
  reduce_exchange: "each box is added up at one rank, and sent on to those that want it",
};

const ROUTES = { local: "local", collectives: "a sequence of collectives", "direct exchange": "one direct exchange", "reduction, then exchange": "a reduction, then an exchange" };

/** Whether one of these layouts waits for a sum. */
const pendingIn = (...keys) => keys.some((key) => key.includes("+"));

/** A plan of the page's tables. */
export function planOf(at, source, target) {
  const [kind, steps, received, bound, sums] = at.plans[at.sources.indexOf(source)][at.targets.indexOf(target)];
  return {
    kind, received, bound, most: sums[0], mostBound: sums[1], total: sums[2], totalBound: sums[3],
    steps: steps.map((k) => {
      const [collective, axes, src, dst, groups, sent, got] = at.steps[k];
      return { collective, axes, src: at.layouts[src], dst: at.layouts[dst], groups, received: got, sent: sent.map(([from, to, box]) => ({ from, to, box: at.boxes[box] })) };
    }),
  };
}

/** Ranks in two rows, before and after a step, with an arrow for every box. */
function stage(width, mesh, at, step, rank, pick) {
  const ranks = [...mesh.ranks].sort((a, b) => a - b), column = width / ranks.length, size = Math.min(64, column - 8);
  const high = miniatureHeight(size, at.shape), top = 22, gap = 132, below = top + high + gap;
  const middle = (one) => (ranks.indexOf(one) + 0.5) * column;
  const holds = (layout, one) => layout[2][mesh.ranks.indexOf(one)];
  const parts = [], chosen = (sent) => rank === null || sent.from === rank || sent.to === rank;
  const row = (layout, y, words) => ranks.map((one) => {
    const box = holds(layout, one), addend = layout[0].includes("+");
    return s("g", { class: `pick holds`, "data-rank": one, "data-box": slice(box), "data-when": words, onclick: () => pick(one) },
      miniature(middle(one) - size / 2, y, size, at.shape, box, one, `rank ${one} owns ${addend ? "an addend of " : ""}${slice(box)} ${words}: ${many(volume(box), "element")}`, addend));
  });
  ranks.forEach((one) => parts.push(s("text", { x: middle(one), y: 13, "text-anchor": "middle", style: `font-weight:${one === rank ? 800 : 500}` }, column < 60 ? one : `rank ${one}`)));
  parts.push(row(step.src, top, "before"), row(step.dst, below, "after"));
  const marker = (k) => s("marker", { id: `tip-${k}`, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 6, markerHeight: 6, orient: "auto" }, s("path", { d: "M0 0 8 4 0 8z", fill: colour(k) }));
  parts.unshift(s("defs", {}, ranks.map((one) => marker(one))));
  const moving = motion();
  step.sent.forEach((sent, k) => {
    const shift = ((k % 5) - 2) * Math.min(4, column / 14);
    const x1 = middle(sent.from) + shift, x2 = middle(sent.to) + shift, y1 = top + high + 4, y2 = below - 6;
    const words = `rank ${sent.from} sends ${slice(sent.box)} to rank ${sent.to}: ${many(volume(sent.box), "element")}, ${bytes(volume(sent.box) * at.itemsize)}`;
    const path = `M${x1} ${y1}C${x1} ${y1 + gap * 0.45} ${x2} ${y2 - gap * 0.45} ${x2} ${y2}`;
    parts.push(s("g", { class: `${chosen(sent) ? "" : "dim"} ${step.sent.length > 40 && rank === null ? "many" : ""}` }, s("path", { class: "casing", d: path }), s("path", { class: "arrow sent", d: path, stroke: colour(sent.from), "marker-end": `url(#tip-${sent.from})`, "data-from": sent.from, "data-to": sent.to, "data-box": slice(sent.box) }, s("title", {}, words)),
      moving && chosen(sent) && s("rect", { x: -5, y: -5, width: 10, height: 10, rx: 2, fill: colour(sent.from), stroke: LETTERING, "stroke-opacity": 0.6 },
        s("animateMotion", { dur: "1.1s", repeatCount: "1", fill: "freeze", path, calcMode: "spline", keyTimes: "0;1", keySplines: ".4 0 .3 1" }))));
  });
  if (!step.sent.length) parts.push(s("text", { class: "soft", x: width / 2, y: top + high + gap / 2, "text-anchor": "middle" }, "nothing is sent"));
  const last = below + high;
  ranks.forEach((one) => parts.push(s("text", { class: "soft got", x: middle(one), y: last + 16, "text-anchor": "middle", "data-rank": one, "data-bytes": step.received[ranks.indexOf(one)] }, column < 62 ? step.received[ranks.indexOf(one)] : bytes(step.received[ranks.indexOf(one)]))));
  const svg = picture(width, last + 26, `${step.collective}: ${many(step.sent.length, "box", "boxes")} on the way`, parts);
  if (moving) fly(svg);
  return svg;
}

/** One bar per rank: what it receives, and a mark where the least is. */
function bars(ranks, plan) {
  const most = Math.max(1, ...plan.received, ...plan.bound);
  return ranks.map((rank, k) => h("div", { class: "bar", "data-rank": rank, "data-received": plan.received[k], "data-bound": plan.bound[k] },
    h("span", {}, `rank ${rank}`),
    h("i", { role: "img", "aria-label": `rank ${rank} receives ${plan.received[k]} bytes, at least ${plan.bound[k]}` }, h("b", { style: `width:${(100 * plan.received[k]) / most}%` }), h("u", { style: `left:calc(${(100 * plan.bound[k]) / most}% - 1px)` })),
    h("span", {}, bytes(plan.received[k]))));
}

function verdict(plan) {
  if (!plan.most) return h("p", { class: "good" }, "Nothing has to be received: every rank holds what it needs.");
  if (plan.most === plan.mostBound) return h("p", { class: "good" }, `No plan can do better: the busiest rank receives ${bytes(plan.most)}, which is the lower bound.`);
  return h("p", {}, `The busiest rank receives ${bytes(plan.most)}; the lower bound is ${bytes(plan.mostBound)}, so the plan is ${(plan.most / plan.mostBound).toFixed(3)} times the least.`);
}

/** The view. */
export function moveView(data, root) {
  const from = h("section", { class: "card w6", "aria-label": "From" }), to = h("section", { class: "card w6", "aria-label": "To" });
  const top = h("section", { class: "card", "aria-label": "Tensor" }), film = h("section", { class: "card w7", "aria-label": "Redistribution" }), sums = h("section", { class: "card w5", "aria-label": "Bytes" });
  const sentence = h("p", { class: "sentence" }), walk = player((step) => choose({ step })), scene = h("div"), head = h("h3");
  film.append(head, walk.node, scene);
  root.append(h("h2", {}, "How does it get from one layout to another?"), sentence, h("div", { class: "cards" }, top, from, to, film, sums));
  return () => {
    const where = chosenCase(data), { mesh, at } = where, ndim = at.shape.length, facts = mesh.derivations[ndim];
    from.hidden = to.hidden = film.hidden = sums.hidden = !at.sources.length;
    if (!at.sources.length) {
      walk.update(0, 0, "");
      show(top, h("div", { class: "controls" }, caseControls(data, where)));
      return show(sentence, `Tensors of ${ndim} dims have too many pairs of layouts on this mesh for a page: choose another shape, or ask spmdsim plan for one pair.`);
    }
    const common = usual(mesh, ndim);
    const source = chosenLayout("from", at.sources, [common[1]]), target = chosenLayout("to", at.targets, [ndim > 1 ? `;${common[1].split(";")[0]}${";".repeat(ndim - 2)}` : common[2]]);
    const plan = planOf(at, source, target), count = plan.steps.length, step = number("step", count, count ? 1 : 0);
    const rank = number("rank", 99, -1), followed = mesh.ranks.includes(rank) ? rank : null;
    const pick = (value) => choose({ rank: value === followed ? "" : value });
    show(sentence, "The picture shows which box every rank ", h("b", {}, "holds before and after"), " a step, and each box on its way as an arrow in its sender's colour. ",
      count ? ["The plan is ", h("b", {}, ROUTES[plan.kind] ?? plan.kind), `: ${many(count, "step")}, ${bytes(plan.total)} received in all.`] : "Nothing has to be done.",
      pendingIn(source, target) && ` Hatched boxes with a + are addends, not copies: their sum is pending.`);
    const follow = choice("rank", "rank that is followed", [["", "all"], ...mesh.ranks.map((value) => [String(value), String(value)])], followed === null ? "" : String(followed), (value) => choose({ rank: value }));
    const some = Object.keys(facts).some((key) => !at.sources.includes(key));
    show(top, h("div", { class: "controls" }, caseControls(data, where), follow),
      some && h("p", { class: "hint" }, "Several axes of one dim are in the mesh's order here; spmdsim plan takes them in any."));
    show(from, layoutPicker("from", "From", mesh, at.sources, source, facts[source].text));
    show(to, layoutPicker("to", "To", mesh, at.targets, target, facts[target].text));
    const now = plan.steps[step - 1];
    const still = { collective: "start", sent: [], received: mesh.ranks.map(() => 0), src: at.layouts.find(([key]) => key === source) };
    const shown = now ?? { ...still, dst: still.src };
    head.textContent = now ? `Step ${step}: ${now.collective}${now.axes.length ? ` over ${now.axes.join(", ")}` : ""}` : count ? "Before the first step" : "Nothing to do";
    walk.update(step, count, now ? WHAT[now.collective] ?? now.collective : count ? `${mesh.ranks.length} ranks hold their boxes of the source` : "every rank holds its target already");
    show(scene, stage(Math.max(260, scene.clientWidth || 300), mesh, at, shown, followed, pick),
      h("p", { class: "hint" }, `${now ? `${now.src[1]} → ${now.dst[1]}${now.groups.length ? `; groups ${now.groups.map((group) => `{${group.join(", ")}}`).join(" ")}` : ""}. ` : ""}Below each rank: bytes that it receives in this step${now?.collective === "all_reduce" ? ", as the bandwidth-optimal algorithm counts them; the arrows show whose parts it needs" : ""}. Click a rank to follow it alone.`),
      now?.sent.length ? h("details", { open: now.sent.length <= 8 }, h("summary", {}, many(now.sent.length, "box", "boxes")),
        table("Boxes on their way", ["from rank", "to rank", "box", "elements", "bytes"], now.sent.map((sent) => [String(sent.from), String(sent.to), [slice(sent.box), "mono"], String(volume(sent.box)), `${volume(sent.box) * at.itemsize} B`]))) : null);
    const rows = plan.steps.map((one, k) => [String(k + 1), [`${one.collective}${one.axes.length ? ` over ${one.axes.join(", ")}` : ""}`, "left"], [`${one.src[1]} → ${one.dst[1]}`, "left"], bytes(Math.max(...one.received))]);
    show(sums, h("h3", {}, "Plan against bound"), verdict(plan),
      bars([...mesh.ranks].sort((a, b) => a - b), plan), h("p", { class: "hint" }, "Bars: bytes received over all steps. The upright mark: the least that this rank must receive; where sums are pending, its share."),
      h("p", { class: "hint" }, `In all ${bytes(plan.total)}, at least ${bytes(plan.totalBound)}.`),
      count > 0 && table("Steps", ["step", "collective", "layouts", "busiest rank"], rows, (k) => ({ class: k === step - 1 ? "on" : "", "data-go": k + 1, onclick: () => choose({ step: k + 1 }) })));
  };
}
