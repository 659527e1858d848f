// The page: unpack the data, show the view that the address names.

import { h, show } from "./elements.js";
import { layoutView } from "./layout.js";
import { moveView } from "./move.js";
import { productView } from "./product.js";
import { listen } from "./player.js";
import { scheduleView } from "./schedule.js";
import { searchView } from "./search.js";
import { address, choose, read, state, whenChanged } from "./state.js";

const VIEWS = {
  layout: ["Layouts", layoutView],
  move: ["Redistribution", moveView],
  schedule: ["Collectives", scheduleView],
  product: ["Matmul", productView],
  search: ["Search", searchView],
};

/** The data of the page: JSON, compressed, in letters. */
async function unpack() {
  const packed = Uint8Array.from(atob(document.getElementById("data").textContent.trim()), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

const THEMES = ["system", "light", "dark"];

function theme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  const button = document.getElementById("theme");
  button.textContent = `Colours: ${name}`;
  button.onclick = () => theme(THEMES[(THEMES.indexOf(name) + 1) % THEMES.length]);
}

function start(data) {
  const main = document.getElementById("view"), tabs = document.getElementById("tabs");
  let shown = null, update = () => {};
  const render = () => {
    const view = VIEWS[state.view] ? state.view : "layout";
    if (view !== shown) {
      shown = view;
      main.replaceChildren();
      update = VIEWS[view][1](data, main);
      document.title = `${VIEWS[view][0]} · spmdsim explore`;
    }
    update();
    show(tabs, Object.entries(VIEWS).map(([name, [words]]) => h("a", { id: `tab-${name}`, href: address({ view: name, step: "" }), "aria-current": name === view ? "page" : null }, words)));
    document.documentElement.dataset.shown = location.hash;
  };
  read();
  whenChanged(render);
  listen(Object.keys(VIEWS), (values) => choose({ step: "", ...values }));
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; render(); } });
  document.getElementById("skip").onclick = (event) => { event.preventDefault(); main.focus(); };
  render();
}

theme("system");
unpack().then(start, (error) => {
  document.getElementById("view").replaceChildren(h("p", { class: "finding" }, `The data of this page cannot be read: ${error.message}`));
});
