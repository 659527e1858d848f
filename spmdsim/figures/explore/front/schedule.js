// A collective algorithm, round by round: who has what, what travels, and where a wrong one fails.

import { choice, colour, h, LETTERING, many, picture, s, select, show, table } from "./elements.js";
import { fly, motion, player } from "./player.js";
import { choose, number, oneOf } from "./state.js";

const MOST_NAMED = 8; // more chunks than this are squares without words

function chosen(data) {
  const name = oneOf("algorithm", data.schedules.map((one) => `${one.collective} ${one.name}`), first(data));
  const one = data.schedules.find((other) => `${other.collective} ${other.name}` === name);
  const sizes = Object.keys(one.ranks);
  const size = oneOf("n", sizes, sizes.includes("4") ? "4" : sizes.at(-1));
  return { one, name, sizes, size, told: one.ranks[size] };
}

const usable = (one) => Object.keys(one.ranks).length > 0;
const first = (data) => {
  const own = data.schedules.find((one) => one.origin === "own" && usable(one)) ?? data.schedules.find((one) => one.collective === "all_reduce" && one.name === "ring");
  return `${own.collective} ${own.name}`;
};

function controls(data, { name, sizes, size }) {
  const groups = [["yours", data.schedules.filter((one) => one.origin === "own")], ["wrong ones: where do they fail?", data.schedules.filter((one) => one.origin === "wrong")]];
  for (const one of data.schedules) if (one.origin === "library" && !groups.some(([label]) => label === one.collective)) groups.push([one.collective, data.schedules.filter((other) => other.origin === "library" && other.collective === one.collective)]);
  const listed = groups.filter(([, some]) => some.some(usable)).map(([label, some]) => [label, some.filter(usable).map((one) => [`${one.collective} ${one.name}`, label === one.collective ? one.name : `${one.collective}: ${one.name}`])]);
  return [select("algorithm", "algorithm", listed, name, (value) => choose({ algorithm: value, step: 0 })),
    choice("n", "ranks", sizes.map((value) => [value, value]), size, (value) => choose({ n: value, step: 0 }))];
}

/** The words of a finding's place: the state in which it shows. */
const stateOf = (finding, count) => (finding[1] === null ? count : Math.min(count, finding[1] + 1));

function chunkCells(x, y, width, high, told, size, state, rank, wrong) {
  const cells = told.cells, parts = [], held = new Map((state?.[rank] ?? []).map(([chunk, value, fresh]) => [chunk, [told.values[value], fresh]]));
  const named = cells.length <= MOST_NAMED, rows = named ? 1 : Math.ceil(cells.length / Math.ceil(Math.sqrt(cells.length * 2.2)));
  const columns = Math.ceil(cells.length / rows), w = width / columns, t = high / rows;
  cells.forEach((chunk, k) => {
    const left = x + (k % columns) * w, top = y + Math.floor(k / columns) * t, entry = held.get(chunk);
    const words = entry ? entry[0][0] : "nothing", title = `rank ${rank}, ${chunk < told.chunks ? `chunk ${chunk}` : `scratch ${chunk - told.chunks}`}: ${entry ? `input of ${words === "∑" ? "all ranks" : `rank ${words}`}` : "nothing"}`;
    const share = entry ? (told.reduces ? entry[0][1] / size : 1) : 0;
    parts.push(s("g", { class: "cell", "data-rank": rank, "data-chunk": chunk, "data-value": entry ? words : "", "data-new": entry ? entry[1] : 0 }, s("title", {}, title),
      s("rect", { class: "hole", x: left + 1, y: top + 1, width: w - 2, height: t - 2, rx: 3 }),
      entry && s("rect", { x: left + 1, y: top + 1 + (t - 2) * (1 - share), width: w - 2, height: (t - 2) * share, rx: 3, fill: colour(chunk % told.chunks) }),
      entry?.[1] ? s("rect", { class: "mark", x: left + 2, y: top + 2, width: w - 4, height: t - 4, rx: 3, style: "stroke-width:2" }) : null,
      wrong(rank, chunk) && s("rect", { x: left + 1, y: top + 1, width: w - 2, height: t - 2, rx: 3, fill: "none", style: "stroke:var(--wrong);stroke-width:3;stroke-dasharray:4 2" }),
      named && entry && w > 17 && s("text", { x: left + w / 2, y: top + t / 2 + 4, "text-anchor": "middle", textLength: words.length * 7 > w - 6 ? w - 8 : null, lengthAdjust: "spacingAndGlyphs", class: "haloed" }, words)));
  });
  return parts;
}

function stage(width, one, told, size, step, wrong) {
  const ranks = Array.from({ length: Number(size) }, (_, k) => k), high = 46, gap = 12, top = told.cells.length <= MOST_NAMED ? 24 : 8;
  const left = width < 420 ? 26 : 58, lane = Math.min(190, width * 0.34), cells = width - left - lane - 8;
  const y = (rank) => top + rank * (high + gap), state = told.states[step] ?? (told.moves.length ? told.states[0] : undefined), messages = step > 0 ? told.rounds[step - 1] ?? [] : [];
  const parts = [s("defs", {}, Array.from({ length: 8 }, (_, k) => s("marker", { id: `head-${k}`, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 6, markerHeight: 6, orient: "auto" }, s("path", { d: "M0 0 8 4 0 8z", fill: colour(k) }))))];
  const told2 = { ...told, reduces: one.reduces };
  if (told.cells.length <= MOST_NAMED) told.cells.forEach((chunk, k) => parts.push(s("text", { class: "soft", x: left + (k + 0.5) * (cells / told.cells.length), y: 14, "text-anchor": "middle" }, chunk < told.chunks ? (cells / told.cells.length > 60 ? `chunk ${chunk}` : chunk) : "s")));
  for (const rank of ranks) {
    parts.push(s("text", { x: 2, y: y(rank) + high / 2 + 4, style: "font-weight:600" }, width < 420 ? rank : `rank ${rank}`));
    parts.push(chunkCells(left, y(rank), cells, high, told2, Number(size), state, rank, wrong));
  }
  const x = left + cells + 6, moving = motion(), labels = []; // above all arrows
  messages.forEach(([source, target, chunks, reduces], k) => {
    const y1 = y(source) + high / 2 - 5, y2 = y(target) + high / 2 + 6, words = chunks.length > 3 ? `${chunks.length} chunks` : chunks.join(",");
    const label = lane > 110 ? `${reduces ? "+" : ""}${words}` : "", room = lane - 10 - label.length * 6.2;
    const bend = x + Math.min(room / 0.75, lane * (0.36 + 0.17 * Math.abs(target - source) + (k % 3) * 0.05));
    const tone = chunks.length ? chunks[0] % told.chunks : 0, path = `M${x} ${y1}C${bend} ${y1} ${bend} ${y2} ${x + 3} ${y2}`;
    const names = chunks.length ? `chunk${chunks.length > 1 ? "s" : ""} ${chunks.length > 6 ? `${chunks[0]} … ${chunks.at(-1)} (${chunks.length})` : chunks.join(", ")}` : "no data";
    const title = `rank ${source} → rank ${target}: ${names}${reduces ? ", added on arrival" : ""}`;
    const middle = [(x * 2 + bend * 6) / 8, (y1 + y2) / 2];
    labels.push(label && s("text", { class: "haloed", x: middle[0] + 5, y: middle[1] + 4 + ((k % 3) - 1) * (messages.length > 4 ? 12 : 0), style: "font-size:11px" }, label));
    parts.push(s("g", {}, s("path", { class: "casing", d: path }), s("path", { class: "arrow message", d: path, stroke: colour(tone), "marker-end": `url(#head-${((tone % 8) + 8) % 8})`, "stroke-dasharray": one.reduces && !reduces ? "6 3" : null, "data-from": source, "data-to": target, "data-chunks": chunks.join(","), "data-reduces": reduces }, s("title", {}, title)),
      moving && s("circle", { r: 5, fill: colour(tone), stroke: LETTERING, "stroke-opacity": 0.6 }, s("animateMotion", { dur: "1s", repeatCount: "1", fill: "freeze", path }))));
  });
  const svg = picture(width, y(ranks.length) + 2, `${told.title}, ${step === 0 ? "start" : `after round ${step - 1}`}: who has what`, [...parts, ...labels]);
  if (moving) fly(svg);
  return svg;
}

/** What the squares mean, and everything in words. */
function words(one, told, step) {
  const state = told.states[step];
  if (!state) return null;
  const held = (rank) => rank.map(([chunk, value]) => `${chunk < told.chunks ? chunk : "scratch"}: ${told.values[value][0]}`).join(", ") || "nothing";
  return [told.cells.length > MOST_NAMED && h("p", { class: "hint" }, `A square is a chunk, 0 to ${told.chunks - 1} from left to right, row by row; colours repeat after 8, frames mark what is new. Point at one to read whose input it is.`),
    h("details", {}, h("summary", {}, "Who has what, in words"), table(one.reduces ? "chunk: ranks whose input is in it" : "chunk: rank that it comes from", ["rank", "chunks"], state.map((rank, k) => [String(k), [held(rank), "left mono"]])))];
}

/** The view. */
export function scheduleView(data, root) {
  const top = h("section", { class: "card", "aria-label": "Choose" }), film = h("section", { class: "card w8", "aria-label": "Rounds" }), side = h("section", { class: "card w4", "aria-label": "Counts" });
  const sentence = h("p", { class: "sentence" }), walk = player((step) => choose({ step })), scene = h("div"), head = h("h3");
  film.append(head, walk.node, scene);
  root.append(h("h2", {}, "What does a collective do?"), sentence, h("div", { class: "cards" }, top, film, side));
  return () => {
    const now = chosen(data), { one, size, told } = now;
    const count = Math.max(told.rounds.length, told.states.length - 1, 0), step = number("step", count, 0);
    const here = told.findings.filter((finding) => stateOf(finding, count) === step);
    const wrong = (rank, chunk) => here.some((finding) => finding[2] === rank && (finding[3] === null || finding[3] === chunk));
    show(sentence, "The picture shows which chunks of the vector ", h("b", {}, "every rank has"), one.reduces ? " and whose input is in them (0..2 is 0+1+2, ∑ is the sum of all ranks); an arrow is a message, dashed where it is copied and not added." : " and which rank they come from; an arrow is a message.", ` ${one.collective} ${one.name}: ${one.about}.`);
    show(top, h("div", { class: "controls" }, controls(data, now)), h("p", { class: "hint" }, `Works on ${one.needs}. m = ${one.m}.`));
    head.textContent = told.title;
    const messages = step > 0 ? told.rounds[step - 1] ?? [] : [];
    walk.update(step, count, step === 0 ? "start: every rank has its own input" : told.moves.length ? `round ${step - 1}, if ranks came to it: ${many(messages.length, "message")} would be sent` : `after round ${step - 1}: ${many(messages.length, "message")}${messages.length ? "" : ", local work only"}`);
    const blind = told.moves.length > 0 && [h("p", { class: "hint" }, "Not every send meets its receive, so nobody's chunks are followed: the picture shows the start, and the messages that ranks would send in their own rounds."),
      table("What every rank wants to do, round by round", ["rank", ...told.moves[0].map((_, k) => `round ${k}`)], told.moves.map((moves, k) => [String(k), ...moves.map((words) => [words, "left"])]))];
    show(scene, stage(Math.max(280, scene.clientWidth || 300), one, told, size, step, wrong), blind, words(one, told, step), here.map((finding) => h("p", { class: "finding" }, finding[0])),
      messages.length > 0 && h("details", {}, h("summary", {}, `Messages of round ${step - 1}`),
        table("Messages", ["from rank", "to rank", "chunks", "on arrival"], messages.map(([a, b, chunks, reduces]) => [String(a), String(b), [chunks.join(" ") || "–", "mono"], reduces ? "added" : one.reduces ? "replaces" : "kept"]))));
    const places = [...new Set(told.findings.map((finding) => stateOf(finding, count)))];
    const facts = told.facts.length ? [h("p", { class: "good" }, "Correct: every rank ends with what it was promised."),
      table("Counts beside the lower bounds for one port", ["", "here", "at least"], told.facts.map(([name, value, bound]) => [[name, "left"], value, bound])),
      h("p", { class: "hint" }, `${told.title} cuts the vector into ${many(told.chunks, "chunk")}. Bytes are multiples of m.`)] : [
      h("p", { class: "finding" }, `Wrong: ${many(told.findings.length, "finding")}.`),
      h("p", { class: "hint" }, "Go to where it shows: ", places.map((place) => h("button", { type: "button", id: `fails-${place}`, onclick: () => choose({ step: place }) }, place === count ? "the end" : `after round ${place - 1}`))),
      h("ul", {}, told.findings.slice(0, 8).map((finding) => h("li", {}, finding[0])))];
    show(side, h("h3", {}, told.facts.length ? "What it costs" : "Where it fails"), facts);
  };
}
