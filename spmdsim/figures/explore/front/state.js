// What was chosen. The address keeps it behind the `#`, so it can be shared and the browser's back button works.

export const state = { view: "layout" };
let changed = () => {};

/** Read the address. */
export function read() {
  const [view, query] = location.hash.slice(1).split("?");
  for (const name of Object.keys(state)) delete state[name];
  for (const [name, value] of new URLSearchParams(query ?? "")) state[name] = value;
  state.view = view || "layout";
}

const written = (values) => {
  const { view, ...rest } = values;
  const query = new URLSearchParams(Object.entries(rest).filter(([, value]) => value !== "" && value !== undefined));
  return `#${view}${String(query) && `?${query}`}`;
};

/** The address of what is chosen, with some of it changed. */
export const address = (values) => written({ ...state, ...values });

/** Choose: another view is one step for the back button, all else none. */
export function choose(values) {
  const before = state.view;
  Object.assign(state, values);
  for (const [name, value] of Object.entries(state)) state[name] = String(value ?? "");
  history[before === state.view ? "replaceState" : "pushState"](null, "", written(state));
  changed();
}

/** Call this whenever something else is chosen. */
export function whenChanged(listener) {
  changed = listener;
  const again = () => { read(); listener(); };
  addEventListener("hashchange", again);
  addEventListener("popstate", again);
}

/** A number of the state within bounds. */
export function number(name, most, otherwise = 0) {
  const value = Number.parseInt(state[name] ?? "", 10);
  return Number.isFinite(value) ? Math.max(0, Math.min(most, value)) : otherwise;
}

/** One of some, the first one if the state has another. */
export const oneOf = (name, options, otherwise = options[0]) =>
  options.includes(state[name]) ? state[name] : otherwise;
