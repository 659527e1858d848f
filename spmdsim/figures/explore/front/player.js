// Steps that can be walked: first, back, play or pause, on, last; a slider; the keys that the footer names.

import { h } from "./elements.js";

const PACE = 1400; // milliseconds per step
let current = null;

/** A player of `go(step)`; `update(step, count, words)` tells it where it is. */
export function player(go) {
  const self = { step: 0, count: 0, timer: null };
  const button = (id, words, label, act) => h("button", { type: "button", id: `player-${id}`, "aria-label": label, title: label, onclick: act }, words);
  const to = (step) => { if (step >= 0 && step <= self.count && step !== self.step) go(step); };
  const playing = () => self.timer !== null;
  const pause = () => {
    clearInterval(self.timer);
    self.timer = null;
    self.play.textContent = "▶ Play";
    self.play.setAttribute("aria-label", "Play");
  };
  const toggle = () => {
    if (playing()) return pause();
    to(self.step >= self.count ? 0 : self.step + 1);
    self.timer = setInterval(() => { if (self.step >= self.count) pause(); else to(self.step + 1); }, PACE);
    self.play.textContent = "❚❚ Pause";
    self.play.setAttribute("aria-label", "Pause");
  };
  const manual = (step) => { if (playing()) pause(); to(step); };
  self.play = button("play", "▶ Play", "Play", toggle);
  self.play.className = "play";
  self.slider = h("input", { type: "range", id: "player-slider", min: 0, max: 0, value: 0, "aria-label": "Step", oninput: (event) => manual(Number(event.target.value)) });
  self.words = h("output", { for: "player-slider", "aria-live": "polite" });
  self.buttons = [button("first", "|◀", "First step", () => manual(0)), button("back", "◀", "One step back", () => manual(self.step - 1)),
    self.play, button("on", "▶", "One step on", () => manual(self.step + 1)), button("last", "▶|", "Last step", () => manual(self.count))];
  self.node = h("div", { class: "player", role: "group", "aria-label": "Steps" }, self.buttons, self.slider, self.words);
  self.update = (step, count, words) => {
    Object.assign(self, { step, count });
    self.slider.max = count;
    self.slider.value = step;
    self.slider.setAttribute("aria-valuetext", words);
    self.words.replaceChildren(h("b", {}, `${step} of ${count}`), ` · ${words}`);
    self.buttons[0].disabled = self.buttons[1].disabled = step === 0;
    self.buttons[3].disabled = self.buttons[4].disabled = step === count;
    self.play.disabled = count === 0;
  };
  self.keys = { ArrowLeft: () => manual(self.step - 1), ArrowRight: () => manual(self.step + 1), " ": toggle, Home: () => manual(0), End: () => manual(self.count) };
  self.stop = () => { if (playing()) pause(); };
  current?.stop();
  current = self;
  return self;
}

/** Keys of the page: none where a control has its own use for them. */
export function listen(views, choose) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select, input, summary")) return;
    if (event.key === " " && event.target.closest("button, a, [role=button]")) return;
    if (event.key.startsWith("Arrow") && event.target.closest(".scroll") && event.target.scrollWidth > event.target.clientWidth) return;
    const view = views[Number(event.key) - 1];
    if (view) choose({ view });
    else if (current?.keys[event.key]) current.keys[event.key]();
    else return;
    event.preventDefault();
  });
}

/** Whether things may move. */
export const motion = () => !matchMedia("(prefers-reduced-motion: reduce)").matches;

/** Let what has an `animateMotion` in a picture go its way once, and vanish where it arrives. */
export function fly(svg) {
  requestAnimationFrame(() => svg.querySelectorAll("animateMotion").forEach((one) => {
    one.addEventListener("endEvent", () => one.parentNode.remove());
    one.beginElement?.();
  }));
}
