// Elements, colours and numbers: what every view is made of.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name in node && typeof value === "boolean") node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** An HTML element: `h("p", {class: "hint"}, "words", more)`. */
export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);

/** An SVG element. */
export const s = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

/** A picture of a width and height in pixels, with a title for those who do not see it. */
export const picture = (width, height, title, ...children) =>
  s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": title }, ...children);

// Okabe and Ito's colours, told apart by all eyes; a text label always stands beside them.
const COLOURS = ["#56b4e9", "#e69f00", "#2fb58c", "#f0e442", "#cc79a7", "#e8794a", "#9aa7ff", "#b9b2a3"];

export const colour = (number) => COLOURS[((number % 8) + 8) % 8];
export const LETTERING = "#14181f";

/** Close lines over a box: the mark of an addend, which is no copy. */
export function hatching(x, y, width, height) {
  const lines = [];
  for (let reach = 5; reach < width + height; reach += 6) {
    const low = Math.min(reach, height), up = Math.min(reach, width);
    lines.push(`M${x + reach - low} ${y + low}L${x + up} ${y + reach - up}`);
  }
  return s("path", { class: "hatching", d: lines.join("") });
}

/** Words on a fill, whose colour keeps hatching away from them. */
export const onFill = (fill) => `fill:${LETTERING};paint-order:stroke;stroke:${fill};stroke-width:5px;stroke-linejoin:round`;

const UNITS = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];

/** A byte count for people. */
export function bytes(count) {
  for (const [unit, size] of UNITS) if (count >= size) return `${Number((count / size).toPrecision(4))} ${unit}`;
  return `${count} B`;
}

/** Seconds for people. */
export function time(seconds, sign = false) {
  const size = Math.abs(seconds), [unit, scale] = size >= 1 ? ["s", 1] : size >= 1e-3 ? ["ms", 1e3] : ["µs", 1e6];
  const words = Number((seconds * scale).toPrecision(4));
  return `${sign && words > 0 ? "+" : ""}${words} ${unit}`.replace("-", "−");
}

/** `one rank`, `3 ranks`. */
export const many = (count, word, words = `${word}s`) => `${count} ${count === 1 ? word : words}`;

/** Bounds as numpy writes slices. */
export const slice = (box) => `[${box.map(([start, stop]) => `${start}:${stop}`).join(", ")}]`;

export const volume = (box) => box.reduce((count, [start, stop]) => count * (stop - start), 1);

export const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

/** One of several: radio buttons that look like a switch; arrow keys move between them. */
export function choice(id, legend, options, value, choose) {
  const made = options.map(([key, words, disabled, title]) =>
    h("label", { title },
      h("input", { type: "radio", id: `${id}-${key}`, name: id, value: key, checked: key === value, disabled: Boolean(disabled), onchange: () => choose(key) }),
      h("span", {}, words)));
  return h("fieldset", { class: "choice" }, h("legend", {}, legend), h("div", { class: "segments" }, made));
}

/** One of many. */
export function select(id, label, groups, value, choose) {
  const list = h("select", { id, onchange: (event) => choose(event.target.value) });
  for (const [name, options] of groups) {
    const into = name ? list.appendChild(h("optgroup", { label: name })) : list;
    for (const [key, words] of options) into.append(h("option", { value: key, selected: key === value }, words));
  }
  return h("div", {}, h("label", { class: "label", for: id }, label), list);
}

/** A table; cells are words or `[words, class]`. */
export function table(caption, heads, rows, rowProps) {
  const cell = (value) => (Array.isArray(value) ? h("td", { class: value[1] }, value[0]) : h("td", {}, value));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", {}, caption),
      h("thead", {}, h("tr", {}, heads.map((head, k) => h("th", { scope: "col", class: /left/.test(rows[0]?.[k]?.[1]) && Array.isArray(rows[0][k]) ? "left" : null }, head)))),
      h("tbody", {}, rows.map((row, k) => h("tr", rowProps?.(k) ?? {}, row.map(cell))))));
}

export const chip = (words, number) => h("span", { class: "chip", style: `background:${colour(number)}` }, words);

/** Put new children into a container, and the focus back to where it was. */
export function show(container, ...children) {
  const focused = document.activeElement?.id;
  const scrolled = [...container.querySelectorAll(".scroll")].map((node) => node.scrollLeft);
  container.replaceChildren(...children.flat(9).filter(Boolean));
  [...container.querySelectorAll(".scroll")].forEach((node, k) => (node.scrollLeft = scrolled[k] ?? 0));
  if (focused && document.activeElement?.id !== focused) document.getElementById(focused)?.focus({ preventScroll: true });
}
