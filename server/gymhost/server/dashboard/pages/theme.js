// Before anything is drawn: the theme that was chosen last, which pages of trajectories share, and whether this is a wall.
"use strict";

function keepTheme() {
  try {
    const theme = localStorage.getItem("gymhost-theme");
    if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
  } catch { /* a browser may refuse to keep anything; then it is the system's */ }
}

/** Takes the other theme, and keeps it. */
function turnTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("gymhost-theme", root.dataset.theme);
  } catch { /* as above */ }
}

keepTheme();
if (new URLSearchParams(location.search).has("wall")) document.documentElement.dataset.wall = "";
