// Choices of this browser: the colours, and the zone that times are shown in. They are kept between visits.

const listeners = new Set();

const stored = {
  theme: read("theme", ["auto", "light", "dark"]),
  zone: read("zone", ["local", "utc"]),
};

function read(name, allowed) {
  const value = storage()?.getItem(`postdate.${name}`);
  return allowed.includes(value) ? value : allowed[0];
}

/** The browser's storage; `undefined` where it is forbidden. */
function storage() {
  try {
    return window.localStorage;
  } catch {
    return undefined;
  }
}

export function setting(name) {
  return stored[name];
}

export function setSetting(name, value) {
  stored[name] = value;
  storage()?.setItem(`postdate.${name}`, value);
  showTheme();
  for (const listener of listeners) listener();
}

export function onSettings(listener) {
  listeners.add(listener);
}

/** Marks the page with the chosen colours; `auto` leaves them to the system. */
export function showTheme() {
  const root = document.documentElement;
  if (stored.theme === "auto") delete root.dataset.theme;
  else root.dataset.theme = stored.theme;
}
