// The page's beginning: theme, keys, and the two panels.

import { getJson, keys } from "./api.js";
import { Ask } from "./ask.js";
import { byId, say } from "./dom.js";
import { FleetPanel } from "./fleet.js";

const THEME = "triptych.theme";

function chooseTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** An address may bring the admin key behind its #, which no server is sent; it leaves the bar. */
function takeKey() {
  const found = new URLSearchParams(location.hash.slice(1)).get("admin-key");
  if (!found) return;
  keys.admin = found;
  history.replaceState(null, "", location.pathname + location.search);
}

async function begin() {
  let about = { api_key: false, admin_key: true };
  try {
    about = await getJson("page/about");
  } catch (error) {
    say(byId("problem"), error.message);
  }
  const ask = new Ask(about);
  new FleetPanel(about);
  await ask.listModels();
}

chooseTheme(localStorage.getItem(THEME));
byId("theme").addEventListener("click", () => {
  const theme = isDark() ? "light" : "dark";
  chooseTheme(theme);
  localStorage.setItem(THEME, theme);
});
takeKey();
begin();
