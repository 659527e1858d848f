// Choosing a mesh, a shape and layouts by clicking.

import { choice, h, select } from "./elements.js";
import { choose, oneOf, state } from "./state.js";


/** The mesh and the tensor that are chosen: `{mesh, at}`, and controls for both. */
export function chosenCase(data) {
  const name = oneOf("mesh", data.meshes.map((mesh) => mesh.name), data.start.mesh);
  const mesh = data.meshes.find((one) => one.name === name);
  const at = data.cases.filter((one) => one.mesh === name);
  const key = oneOf("shape", at.map((one) => one.shape.join("x")));
  return { mesh, at: at.find((one) => one.shape.join("x") === key), shapes: at.map((one) => one.shape.join("x")), key };
}

export function caseControls(data, { mesh, shapes, key }) {
  const words = (one) => `${one.name} (${one.ranks.length} ranks)`;
  return [
    select("mesh", "mesh: ranks in a grid", [["", data.meshes.map((one) => [one.name, words(one)])]], mesh.name, (value) => choose({ mesh: value, rank: "" })),
    choice("shape", "global shape, elements", shapes.map((shape) => [shape, shape.replaceAll("x", " × ")]), key, (value) => choose({ shape: value })),
  ];
}

/** A key such as `b,a;+c` taken apart: axes per dim, and pending ones. */
export function parsed(key) {
  const [dims, pending] = key.split("+");
  return { dims: dims.split(";").map((axes) => (axes ? axes.split(",") : [])), pending: pending ? pending.split(",") : [] };
}

const written = ({ dims, pending }, mesh) =>
  dims.map((axes) => axes.join(",")).join(";") + (pending.length ? `+${mesh.axes.filter((axis) => pending.includes(axis)).join(",")}` : "");

/** The key of the layout that has an axis somewhere else, `dim 0` …, `copies`, `pending`, last in its dim if that is offered. */
function moved(key, axis, where, mesh, offered) {
  const { dims, pending } = parsed(key);
  const stays = (one) => one !== axis && mesh.sizes[mesh.axes.indexOf(one)] > 1; // axes of size 1 cut nothing
  const now = { dims: dims.map((axes) => axes.filter(stays)), pending: pending.filter(stays) };
  if (where === "pending") now.pending.push(axis);
  else if (where !== "copies") now.dims[Number(where)].push(axis);
  const last = written(now, mesh);
  if (offered.includes(last)) return last;
  now.dims.forEach((axes) => axes.sort((a, b) => mesh.axes.indexOf(a) - mesh.axes.indexOf(b)));
  return written(now, mesh);
}

const place = (key, axis) => {
  const { dims, pending } = parsed(key);
  if (pending.includes(axis)) return "pending";
  const dim = dims.findIndex((axes) => axes.includes(axis));
  return dim < 0 ? "copies" : String(dim);
};

/** Controls for one layout: per mesh axis the dim that it cuts, or copies, or a pending sum. */
export function layoutPicker(name, legend, mesh, offered, key, note) {
  const { dims } = parsed(key);
  const put = (value) => choose({ [name]: value });
  const rows = mesh.axes.filter((_, k) => mesh.sizes[k] > 1).map((axis) => {
    const at = place(key, axis);
    const places = [...dims.map((_, dim) => [String(dim), `cuts dim ${dim}`]), ["copies", "copies"]];
    if (offered.some((one) => one.includes("+"))) places.push(["pending", "pending sum"]);
    const options = places.map(([where, words]) => [where, words, where !== at && !offered.includes(moved(key, axis, where, mesh, offered))]);
    const row = choice(`${name}-${axis}`, "", options, at, (where) => put(moved(key, axis, where, mesh, offered)));
    row.querySelector("legend").append(`axis ${axis}`);
    row.querySelector("legend").className = "visually-hidden";
    return h("div", { class: "axis" }, h("b", {}, `${axis} = ${mesh.sizes[mesh.axes.indexOf(axis)]}`), row);
  });
  const turned = (dim) => {
    const now = parsed(key);
    now.dims[dim].push(now.dims[dim].shift());
    return written(now, mesh);
  };
  const orders = dims.flatMap((axes, dim) => (axes.length < 2 || !offered.includes(turned(dim)) ? [] : [
    h("button", { type: "button", id: `${name}-order-${dim}`, onclick: () => put(turned(dim)) }, `dim ${dim}: ${axes.join(" before ")} ⇄`),
  ]));
  return h("div", { class: "picker", id: `${name}-picker`, "data-key": key }, h("h3", {}, legend), rows,
    h("div", { class: "controls" }, h("span", { class: "written" }, note), orders));
}

/** The layout of the state, if it is offered; otherwise the one of these that is. */
export function chosenLayout(name, offered, wanted) {
  if (offered.includes(state[name])) return state[name];
  return wanted.find((key) => offered.includes(key)) ?? offered[0];
}

